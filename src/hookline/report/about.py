"""What was run, how it went and how it ended: the parts of the page that are no curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hookline.errors import DurationError
from hookline.progress.duration import UNITS, Duration
from hookline.records.event import step_put_back
from hookline.records.run_file import FILE, CallbackEntry, RunFile, SessionEntry
from hookline.report.clock import of_the_loop
from hookline.report.fit import EVENTS, MOST, cut
from hookline.report.numbers import whole
from hookline.report.read import RunData

LABELS = {
    "running": "running",
    "finished": "finished",
    "nan": "finished with NaN",
    "stopped": "stopped early",
    "interrupted": "interrupted",
    "preempted": "preempted",
    "failed": "failed",
    "killed": "killed",
    "gone": "no longer running (killed?)",
    "unknown": "unknown",
}
LONGEST_REASON = 20_000
_GONE = (
    "Its process has ended without a word: killed, or the machine went down. "
    'With resume="auto" it goes on from its newest checkpoint.'
)
_ENDINGS = {
    "end": "finished",
    "stop": "stopped",
    "interrupt": "interrupted",
    "preempt": "preempted",
    "exception": "failed",
}


def status_of(run: RunData) -> dict[str, Any]:
    """How the run ended, and why; from its events if there is no ``run.json``."""
    session = _newest(run.file)
    if session is not None:
        key = _status(session, run)
        reason = _GONE if key == "gone" else cut(str(session.reason), LONGEST_REASON)
        reason = "; ".join([*map(str, session.not_finite[:MOST]), reason]) if key == "nan" else reason
        return {"key": key, "label": LABELS[key], "reason": reason, "by": session.stopped_by}
    ending = max(
        (events.newest for name, events in run.events.items() if name in _ENDINGS),
        key=lambda event: (event.session, event.row.seconds, event.row.name != "end"),
        default=None,
    )
    key = _ENDINGS[ending.row.name] if ending else "unknown"
    return {
        "key": key,
        "label": LABELS[key],
        "reason": cut(ending.row.text, LONGEST_REASON) if ending else "",
        "by": None,
    }


def facts_of(run: RunData) -> dict[str, Any]:
    """The numbers under the title. Of a running run, as far as its rows tell."""
    file, session = run.file, _newest(run.file)
    reached = _reached(run, session)
    return {
        **reached,
        "goal": goal_of(file, reached),
        "project": file.project if file else "",
        "name": file.name if file else run.title,
        "run_id": file.run_id if file else "",
        "started": file.started if file else "",
        "ended": session.ended if session else None,
        "written": run.written,
        "seed": whole(file.seed) if file else None,
        "git": dict(_mapping(file.git)) if file and file.git else None,
        "rows": run.rows,
    }


def goal_of(file: RunFile | None, reached: Mapping[str, Any]) -> dict[str, Any] | None:
    """How far a run is to go that has not come there: ``{"unit": "epochs", "value": 60}``; by its ``max_duration``."""
    session = _newest(file)
    if file is None or session is None or session.status == "finished":
        return None
    try:
        goal = Duration.parse(_mapping(file.settings).get("max_duration", ""))
    except DurationError:  # it has none, or somebody else wrote the file
        return None
    unit = UNITS[goal.unit]
    return {"unit": unit, "value": goal.value} if reached.get(unit, 0) <= goal.value else None


class PutBack(NamedTuple):
    """At its end the model got the weights of an earlier step back."""

    step: int
    """Whose weights they are."""
    seconds: float
    """When it was; what was evaluated later was so with these weights."""
    text: str


def put_back_of(run: RunData) -> PutBack | None:
    """If nothing was trained after it."""
    if "restore" not in run.events:
        return None
    session, row = run.events["restore"].newest
    newest = max(events.newest.session for events in run.events.values())
    step = step_put_back(row.text)
    if step is None or session < newest or row.step < facts_of(run)["steps"]:
        return None
    return PutBack(step, row.seconds, row.text)


def events_of(run: RunData) -> dict[str, Any]:
    """The timeline: session after session, each in the order of training."""
    happened = [event for events in run.events.values() for event in events]
    happened.sort(key=lambda event: (event.session, event.row.seconds, event.row.step))
    longest = max(200, EVENTS // max(1, len(happened)))
    rows = [
        {
            "name": event.name,
            "step": event.step,
            "epoch": event.epoch,
            "seconds": event.seconds,
            "text": cut(event.text, longest),
            "took": event.took,
        }
        for _, event in happened
    ]
    names = dict.fromkeys(event.name for _, event in happened)  # by when each came first
    return {"rows": rows, "counts": {name: run.events[name].count for name in names}}


def sessions_of(run: RunData) -> list[dict[str, Any]]:
    """One for each ``fit``, the first and those that went on. One that runs is as far as its rows tell."""
    reached = facts_of(run)["steps"]
    return [
        {
            "started": session.started,
            "ended": session.ended,
            "first_step": session.first_step,
            "last_step": reached if session.status == "running" else session.last_step,
            "status": _status(session, run),
            "label": LABELS[_status(session, run)],
            "reason": cut(str(session.reason)),
            "by": session.stopped_by,
            "failures": [cut(str(text)) for text in session.failures[:MOST]],
            "sinks": [cut(str(text)) for text in session.sinks[:MOST]],
        }
        for session in (run.file.sessions if run.file else ())
    ]


def costs_of(run: RunData) -> dict[str, Any]:
    """What each hook of each callback cost, over all sessions that tell; one that was killed does not."""
    sums: dict[tuple[str, str], list[float]] = {}
    seconds = killed = 0.0
    for session, took in _lengths(run):
        seconds += took if session.costs else 0.0
        killed += took if session.status == "killed" else 0.0
        for cost in session.costs:
            entry = sums.setdefault((str(cost.callback), str(cost.hook)), [0, 0.0])
            entry[0] += _number(cost.calls)
            entry[1] += _number(cost.seconds)
    dearest = sorted(sums.items(), key=lambda entry: -entry[1][1])
    rows = [
        {"callback": callback, "hook": hook, "calls": calls, "seconds": seconds}
        for (callback, hook), (calls, seconds) in dearest
    ]
    return {"seconds": seconds, "killed": killed, "rows": rows}


def _lengths(run: RunData) -> Iterator[tuple[SessionEntry, float]]:
    """Each session with its own seconds. One that goes on counts them from those of its checkpoint."""
    resumed = {event.row.step: event.row.seconds for event in run.events.get("resume", ())}
    before = 0.0
    for place, session in enumerate(run.file.sessions if run.file else ()):
        first = resumed.get(session.first_step, before) if place else 0.0
        before = _number(session.seconds)
        yield session, max(0.0, before - first)


# -- settings --------------------------------------------------------------------------------------


def settings_of(run: RunData) -> dict[str, Any]:
    """Hyper-parameters, the trainer's options, the command line, callbacks in their order, and where it ran."""
    file = run.file
    if file is None:
        return {}
    return {
        "config": _shown(config_settings(file)),
        "trainer": _shown(trainer_settings(file)),
        "arguments": [cut(str(argument)) for argument in file.arguments[:MOST]],
        "callbacks": [
            {"name": entry.name, "call": cut(call(entry)), "optional": entry.optional is True}
            for entry in file.callbacks
        ],
        "model": _shown(flat(file.model)),
        "versions": _shown(flat(file.versions)),
        "platform": _shown(flat(file.platform)),
        "git": _shown(flat(file.git or {})),
    }


def config_settings(file: RunFile) -> list[tuple[str, Any]]:
    """The hyper-parameters; not the seed once more, if it is the one that was used."""
    return [(name, value) for name, value in flat(file.config) if name != "seed" or value != file.seed]


def trainer_settings(file: RunFile) -> list[tuple[str, Any]]:
    """The seed that was used, and the options of the trainer; the option ``seed`` may have left it to the run."""
    options = dict(_mapping(file.settings))
    given = options.pop("seed", None)
    return flat({"seed": given if file.seed is None else file.seed, **options})


def call(entry: CallbackEntry) -> str:
    """The callback as it would be written: ``EarlyStopping(patience=3)``."""
    name, arguments = str(entry.name), str(entry.arguments)
    return arguments if name in arguments and arguments.endswith(")") else f"{name}({arguments})"


def flat(tree: Any) -> list[tuple[str, Any]]:
    """A tree of settings as dotted names with plain values.

    >>> flat({"lr": 0.1, "model": {"depth": 3, "kinds": ["a", "b"]}})
    [('lr', 0.1), ('model.depth', 3), ('model.kinds', '["a", "b"]')]
    """
    return list(_flat(tree, ""))


def _flat(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and (tree or not name):
        for key, value in tree.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    elif tree is None or isinstance(tree, str | int | float):
        yield name, tree
    else:
        yield name, json.dumps(tree, ensure_ascii=False, default=str)


def _reached(run: RunData, session: SessionEntry | None) -> dict[str, Any]:
    """How far it came: a session that has ended says it; else the rows of the loop and what happened do."""
    ended = {"steps": 0, "epochs": 0, "seconds": 0.0}
    if session is not None:
        ended = {"steps": session.last_step, "epochs": session.last_epoch, "seconds": session.seconds}
        ended = {name: _number(value) for name, value in ended.items()}
        if session.status != "running" and ended["steps"]:
            return ended
    columns, newest = of_the_loop(run.series), [events.newest for events in run.events.values()]
    session_now = max((event.session for event in newest), default=0)
    happened = [event.row for event in newest if event.session == session_now]
    rows: dict[str, list[Any]] = {
        "steps": [*(series.steps[-1] for series in columns), *(event.step for event in happened)],
        "epochs": [*(series.epochs[-1] for series in columns), *(event.epoch for event in happened)],
        "seconds": [series.seconds[-1] for series in run.series.values() if len(series)],
    }
    return {name: max([*values, ended[name]]) for name, values in rows.items()}


def _newest(file: RunFile | None) -> SessionEntry | None:
    return file.sessions[-1] if file and file.sessions else None


def _status(session: SessionEntry, run: RunData) -> str:
    if session.status == "running" and run.gone:
        return "gone"
    if session.status == "finished" and session.not_finite:
        return "nan"
    return session.status if isinstance(session.status, str) and session.status in LABELS else "unknown"


def _shown(settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """As far as a page has room: a setting may be a whole vocabulary."""
    rows = [(cut(name), cut(value) if isinstance(value, str) else whole(value)) for name, value in settings[:MOST]]
    more = len(settings) - len(rows)
    return [*rows, ("…", f"{more:,} more are in {FILE}")] if more else rows


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else 0
