// One chart: a card with a title, a legend that shows the values under the cursor, and the curves.

const HEIGHT = 230;
const SMALL = 160;
const UNITS = { size: (megabytes) => bytes(1e6 * megabytes), time: duration };
const BEYOND = 1.1;
const PALETTE = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
const STAGE_COLOURS = { train: "one", val: "two", test: "three" };

// A metric and the same by epoch have one colour.
function metricOf({ name }) {
  return name.replace(/_epoch$/, "");
}

class Chart {
  constructor(spec, data, log = false) {
    this.spec = spec;
    this.small = spec.section !== "metrics";
    this.height = this.small ? SMALL : HEIGHT;
    this.log = log;
    this.off = new Set();
    this.zoom = null;
    this.plot = null;
    this.near = false;
    this.setData(data);
    this.build();
    whenNear(this.element, () => {
      this.near = true;
      this.draw();
    });
  }

  setData(data) {
    const several = data.runs.length > 1;
    const metrics = [...new Set(this.spec.lines.map(metricOf))];
    this.lines = this.spec.lines.map((line) => ({
      ...line,
      label: several ? data.runs[line.run].title : line.name === this.spec.title ? line.name : line.label,
      colour: several
        ? PALETTE[line.run % PALETTE.length]
        : (own(STAGE_COLOURS, line.stage) ?? PALETTE[metrics.indexOf(metricOf(line)) % PALETTE.length]),
      curve: decodeCurve(data.curves[line.run][line.name]),
      clock: data.clocks[line.run],
      round: several ? Math.floor(line.run / PALETTE.length) % DASHES.length : 0,
    }));
    for (const line of this.lines) {
      const digits = Math.max(5, 3 + digitsApart(line.curve.values));
      line.format = own(UNITS, line.unit) ?? ((value) => number(value, digits));
    }
    const units = new Set(this.lines.map(({ unit }) => unit));
    this.unit = units.size === 1 ? [...units][0] : null;
    this.spreadColours();
    // `run.log(step=…)` gave steps that the run does not have: they would press all other curves together.
    this.apart = this.lines.some(({ run, curve }) => {
      const end = data.runs[run].facts.steps;
      return end > 0 && curve.steps[curve.steps.length - 1] > BEYOND * end;
    });
    this.full = this.apart ? extentOf(this.lines, "step") : null;
  }

  // After `setData` with new values for the same lines.
  update() {
    this.buildLegend();
    this.redraw();
  }

  // Two loaders of one stage must not look the same.
  spreadColours() {
    const used = new Map();
    for (const line of this.lines) {
      const key = `${line.colour} ${line.run} ${line.curve.kind}`;
      const times = used.get(key) ?? 0;
      used.set(key, times + 1);
      if (times) line.colour = PALETTE[(PALETTE.indexOf(line.colour) + 2 * times) % PALETTE.length];
    }
  }

  // -- the card ------------------------------------------------------------------------------

  build() {
    this.where = h("output", { class: "when" });
    this.logButton = button("log", () => this.setLog(!this.log), {
      class: "quiet",
      "aria-pressed": String(this.log),
      title: "Logarithmic scale",
    });
    this.resetButton = button("reset zoom", () => this.setZoom(null), { class: "quiet reset", hidden: true });
    this.wideButton = button("wide", () => this.setWide(!this.element.classList.contains("wide")), {
      class: "quiet wide-button",
      "aria-pressed": "false",
      title: "Full width",
    });
    this.legend = h("div", { class: "legend" });
    this.place = h("div", { class: "plot", tabindex: "0", role: "img", style: { height: `${this.height}px` } });
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.note = h("p", { class: "note" });
    this.element = h(
      "article",
      { class: "card chart" },
      h(
        "div",
        { class: "bar" },
        h("div", { class: "title" }, this.prefix(), h("h3", {}, breakable(this.spec.title))),
        this.where,
        this.resetButton,
        this.logButton,
        this.wideButton,
      ),
      this.legend,
      this.place,
      this.note,
    );
    this.buildLegend();
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  // `device /` before `memory`: the title alone could be anything.
  prefix() {
    const { section: name, title } = this.spec;
    return this.small && title !== name && !title.startsWith(`${name}/`)
      ? h("span", { class: "prefix" }, `${name} / `)
      : null;
  }

  buildLegend() {
    this.values = this.lines.map(() => h("span", { class: "value" }));
    const keys = this.lines.map((line, at) =>
      button(
        [
          h("i", {
            class: `key ${line.curve.kind} round-${line.round}`,
            style: { "--colour": `var(--${line.colour})` },
          }),
          line.label === this.spec.title ? null : h("span", { class: "label" }, breakable(line.label)),
          this.values[at],
        ],
        () => this.toggle(at),
        {
          class: "entry",
          "aria-pressed": String(!this.off.has(line.label)),
          title: `${line.name}: ${integer(line.curve.count)} values`,
        },
      ),
    );
    this.legend.replaceChildren(...keys);
    this.showLast();
  }

  showLast() {
    const last = this.lines.map(({ curve }) => curve.values[curve.values.length - 1]);
    last.forEach((value, at) => (this.values[at].textContent = this.lines[at].format(value)));
    this.where.textContent = "";
    const words = this.lines.map((line, at) => `${line.label} ${number(last[at])}`);
    this.place.setAttribute(
      "aria-label",
      `${this.spec.title}, last values: ${words.join(", ")}. Arrow keys move the cursor, plus and minus zoom.`,
    );
  }

  toggle(at) {
    const { label } = this.lines[at];
    this.off.has(label) ? this.off.delete(label) : this.off.add(label);
    this.legend.children[at].setAttribute("aria-pressed", String(!this.off.has(label)));
    this.redraw();
  }

  setLog(log) {
    this.log = log;
    this.logButton.setAttribute("aria-pressed", String(log));
    this.draw();
  }

  setWide(wide) {
    this.element.classList.toggle("wide", wide);
    this.wideButton.setAttribute("aria-pressed", String(wide));
  }

  // -- the curves ------------------------------------------------------------------------------

  size() {
    return { width: Math.max(120, this.place.clientWidth), height: this.height };
  }

  shown(line) {
    return !this.off.has(line.label) && !view.hidden.has(line.run);
  }

  // The quantity along x, and its range.
  across() {
    return this.apart ? "step" : view.axis;
  }

  range() {
    return this.apart ? (this.zoom ?? this.full) : (view.zoom ?? view.full);
  }

  setZoom(range) {
    if (!this.apart) return setZoom(range);
    this.zoom = range && drawableRange(...range);
    this.rezoom();
  }

  columns() {
    const axis = this.across();
    for (const line of this.lines) line.places = along(line.clock, axis, line.curve.steps);
    return columns(this.lines, { axis, smoothing: view.smoothing, log: this.log });
  }

  // From scratch: a scale cannot change its kind.
  draw() {
    if (!this.near) return;
    this.plot?.destroy();
    const data = this.columns();
    this.plot = new uPlot(plotOptions(this), data, this.place);
    this.plot.over.addEventListener(
      "pointermove",
      (event) => event.pointerType === "touch" && this.moveTo(event.offsetX),
    );
    this.afterDraw();
  }

  // New values in the same chart: zoom and cursor stay.
  redraw() {
    if (!this.plot) return;
    const fits = this.plot.series.length === 1 + 2 * this.lines.length;
    if (!fits || this.axis !== this.across() || this.drawnApart !== this.apart) return this.draw();
    this.plot.batch(() => {
      this.lines.forEach((line, at) => {
        this.plot.setSeries(1 + 2 * at, { show: this.shown(line) });
        this.plot.setSeries(2 + 2 * at, { show: this.shown(line) && view.smoothing > 0 });
      });
      this.plot.setData(this.columns());
    });
    this.afterDraw();
  }

  afterDraw() {
    [this.axis, this.drawnApart] = [this.across(), this.apart];
    this.resetButton.hidden = !this.isZoomed();
    const count = (wanted) => this.lines.reduce((sum, { curve }) => sum + curve.values.filter(wanted).length, 0);
    const odd = count((value) => !Number.isFinite(value));
    const low = this.log ? count((value) => value <= 0 && value > -Infinity) : 0;
    const notes = [
      this.apart ? "Its steps are its own, beyond those of the run" : "",
      odd ? `${integer(odd)} NaN or infinite (▾, ▴)` : "",
      low ? `${integer(low)} not above zero, so not on this scale` : "",
    ];
    this.note.textContent = notes.filter(Boolean).join("; ");
  }

  isZoomed() {
    return Boolean(this.apart ? this.zoom : view.zoom);
  }

  rezoom() {
    this.resetButton.hidden = !this.isZoomed();
    const [min, max] = this.range();
    this.plot?.setScale("x", { min, max });
  }

  // -- the cursor ------------------------------------------------------------------------------

  cursor(plot) {
    const { left } = plot.cursor;
    if (left === null || left === undefined || left < 0) return this.showLast();
    const point = plot.posToVal(left, "x");
    this.where.textContent = atText(point, this.across());
    const edge = cursorPoint(plot);
    this.lines.forEach(({ curve, places, format }, at) => {
      const place = lastUpTo(places, edge);
      this.values[at].textContent = place < 0 ? "–" : format(curve.values[place]);
    });
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.setZoom(range);
  }

  key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const wide = this.plot.over.clientWidth;
    const left = this.plot.cursor.left >= 0 ? this.plot.cursor.left : wide / 2;
    const [low, high] = this.range();
    const middle = this.plot.posToVal(left, "x");
    const actions = {
      ArrowLeft: () => this.moveTo(left - wide / 60),
      ArrowRight: () => this.moveTo(left + wide / 60),
      "+": () => this.setZoom([middle - (middle - low) / 2, middle + (high - middle) / 2]),
      "-": () => this.setZoom(zoomedOut(low, high, this.full ?? view.full)),
      Escape: () => this.setZoom(null),
    };
    const action = actions[event.key === "=" ? "+" : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  moveTo(left) {
    const { clientWidth, clientHeight } = this.plot.over;
    this.plot.setCursor({ left: Math.min(clientWidth - 1, Math.max(0, left)), top: clientHeight / 2 }, true, true);
  }
}
