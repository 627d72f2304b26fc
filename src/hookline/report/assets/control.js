// The buttons of `hookline watch --control`, on the page of a run that trains.

let control = null;

function controlBar(live) {
  const said = h("output", { role: "status", class: "small" });
  const send = async (command, settings = "") => {
    said.textContent = "…";
    try {
      const answer = await fetch("/ask", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Hookline-Control": live.control },
        body: JSON.stringify({ run: live.run, command, settings }),
      });
      const text = await answer.text();
      said.textContent = answer.ok ? JSON.parse(text).text : text;
      said.classList.toggle("bad", !answer.ok || !["done", "waiting"].includes(JSON.parse(text).kind));
    } catch {
      said.textContent = "The server does not answer.";
    }
  };
  const input = h("input", { type: "text", id: "settings-to-set", placeholder: "lr=1e-4 patience=5", "aria-label": "Settings" });
  const set = () => send("set", input.value);
  input.addEventListener("keydown", (event) => event.key === "Enter" && set());
  const stop = button("Stop", () => {
    if (stop.textContent === "Stop") stop.textContent = "Really stop?";
    else {
      stop.textContent = "Stop";
      send("stop");
    }
  }, { class: "toggle" });
  stop.addEventListener("blur", () => (stop.textContent = "Stop"));
  const press = (label, act) => button(label, act, { class: "toggle" });
  const buttons = [press("Save", () => send("save")), press("Evaluate", () => send("eval")), stop];
  const box = h("div", { class: "bar", role: "group", "aria-label": "Control this run" }, buttons, input, press("Set", set));
  return h("div", { class: "under", id: "control" }, box, said);
}

const reportWithoutControl = PAGES.report;

PAGES.report = (data) => {
  const page = reportWithoutControl(data);
  control ??= controlBar(data.live);
  control.firstChild.hidden = data.status.key !== "running";
  return { ...page, under: [...page.under, control] };
};
