// The tables and lists below the charts, rendered from status.json.

import {clock, count, day, milliseconds, span} from "./format.js";

export function render(status) {
  fill("backends", [...status.backends, status.shared_cache].filter(Boolean).map(backendRow));
  const shadows = status.shadows ?? [];
  fill("shadows", shadows.map(shadowRow));
  byId("shadows-panel").hidden = shadows.length === 0;
  fill("keys", status.keys.expiring.map(keyRow), "No key expires soon.");
  const {pid, started_at, requests} = status;
  fill("workers", (status.workers ?? [{pid, started_at, requests}]).map(workerRow));
  byId("service").replaceChildren(...facts(status).flatMap(([name, value]) => [node("dt", name), node("dd", value)]));
}

function backendRow(backend) {
  const called = Object.keys(backend.calls).length > 0;
  const state = !backend.available ? pill("failing", "bad")
    : backend.problem ? pill("degraded", "bad") : called ? pill("available", "good") : pill("not called yet", "");
  const since = backend.failing_since && node("div", `since ${ago(backend.failing_since)}`, "muted");
  const breaker = backend.breaker.replace("_", "-");
  return [
    ["Backend", node("div", backend.name, "name"), node("div", backend.kind, "muted"),
      ...(backend.servers ?? []).map(({server, role}) => node("div", `${server}, ${role}`, "muted"))],
    ["State", state, since],
    ["Circuit breaker", breaker === "closed" ? breaker : node("strong", breaker), node("div", nextProbe(backend), "muted")],
    ["p50", quantity(milliseconds(backend.latency_ms.p50))],
    ["p99", quantity(milliseconds(backend.latency_ms.p99))],
    ["Calls", quantity([count(total(backend.calls)), ""])],
    ["Last error", backend.problem ?? backend.last_error ?? node("span", "none", "muted"),
      !backend.problem && backend.last_error && node("div", ago(backend.last_error_at), "muted")],
  ];
}

function shadowRow({name, kind, problem, comparisons, fields}) {
  const number = (...words) => quantity([count(words.reduce((sum, word) => sum + comparisons[word], 0)), ""]);
  const differing = Object.keys(fields).filter((field) => fields[field] > 0).join(", ");
  return [
    ["Shadow", node("div", name, "name"), node("div", kind, "muted"), problem && node("div", problem, "problem")],
    ["Match", number("match")],
    ["Missing", number("missing")],
    ["Extra", number("extra")],
    ["Differs", number("differs"), differing && node("div", differing, "muted")],
    ["Unverified", number("unverified")],
    ["Failed", number("source_failed", "target_failed")],
    ["Skipped", number("skipped")],
  ];
}

// Return when a circuit breaker that is not closed lets a lookup through.
export function nextProbe({breaker, next_probe_s}) {
  if (breaker === "open") return `next probe in ${span(Math.ceil(next_probe_s))}`;
  return breaker === "half_open" ? "the next lookup is the probe" : "";
}

function keyRow(key) {
  const expires = new Date(key.expires);
  return [
    ["Key", node("span", key.id, "name")],
    ["Expires", node("span", day(expires), "nowrap"), " ", clock(expires)],
    ["In", quantity([span((expires - Date.now()) / 1000), ""])],
  ];
}

function workerRow(worker) {
  return [
    ["PID", String(worker.pid)],
    ["Started", ago(worker.started_at)],
    ["Requests", quantity([count(total(worker.requests)), ""])],
  ];
}

function facts(status) {
  const {found, negative} = status.cache.entries;
  const reload = status.last_reload;
  return [
    ["Version", status.version],
    ["Running for", span(status.uptime_s)],
    ["Connections", count(total(status.connections))],
    ["Cache entries", `${count(found)} found, ${count(negative)} not found`],
    ["Cache evictions", count(status.cache.evictions)],
    ["Keys", count(status.keys.count)],
    ...(status.key_store?.error ? [["Key store", status.key_store.error]] : []),
    ["Log lines dropped", count(status.log_dropped)],
    ...(reload ? [["Last reload", [reload.result, reload.problem, ago(reload.time)].filter(Boolean).join(", ")]] : []),
  ];
}

// Replace the rows of a table; each cell is [column, ...contents].
function fill(id, rows, empty = "") {
  const columns = byId(id).parentElement.tHead.rows[0].cells;
  if (rows.length === 0) {
    const cell = node("td", empty, "muted");
    cell.colSpan = columns.length;
    byId(id).replaceChildren(node("tr", cell));
    return;
  }
  byId(id).replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach(([column, ...contents], i) => {
      const cell = document.createElement(i === 0 ? "th" : "td");
      if (i === 0) cell.scope = "row";
      cell.className = columns[i].className;
      cell.dataset.column = column;
      const box = document.createElement("div");
      box.append(...contents.filter(Boolean));
      cell.append(box);
      row.append(cell);
    });
    return row;
  }));
}

export function pill(text, kind) {
  return node("span", text, `pill ${kind}`);
}

export function node(tag, content, className = "") {
  const element = document.createElement(tag);
  element.append(content);
  element.className = className;
  return element;
}

function quantity([digits, unit]) {
  const element = node("span", digits);
  if (unit) element.append(" ", node("small", unit));
  return element;
}

// Return the sum of all numbers in a record of records, or a number as it is.
function total(counts) {
  if (typeof counts === "number") return counts;
  return Object.values(counts).reduce((sum, each) => sum + total(each), 0);
}

export function ago(text) {
  const time = new Date(text);
  const seconds = (Date.now() - time) / 1000;
  const date = seconds > 86400 ? `${day(time)} ` : "";
  return `${date}${clock(time)} (${span(seconds)} ago)`;
}

function byId(id) {
  return document.getElementById(id);
}
