"""A run that ends in the middle, as when a machine is lost, for tests of what goes on after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookline.callbacks import LambdaCallback
from hookline.events import Callback


class LostError(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture
def lost() -> type[Exception]:
    return LostError


@pytest.fixture
def lose_after() -> Callable[[int], LambdaCallback]:
    """A callback that ends the run after so many steps, before the next one."""

    def make(steps: int) -> LambdaCallback:
        def lose(run: object) -> None:
            if run.clock.step == steps:  # type: ignore[attr-defined]
                raise LostError

        return LambdaCallback(on_train_step_start=lose)

    return make


class Back(Callback):
    """Keeps a moment after a batch, and goes back to it after another one."""

    def __init__(self, kept: int, back: int) -> None:
        self.kept, self.back = kept, back
        self.moment: Any = None

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.batch == self.kept:
            self.moment = run.snapshot()
        elif run.clock.batch == self.back:
            run.roll_back(self.moment)


@pytest.fixture
def go_back() -> type[Back]:
    """A rollback: ``go_back(kept, back)`` are numbers of batches."""
    return Back
