// How the chart library is told to draw a chart.

const TIMES = [
  0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800,
  432000, 864000, 2592000, 8640000,
];

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
      x: { time: false, range: () => view.zoom ?? view.full },
      y: chart.log
        ? { distr: 3, range: (plot, low, high) => (low > 0 ? [low / 1.1, high * 1.1] : [0.1, 1]) }
        : { range: (plot, low, high) => yRange(low, high) },
    },
    axes: [
      {
        ...axis,
        size: 26,
        space: 70,
        incrs: view.axis === "seconds" ? TIMES : undefined,
        values: (plot, splits) => splits.map((split) => (view.axis === "seconds" ? duration(split) : number(split, 4))),
      },
      {
        ...axis,
        size: (plot, texts) => 16 + 6.2 * Math.max(3, ...(texts ?? [""]).map((text) => (text ?? "").length)),
        space: 38,
        values: (plot, splits) => splits.map((split) => tick(chart, plot, split)),
        ...(chart.log ? { splits: (plot, at, low, high) => logSplits(low, high), filter: (plot, all) => all } : {}),
      },
    ],
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      sync: {
        key: "hookline",
        setSeries: false,
        scales: ["x", null],
        filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" },
      },
      dataIdx: (plot, series, at) => (series ? nearest(plot.data[series], at) : at),
      points: { size: 7, width: 2, fill: () => colour("card") },
      bind: { dblclick: () => () => setZoom(null) },
    },
    series: [{}, ...chart.lines.flatMap((line) => seriesOf(chart, line))],
    hooks: {
      setCursor: [(plot) => chart.cursor(plot)],
      setSelect: [(plot) => chart.select(plot)],
      drawClear: [(plot) => drawMarks(plot, chart.lines[0].clock)],
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

function tick(chart, plot, split) {
  if (split === null || split === undefined) return "";
  if (chart.log && !hasRoom(plot.scales.y, split)) return "";
  return (own(UNITS, chart.spec.section) ?? short)(split);
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

// Two for each line: what was measured, and its smooth form.
function seriesOf(chart, line) {
  const few = line.curve.count <= 60;
  const base = { show: chart.shown(line), dash: line.curve.kind === "epoch" ? [5, 4] : undefined };
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
