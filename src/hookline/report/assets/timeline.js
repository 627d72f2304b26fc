// The events of a run, as a band and as a list.

const EVENTS = {
  start: "Start",
  resume: "Resumed",
  eval: "Evaluation",
  checkpoint: "Checkpoint",
  checkpoint_failed: "Checkpoint failed",
  stop: "Stopped",
  interrupt: "Interrupted",
  preempt: "Preempted",
  exception: "Exception",
  killed: "Killed",
  callback_disabled: "Callback switched off",
  sink: "Sink",
  step_skipped: "Step skipped",
  rollback: "Rolled back",
  restore: "Weights restored",
  nan: "Not finite",
  control: "Request",
  end: "End",
};
const BAD = new Set(["checkpoint_failed", "exception", "killed", "callback_disabled", "rollback", "preempt", "nan"]);
const ROUTINE = new Set(["eval", "checkpoint", "sink", "step_skipped"]);
const MARKED = new Set(["resume", "rollback", "restore", "exception"]);

function timelineView({ rows, counts }, seconds) {
  if (!rows.length) return null;
  const end = Math.max(seconds, ...rows.map((row) => row.seconds + row.took), 1e-9);
  const caption = h("p", { class: "note caption", "aria-live": "off" }, "Point at a mark to read it.");
  const lanes = [
    ["Evaluations", (name) => name === "eval"],
    ["Checkpoints", (name) => name === "checkpoint"],
    ["Run", (name) => !ROUTINE.has(name) && !BAD.has(name)],
    ["Trouble", (name) => BAD.has(name) || name === "step_skipped"],
  ];
  const lane = ([label, belongs]) => {
    const own = rows.filter(({ name }) => belongs(name));
    return own.length
      ? h(
          "div",
          { class: "lane" },
          h("span", { class: "label" }, label),
          h("div", { class: "track" }, ...own.map((row) => mark(row, end, caption))),
        )
      : null;
  };
  const scale = h(
    "div",
    { class: "lane scale" },
    h("span"),
    h("div", { class: "ends" }, h("span", {}, "0"), h("span", {}, duration(end))),
  );
  return card(h("div", { class: "lanes" }, ...lanes.map(lane), scale), caption, eventList(rows, counts));
}

function words(row) {
  const took = row.took ? `, took ${duration(row.took)}` : "";
  return `${own(EVENTS, row.name) ?? row.name} at step ${integer(row.step)}, after ${duration(row.seconds)}${took}${row.text ? `: ${row.text}` : ""}`;
}

function mark(row, end, caption) {
  const kind = BAD.has(row.name) ? "bad" : Object.hasOwn(EVENTS, row.name) ? row.name : "other";
  const node = h("i", {
    class: `mark ${kind}`,
    title: words(row),
    style: { left: `min(${(100 * row.seconds) / end}%, 100% - 3px)`, width: `${(100 * row.took) / end}%` },
  });
  node.addEventListener("pointerenter", () => (caption.textContent = words(row)));
  return node;
}

function eventList(rows, counts) {
  const shown = new Set(Object.keys(counts).filter((name) => rows.length <= 12 || !ROUTINE.has(name)));
  const place = h("div");
  const fill = () => {
    const chosen = rows.filter(({ name }) => shown.has(name));
    const cells = chosen.map((row) => [
      h("span", { class: BAD.has(row.name) ? "bad" : null }, own(EVENTS, row.name) ?? row.name),
      integer(row.step),
      duration(row.seconds),
      row.took ? duration(row.took) : "",
      h("span", { class: "long" }, row.text),
    ]);
    place.replaceChildren(
      table(
        [
          "what",
          { name: "step", number: true },
          { name: "after", number: true },
          { name: "took", number: true },
          "why, where",
        ],
        cells,
        { class: "events stacked" },
      ),
    );
  };
  const chips = Object.entries(counts).map(([name, count]) => {
    const chip = button(
      `${own(EVENTS, name) ?? name} ${integer(count)}`,
      () => {
        shown.has(name) ? shown.delete(name) : shown.add(name);
        chip.setAttribute("aria-pressed", String(shown.has(name)));
        fill();
      },
      { class: "chip", "aria-pressed": String(shown.has(name)) },
    );
    return chip;
  });
  fill();
  const left = Object.values(counts).reduce((sum, count) => sum + count, 0) - rows.length;
  return h(
    "div",
    {},
    h("div", { class: "chips" }, ...chips),
    place,
    left > 0 ? h("p", { class: "note" }, `${integer(left)} more events are in events.jsonl.`) : null,
  );
}

function sessionsView(sessions) {
  const told = sessions.flatMap((session) => [
    ...session.failures.map((text) => ["switched off", text]),
    ...session.sinks.map((text) => ["sink", text]),
  ]);
  if (sessions.length < 2 && !told.length) return null;
  const rows = sessions.map((session, at) => [
    String(at + 1),
    moment(session.started),
    `${integer(session.first_step)} to ${integer(session.last_step)}`,
    session.label,
    h("span", { class: "long" }, session.reason),
  ]);
  return card(
    h("h3", {}, sessions.length > 1 ? "Sessions: the run was resumed" : "Session"),
    table([{ name: h("span", { class: "unseen" }, "session"), number: true }, "started", "steps", "status", "why"], rows, { class: "sessions stacked" }),
    told.length ? pairs(told, true) : null,
  );
}
