// Numbers and times as text. Quantities are [digits, unit], since units are shown smaller.

const NONE = ["–", ""];
const whole = new Intl.NumberFormat("en");

function digits(value) {
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(value < 1 ? 2 : 1) : whole.format(Math.round(value));
}

export function count(value) {
  return whole.format(value);
}

export function rate(value) {
  if (value == null) return NONE;
  return value < 100000 ? [digits(value), "/s"] : [whole.format(Math.round(value / 1000)), "k/s"];
}

export function milliseconds(value) {
  if (value == null) return NONE;
  if (value === 0) return ["0", "ms"];
  if (value < 1) return [String(Math.round(value * 1000)), "µs"];
  return value < 1000 ? [digits(value), "ms"] : [(value / 1000).toFixed(2), "s"];
}

export function percent(value) {
  if (value == null) return NONE;
  return [String(Math.round(value * 1000) / 10), "%"];
}

export function clock(time) {
  return time.toLocaleTimeString("en", {hourCycle: "h23"});
}

export function day(time) {
  return time.toLocaleDateString("en-CA");
}

// Return a span of seconds in its two largest units.
export function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(units.findIndex(([, size]) => seconds >= size), 0);
  if (seconds < 60) return `${Math.max(Math.floor(seconds), 0)} s`;
  let rest = seconds;
  return units.slice(first, first + 2).map(([unit, size]) => {
    const number = Math.floor(rest / size);
    rest -= number * size;
    return `${number} ${unit}`;
  }).join(" ");
}
