// Requests to the admin listener. The key is in memory only, and sent with each request.

const TIMEOUT_MS = 3000;

let key = null;

export class AccessDenied extends Error {}

export function setKey(text) {
  key = text;
}

// Return the parsed response; throw AccessDenied where another key is needed.
export async function getJson(path) {
  const response = await send(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// Return {ok, record}: errors of the listener are records, too.
export async function postJson(path, body) {
  const response = await send(path, {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify(body),
  });
  return {ok: response.ok, record: await response.json()};
}

async function send(path, options = {}) {
  const headers = {...options.headers};
  if (key) headers.Authorization = `Bearer ${key}`;
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(path, {...options, headers, signal, cache: "no-store"});
  if (response.status === 401) {
    throw new AccessDenied(key ? "This key is not valid." : "");
  }
  if (response.status === 403) {
    throw new AccessDenied("This key does not have the scope admin.");
  }
  return response;
}
