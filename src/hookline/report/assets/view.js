// The kinds of pages, by the `page` of their data: each gives a title, what is under it, and sections. A script that
// `document(scripts=…)` adds registers its own in the same way: `PAGES.watch = watchPage`.
const PAGES = {};

// The state that all charts share: the axis, the zoom, the smoothing.

const view = {
  axis: "step",
  smoothing: 0,
  zoom: null,
  full: [0, 1],
  hidden: new Set(),
  charts: [],
  painted: [],
  marks: [],
  filter: "",
  log: false,
  unfolded: new Set(),
};

function setView(changes) {
  Object.assign(view, changes);
  if ("axis" in changes) view.zoom = null;
  view.full = extent();
  for (const chart of view.charts) chart.redraw();
}

function setZoom(range) {
  view.zoom = range && drawableRange(...range);
  for (const chart of view.charts) chart.rezoom();
}

// The axis is the same for all charts, so that one can be compared with the one below it: but for those with steps of
// their own.
function extent() {
  return extentOf(
    view.charts.filter(({ apart }) => !apart).flatMap(({ lines }) => lines),
    view.axis,
  );
}

function extentOf(lines, axis) {
  let [low, high] = [Infinity, -Infinity];
  for (const { curve, clock } of lines) {
    const ends = along(clock, axis, [curve.steps[0], curve.steps[curve.steps.length - 1]]);
    [low, high] = [Math.min(low, ends[0]), Math.max(high, ends[1])];
  }
  if (!(low < high)) return Number.isFinite(low) ? [low > 0 ? Math.max(0, low - 1) : low - 1, high + 1] : [0, 1];
  const room = (high - low) * 0.01;
  return [low - room, high + room];
}

function atText(point, axis) {
  if (axis === "seconds") return duration(point);
  return axis === "epoch" ? `epoch ${number(point, 3)}` : `step ${integer(point)}`;
}

function zoomedOut(low, high, [first, last]) {
  const half = (high - low) / 2;
  const range = [Math.max(first, low - half), Math.min(last, high + half)];
  return range[0] <= first && range[1] >= last ? null : range;
}

function yRange(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-1, 1] : drawableRange(low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1);
  const room = (high - low) * 0.06;
  return drawableRange(low >= 0 && low - room < 0 ? 0 : low - room, high + room);
}

// A range in which the lines of the grid can be told apart by numbers of 64 bits.
function drawableRange(low, high) {
  const [least, most] = [Math.max(low, -8e307), Math.min(high, 8e307)];
  const missing = Math.max(1e-9 * Math.max(Math.abs(least), Math.abs(most)), 1e-200) - (most - least);
  return missing > 0 ? [least - missing / 2, most + missing / 2] : [least, most];
}
