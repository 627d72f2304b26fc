// The leaderboard: the columns of a table with one row per run, and its order.

const FEW_METRICS = 4;

// The columns of metrics and settings. A metric that is sorted by has a column, however many there are.
function boardColumns({ metrics, settings }, by) {
  const shown = metrics.filter(({ name }, at) => at < FEW_METRICS || `metric ${name}` === by);
  return [
    { key: "progress", name: "done", number: true, down: true, value: (run) => run.progress, cell: progressCell },
    { key: "left", name: "time left", number: true, value: (run) => run.left, cell: (run) => leftText(run.left) },
    ...shown.map(({ name, mode }) => ({
      key: `metric ${name}`,
      name: breakable(name),
      text: name,
      number: true,
      down: mode === "max",
      value: (run) => decode(own(run.values, name)),
      cell: (run) => (Object.hasOwn(run.values, name) ? h("strong", {}, number(run.values[name])) : absent()),
    })),
    ...settings.map((name) => ({
      key: `setting ${name}`,
      name: breakable(name),
      text: name,
      value: (run) => decode(own(run.settings, name)),
      cell: (run) => (Object.hasOwn(run.settings, name) ? plain(decode(run.settings[name])) : absent()),
    })),
  ];
}

function absent() {
  return h("span", { class: "absent" }, "—");
}

function leftText(seconds) {
  return seconds === null || seconds === undefined ? "" : duration(seconds);
}

function progressCell({ progress }) {
  if (progress === null || progress === undefined) return "";
  const text = `${Math.floor(100 * progress)} %`;
  return [h("progress", { max: 1, value: progress, "aria-label": text }), h("div", { class: "small" }, text)];
}

// The heads of the columns are buttons. They stay when there is new data, so that they keep the keyboard.
function boardHeads(columns, state, heads, sorted) {
  return columns.map((column) => {
    let head = heads.get(column.key);
    if (!head) {
      const press = () => {
        if (state.by === column.key) state.down = !state.down;
        else Object.assign(state, { by: column.key, down: Boolean(column.down) });
        sorted();
      };
      const sign = h("span", { class: "order", "aria-hidden": "true" });
      head = h("th", { scope: "col" }, button([column.name, " ", sign], press, { class: "sorter" }));
      if (column.number) head.classList.add("number");
      heads.set(column.key, head);
    }
    const is = state.by === column.key;
    head.setAttribute("aria-sort", is ? (state.down ? "descending" : "ascending") : "none");
    head.querySelector(".order").textContent = is ? (state.down ? "▼" : "▲") : "";
    return head;
  });
}

// Runs without a value, or with NaN, come last in both directions. Equal ones stay in their order.
function boardOrder(runs, columns, { by, down }) {
  const column = columns.find(({ key }) => key === by);
  if (!column) return runs;
  const rank = (value) => (value === null || value === undefined || Number.isNaN(value) ? 2 : Number(typeof value !== "number"));
  const compare = (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    if (rank(a) === 2) return 0;
    const order = rank(a) ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b;
    return down ? -order : order;
  };
  return [...runs].sort(compare);
}
