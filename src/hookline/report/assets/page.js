// Puts the page together, and together again when there is new data: `window.hookline.refresh(data)`.

const root = document.getElementById("page");
const theme = themeButton();
const frame = {
  header: h("header"),
  nav: h("nav", { "aria-label": "Sections" }),
  main: h("main"),
  footer: h("footer"),
};
root.append(...Object.values(frame));
let data = JSON.parse(document.getElementById("data").textContent);

function themeButton() {
  const kinds = { auto: ["◐", "as the system", "light"], light: ["☀", "light", "dark"], dark: ["☾", "dark", "auto"] };
  let now = "auto";
  const set = (kind) => {
    now = kind;
    if (kind === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
    found.textContent = kinds[kind][0];
    found.setAttribute("aria-label", `Theme: ${kinds[kind][1]}`);
    found.title = `Theme: ${kinds[kind][1]}`;
    repaint();
  };
  const found = button("", () => set(kinds[now][2]), { class: "icon", id: "theme" });
  set(now);
  return found;
}

function repaint() {
  colours.clear();
  for (const { plot } of view.charts) plot?.redraw(false);
  for (const plot of view.painted) plot.redraw(false);
}

// Paper is light and narrow, and canvases do not know that they are printed.
function forPaper() {
  const { dataset, classList } = document.documentElement;
  const before = dataset.theme;
  dataset.theme = "light";
  classList.add("paper");
  resize();
  window.addEventListener(
    "afterprint",
    () => {
      if (before) dataset.theme = before;
      else delete dataset.theme;
      classList.remove("paper");
      resize();
    },
    { once: true },
  );
}

// At once: a ResizeObserver would come after the print.
function resize() {
  colours.clear();
  for (const chart of view.charts) chart.plot?.setSize(chart.size());
  for (const plot of view.painted) plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height });
}

function show() {
  const { title, under, sections } = PAGES[data.page](data);
  const shown = sections.filter(Boolean);
  const home = data.live?.home ? h("a", { class: "home", href: data.live.home }, "All runs") : null;
  const logo = h("span", { class: "logo", "aria-hidden": "true" });
  const links = shown.map((its) => h("a", { href: `#${its.id}` }, its.querySelector("h2").textContent));
  const about = data.live
    ? "This page asks the program on this machine that serves it for what is new, and sends nothing elsewhere."
    : "This page holds all that it shows, and sends nothing.";
  const notes = [...data.notes, `Made by ${data.made_by}. ${about}`];
  const active = document.activeElement;
  frame.header.replaceChildren(
    h("div", { class: "bar" }, logo, title, h("span", { class: "space" }), home, theme),
    ...[under].flat().filter(Boolean),
  );
  frame.nav.replaceChildren(...links);
  frame.nav.hidden = links.length < 2;
  arrange(frame.main, shown);
  frame.footer.replaceChildren(...notes.map((note) => h("p", { class: "note" }, note)));
  if (active?.isConnected && active !== document.body) active.focus({ preventScroll: true });
}

// Elements that stay are not removed and inserted again: they would lose the focus and the scroll position.
function arrange(parent, wanted) {
  const stays = new Set(wanted);
  for (const child of [...parent.children]) if (!stays.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const child of wanted) {
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
}

// -- new data in an open page ----------------------------------------------------------------------

const parts = new Map();

// A section that is made again only if what it shows has changed: sliders and what is open stay as they are.
function part(id, title, shown, build) {
  const key = data.live ? JSON.stringify(shown) : "";
  const before = parts.get(id);
  if (before && before.key === key) return before.element;
  const element = section(id, title, build(shown));
  if (before?.element && element) keepOpen(before.element, element);
  parts.set(id, { key, element });
  return element;
}

function keepOpen(before, after) {
  const title = (details) => details.querySelector("summary").textContent;
  const open = new Set([...before.querySelectorAll("details[open]")].map(title));
  for (const details of after.querySelectorAll("details")) details.open = open.has(title(details));
}

function refresh(fresh) {
  data = { ...fresh, live: data.live ?? {}, made_by: data.made_by };
  view.painted = view.painted.filter(({ root: own }) => own.isConnected);
  const place = window.scrollY;
  show();
  window.scrollTo({ top: place, behavior: "instant" });
}

async function poll({ url, every, version }) {
  for (;;) {
    await new Promise((done) => setTimeout(done, 1000 * every));
    if (document.hidden) continue;
    let lost = "silent";
    try {
      const answer = await fetch(`${url}${url.includes("?") ? "&" : "?"}since=${encodeURIComponent(version)}`);
      if (answer.status === 404) lost = "deleted";
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = await answer.json();
      version = fresh.version;
      if (fresh.page) refresh(fresh);
      delete document.documentElement.dataset.lost;
    } catch {
      document.documentElement.dataset.lost = lost;
    }
  }
}

show();
window.hookline = { refresh };
if (data.live) poll(data.live);
window.addEventListener("beforeprint", forPaper);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest?.("input")) return;
  event.preventDefault();
  document.getElementById("search")?.focus();
});
