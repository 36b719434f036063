// The charts: cards, each with its latest values and the last 15 minutes.

import {milliseconds, percent, rate, clock} from "./format.js";

const SPAN = 900;
const MIN_SPAN = 30;
const MAX_GAP = 3;
const HEIGHT = 130;

const CARDS = [
  {title: "Requests", format: rate, series: [["requests", "Requests", "--blue"]]},
  {title: "Errors", format: rate, series: [
    ["errors", "5xx", "--red"], ["status_429", "429", "--orange"], ["status_404", "404", "--blue"],
    ["status_403", "403", "--green"], ["status_401", "401", "--violet"]]},
  {title: "Latency", format: milliseconds, series: [
    ["p50", "p50", "--blue"], ["p95", "p95", "--violet"], ["p99", "p99", "--orange"]]},
  {title: "Cache hit ratio", format: percent, max: 1, series: [["hit_ratio", "Hits", "--green"]]},
  {title: "Served stale", format: rate, series: [["stale", "Stale answers", "--orange"]]},
];
const FIELDS = ["time", ...CARDS.flatMap((card) => card.series.map(([field]) => field))];

let samples = null;
let charts = [];

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

// Create the cards; the charts adapt to their width and to the color scheme.
export function create(parent) {
  charts = CARDS.map((card) => {
    const {element, plot, show} = createCard(card);
    parent.append(element);
    const chart = new uPlot(options(card, show), emptyData(card), plot);
    new ResizeObserver(() => chart.setSize({width: plot.clientWidth, height: HEIGHT})).observe(plot);
    return {card, chart, show};
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const {chart} of charts) chart.redraw(false, true);
  });
}

function draw() {
  const {time} = samples;
  const isFull = time.length > 0 && time.at(-1) - time[0] >= SPAN - MAX_GAP;
  const shown = isFull || time.length === 0 ? "of the last 15 minutes" : `since ${clock(new Date(time[0] * 1000))}`;
  document.getElementById("shown").textContent = shown;
  for (const {card, chart, show} of charts) {
    chart.setData([samples.time, ...card.series.map(([field]) => samples[field])]);
    show(chart.cursor.idx);
  }
}

function emptyData(card) {
  return [[], ...card.series.map(() => [])];
}

function createCard(card) {
  const element = document.createElement("article");
  element.className = "card chart";
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
    moment.textContent = hovered ? `at ${clock(new Date(samples.time[at] * 1000))}` : "";
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
    width: 300, height: HEIGHT, legend: {show: false}, padding: [6, 16, 0, 0],
    cursor: {sync: {key: "time"}, drag: {x: false, y: false}, y: false},
    scales: {
      x: {range: (_, min, max) => [Math.max(Math.min(min, max - MIN_SPAN), max - SPAN), max]},
      y: {range: (_, __, max) => [0, card.max ?? (max > 0 ? max * 1.15 : 1)]},
    },
    axes: [
      {...axis, size: 24, space: 70, values: (_, splits) => splits.map(minute)},
      {...axis, size: 58, space: 24, values: (_, splits) => splits.map((each) => card.format(each).join(" "))},
    ],
    series: [{}, ...card.series.map(([, label, name]) => (
      {label, stroke: color(name), width: 1.75, points: {show: false}}))],
    hooks: {setCursor: [(chart) => show(chart.cursor.idx)]},
  };
}

function minute(seconds) {
  return clock(new Date(seconds * 1000)).slice(0, 5);
}
