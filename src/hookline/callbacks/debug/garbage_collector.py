"""``GarbageCollector``: run Python's garbage collector at fixed steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class GarbageCollector(Callback):
    """Run Python's garbage collector at fixed steps, the same on all ranks.

    Automatic collection pauses each process at a different time, and all ranks wait for each pause. The callback
    disables automatic collection during training, evaluation and prediction, and enables it again afterwards if it was
    enabled before. It also collects everything once before training. Objects without reference cycles are still freed
    immediately.

    Args:
        every: Number of steps between collections, such as ``500`` or ``"500st"``. Evaluations and predictions count
            batches.
        generation: Oldest generation to collect. 2: all objects. 1: faster, but old objects are not collected.

    Raises:
        ArgumentError: If ``every`` is not a number of steps, or ``generation`` is not 0, 1 or 2.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[GarbageCollector(every=4)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> gc.isenabled()
        True
    """

    writes = ()
    optional = True

    def __init__(self, every: int | str | Duration = 1000, *, generation: int = 2) -> None:
        self.every = _steps(every)
        if generation not in (0, 1, 2):
            raise ArgumentError(f"GarbageCollector(generation={generation!r}): must be 0, 1 or 2.")
        self.generation = generation
        self._is_off = False

    def on_train_step_end(self, run: Run) -> None:
        if run.clock.step % self.every == 0:
            self._collect()

    def on_eval_batch_end(self, run: Run) -> None:
        if run.clock.eval.batch % self.every == 0:
            self._collect()

    def on_predict_batch_end(self, run: Run) -> None:
        if run.clock.eval.batch % self.every == 0:
            self._collect()

    def around_train(self, run: Run) -> Iterator[None]:
        gc.collect()
        yield from self._switched_off()

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._switched_off()

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._switched_off()

    def _switched_off(self) -> Iterator[None]:
        """Disable automatic collection for a while."""
        # Collection is already disabled, by training around an evaluation or by the user.
        if self._is_off or not gc.isenabled():
            yield
            return
        gc.disable()
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False
            gc.enable()

    def _collect(self) -> None:
        """Collect now."""
        gc.collect(self.generation)
        if self._is_off:
            # A library may have enabled it again.
            gc.disable()


def _steps(every: int | str | Duration) -> int:
    """Return a number of steps. All ranks count steps in the same way, unlike time."""
    if isinstance(every, int):
        steps = 0 if isinstance(every, bool) else every
    else:
        duration = Duration.parse(every, "GarbageCollector(every=…)")
        if duration.unit != "st":
            raise ArgumentError(
                f"GarbageCollector(every={str(duration)!r}): must be a number of steps, because all ranks collect in "
                f"the same step. Write 500 or '500st'."
            )
        steps = int(duration.value)
    if steps < 1:
        raise ArgumentError(f"GarbageCollector(every={every!r}): must be >= 1.")
    return steps
