// Numbers next to the lines of a grid. They have as many digits as the distance between two lines needs: with fewer, two
// of them would be the same, or a line would be said to be where it is not.

const SECOND_PARTS = [1, 2, 5];
const TIMES = [
  ...[-6, -5, -4, -3, -2, -1].flatMap((power) => SECOND_PARTS.map((digit) => Number(`${digit}e${power}`))),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200],
  ...[0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => SECOND_PARTS.map((digit) => 86400 * digit * 10 ** power)),
];
// There is no step 12.5.
const WHOLE = Array.from({ length: 16 }, (_, power) => SECOND_PARTS.map((digit) => digit * 10 ** power)).flat();
const DISTANCES = { seconds: TIMES, step: WHOLE };
const LARGE = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "K"],
];
const SPACE = 38;
const HUGE = 1e15;
const TINY = 1e-4;

// The texts of evenly spaced lines: one function for each unit.
const LABELS = { size: sizeLabels, time: timeLabels };

// How far apart they are, and how far from zero.
function spacing(splits) {
  const known = splits.filter(Number.isFinite);
  const step = known.length > 1 ? Math.abs(known[1] - known[0]) : 0;
  const most = Math.max(0, ...known.map(Math.abs));
  return { step: step || most || 1, most };
}

// The library's own lines end at 1e-16.
function evenSplits(low, high, height) {
  const least = ((high - low) * SPACE) / Math.max(SPACE, height - 34);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((each) => each >= least * (1 - 1e-9)) ?? least;
  const splits = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && splits.length < 99; at += 1)
    splits.push(Number((at * step).toPrecision(15)));
  return splits;
}

// How many digits behind the point a step has: 0.00025 has five.
function decimals(step) {
  for (let count = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)); count < 100; count += 1) {
    const whole = step * 10 ** count;
    if (Math.abs(whole - Math.round(whole)) < 1e-3 * Math.max(1, whole) || count > 20) return count;
    if (whole > 1e4) return count;
  }
  return 100;
}

function fixed(value, count) {
  const text = INTEGER_AND[Math.min(count, 20)].format(value);
  return /^-[0.,]*$/.test(text) ? text.slice(1) : text;
}

const INTEGER_AND = Array.from({ length: 21 }, (_, count) =>
  Intl.NumberFormat("en-US", { minimumFractionDigits: count, maximumFractionDigits: count }),
);

function numberLabels(splits, { compact = true } = {}) {
  const { step, most } = spacing(splits);
  if (most >= HUGE || (most < TINY && most > 0)) return splits.map((split) => exponent(split, step));
  const count = decimals(step);
  const [unit, letter] = (compact && most >= 1e4 && LARGE.find(([size]) => most >= size)) || [1, ""];
  const fewer = decimals(step / unit);
  const large = (split) => (split === 0 ? "0" : `${fixed(split / unit, fewer)}${letter}`);
  if (letter && fewer <= 3) return splits.map(large);
  return splits.map((split) => fixed(split, count));
}

function exponent(value, step) {
  if (value === 0 || Math.abs(value) < step / 1e6) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  const count = Math.min(15, Math.max(0, decimals(step / 10 ** power)));
  return value.toExponential(count).replace("e+", "e");
}

// All in the unit of the largest.
function sizeLabels(splits) {
  const { step, most } = spacing(splits);
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [at, size] = [2, 1];
  while (at < units.length - 1 && most >= 1000 * size) [at, size] = [at + 1, size * 1000];
  while (at > 0 && most < size && most > 0) [at, size] = [at - 1, size / 1000];
  const texts = numberLabels(
    splits.map((split) => split / size),
    { compact: false },
  );
  return texts.map((text) => `${text} ${units[at]}`);
}

function timeLabels(splits) {
  const { step, most } = spacing(splits);
  if (most < 60) {
    const [size, unit] = most < 1 ? [1000, "ms"] : [1, "s"];
    const texts = numberLabels(
      splits.map((split) => split * size),
      { compact: false },
    );
    return texts.map((text, at) => (splits[at] === 0 ? "0 s" : `${text} ${unit}`));
  }
  return splits.map((split) => (split < 0 ? "-" : "") + clockTime(Math.abs(split), step));
}

// Down to the unit of the step: "1 h 0 m 10 s" differs from "1 h 0 m 20 s".
function clockTime(seconds, step) {
  const count = step < 1 ? decimals(step) : 0;
  let rest = Number(seconds.toFixed(count));
  const parts = [];
  for (const [size, unit] of [
    [86400, "d"],
    [3600, "h"],
    [60, "m"],
  ]) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole) parts.push(`${integer(whole)} ${unit}`);
  }
  if (rest > 10 ** -count / 2) parts.push(`${fixed(rest, count)} s`);
  return parts.join(" ") || "0 s";
}

// A number for an axis whose lines are not evenly spaced.
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e4 && size < HUGE)
    return Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 }).format(value);
  return number(value, 4);
}
