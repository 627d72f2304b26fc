"""At which steps the gradients are looked at: once a step for each optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.callbacks.sampled_steps import SampledSteps
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class Sampling:
    """The steps of ``SampledSteps``; one that is skipped is no step: the next is looked at in its place."""

    __slots__ = ("_due", "_seen", "_step", "_steps")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self._steps = SampledSteps(reader, every)
        self._step, self._due = -1, False
        self._seen: set[int] = set()

    @property
    def every(self) -> Duration:
        return self._steps.every

    def begin(self, run: Run) -> None:
        """In ``on_setup``."""
        self._steps.begin(run)
        self._step, self._due = -1, False

    def wants(self, run: Run) -> bool:
        """In ``on_gradients_ready``: whether to look at the gradients of this optimizer. Once in a step for each."""
        if run.clock.step != self._step:
            self._step = run.clock.step
            self._due = self._steps.reaches(run, at_end=True)
            self._seen.clear()
        if not self._due or id(run.optimizer) in self._seen:
            return False
        self._seen.add(id(run.optimizer))
        return True

    def skipped(self, run: Run) -> None:
        """In ``on_step_skipped``: what was seen in this step does not count."""
        if self._due and self._step == run.clock.step:
            self._steps.take_back()
            self._step = -1

    def state_dict(self) -> dict[str, Any]:
        return self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps.load_state_dict(state)
        self._step, self._due = -1, False  # after a rollback the same step is made again
