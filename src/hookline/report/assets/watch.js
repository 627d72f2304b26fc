// The list of runs that `hookline watch` shows first: the page `watch`.

// The input of the user; it outlives new data.
const listView = { text: "", chosen: new Set(), by: "", down: false };
const listRows = new Map();
const listHeads = new Map();
let list = null;

function watchPage(data) {
  const columns = [...listColumns(), ...boardColumns(data.board, listView.by)];
  const runs = boardOrder([...data.list].sort(byInterest), columns, listView);
  const ids = new Set(runs.map((run) => run.id));
  for (const id of listView.chosen) if (!ids.has(id)) listView.chosen.delete(id);
  for (const id of listRows.keys()) if (!ids.has(id)) listRows.delete(id);
  list ??= buildList();
  const heads = boardHeads(columns, listView, listHeads, () => refresh(data));
  arrange(list.head, [list.boxHead, ...heads]);
  fillSort(data.board);
  const rows = runs.map((run) => listRow(run, columns, data.most).element);
  arrange(list.body, rows);
  list.empty.hidden = runs.length > 0;
  list.tools.hidden = list.card.hidden = !runs.length;
  showChosen(data.most);
  narrow();
  showAges();
  const running = runs.filter(({ status }) => status === "running").length;
  const facts = [
    ["Runs", integer(runs.length)],
    ["Running", integer(running)],
  ];
  return {
    title: h("h1", {}, data.title),
    under: h(
      "dl",
      { class: "facts under" },
      ...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    ),
    sections: [list.element],
  };
}

// Made once, so that nothing in it loses the keyboard when there is new data.
function buildList() {
  const search = h("input", { type: "search", id: "search", placeholder: "Filter runs", "aria-label": "Filter runs" });
  search.addEventListener("input", () => {
    listView.text = search.value;
    narrow();
  });
  const sort = h("select", { id: "sort", "aria-label": "Sort by" });
  sort.addEventListener("change", () => {
    listView.by = sort.value;
    listView.down = sort.selectedOptions[0].dataset.down === "true";
    refresh(data);
  });
  const compare = h("a", { id: "compare" });
  const count = h("span", { class: "when", role: "status" });
  const found = table([h("span", { class: "unseen" }, "compare")], []);
  found.classList.add("list");
  const tools = h("div", { class: "toolbar" }, search, sort, compare, count);
  const empty = h("p", { class: "empty" }, "No runs here yet. One that starts appears by itself.");
  const place = card(found);
  setInterval(showAges, 5000);
  return {
    compare,
    count,
    sort,
    head: found.querySelector("thead tr"),
    boxHead: found.querySelector("th"),
    tools,
    empty,
    card: place,
    body: found.querySelector("tbody"),
    element: section("runs", "Runs", tools, place, empty),
  };
}

// Running runs first, by name, so that they keep their position; then the newest.
function byInterest(one, other) {
  const [running, also] = [one.status === "running", other.status === "running"];
  if (running !== also) return running ? -1 : 1;
  return running ? runTitle(one).localeCompare(runTitle(other)) : other.written - one.written;
}

function runTitle({ project, name }) {
  return project ? `${project}/${name}` : name;
}

// -- the rows --------------------------------------------------------------------------------------

// A row is made again only if it has changed, so that the keyboard stays where it is.
function listRow(run, columns, most) {
  const key = JSON.stringify([run, columns.map((column) => column.key)]);
  const before = listRows.get(run.id);
  if (before?.key === key) return before;
  const box = h("input", { type: "checkbox", "aria-label": `compare ${runTitle(run)}` });
  box.checked = listView.chosen.has(run.id);
  box.addEventListener("change", () => {
    box.checked ? listView.chosen.add(run.id) : listView.chosen.delete(run.id);
    showChosen(most);
  });
  const link = h(
    "a",
    { href: `/show?run=${encodeURIComponent(run.id)}` },
    run.project ? h("span", { class: "project" }, `${run.project}/`) : null,
    breakable(run.name),
  );
  const age = h("div", { class: "small" });
  const reason =
    run.status === "failed" && run.reason ? h("div", { class: "small bad" }, run.reason.slice(0, 300)) : null;
  const cells = [
    box,
    [h("div", { class: "bar" }, link, badge({ key: run.status, label: run.label })), reason],
    [
      h("div", {}, `step ${soFar(run, "steps", run.step)}`),
      run.epoch ? h("div", { class: "small" }, `epoch ${soFar(run, "epochs", run.epoch)}`) : null,
      age,
    ],
    ...columns.slice(2).map((column) => column.cell(run)),
  ];
  const element = h(
    "tr",
    { "data-run": run.id },
    ...cells.map((cell, at) =>
      h("td", { class: at && columns[at - 1].number && "number", style: at ? {} : { width: "30px" } }, cell),
    ),
  );
  const row = { key, run, box, age, element, words: wordsOf(run) };
  listRows.set(run.id, row);
  return row;
}

// The words that the filter finds: the title, the state, and settings as `name=value`.
function wordsOf(run) {
  const settings = Object.entries(run.settings).map(([name, value]) => `${name}=${plain(value)}`);
  return [runTitle(run), run.label, ...settings].join(" ").toLowerCase();
}

// The cells of the first columns are made by the row.
function listColumns() {
  return [
    { key: "run", name: "run", value: runTitle },
    { key: "step", name: "so far", number: true, down: true, value: (run) => run.step },
  ];
}

// All metrics can be chosen, also those that have no column.
function fillSort({ metrics, settings }) {
  const choices = [
    ["", "Running first", false],
    ["run", "run", false],
    ["step", "so far", true],
    ["progress", "done", true],
    ["left", "time left", false],
    ...metrics.map(({ name, mode }) => [`metric ${name}`, name, mode === "max"]),
    ...settings.map((name) => [`setting ${name}`, name, false]),
  ];
  const key = JSON.stringify(choices);
  if (list.sort.dataset.key !== key) {
    list.sort.dataset.key = key;
    list.sort.replaceChildren(
      ...choices.map(([value, name, down]) => h("option", { value, "data-down": String(down) }, `Sort by ${name}`)),
    );
    list.sort.firstChild.textContent = "Running first";
  }
  if (list.sort.value !== listView.by) list.sort.value = listView.by;
}

function soFar({ goal }, unit, reached) {
  return goal?.unit === unit ? `${integer(reached)} of ${integer(goal.value)}` : integer(reached);
}

function showAges() {
  for (const { run, age } of listRows.values()) {
    age.textContent = run.written ? `${ago(Date.now() / 1000 - run.written)} ago` : "no rows yet";
  }
}

// The largest unit only.
function ago(seconds) {
  for (const [unit, letter] of [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
  ]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${letter}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

// -- what is above them ----------------------------------------------------------------------------

function narrow() {
  const words = listView.text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of listRows.values()) {
    row.element.hidden = !words.every((word) => row.words.includes(word));
    shown += row.element.hidden ? 0 : 1;
  }
  list.count.textContent = words.length ? `${integer(shown)} of ${integer(listRows.size)}` : "";
}

function showChosen(most) {
  const { compare } = list;
  const ids = [...listView.chosen];
  const ready = ids.length >= 2 && ids.length <= most;
  compare.textContent =
    ids.length > most
      ? `At most ${most} can be compared`
      : ids.length < 2
        ? "Choose two or more to compare"
        : `Compare ${ids.length} runs`;
  compare.className = ready ? "toggle on" : "when";
  if (ready) compare.setAttribute("href", `/show?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`);
  else compare.removeAttribute("href");
}

PAGES.watch = watchPage;
