// Exits 0 if the user exists, 1 if it certainly does not, 3 if that could not be determined.

async function exists(identifier) {
  const response = await fetch(`${process.env.TORNADO_IDV_URL}/api/v1/identify/url`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${process.env.TORNADO_IDV_KEY}`,
      "Content-Type": "application/json",
    },
    body: JSON.stringify({input: identifier}),
    signal: AbortSignal.timeout(2000),
  });
  const record = await response.json();
  if (response.status === 200 && record.status === "ok") return true;
  if (response.status === 404 && record.code === "not_found") return false;
  throw new Error(`status ${response.status}`);
}

try {
  process.exitCode = (await exists(process.argv.at(-1))) ? 0 : 1;
} catch (error) {
  console.error(`not determined: ${error.message}`);
  process.exitCode = 3; // an uncaught exception would be 1
}
