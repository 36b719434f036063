import assert from "node:assert";
import { spawn } from "node:child_process";
import { openSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { after, before, beforeEach, test } from "node:test";

let double, ready;

async function set(method, path, body) {
  const response = await fetch(ready.admin_url + path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const record = await response.json();
  if (!response.ok) throw new Error(record.message);
  return record;
}

async function find(nickname) {
  const response = await fetch(`${ready.url}/api/v1/identify/url`, {
    method: "POST",
    headers: { Authorization: `Bearer ${ready.key}`, "Content-Type": "application/json" },
    body: JSON.stringify({ input: nickname }),
  });
  const record = await response.json();
  if (response.status === 200) return record;
  if (response.status === 404 && record.code === "not_found") return null;
  throw new Error(`not determined: status ${response.status}`);
}

before(async () => {
  writeFileSync("users.yaml", "users: []\n");
  const options = { stdio: ["pipe", "pipe", openSync("double.log", "w")] }; // its end stops the double
  const command = ["serve", "--demo", "users.yaml", "--port", "0", "--ready-fd", "1", "--stop-on-eof"];
  double = spawn("tornado-idv", command, options);
  double.on("error", () => {}); // it is not on PATH: there will be no line
  for await (const line of createInterface({ input: double.stdout })) {
    ready = JSON.parse(line);
    break;
  }
  assert(ready, "tornado-idv did not start: see double.log, or it is not on PATH");
});
beforeEach(() => set("DELETE", "/double"));
after(() => double.kill());

test("a user is found, another is not", async () => {
  await set("PUT", "/double/users/@alice", { plan: "Free", card_number: "4000123412341234" });
  assert.equal((await find("@alice")).plan, "Free");
  assert.equal(await find("@bob"), null);
});

test("an outage is not a deleted user", async () => {
  await set("PUT", "/double/faults/@bob", { status: 503 });
  await assert.rejects(find("@bob"), /not determined/);
  const { requests } = await set("GET", "/double/requests");
  assert.deepEqual(requests.map((each) => each.query), ["@bob"]);
});
