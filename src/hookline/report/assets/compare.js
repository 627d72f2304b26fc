// Several runs over one another, and what differs between them.

PAGES.compare = comparePage;

function comparePage(data) {
  const sections = [
    part("runs", "Runs", data.runs, runsView),
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

function runsView(runs) {
  const rows = runs.map((run, at) => {
    const name = button(
      [swatch(at), runName(run)],
      () => {
        view.hidden.has(at) ? view.hidden.delete(at) : view.hidden.add(at);
        name.setAttribute("aria-pressed", String(!view.hidden.has(at)));
        setView({});
      },
      { class: "entry", "aria-pressed": String(!view.hidden.has(at)), title: "Show or hide its curves" },
    );
    const { seconds, steps, epochs, started } = run.facts;
    return [name, badge(run.status), duration(seconds), integer(steps), integer(epochs), moment(started)];
  });
  const heads = ["run", "status", ...["time", "steps", "epochs"].map((name) => ({ name, number: true })), "started"];
  return card(table(heads, rows, { class: "lines" }));
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
