// The charts: cards with their latest values, and the last 15 minutes or the time since the start.

import {milliseconds, percent, rate, clock} from "./format.js";

const SPAN = 900;
const MAX_GAP = 3;
const HEIGHT = 130;

const CARDS = [
  {title: "Requests", format: rate, series: [["requests", "Requests", "--blue"]]},
  {title: "Latency", format: milliseconds, series: [
    ["p50", "p50", "--blue"], ["p95", "p95", "--violet"], ["p99", "p99", "--orange"]]},
  {title: "Errors", format: rate, wide: true, series: [
    ["errors", "5xx failed", "--red"], ["status_429", "429 limited", "--orange"],
    ["status_401", "401 bad key", "--violet"], ["status_403", "403 no scope", "--blue"],
    ["status_404", "404 not found", "--muted"]]},
  {title: "Cache hit ratio", format: percent, max: 1, series: [["hit_ratio", "Hits", "--green"]]},
  {title: "Served stale", format: rate, series: [["stale", "Stale answers", "--orange"]]},
];
const FIELDS = ["time", ...CARDS.flatMap((card) => card.series.map(([field]) => field))];

let samples = null;
let charts = [];
let period = null;

// Replace all samples by columns of the history.
export function load(columns) {
  samples = Object.fromEntries(FIELDS.map((field) => [field, columns[field]]));
  draw();
}

// Add a sample; return false where samples are missing before it, so that the history is needed.
export function append(sample) {
  if (samples === null) return false;
  const last = samples.time.at(-1) ?? 0;
  if (sample === null || sample.time === last) return true;
  if (sample.time < last || sample.time - last > MAX_GAP) return false;
  for (const field of FIELDS) {
    samples[field].push(sample[field]);
    if (samples[field].length > SPAN) samples[field].shift();
  }
  draw();
  return true;
}

// Create the cards, which adapt to their width and to the color scheme; `heading` gets the time they show.
export function create(parent, heading) {
  period = heading;
  charts = CARDS.map((card) => {
    const {element, plot, show} = createCard(card);
    parent.append(element);
    const chart = new uPlot(options(card, show), [[], ...card.series.map(() => [])], plot);
    new ResizeObserver(() => chart.setSize({width: plot.clientWidth, height: HEIGHT})).observe(plot);
    return {card, chart, show};
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const {chart} of charts) chart.redraw(false, true);
  });
}

// Return the bounds of the time axis, and whether there are samples for all of it.
function bounds() {
  const now = Date.now() / 1000;
  const [first, last] = [samples?.time[0] ?? now, samples?.time.at(-1) ?? now];
  const full = last - first > SPAN - MAX_GAP;
  return {start: full ? last - SPAN : Math.min(first, last - 1), last, full};
}

function draw() {
  const {start, full} = bounds();
  const text = full ? "of the last 15 minutes" : `since ${second(start)}`;
  if (period.textContent !== text) period.textContent = text;
  for (const {card, chart, show} of charts) {
    chart.setData([samples.time, ...card.series.map(([field]) => samples[field])]);
    show(chart.cursor.idx);
  }
}

function createCard(card) {
  const element = document.createElement("article");
  element.className = card.wide ? "card chart wide" : "card chart";
  const title = document.createElement("h3");
  title.textContent = card.title;
  const moment = document.createElement("span");
  moment.className = "muted moment";
  title.append(" ", moment);
  const values = document.createElement("dl");
  const cells = card.series.map(([field, label, color]) => {
    const group = document.createElement("div");
    const name = document.createElement("dt");
    const value = document.createElement("dd");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = `var(${color})`;
    name.append(swatch, label);
    value.id = `value-${field}`;
    group.append(name, value);
    values.append(group);
    return value;
  });
  const plot = document.createElement("div");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `Chart: ${card.title}`);
  element.append(title, values, plot);

  // Show the values at a position of the cursor, or the latest.
  function show(index) {
    const hovered = index != null && samples?.time[index] !== undefined;
    const at = hovered ? index : (samples?.time.length ?? 0) - 1;
    moment.textContent = hovered ? `at ${second(samples.time[at])}` : "";
    card.series.forEach(([field], i) => setQuantity(cells[i], card.format(samples?.[field][at])));
  }
  return {element, plot, show};
}

function setQuantity(element, [digits, unit]) {
  const small = document.createElement("small");
  small.textContent = unit;
  element.replaceChildren(digits, " ", small);
}

function options(card, show) {
  const color = (name) => () => getComputedStyle(document.body).getPropertyValue(name);
  const axis = {stroke: color("--muted"), grid: {stroke: color("--line"), width: 1}, ticks: {show: false},
    font: "11px system-ui, sans-serif"};
  return {
    width: 300, height: HEIGHT, legend: {show: false}, padding: [6, 28, 0, 0],
    cursor: {sync: {key: "time"}, drag: {x: false, y: false}, y: false},
    scales: {
      x: {range: () => { const {start, last} = bounds(); return [start, last]; }},
      y: {range: (_, __, max) => [0, card.max ?? (max > 0 ? max * 1.15 : 1)]},
    },
    axes: [
      {...axis, size: 24, space: 70, values: (_, splits, __, ___, step) => splits.map(step < 60 ? second : minute)},
      {...axis, size: 58, space: 24, values: (_, splits) => splits.map((each) => card.format(each).join(" "))},
    ],
    series: [{}, ...card.series.map(([, label, name]) => (
      {label, stroke: color(name), width: 1.75, points: {show: false}}))],
    hooks: {setCursor: [(chart) => show(chart.cursor.idx)]},
  };
}

function second(time) {
  return clock(new Date(time * 1000));
}

function minute(time) {
  return second(time).slice(0, 5);
}
