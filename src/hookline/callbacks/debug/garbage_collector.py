"""``GarbageCollector``: Python's garbage is collected at steps of your choice, the same on all ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class GarbageCollector(Callback):
    """Switches Python's own garbage collection off, and collects every ``every`` steps.

    Python collects when it has made many objects: at any moment, and in each process at another one. Where many
    processes train together, each waits for all of these pauses. Here they come in the same step.

    It works in training and in the evaluations inside it, and in ``evaluate``, ``test`` and ``predict``, where it
    counts batches. Before training all is collected once. On every way out, also after an error, collection
    is on again if it was on before. ``every`` is a number of steps or ``"500st"``. ``generation`` is the oldest
    generation that is collected: ``2`` is all, ``1`` is faster and leaves old garbage where it is.

    What is no cycle is freed at once as always: no tensor that nobody holds waits for this.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="2ep", callbacks=[GarbageCollector(every=4)], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> gc.isenabled()
    True
    """

    writes = ()  # it logs no metric
    optional = True

    def __init__(self, every: int | str | Duration = 1000, *, generation: int = 2) -> None:
        self.every = _steps(every)
        if generation not in (0, 1, 2):
            raise RegistrationError(f"GarbageCollector(generation={generation!r}): choose 0, 1 or 2; 2 is all")
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
        if self._is_off or not gc.isenabled():  # an evaluation in training; or somebody else has switched it off
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
        gc.collect(self.generation)
        if self._is_off:
            gc.disable()  # a library may have switched it on again


def _steps(every: int | str | Duration) -> int:
    """A number of steps: what all ranks count alike, and what no clock decides."""
    if isinstance(every, int):
        steps = 0 if isinstance(every, bool) else every
    else:
        duration = Duration.parse(every, "GarbageCollector(every=…)")
        if duration.unit != "st":
            raise RegistrationError(
                f"GarbageCollector(every={str(duration)!r}): give a number of steps, such as 500 or '500st'; "
                f"all ranks must collect in the same step"
            )
        steps = int(duration.value)
    if steps < 1:
        raise RegistrationError(f"GarbageCollector(every={every!r}): give 1 step or more")
    return steps
