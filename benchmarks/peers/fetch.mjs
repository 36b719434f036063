// Sends lookups with Node's fetch on eight connections: node fetch.mjs PORT SECONDS USERS KEY
const [port, seconds, users, key] = process.argv.slice(2);
const url = `http://127.0.0.1:${port}/api/v1/identify/url`;
const end = performance.now() + seconds * 1000;

async function send() {
  let count = 0;
  while (performance.now() < end) {
    const number = String(Math.floor(Math.random() * users)).padStart(8, "0");
    const response = await fetch(url, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
      body: JSON.stringify({ input: `@user${number}` }),
    });
    await response.arrayBuffer();
    if (response.status !== 200) throw new Error(`a response with status ${response.status}`);
    count += 1;
  }
  return count;
}

const counts = await Promise.all(Array.from({ length: 8 }, send));
console.log(counts.reduce((a, b) => a + b));
