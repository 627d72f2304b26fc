"""Choose the steps at which gradients are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.callbacks._sampled_steps import SampledSteps
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class Sampling:
    """``SampledSteps`` for gradients: if a measured step is skipped, the next step replaces it."""

    __slots__ = ("_due", "_seen", "_step", "_steps")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self._steps = SampledSteps(reader, every)
        self._step, self._due = -1, False
        self._seen: set[int] = set()

    @property
    def every(self) -> Duration:
        """How often gradients are measured."""
        return self._steps.every

    def begin(self, run: Run) -> None:
        """Prepare for a run. Call it in ``on_setup``."""
        self._steps.begin(run)
        self._step, self._due = -1, False

    def wants(self, run: Run) -> bool:
        """True once per due step and optimizer. Call it in ``on_gradients_ready``."""
        if run.clock.step != self._step:
            self._step = run.clock.step
            self._due = self._steps.reaches(run, at_end=True)
            self._seen.clear()
        if not self._due or id(run.optimizer) in self._seen:
            return False
        self._seen.add(id(run.optimizer))
        return True

    def skipped(self, run: Run) -> None:
        """Discard the measurement of this step. Call it in ``on_step_skipped``."""
        if self._due and self._step == run.clock.step:
            self._steps.take_back()
            self._step = -1

    def state_dict(self) -> dict[str, Any]:
        return self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps.load_state_dict(state)
        # A rollback repeats steps.
        self._step, self._due = -1, False
