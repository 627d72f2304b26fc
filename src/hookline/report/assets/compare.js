// Several runs over one another, and what differs between them.

PAGES.compare = comparePage;

function comparePage(data) {
  const sections = [
    part("runs", "Runs", [data.runs, data.board], runsView),
    part("settings", "Settings that differ", [data.settings, data.runs], ([found, runs]) =>
      differenceView(found, runs, "setting"),
    ),
    part("metrics", "Final metrics that differ", [data.metrics, data.runs], ([found, runs]) =>
      differenceView(found, runs, "metric"),
    ),
    curvesSection(data),
  ];
  const of = data.project ? h("span", { class: "project" }, ` of ${data.project}`) : null;
  return { title: h("h1", {}, h("span", { class: "project" }, "Compare "), data.title, of), under: [], sections };
}

function swatch(at) {
  const round = Math.floor(at / PALETTE.length) % DASHES.length;
  return h("i", { class: `key step round-${round}`, style: { "--colour": `var(--${PALETTE[at % PALETTE.length]})` } });
}

// A short one stays whole.
function runName({ title }) {
  return title.length > 24 ? breakable(title) : title;
}

const runsOrder = { by: "", down: false };

function runsView([runs, board]) {
  const place = card();
  const heads = new Map();
  const show = () => {
    const columns = [...runColumns(), ...boardColumns({ ...board, settings: [] }, runsOrder.by)];
    const active = document.activeElement;
    const rows = boardOrder(
      runs.map((run, at) => ({ ...run, at })),
      columns,
      runsOrder,
    );
    const body = rows.map((run) =>
      h("tr", {}, ...columns.map((column) => h("td", { class: column.number && "number" }, column.cell(run)))),
    );
    const head = h("tr", {}, ...boardHeads(columns, runsOrder, heads, show));
    place.replaceChildren(scroller(h("table", { class: "lines" }, h("thead", {}, head), h("tbody", {}, ...body))));
    if (active?.isConnected && active !== document.body) active.focus({ preventScroll: true });
  };
  show();
  const names = board.metrics.slice(FEW_METRICS).map(({ name, mode }) => [`metric ${name}`, name, mode === "max"]);
  if (!names.length) return place;
  const sort = h(
    "select",
    { "aria-label": "Sort by another metric" },
    h("option", { value: "" }, "Sort by another metric"),
    ...names.map(([value, name, down]) => h("option", { value, "data-down": String(down) }, name)),
  );
  sort.addEventListener("change", () => {
    Object.assign(runsOrder, { by: sort.value, down: sort.selectedOptions[0].dataset.down === "true" });
    show();
  });
  return [h("div", { class: "toolbar" }, sort), place];
}

function runColumns() {
  const facts = (name, title, cell) => ({
    key: name,
    name: title,
    number: true,
    value: (run) => run.facts[name],
    cell: (run) => cell(run.facts[name]),
  });
  return [
    { key: "run", name: "run", value: (run) => run.title, cell: runButton },
    { key: "status", name: "status", value: (run) => run.status.label, cell: (run) => badge(run.status) },
    facts("seconds", "time", duration),
    facts("steps", "steps", integer),
    facts("epochs", "epochs", integer),
    { key: "started", name: "started", value: (run) => run.facts.started, cell: (run) => moment(run.facts.started) },
  ];
}

function runButton({ at, title }) {
  const name = button(
    [swatch(at), runName({ title })],
    () => {
      view.hidden.has(at) ? view.hidden.delete(at) : view.hidden.add(at);
      name.setAttribute("aria-pressed", String(!view.hidden.has(at)));
      setView({});
    },
    { class: "entry", "aria-pressed": String(!view.hidden.has(at)), title: "Show or hide its curves" },
  );
  return name;
}

function differenceView({ rows, same, hidden, more }, runs, what) {
  const counted = (count) => `${integer(count)} ${count === 1 ? `${what} is` : `${what}s are`}`;
  const unknown = hidden ? ` ${counted(hidden)} hidden in all runs, and may differ.` : "";
  const unlisted = more ? `${integer(more)} ${what}s more differ. ` : "";
  const rest = `${unlisted}${counted(same)} the same.${unknown}`;
  if (!rows.length) return card(h("p", { class: "empty" }, `None: ${rest}`));
  const heads = () => [what, ...runs.map((run, at) => h("span", {}, swatch(at), runName(run)))];
  const name = (row) =>
    what === "setting"
      ? h("span", {}, h("span", { class: "group-name" }, `${row.group} `), breakable(row.name))
      : breakable(row.name);
  const differences = (some) =>
    table(
      heads(),
      some.map((row) => [name(row), ...valueCells(row)]),
      { class: "differences" },
    );
  const [learnt, machine] = [false, true].map((wanted) => rows.filter((row) => row.machine === wanted));
  return card(
    learnt.length ? differences(learnt) : null,
    machine.length ? folded("machine", `${what}s of the machine`, machine, differences, 0) : null,
    h("p", { class: "note" }, rest),
    what === "metric" ? runs.filter((run) => run.put_back).map(lastValues) : null,
  );
}

// The weights of such a run are not those of its last values.
function lastValues({ title, put_back: back }) {
  return h("p", { class: "note" }, h("bdi", {}, title), `: ${back}. Here are its last values.`);
}

// The best one of a metric is marked, if its name tells which is better.
function valueCells({ texts, numbers, mode }) {
  const known = numbers.map(decode);
  const finite = known.filter((value) => Number.isFinite(value));
  const best = mode && finite.length > 1 ? Math[mode](...finite) : null;
  return texts.map((text, at) => {
    if (text === null) return h("span", { class: "absent" }, "—");
    if (best !== null && known[at] === best) return h("strong", { class: "best", title: "the best of these" }, text);
    return h("span", { class: "long" }, text);
  });
}
