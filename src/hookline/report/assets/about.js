// Everything but curves: how the run ended, key numbers, costs, settings.

const SYMBOLS = {
  finished: "✓",
  nan: "!",
  stopped: "■",
  running: "●",
  interrupted: "‖",
  preempted: "‖",
  failed: "✕",
  killed: "✕",
  gone: "○",
  unknown: "?",
};

function badge({ key, label }) {
  return h(
    "span",
    { class: `badge ${Object.hasOwn(SYMBOLS, key) ? key : "unknown"}` },
    h("span", { "aria-hidden": "true" }, own(SYMBOLS, key) ?? "?"),
    ` ${label}`,
  );
}

function factsView(facts) {
  const { git } = facts;
  const commit = git?.commit ? [h("code", {}, String(git.commit).slice(0, 10)), git.dirty ? " + changes" : ""] : null;
  const rows = [
    ["Time", reached(facts, "seconds", duration)],
    facts.left ? ["Time left", `about ${duration(facts.left)}`] : null,
    ["Steps", reached(facts, "steps", integer)],
    facts.epochs || facts.goal?.unit === "epochs" ? ["Epochs", reached(facts, "epochs", integer)] : null,
    facts.goal && !Object.hasOwn(facts, facts.goal.unit)
      ? ["Planned", `${integer(facts.goal.value)} ${facts.goal.unit}`]
      : null,
    facts.seed === null ? null : ["Seed", plain(facts.seed)],
    facts.started ? ["Started", moment(facts.started)] : null,
    commit ? ["Commit", commit] : null,
  ];
  return factList(rows.filter(Boolean));
}

// How far it is, and how far it is to go.
function reached({ goal, ...facts }, unit, format) {
  return goal?.unit === unit ? `${format(facts[unit])} of ${format(goal.value)}` : format(facts[unit]);
}

function factList(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

function reasonView({ key, reason, by, put_back: back }) {
  const why = reason && (key !== "finished" || by) ? [by ? h("strong", {}, `${by}: `) : null, h("span", {}, reason)] : null;
  if (!why && !back) return null;
  const lines = [why, back ? sentence(back) : null].filter(Boolean);
  return h("div", { class: `reason ${key}`, role: "note" }, ...lines.map((line) => h("div", {}, line)));
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

// -- key numbers -------------------------------------------------------------------------------

function tileView(tile) {
  const { best, last, lowest, highest, kept } = tile;
  const more = digitsApart([last, best, lowest, highest].filter(Boolean).map(({ value }) => decode(value)));
  const point = ({ value, step }) => `${number(value, 4 + more)} at step ${integer(step)}`;
  const shown = kept ?? last;
  const isBest = best && tile.count > 1 && decode(best.value) === decode(shown.value);
  const about = [
    kept
      ? `${isBest ? "best, " : ""}at step ${integer(kept.step)}, whose weights were kept`
      : tile.count > 1
        ? `last${isBest ? ", and best" : ""}`
        : `at step ${integer(last.step)}`,
    tile.weights ? `with the weights of step ${integer(tile.weights)}` : null,
    kept ? `last ${point(last)}` : null,
    best && tile.count > 1 && !isBest ? `best ${point(best)}` : null,
    !best && tile.count > 1 && lowest
      ? `from ${number(lowest.value, 3 + more)} to ${number(highest.value, 3 + more)}`
      : null,
    tile.by_epoch ? "over whole epochs" : null,
  ];
  return h(
    "div",
    { class: "card tile" },
    h("h3", {}, breakable(tile.name)),
    h("div", { class: "big" }, number(shown.value, 4 + more)),
    ...about.filter(Boolean).map((line) => h("div", { class: "small" }, line)),
    sparkline(tile),
  );
}

// The course of a number without axes.
function sparkline({ name, spark }) {
  const place = h("div", { class: "spark", "aria-hidden": "true" });
  const values = spark.map(decode).filter(Number.isFinite);
  if (values.length < 2) return place;
  const stroke = own(STAGE_COLOURS, name.split("/")[0]) ?? "one";
  whenNear(place, () => {
    const size = () => ({ width: Math.max(60, place.clientWidth), height: 34 });
    const options = {
      ...size(),
      legend: { show: false },
      cursor: { show: false },
      padding: [3, 2, 3, 2],
      axes: [{ show: false }, { show: false }],
      scales: {
        x: { time: false },
        y: { range: (plot, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
      },
      series: [{}, { stroke: () => colour(stroke), width: 1.5, points: { show: false } }],
    };
    const plot = new uPlot(options, [values.map((_, at) => at), values], place);
    new ResizeObserver(() => plot.setSize(size())).observe(place);
    view.painted.push(plot);
  });
  return place;
}

function numbersTable(numbers) {
  const point = (value) => (value ? [number(value.value), h("small", {}, ` step ${integer(value.step)}`)] : "–");
  const rows = numbers.map((row) => [
    breakable(row.name),
    number(row.last.value),
    point(row.lowest),
    point(row.highest),
    integer(row.count),
  ]);
  return table(["metric", ...["last", "lowest", "highest", "values"].map((name) => ({ name, number: true }))], rows);
}

// -- costs -------------------------------------------------------------------------------------

function costsView({ rows, seconds, killed }) {
  if (!rows.length) return null;
  const whole = Math.max(seconds, 1e-9);
  const byCallback = Map.groupBy
    ? Map.groupBy(rows, (row) => row.callback)
    : rows.reduce((found, row) => found.set(row.callback, [...(found.get(row.callback) ?? []), row]), new Map());
  const sum = (own) => own.reduce((total, row) => total + row.seconds, 0);
  const callbacks = [...byCallback]
    .map(([name, own]) => ({ name, own, seconds: sum(own) }))
    .sort((one, other) => other.seconds - one.seconds);
  const most = Math.max(callbacks[0].seconds, 1e-12);
  const total = sum(rows);
  const line = ({ name, own, seconds: cost }) =>
    h(
      "details",
      { class: "cost" },
      h(
        "summary",
        {},
        h("span", { class: "name" }, name),
        h("span", { class: "meter" }, h("i", { style: { width: `${(100 * cost) / most}%` } })),
        h("span", { class: "number" }, duration(cost)),
        h("span", { class: "number share" }, percent(cost / whole)),
      ),
      table(
        [
          "hook",
          { name: "calls", number: true },
          { name: "time", number: true },
          { name: "a call", number: true },
          { name: "of the run", number: true },
        ],
        own.map((row) => [
          h("code", {}, row.hook),
          integer(row.calls),
          duration(row.seconds),
          duration(row.seconds / Math.max(1, row.calls)),
          percent(row.seconds / whole),
        ]),
      ),
    );
  return card(
    h(
      "p",
      { class: "lead" },
      `All of them together took ${duration(total)}, ${percent(total / whole)} of the run`,
      killed ? `, without ${duration(killed)} of sessions that were killed.` : ".",
    ),
    ...callbacks.map(line),
  );
}

// -- settings ----------------------------------------------------------------------------------

function settingsCards(settings) {
  const titled = (title, content) => card(h("h3", {}, title), content);
  const list = (title, rows) =>
    rows?.length ? titled(title, pairs(rows.map(([name, value]) => [name, plain(value)]))) : null;
  const callbacks = settings.callbacks?.length
    ? titled(
        "Callbacks, in the order in which they run",
        h(
          "ol",
          { class: "callbacks" },
          ...settings.callbacks.map((entry) =>
            h("li", {}, h("code", {}, entry.call), entry.optional ? h("small", {}, " optional") : null),
          ),
        ),
      )
    : null;
  const command = settings.arguments?.length
    ? titled("Command line", h("pre", { class: "text", tabindex: "0" }, settings.arguments.join(" ")))
    : null;
  return [list("Hyper-parameters", settings.config), list("Trainer", settings.trainer), callbacks, command].filter(
    Boolean,
  );
}

function environmentCards(settings) {
  const list = (title, rows) =>
    rows?.length ? card(h("h3", {}, title), pairs(rows.map(([name, value]) => [name, plain(value)]))) : null;
  return [list("Versions", settings.versions), list("Machine", settings.platform), list("Code", settings.git)].filter(
    Boolean,
  );
}
