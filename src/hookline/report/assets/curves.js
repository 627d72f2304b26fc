// From the page's data to the columns that a chart draws.

const AXES = { step: "step", epoch: "epoch", seconds: "time" };

function sums(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

// A curve with its steps and numbers; decoded once, when it is first drawn.
function decodeCurve(curve) {
  if (!curve.steps) {
    curve.steps = sums(curve.x);
    curve.values = curve.y.map(decode);
    if (curve.mean) {
      curve.mean.steps = sums(curve.mean.x);
      curve.mean.values = curve.mean.y.map(decode);
    }
  }
  return curve;
}

// Where steps are on another axis: straight lines between the points of the run's clock.
function along(clock, axis, steps) {
  if (axis === "step") return steps;
  const [from, to] = [clock.step, clock[axis]];
  let at = 0;
  return steps.map((step) => {
    while (at < from.length - 2 && from[at + 1] < step) at += 1;
    if (from.length < 2) return to[0] ?? 0;
    const part = (step - from[at]) / (from[at + 1] - from[at]);
    return to[at] + part * (to[at + 1] - to[at]);
  });
}

// An exponential moving average without a bias at the start. Values that are not numbers are skipped.
function smooth(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function drawable(values, log) {
  return values.map((value) => (Number.isFinite(value) && (!log || value > 0) ? value : null));
}

// The columns of a chart: one x for all, and two for each line, its values and its smooth form.
function columns(lines, { axis, smoothing, log }) {
  const tables = lines.flatMap(({ curve, clock, places }) => {
    const rough = curve.mean ?? curve;
    const fine =
      smoothing > 0 && curve.kind === "step"
        ? drawable(smooth(rough.values, smoothing), log)
        : rough.steps.map(() => null);
    return [joinable(places, drawable(curve.values, log)), joinable(along(clock, axis, rough.steps), fine)];
  });
  // Null is a gap, from the value before it to that after it; where only another line has a point nothing is cut.
  return tables.length
    ? uPlot.join(
        tables,
        tables.map((_, at) => (at % 2 ? [0, 0] : [0, 2])),
      )
    : [[]];
}

// A chart needs growing places. Where a coarse clock puts several steps on one, they are moved apart by a hair.
function joinable(places, values) {
  const hair = Math.max(1e-12, Math.abs(places[places.length - 1] ?? 0) * 1e-9);
  const x = places.slice();
  for (let at = 1; at < x.length; at += 1) if (x[at] <= x[at - 1]) x[at] = x[at - 1] + hair;
  return [x, values];
}

// The place of the value that is nearest to a point on the axis; places grow.
function closest(places, point) {
  let [low, high] = [0, places.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle] <= point) low = middle;
    else high = middle;
  }
  return point - places[low] <= places[high] - point ? low : high;
}

// The place of the last value at or before a point on the axis; -1 if there is none.
function lastUpTo(places, point) {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] <= point) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
