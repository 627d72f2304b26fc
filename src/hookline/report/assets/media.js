// Images, texts, tables, arrays and histograms: the newest, with a slider over the steps.

function mediaCards(data) {
  return [
    ...data.images.map((entry) => h("article", { class: "card" }, ...frames(entry, picture))),
    ...data.arrays.map((entry) =>
      h("article", { class: isBroad(entry) ? "card broad" : "card" }, ...frames(entry, ({ value }) => arrayView(value, axesOf(entry.name)))),
    ),
    ...data.histograms.map((entry) => histogramCard(entry)),
    ...data.tables.map((entry) => h("article", { class: "card" }, ...frames(entry, tableView))),
    ...data.texts.map((entry) => h("article", { class: "card" }, ...frames(entry, textView))),
  ];
}

function picture({ source, missing, caption, width, height }) {
  const known = Number(width) > 0 && Number(height) > 0;
  const shape = { "aspect-ratio": known ? `${Number(width)} / ${Number(height)}` : "1" };
  const isPicture = typeof source === "string" && source.startsWith("data:image/png;base64,");
  const shown = isPicture
    ? h("img", { src: source, alt: caption || "picture", class: width < 160 ? "pixels" : null, style: shape })
    : h("p", { class: "missing" }, `The image is not here: ${missing}`);
  return h("figure", {}, shown, caption ? h("figcaption", {}, caption) : null);
}

function textView({ text, cut }) {
  return [
    h("pre", { class: "text", tabindex: "0" }, text),
    cut ? h("p", { class: "note" }, `${integer(cut)} more characters.`) : null,
  ].reduce((box, part) => (part && box.append(part), box), h("div"));
}

function cell(value) {
  value = decode(value);
  if (value === null) return "–";
  return typeof value === "number" ? number(value) : plain(value);
}

function tableView({ columns: names, rows, cut }) {
  const isNumber = (at) =>
    rows.length > 0 && rows.every((row) => row[at] === null || typeof decode(row[at]) === "number");
  const heads = names.map((name, at) => ({ name, number: isNumber(at) }));
  const box = h(
    "div",
    {},
    table(
      heads,
      rows.map((row) => row.map(cell)),
    ),
  );
  if (cut) box.append(h("p", { class: "note" }, `${integer(cut)} rows more.`));
  return box;
}

// -- arrays ------------------------------------------------------------------------------------

const LARGEST = 4096;
const WORDS = 16;
const HALF = 540;

// Whether half of the page is too narrow for its numbers. A sign is about 7 px wide, a cell has 16 px around them.
function isBroad({ frames: all }) {
  const rows = all[all.length - 1]?.value;
  if (!Array.isArray(rows?.[0]) || rows[0].length > WORDS) return false;
  const longest = (at) => Math.max(3, ...rows.map((row) => compact(decode(row[at])).length));
  const width = rows[0].reduce((sum, _, at) => sum + 16 + 7.2 * longest(at), 24);
  return width > HALF;
}

// Three digits: all of them are in the cell's title.
function compact(value) {
  if (!(Math.abs(value) >= 1e4 && Math.abs(value) < 1e15)) return number(value, 3);
  return Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

// A confusion matrix has the true classes in its rows and the predicted ones in its columns, as in scikit-learn and
// torchmetrics.
function axesOf(name) {
  return /confusion/i.test(name) ? ["true", "predicted"] : null;
}

function arrayView(value, axes) {
  const rows = Array.isArray(value[0]) ? value : [value];
  const flat = rows.flat().map(decode);
  const drawn = flat.every((item) => typeof item === "number") && flat.length <= LARGEST;
  return drawn ? heatMap(rows, flat, rows.length === rows[0].length ? axes : null) : h("pre", { class: "text", tabindex: "0" }, JSON.stringify(value));
}

function heatMap(rows, flat, axes) {
  const finite = flat.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const words = rows[0].length <= WORDS;
  const [down, across] = axes ?? ["row", "column"];
  const shade = (value) => (Number.isFinite(value) && high > low ? (value - low) / (high - low) : 0);
  const cells = (row, index) =>
    row.map((item, at) => {
      const value = decode(item);
      const part = shade(value);
      const label = rows.length > 1 ? `${down} ${index}, ${across} ${at}: ${number(value)}` : `${at}: ${number(value)}`;
      return h(
        "td",
        { class: part > 0.55 ? "strong" : null, title: label, style: { "--part": part.toFixed(3) } },
        words ? compact(value) : "",
      );
    });
  const side = (index) => (axes && index === 0 ? h("th", { class: "axis", rowspan: rows.length }, h("span", {}, down)) : null);
  const body = rows.map((row, index) =>
    h(
      "tr",
      {},
      side(index),
      words ? h("th", { scope: "row" }, rows.length > 1 ? String(index) : "") : null,
      ...cells(row, index),
    ),
  );
  const before = () => [axes, words].filter(Boolean).map(() => h("td", { class: "corner" }));
  const title = axes
    ? h("tr", {}, ...before(), h("th", { class: "axis", colspan: rows[0].length }, h("span", {}, across)))
    : null;
  const head = words
    ? h("tr", {}, ...before(), ...rows[0].map((_, at) => h("th", { scope: "col" }, String(at))))
    : null;
  return scroller(h("table", { class: words ? "heat" : "heat dense" }, title, head, ...body));
}

// -- histograms --------------------------------------------------------------------------------

// Over steps: each column is one histogram, the darker the more values. One alone: bars.
function histogramCard(all) {
  // Of several at one step, one a batch, the last.
  const entry = { ...all, frames: all.frames.filter(({ step }, at) => step !== all.frames[at + 1]?.step) };
  if (entry.frames.length < 2) return h("article", { class: "card" }, ...frames(entry, bars));
  const place = h("div", {
    class: "plot",
    role: "img",
    "aria-label": `${entry.name}: how values are spread, over steps`,
    style: { height: `${HEIGHT}px` },
  });
  const where = h("output", { class: "when" });
  const left = entry.count - entry.frames.length;
  const odd = entry.frames.reduce((sum, frame) => sum + frame.odd, 0);
  const element = h(
    "article",
    { class: "card" },
    h("div", { class: "bar" }, h("h3", {}, entry.name), where),
    place,
    left > 0 ? h("p", { class: "note" }, `${integer(left)} of ${integer(entry.count)} are not drawn.`) : null,
    odd > 0 ? h("p", { class: "note" }, `${integer(odd)} values are NaN or infinite, and not drawn.`) : null,
  );
  whenNear(element, () => {
    const plot = heatPlot(entry, place, where);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    view.painted.push(plot);
  });
  return element;
}

function heatPlot(entry, place, where) {
  const steps = entry.frames.map((frame) => frame.step);
  const edges = entry.frames.map((frame) => frame.edges.map(decode));
  const finite = edges.flat().filter(Number.isFinite);
  const [low, high] = finite.length ? drawableRange(Math.min(...finite), Math.max(...finite)) : [0, 1];
  const ends = steps.map((step, at) => [
    at ? (steps[at - 1] + step) / 2 : step - (steps[1] - step) / 2,
    at < steps.length - 1 ? (step + steps[at + 1]) / 2 : step + (step - steps[at - 1]) / 2,
  ]);
  const axis = {
    stroke: () => colour("faint"),
    grid: { show: false },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 22, 0, 0],
      scales: {
        x: { time: false, range: () => [ends[0][0], ends[ends.length - 1][1]] },
        y: { range: () => [low, high] },
      },
      axes: [
        { ...axis, size: 26, space: 70, values: (plot, splits) => numberLabels(splits, { compact: false }) },
        { ...axis, size: labelWidth, values: (plot, splits) => numberLabels(splits) },
      ],
      series: [{}, { stroke: "transparent", points: { show: false } }],
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      hooks: {
        drawClear: [(plot) => entry.frames.forEach((frame, at) => drawColumn(plot, ends[at], edges[at], frame.counts))],
        setCursor: [(plot) => (where.textContent = underCursor(plot, entry.frames, edges))],
      },
    },
    [steps, steps.map(() => null)],
    place,
  );
}

function drawColumn(plot, [from, to], edges, counts) {
  const most = Math.max(...counts, 1);
  const [left, right] = [from, to].map((point) => Math.round(plot.valToPos(point, "x", true)));
  counts.forEach((count, at) => {
    if (!count) return;
    const [top, bottom] = [edges[at + 1], edges[at]].map((point) => Math.round(plot.valToPos(point, "y", true)));
    plot.ctx.fillStyle = colour("one", 0.08 + 0.87 * Math.sqrt(count / most));
    plot.ctx.fillRect(left, top, right - left, bottom - top);
  });
}

function underCursor(plot, all, edges) {
  const { left, top } = plot.cursor;
  if (!(left >= 0)) return "";
  const at = closest(
    all.map((frame) => frame.step),
    plot.posToVal(left, "x"),
  );
  const height = plot.posToVal(top, "y");
  const bin = edges[at].findIndex((edge, place) => edge <= height && height < edges[at][place + 1]);
  const found =
    bin < 0
      ? ""
      : `: ${integer(all[at].counts[bin])} from ${number(edges[at][bin], 3)} to ${number(edges[at][bin + 1], 3)}`;
  return `step ${integer(all[at].step)}${found}`;
}

function bars({ edges, counts, odd }) {
  const most = Math.max(...counts, 1);
  const columns = counts.map((count, at) =>
    h("i", {
      title: `${number(edges[at], 3)} to ${number(edges[at + 1], 3)}: ${integer(count)}`,
      style: { height: `${(100 * count) / most}%` },
    }),
  );
  const ends = h(
    "div",
    { class: "ends" },
    h("span", {}, number(edges[0], 4)),
    h("span", {}, number(edges[edges.length - 1], 4)),
  );
  return h(
    "div",
    {},
    h("div", { class: "columns" }, ...columns),
    ends,
    odd ? h("p", { class: "note" }, `${integer(odd)} values are NaN or infinite.`) : "",
  );
}
