"""A run that goes back to an earlier step."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.events import Callback


class Back(Callback):
    """Takes a snapshot after a batch, and goes back to it after another one."""

    def __init__(self, kept: int, back: int) -> None:
        self.kept, self.back = kept, back
        self.snapshot: Any = None

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.batch == self.kept:
            self.snapshot = run.snapshot()
        elif run.clock.batch == self.back:
            run.roll_back(self.snapshot)


@pytest.fixture
def go_back() -> type[Back]:
    """A rollback: ``go_back(kept, back)`` are numbers of batches."""
    return Back
