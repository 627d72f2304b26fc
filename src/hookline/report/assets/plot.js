// The options of the chart library.

function plotOptions(chart) {
  const axis = {
    stroke: () => colour("faint"),
    grid: { stroke: () => colour("grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    ...chart.size(),
    legend: { show: false },
    padding: [8, 22, 0, 0],
    scales: {
      x: { time: false, range: () => chart.range() },
      y: chart.log
        ? { distr: 3, range: (plot, low, high) => (low > 0 ? [low / 1.1, high * 1.1] : [0.1, 1]) }
        : { range: (plot, low, high) => yRange(low, high) },
    },
    axes: [
      {
        ...axis,
        size: 26,
        space: 70,
        incrs: own(DISTANCES, chart.across()),
        values: (plot, splits) =>
          chart.across() === "seconds" ? timeLabels(splits) : numberLabels(splits, { compact: false }),
      },
      {
        ...axis,
        size: labelWidth,
        space: 38,
        ...(chart.unit === "time"
          ? { incrs: TIMES }
          : { splits: (plot, at, low, high) => evenSplits(low, high, chart.height) }),
        values: (plot, splits) =>
          chart.log
            ? splits.map((split) => logLabel(chart, plot, split))
            : (own(LABELS, chart.unit) ?? numberLabels)(splits),
        ...(chart.log ? { splits: (plot, at, low, high) => logSplits(low, high), filter: (plot, all) => all } : {}),
      },
    ],
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      sync: chart.apart
        ? undefined
        : {
            key: "hookline",
            setSeries: false,
            scales: ["x", null],
            filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" },
          },
      dataIdx: (plot, series, at) => (series ? before(plot, series, at) : at),
      points: { size: 7, width: 2, fill: () => colour("card") },
      bind: { dblclick: () => () => chart.setZoom(null) },
    },
    series: [{}, ...chart.lines.flatMap((line) => seriesOf(chart, line))],
    hooks: {
      setCursor: [(plot) => chart.cursor(plot)],
      setSelect: [(plot) => chart.select(plot)],
      drawClear: [(plot) => chart.apart || drawMarks(plot, chart.lines[0].clock)],
      draw: [
        (plot) =>
          drawOdd(
            plot,
            chart.lines.filter((line) => chart.shown(line)),
          ),
      ],
    },
  };
}

function labelWidth(plot, texts) {
  return 16 + 6.2 * Math.max(3, ...(texts ?? [""]).map((text) => (text ?? "").length));
}

function logLabel(chart, plot, split) {
  if (split === null || split === undefined || !hasRoom(plot.scales.y, split)) return "";
  return (own(UNITS, chart.unit) ?? short)(split);
}

// The library's own lines of a logarithmic scale need one that begins at a power of ten.
function logSplits(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.floor(Math.log10(high))];
  const every = Math.ceil((last - first + 1) / 8);
  const digits = last - first > 6 ? [1] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  const splits = [];
  for (let power = first; power <= last; power += every)
    splits.push(...digits.map((digit) => Number(`${digit}e${power}`)));
  const inside = splits.filter((split) => split >= low && split <= high);
  return inside.length ? inside : [low, high];
}

// Which lines of a logarithmic scale have room for a number.
function hasRoom({ min, max }, split) {
  const digit = Math.round(split / 10 ** Math.floor(Math.log10(split) + 1e-9));
  if (max / min < 5) return true;
  return digit === 1 || (max / min < 200 && (digit === 2 || digit === 5));
}

// The place of a line's last value at or before the cursor: what comes later was not known there.
function before(plot, series, at) {
  const [places, values] = [plot.data[0], plot.data[series]];
  let place = places[at] > cursorPoint(plot) ? at - 1 : at;
  while (place >= 0 && (values[place] === null || values[place] === undefined)) place -= 1;
  return place >= 0 ? place : null;
}

// Where the cursor is; a point that it touches is not ahead of it.
function cursorPoint(plot) {
  return plot.posToVal(plot.cursor.left + 1, "x");
}

// More runs than colours: the same colours again, in lines that are not solid.
const DASHES = [undefined, [2, 3], [9, 3, 2, 3]];

// Two for each line: what was measured, and its smooth form.
function seriesOf(chart, line) {
  const few = line.curve.count <= 60;
  const base = { show: chart.shown(line), dash: DASHES[line.round] ?? (line.curve.kind === "epoch" ? [5, 4] : undefined) };
  const rough = () => view.smoothing > 0 && line.curve.kind === "step";
  return [
    {
      ...base,
      stroke: () => colour(line.colour, rough() ? 0.22 : 1),
      width: line.curve.kind === "eval" ? 2 : 1.5,
      points: few
        ? { show: true, size: line.curve.count === 1 ? 9 : 5, width: 1.5, fill: () => colour("card") }
        : { show: false },
    },
    {
      ...base,
      show: base.show && view.smoothing > 0,
      stroke: () => colour(line.colour),
      width: 2,
      points: { show: false },
    },
  ];
}
