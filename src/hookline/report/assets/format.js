// Numbers and times for people.

// The entry of an own table under a name from a run. Every object has a `constructor`.
function own(table, name) {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

const SPECIAL = { nan: NaN, inf: Infinity, "-inf": -Infinity };

function decode(value) {
  return (typeof value === "string" ? own(SPECIAL, value) : undefined) ?? value;
}

// `toLocaleString` would make one of these for each number, of which a page may have ten thousand.
const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const DIGITS = Array.from({ length: 17 }, (_, digits) =>
  Intl.NumberFormat("en-US", { maximumSignificantDigits: Math.max(1, digits) }),
);

function integer(value) {
  return INTEGER.format(Number(value));
}

// Five digits. A value that is not a number is shown as it is.
function number(value, digits = 5) {
  value = decode(value);
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e9 || size < 1e-4))
    return value
      .toExponential(digits - 2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  if (Number.isInteger(value)) return integer(value);
  const text = DIGITS[digits].format(value);
  return text === "-0" ? "0" : text;
}

// How many digits more than three it takes to show how far values are apart: 0.99991 is not 1 next to 0.99996.
function digitsApart(values) {
  const finite = values.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (!(high > low)) return 0;
  const needed = Math.floor(Math.log10(Math.max(-low, high) / (high - low))) + 1;
  return Math.min(9, Math.max(0, needed - 3));
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${number(value, 3)} ${units[at]}`;
}

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0) return `-${duration(-seconds)}`; // a clock was set back
  if (seconds < 1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "m"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

function percent(share) {
  return share > 0 && share < 0.0005 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
}

function moment(text) {
  const found = new Date(text);
  if (!text || Number.isNaN(found.getTime())) return "–";
  return found.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

// A setting as it is: texts without quotes, the rest as JSON would write it.
function plain(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
