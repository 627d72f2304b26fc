// All charts of the page, by section, with the tools that work on all of them.

function toolbar(data) {
  const shown = h("output", { class: "when" });
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 99,
    value: Math.round(100 * view.smoothing),
    id: "smoothing",
    "aria-label": "Smoothing",
  });
  const say = () => (shown.textContent = view.smoothing ? view.smoothing.toFixed(2) : "off");
  slider.addEventListener("input", () => {
    setView({ smoothing: Number(slider.value) / 100 });
    say();
  });
  say();
  const search = h("input", {
    type: "search",
    id: "search",
    placeholder: "Filter metrics",
    "aria-label": "Filter metrics",
    value: view.filter,
  });
  search.addEventListener("input", () => filterCharts(search.value, drawnSection));
  const log = button(
    "Log scale",
    () => {
      view.log = !view.log;
      log.setAttribute("aria-pressed", String(view.log));
      for (const chart of view.charts) chart.setLog(view.log);
    },
    { class: "toggle", id: "log", "aria-pressed": String(view.log) },
  );
  const epochs = data.clocks.some(({ epoch }) => epoch[epoch.length - 1] > 0);
  const axes = Object.entries(AXES).filter(([axis]) => axis !== "epoch" || epochs);
  return h(
    "div",
    { class: "toolbar" },
    data.charts.length > 6 ? search : null,
    h(
      "div",
      { class: "tool" },
      h("span", { class: "label" }, "x axis"),
      choice("x axis", axes, view.axis, (axis) => setView({ axis })),
    ),
    h("label", { class: "tool" }, h("span", { class: "label" }, "Smoothing"), slider, shown),
    log,
  );
}

function filterCharts(text, place) {
  view.filter = text;
  const wanted = text.trim().toLowerCase();
  const has = (name) => name.toLowerCase().includes(wanted);
  for (const { element, spec } of view.charts) {
    element.hidden = !(has(spec.title) || has(spec.heading) || spec.lines.some((line) => has(line.name)));
  }
  for (const group of place.querySelectorAll(".group, .fold")) {
    group.hidden = [...group.querySelectorAll(".chart")].every((chart) => chart.hidden);
  }
  if (wanted) for (const fold of place.querySelectorAll(".fold")) fold.open = true;
  place.querySelector("#none").hidden = view.charts.some(({ element }) => !element.hidden);
}

let drawnSpecs = "";
let drawnSection = null;

// The same section with new values, if the charts are the same: zoom and cursor stay.
function curvesSection(data) {
  const specs = JSON.stringify(data.charts);
  if (drawnSection && specs === drawnSpecs) {
    for (const chart of view.charts) chart.setData(data);
    view.full = extent();
    for (const chart of view.charts) chart.update();
    return drawnSection;
  }
  view.charts = data.charts.map((spec) => new Chart(spec, data, view.log));
  view.full = extent();
  [drawnSpecs, drawnSection] = [specs, buildSection(data)];
  if (view.filter) filterCharts(view.filter, drawnSection);
  return drawnSection;
}

const SYSTEM = new Set(["lr", "momentum", "weight_decay", "speed", "throughput", "time", "memory", "device"]);

// Metrics first, then the machine, then other values by the first part of their names. `apart`: the machine has a
// separate group.
function chartGroups(apart) {
  const groups = new Map();
  for (const chart of view.charts) {
    const { section: name, heading } = chart.spec;
    const machine = apart && chart.spec.machine;
    const key = machine ? "machine" : SYSTEM.has(name) ? "system" : name;
    if (!groups.has(key)) groups.set(key, { heading: machine ? "Machine" : heading, small: chart.small, machine, charts: [] });
    groups.get(key).charts.push(chart);
  }
  const system = groups.get("system");
  if (system) {
    const [rate, machine] = [false, true].map((wanted) => system.charts.some(({ spec }) => spec.machine === wanted));
    system.heading = rate && machine ? "Learning rate and machine" : rate ? "Learning rate" : "Machine";
  }
  return [...groups.values()];
}

function buildSection(data) {
  if (!view.charts.length) {
    return section(
      "curves",
      "Curves",
      h(
        "p",
        { class: "empty" },
        data.status?.key === "running"
          ? "No metrics yet: curves appear after the first log interval."
          : "No number was logged, so there are no curves.",
      ),
    );
  }
  const groups = chartGroups(data.page === "compare");
  const parts = groups.map(({ heading, small, machine, charts }) => {
    if (!small && Math.min(charts.length, FEW) % 2) charts[0].setWide(true); // no hole in the last row
    const title = groups.length > 1 ? h("h3", { class: "kicker" }, heading) : null;
    const grid = (some) =>
      h(
        "div",
        { class: small ? "grid thirds" : "grid" },
        some.map(({ element }) => element),
      );
    return h("div", { class: "group" }, title, folded(heading, "charts", charts, grid, machine ? 0 : FEW));
  });
  const none = h("p", { class: "empty", id: "none", hidden: true }, "No metric has this in its name.");
  const hint = h("p", { class: "note hint" }, "Drag to zoom, double-click to go back. All charts move together.");
  return section("curves", "Curves", toolbar(data), parts, none, hint);
}
