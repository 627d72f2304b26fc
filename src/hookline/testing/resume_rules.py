"""Rules of the contract about interrupted and resumed runs, pickling, and declared metrics."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hookline.errors import Preempted
from hookline.events import Callback
from hookline.events.spec import is_resource
from hookline.testing.scenes import Fit, tried_out
from hookline.testing.states import RuleError, need
from hookline.testing.surroundings import plain

Factory = Callable[[], Callback]

STEPS = (1, 4, 5, 8)
"""Steps of ten in two epochs: the first, one inside each epoch, and the end of an epoch."""


def pickles(factory: Factory) -> None:
    """Check that pickling restores an equal callback, or that its error says why not."""
    callback = factory()
    try:
        other = pickle.loads(pickle.dumps(callback))
    except Exception as error:
        need(bool(str(error)), f"it cannot be pickled, and {type(error).__name__} has no message")
        return
    need(other.state_key == callback.state_key, f"pickled, it has the state_key {other.state_key!r}")
    need(plain(vars(other)) == plain(vars(callback)), "pickled, it has other attributes")


def resume(factory: Factory) -> None:
    """Check that a preempted and resumed run ends like an uninterrupted one.

    State, weights and optimizer are equal, and there are rows of the same metrics at the same steps.
    """
    with tried_out() as folder:
        whole = factory()
        expected = Fit([whole], folder)
        steps = expected().clock.step
        rows = _rows(folder)
    for step in (step for step in STEPS if step < steps):
        with tried_out() as folder:
            left = False
            try:
                Fit([_Leave(step), factory()], folder)()
            except Preempted:
                left = True
            need(left, f"a run that is preempted at step {step} continues")
            again = factory()
            run = Fit([again], folder, resume="auto")
            run()
            if run.failures:
                raise RuleError(f"after a resume at step {step} it failed: {run.failures[0]}") from run.failures[
                    0
                ].error
            _compare(step, whole, again, expected, run)
            missing, more = rows - _rows(folder), _rows(folder) - rows
            need(not missing, f"after a resume at step {step} there is no row of {_words(missing)}")
            need(not more, f"after a resume at step {step} there is an extra row of {_words(more)}")


def interrupt(factory: Factory) -> None:
    """Check Ctrl-C inside an epoch, and a second fit that continues."""
    with tried_out() as folder:
        run = Fit([_Interrupt(3), factory()], folder)
        need(run().interrupted, "the result of an interrupted run is not marked as interrupted")
        run()
        _no_failures(run, "it failed and was disabled")


def metrics(factory: Factory) -> None:
    """Check that a callback that declares its metrics logs no other metrics."""
    declared = tuple(name for name in factory().writes if not is_resource(name))
    undeclared = undeclared_metrics(factory) if declared else ()
    need(not undeclared, f"it logs {', '.join(undeclared)} and declares only writes = {declared}")


def undeclared_metrics(factory: Factory) -> tuple[str, ...]:
    """Return the metrics that the callback logs in a fit and does not declare."""
    with tried_out() as folder:
        Fit([], folder)()
        usual = _metrics(folder)
    with tried_out() as folder:
        callback = factory()
        Fit([callback], folder)()
        names = {name.removesuffix("_epoch") for name in _metrics(folder) - usual}
    return tuple(sorted(name for name in names if not any(fnmatchcase(name, written) for written in callback.writes)))


class _Leave(Callback):
    """Act like a preemption signal at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == self.step:
            run.loop.engine.requests.ask_preempt(15)


class _Interrupt(Callback):
    """Act like Ctrl-C at the end of a step, once."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == self.step:
            run.loop.engine.state.ask_stop("keyboard interrupt", "the user", interrupt=True, by_user=True)


def _no_failures(run: Fit, what: str) -> None:
    if run.failures:
        raise RuleError(f"{what}: {run.failures[0]}") from run.failures[0].error


def _compare(step: int, whole: Callback, again: Callback, expected: Fit, run: Fit) -> None:
    saved, found = whole.state_dict(), again.state_dict()
    changed = [key for key in saved | found if plain(saved.get(key)) != plain(found.get(key))]
    need(not changed, f"after a resume at step {step} its state differs in {', '.join(changed)}")
    weights, theirs = expected.weights(), run.weights()
    changed = [name for name in weights | theirs if weights.get(name) != theirs.get(name)]
    need(not changed, f"after a resume at step {step} the run ends with a different {', '.join(changed[:3])}")


def _rows(folder: Path) -> set[tuple[str, int]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {(row["name"], row["step"]) for row in map(json.loads, lines)}


def _metrics(folder: Path) -> set[str]:
    """Return the names of metrics, without images and tables."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {row["name"] for row in map(json.loads, lines) if "value" in row}


def _words(rows: set[tuple[str, int]]) -> str:
    return ", ".join(f"{name} at step {step}" for name, step in sorted(rows)[:3])
