// The same request in several languages. The key is read from the environment variable IDV_KEY.

export const LANGUAGES = {curl: asCurl, Python: asPython, JavaScript: asJavaScript};

function asCurl({method, url, body}) {
  const lines = [`curl -sSi ${quote(url)}`, '-H "Authorization: Bearer $IDV_KEY"'];
  if (body !== null) lines.push("-H 'Content-Type: application/json'", `-d ${quote(body)}`);
  else if (method !== "GET") lines.splice(1, 0, `-X ${method}`);
  return lines.join(" \\\n  ");
}

function asPython({method, url, body}) {
  const call = [JSON.stringify(url)];
  if (body !== null) call.push(`data=${JSON.stringify(body)}.encode()`);
  call.push(
    `method=${JSON.stringify(method)}`,
    `headers={"Authorization": f"Bearer {os.environ['IDV_KEY']}"${
      body === null ? "" : ', "Content-Type": "application/json"'}}`,
  );
  return `import json
import os
import urllib.error
import urllib.request

request = urllib.request.Request(
    ${call.join(",\n    ")},
)
try:
    with urllib.request.urlopen(request, timeout=5) as response:
        print(json.load(response))
except urllib.error.HTTPError as error:
    print(error.code, error.headers["X-Error-Reason"], json.load(error))  # gone only if 404 and code "not_found"`;
}

function asJavaScript({method, url, body}) {
  const options = [
    `method: ${JSON.stringify(method)}`,
    `headers: {Authorization: \`Bearer \${process.env.IDV_KEY}\`${
      body === null ? "" : ', "Content-Type": "application/json"'}}`,
  ];
  if (body !== null) options.push(`body: ${JSON.stringify(body)}`);
  options.push("signal: AbortSignal.timeout(5000)");
  return `const response = await fetch(${JSON.stringify(url)}, {
  ${options.join(",\n  ")},
});
console.log(response.status, response.headers.get("X-Error-Reason"), await response.json());  // gone only if 404 and code "not_found"`;
}

function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
