"""A run that ends in the middle, as when a machine is lost, for tests of what goes on after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookline.callbacks import LambdaCallback


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
