// The list of what fails, before the charts: on a phone it is the first screen.

import {span} from "./format.js";
import {ago, nextProbe, node, pill} from "./panels.js";

const KEY_WARNING_MS = 3 * 86400 * 1000;

export function render(status, panel, list) {
  const items = [...failures(status), ...warnings(status)];
  list.replaceChildren(...items.map(item));
  panel.hidden = items.length === 0;
}

// Return [title, state, kind, ...lines] of each part that fails.
function failures(status) {
  const parts = [["Key store", status.key_store], ["Cache snapshot", status.cache_snapshot],
    ["Unix sockets", status.unix_sockets]];
  const sources = status.backends.map((each) => [`Backend ${each.name}`, each]);
  sources.push(...(status.shadows ?? []).map((each) => [`Shadow ${each.name}`, each]));
  if (status.shared_cache) sources.push(["Shared cache", status.shared_cache]);
  const reload = status.last_reload;
  return [
    ...sources.filter(([, each]) => !each.available || each.problem).map(([name, each]) => source(name, each)),
    ...parts.filter(([, part]) => part?.error).map(([name, {error, since}]) => (
      [name, "failing", "bad", error, `since ${ago(since)}`])),
    ...status.degraded.filter((part) => part.startsWith("worker")).map((name) => [name, "not running", "bad"]),
    ...(reload?.result === "failed" ? [["Reload", "failed", "bad", reload.problem, ago(reload.time)]] : []),
  ];
}

function source(name, backend) {
  const {available, problem, last_error, failing_since, breaker} = backend;
  const circuit = breaker !== "closed" && `circuit breaker ${breaker.replace("_", "-")}, ${nextProbe(backend)}`;
  const since = failing_since && `since ${ago(failing_since)}`;
  return [name, available ? "degraded" : "failing", "bad", problem ?? last_error, since, circuit];
}

// The list of keys begins with the one that expires next.
function warnings({keys: {expiring}}) {
  if (expiring.length === 0) return [];
  const left = new Date(expiring[0].expires) - Date.now();
  if (left > KEY_WARNING_MS) return [];
  const others = expiring.length > 1 ? "; others within 14 days" : "";
  return [[`Key ${expiring[0].id}`, "expires soon", "warn", `in ${span(left / 1000)}${others}`]];
}

function item([title, state, kind, ...lines]) {
  const element = node("li", node("span", title, "name"));
  element.append(pill(state, kind), ...lines.filter(Boolean).map((line) => node("div", line)));
  return element;
}
