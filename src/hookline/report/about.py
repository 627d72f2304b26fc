"""The parts of the report that are not curves: status, settings, events, sessions and costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hookline.errors import DurationError
from hookline.progress.duration import UNITS, Duration
from hookline.records.event import step_put_back
from hookline.records.run_file import FILE, CallbackEntry, RunFile, SessionEntry
from hookline.report.clock import of_the_loop
from hookline.report.fit import EVENTS, MAX_ITEMS, cut
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
    "The process ended without recording a status: it was killed, or the machine went down. "
    'With resume="auto" the run continues from its newest checkpoint.'
)
_ENDINGS = {
    "end": "finished",
    "stop": "stopped",
    "interrupt": "interrupted",
    "preempt": "preempted",
    "exception": "failed",
}


def status_of(run: RunData) -> dict[str, Any]:
    """Return how the run ended and why: from ``run.json``, or from the events without it."""
    session = _newest(run.file)
    if session is not None:
        key = _status(session, run)
        reason = _GONE if key == "gone" else cut(str(session.reason), LONGEST_REASON)
        reason = "; ".join([*map(str, session.not_finite[:MAX_ITEMS]), reason]) if key == "nan" else reason
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
    """Return the values under the title. For a running run they come from its rows."""
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
    """Return the target of a run that is not complete, from its ``max_duration``.

    Args:
        file: Content of ``run.json``.
        reached: Epochs, steps and seconds so far.

    Returns:
        For example ``{"unit": "epochs", "value": 60}``, or ``None``.
    """
    session = _newest(file)
    if file is None or session is None or session.status == "finished":
        return None
    try:
        goal = Duration.parse(_mapping(file.settings).get("max_duration", ""))
    except DurationError:  # The setting is missing, or another program wrote the file.
        return None
    unit = UNITS[goal.unit]
    return {"unit": unit, "value": goal.value} if reached.get(unit, 0) <= goal.value else None


class PutBack(NamedTuple):
    """The event that restored the weights of an earlier step at the end of a run."""

    step: int
    """Step of the restored weights."""
    seconds: float
    """Time of the restore. Later evaluations used the restored weights."""
    text: str


def put_back_of(run: RunData) -> PutBack | None:
    """Return the last restore of weights, if no training followed it."""
    if "restore" not in run.events:
        return None
    session, row = run.events["restore"].newest
    newest = max(events.newest.session for events in run.events.values())
    step = step_put_back(row.text)
    if step is None or session < newest or row.step < facts_of(run)["steps"]:
        return None
    return PutBack(step, row.seconds, row.text)


def events_of(run: RunData) -> dict[str, Any]:
    """Return the timeline: one session after the other, each in the order of training."""
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
    names = dict.fromkeys(event.name for _, event in happened)  # In the order of the first occurrence.
    return {"rows": rows, "counts": {name: run.events[name].count for name in names}}


def sessions_of(run: RunData) -> list[dict[str, Any]]:
    """Return one entry per call of ``fit``. A running session has the values of its latest rows."""
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
            "failures": [cut(str(text)) for text in session.failures[:MAX_ITEMS]],
            "sinks": [cut(str(text)) for text in session.sinks[:MAX_ITEMS]],
        }
        for session in (run.file.sessions if run.file else ())
    ]


def costs_of(run: RunData) -> dict[str, Any]:
    """Return the cost of each hook of each callback, over all sessions that recorded costs."""
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
    """Yield each session with its own seconds.

    A resumed session counts from the seconds of its checkpoint.
    """
    resumed = {event.row.step: event.row.seconds for event in run.events.get("resume", ())}
    before = 0.0
    for place, session in enumerate(run.file.sessions if run.file else ()):
        first = resumed.get(session.first_step, before) if place else 0.0
        before = _number(session.seconds)
        yield session, max(0.0, before - first)


# -- settings --------------------------------------------------------------------------------------


def settings_of(run: RunData) -> dict[str, Any]:
    """Return hyper-parameters, options of the trainer, command line, callbacks and environment."""
    file = run.file
    if file is None:
        return {}
    return {
        "config": _shown(config_settings(file)),
        "trainer": _shown(trainer_settings(file)),
        "arguments": [cut(str(argument)) for argument in file.arguments[:MAX_ITEMS]],
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
    """Return the hyper-parameters, without the seed if it is the seed of the run."""
    return [(name, value) for name, value in flat(file.config) if name != "seed" or value != file.seed]


def trainer_settings(file: RunFile) -> list[tuple[str, Any]]:
    """Return the seed of the run and the options of the trainer."""
    options = dict(_mapping(file.settings))
    given = options.pop("seed", None)
    return flat({"seed": given if file.seed is None else file.seed, **options})


def call(entry: CallbackEntry) -> str:
    """Return the callback as source code, such as ``EarlyStopping(patience=3)``."""
    name, arguments = str(entry.name), str(entry.arguments)
    return arguments if name in arguments and arguments.endswith(")") else f"{name}({arguments})"


def flat(tree: Any) -> list[tuple[str, Any]]:
    """Return a tree of settings as dotted names with plain values.

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
    """Return how far the run came: from an ended session, or from the rows and events."""
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
    """Return the settings that a page can show: one setting may be a large vocabulary."""
    rows = [(cut(name), cut(value) if isinstance(value, str) else whole(value)) for name, value in settings[:MAX_ITEMS]]
    more = len(settings) - len(rows)
    return [*rows, ("…", f"{more:,} more are in {FILE}")] if more else rows


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else 0
