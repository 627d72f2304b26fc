// Elements. `h` makes text nodes of strings, so a string from a run never becomes markup.

const FEW = 9;

function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, its] of Object.entries(value)) node.style.setProperty(key, its);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

function card(...children) {
  return h("div", { class: "card" }, ...children);
}

// A section of the page, with a heading that the navigation leads to. Without content there is none.
function section(id, title, ...children) {
  const content = children.flat(Infinity).filter(Boolean);
  if (!content.length) return null;
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...content);
}

// A table. A column is a name, or { name, number: true } to align it to the right.
function table(columns, rows, attributes = {}) {
  const kinds = columns.map((column) =>
    typeof column === "string" || column instanceof Node ? { name: column } : column,
  );
  const cell = (tag, attributes, kind, content) => {
    const node = h(tag, attributes, content);
    if (kind?.number) node.classList.add("number");
    else if (/\S{25}/.test(node.textContent)) node.classList.add("breaks"); // a word that no column could hold
    return node;
  };
  const head = kinds.map((kind) => cell("th", { scope: "col" }, kind, kind.name));
  const cells = (row) => row.map((content, at) => cell("td", {}, kinds[at], content));
  const body = rows.map((row) => h("tr", {}, ...cells(row)));
  return scroller(h("table", attributes, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)));
}

// A name that is broken behind its dots, slashes and underscores, if it must be. One that is written from right to left
// does not turn the text next to it.
function breakable(name) {
  return h("bdi", {}, ...name.split(/(?<=[./_])/).flatMap((part, at) => (at ? [h("wbr"), part] : [part])));
}

// The first few of many things; the others are behind a line with their number. Open folds stay open when there is new
// data: `key` identifies the fold.
function folded(key, what, all, build, shown = FEW) {
  if (all.length <= shown) return [build(all)];
  const rest = all.slice(shown);
  const toggle = ({ target }) => (target.open ? view.unfolded.add(key) : view.unfolded.delete(key));
  const more = h(
    "details",
    { class: "fold", open: view.unfolded.has(key), ontoggle: toggle },
    h("summary", {}, `${integer(rest.length)} ${shown ? "more " : ""}${what}`),
    build(rest),
  );
  return [shown ? build(all.slice(0, shown)) : null, more];
}

// A box for content that may be wider: where more can be seen, its edge fades.
function scroller(content) {
  const box = h("div", { class: "scroll", tabindex: "0" }, content);
  const fade = () => {
    const right = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", right > 1);
    box.classList.toggle("more-down", box.scrollHeight - box.clientHeight - box.scrollTop > 1);
  };
  box.addEventListener("scroll", fade, { passive: true });
  const sizes = new ResizeObserver(fade);
  sizes.observe(box);
  sizes.observe(content);
  return box;
}

// Name and value, one pair below the other; `near`: the value next to its name, for sentences.
function pairs(rows, near = false) {
  return h(
    "dl",
    { class: near ? "pairs near" : "pairs" },
    ...rows.map(([name, value]) => h("div", {}, h("dt", {}, breakable(name)), h("dd", {}, value))),
  );
}

// One of several choices, as a row of buttons.
function choice(label, options, chosen, choose) {
  const buttons = options.map(([key, text]) =>
    button(
      text,
      () => {
        for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.key === key));
        choose(key);
      },
      { "aria-pressed": String(key === chosen), "data-key": key },
    ),
  );
  return h("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

// A slider over the frames of something that was logged at several steps; the newest is shown first.
function frames(entry, show) {
  const place = h("div", { class: "frame" });
  const label = h("output", { class: "when" });
  const at = (index) => {
    const frame = entry.frames[index];
    label.textContent = `step ${integer(frame.step)}`;
    place.replaceChildren(show(frame));
  };
  const last = entry.frames.length - 1;
  const slider = h("input", { type: "range", min: 0, max: last, value: last, "aria-label": `step of ${entry.name}` });
  slider.addEventListener("input", () => at(Number(slider.value)));
  if (last >= 0) at(last);
  const left = entry.count - entry.frames.length;
  return [
    h("div", { class: "bar" }, h("h3", {}, breakable(entry.name)), label),
    place,
    last > 0 && slider,
    left > 0 && h("p", { class: "note" }, `${integer(left)} of ${integer(entry.count)} did not fit into this page.`),
  ].filter(Boolean);
}

// Calls `draw` when the element comes near the window: pages with hundreds of charts open fast.
const nearby = new IntersectionObserver(
  (seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      nearby.unobserve(target);
      waiting.get(target)?.();
      waiting.delete(target);
    }
  },
  { rootMargin: "400px" },
);
const waiting = new Map();

function whenNear(element, draw) {
  waiting.set(element, draw);
  nearby.observe(element);
}

window.addEventListener("beforeprint", () => {
  for (const draw of waiting.values()) draw();
  waiting.clear();
});

// The colour that a variable of the style sheet has now: canvas knows no variables.
const probe = h("span", { hidden: true });
const colours = new Map();

function colour(name, alpha = 1) {
  if (!colours.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    colours.set(
      name,
      getComputedStyle(probe)
        .color.match(/[\d.]+/g)
        .slice(0, 3)
        .join(", "),
    );
  }
  return `rgba(${colours.get(name)}, ${alpha})`;
}
