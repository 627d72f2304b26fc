"""The names inside the engine that tests need. Only this file knows them: a change of the engine changes it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookline.loop import Loop, Trainer


def loop_of(trainer: Trainer) -> Loop:
    """The loop of the trainer's last run."""
    assert trainer._loop is not None, "the trainer has not run"
    return trainer._loop


def is_quiet(trainer: Trainer) -> bool:
    """True if the last run made its steps on the quiet path: no callback hears anything inside a step."""
    return bool(loop_of(trainer).line.fast.plain)


def set_time(run: Any, now: Callable[[], float]) -> None:
    """Let the clock of the run read this function instead of ``time.monotonic``."""
    run.loop.clock._now = now


def interrupt(run: Any, reason: str = "left", by: str = "the user") -> None:
    """End the run as Ctrl-C does, from inside a hook."""
    run.loop.session.stop(reason, by, interrupt=True)


def is_padding(run: Any) -> bool:
    """True if the batch is only there so that this rank does what the other ranks do."""
    return bool(run.loop.session.book.muted)


def signal_arrived(run: Any) -> bool:
    """True if a signal that ends the run has arrived."""
    return run.loop.requests.preempt is not None


def set_sink_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the end of a run wait this long for a sink that hangs, instead of five seconds."""
    monkeypatch.setattr("hookline.loop.stream.WAIT", seconds)
