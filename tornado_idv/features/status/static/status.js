// Asks for status.json each second and shows it, or says since when there was no response.

import {AccessDenied, getJson, setKey} from "./api.js";
import * as charts from "./charts.js";
import * as explain from "./explain.js";
import {clock} from "./format.js";
import {render} from "./panels.js";
import * as problems from "./problems.js";

const INTERVAL_MS = 1000;
const STATES = {ready: ["Ready", "good"], degraded: ["Degraded", "warn"], draining: ["Draining", "warn"]};

const byId = (id) => document.getElementById(id);
let updated = null;
let keyEntered = () => {};

async function update() {
  try {
    const status = await getJson("status.json");
    reveal("figures");
    if (!charts.append(status.recent)) charts.load((await getJson("status/history.json")).samples);
    problems.render(status, byId("problem-panel"), byId("problem-list"));
    render(status);
    showState(status);
  } catch (error) {
    if (!(error instanceof AccessDenied)) return showNoResponse();
    await askForKey(error.message);
    await update();
  }
}

function showState(status) {
  updated = new Date();
  const [text, kind] = STATES[status.status];
  byId("figures").classList.toggle("failing", status.degraded.length > 0);
  setState(text, kind, status.degraded.map((part) => `${part} fails`).join(", "));
  byId("updated").textContent = `Updated ${clock(updated)}`;
  byId("offline").hidden = true;
}

function showNoResponse() {
  setState("No response", "bad");
  const banner = byId("offline");
  if (!banner.hidden) return;
  const since = updated ? `The last update was at ${clock(updated)}; the figures are from then.` : "There was no update yet.";
  banner.textContent = `The service does not respond. ${since} Trying again every second.`;
  banner.hidden = false;
}

// Screen readers say the state when it changes, so it is not written with each update.
function setState(text, kind, problems = "") {
  const [pill, list] = [byId("pill"), byId("problems")];
  if (pill.textContent !== text) pill.textContent = text;
  if (list.textContent !== problems) list.textContent = problems;
  pill.className = `pill ${kind}`;
  document.title = `${text} – tornado-idv status`;
}

// Show the form, and return when a key was entered.
function askForKey(problem) {
  reveal("access");
  setState("Key needed", "warn");
  byId("access-problem").textContent = problem;
  byId("key").focus();
  return new Promise((resolve) => { keyEntered = resolve; });
}

function takeKey(event) {
  event.preventDefault();
  setKey(encodeURI(byId("key").value.trim())); // a header field has to be ASCII
  byId("key").value = "";
  byId("access-problem").textContent = "";
  keyEntered();
}

function reveal(id) {
  for (const each of ["figures", "access"]) byId(each).hidden = each !== id;
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, {once: true}));
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
}

byId("access-form").addEventListener("submit", takeKey);
charts.create(byId("charts"), byId("period"));
explain.listen(byId("explain-form"), byId("input"), byId("hint"), byId("explanation"));
for (;;) {
  await visible();
  await update();
  await pause();
}
