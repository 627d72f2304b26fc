"""What the monitors share: when a row is due, and the time that is no part of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.run import Run


class Interval:
    """Whether a step was made since the last row. A monitor logs at intervals and at the ends of epochs.

    The two may fall on one step, and a run may go on at the end of an epoch: each step has one row all the same. It
    is saved with the monitor's state: after a resume in the middle of such an edge the row may still be to come.
    """

    __slots__ = ("_step",)

    def __init__(self) -> None:
        self._step = 0

    def begin(self, run: Run) -> None:
        """In ``setup``: the steps of another run do not count."""
        self._step = min(self._step, run.clock.step)

    def is_over(self, run: Run) -> bool:
        """Whether a row is due; if so, it counts as logged."""
        if run.clock.step <= self._step:
            return False
        self._step = run.clock.step
        return True

    def state_dict(self) -> dict[str, int]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._step = state["step"]


class Aside:
    """The seconds of what is no part of training, such as evaluations, and how many of them there were."""

    __slots__ = ("_open", "count", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self._open = 0

    def around(self, run: Run) -> Iterator[None]:
        """For ``around_eval`` and its siblings. One inside another is a part of it."""
        began = run.clock.seconds
        self._open += 1
        yield
        self._open -= 1
        if not self._open:
            self.seconds += run.clock.seconds - began
            self.count += 1
