// The report of one run.

PAGES.report = reportPage;

function reportPage(data) {
  const { facts, settings } = data;
  view.marks = data.events.rows
    .filter(({ name }) => MARKED.has(name))
    .map(({ name, step }) => ({ step, bad: BAD.has(name) }));
  const project = facts.project ? h("span", { class: "project" }, `${facts.project} / `) : null;
  const sections = [
    part("numbers", "Key numbers", [data.tiles, data.numbers, data.metrics], numbersView),
    curvesSection(data),
    part("media", "Media", [data.images, data.arrays, data.histograms, data.tables, data.texts], () =>
      pile(mediaCards(data)),
    ),
    part("timeline", "Timeline", [data.events, data.sessions], () => [
      timelineView(data.events, facts.seconds),
      sessionsView(data.sessions),
    ]),
    part("costs", "What callbacks and checkpoints cost", data.costs, costsView),
    part("model", "Model", [data.summary, settings.model], modelView),
    part("settings", "Settings", settings, () => pile(settingsCards(settings))),
    part("environment", "Environment", settings, () => pile(environmentCards(settings))),
    part("files", "Files", [data.files, data.more_files], filesView),
  ];
  const under = h("div", { class: "bar under" }, badge(data.status), factsView(facts));
  return { title: h("h1", {}, project, facts.name || data.title), under: [under, reasonView(data.status)], sections };
}

function pile(cards) {
  return cards.length ? folded("pile", "cards", cards, (some) => h("div", { class: "pile" }, some)) : null;
}

function numbersView([tiles, numbers, count]) {
  if (!numbers.length) return null;
  const all = h(
    "details",
    { class: "card all" },
    h("summary", {}, count === 1 ? "The only metric" : `All ${integer(count)} metrics`),
    numbersTable(numbers),
    count > numbers.length
      ? h("p", { class: "note" }, `${integer(count - numbers.length)} more metrics are in metrics.jsonl.`)
      : null,
  );
  return [tiles.length ? h("div", { class: "tiles" }, tiles.map(tileView)) : null, all];
}

function modelView([summary, model]) {
  const rows = (model ?? []).map(([name, value]) => [name, typeof value === "number" ? integer(value) : plain(value)]);
  if (!summary && !rows.length) return null;
  return card(rows.length ? factList(rows) : null, summary ? tableView(summary) : null);
}

function filesView([files, more]) {
  if (!files.length) return null;
  const rows = files.map((row) => [row.name, row.file, bytes(row.size), integer(row.step)]);
  return card(
    table(["name", "file", { name: "size", number: true }, { name: "step", number: true }], rows),
    more ? h("p", { class: "note" }, `${integer(more)} more files are in metrics.jsonl.`) : null,
  );
}
