"""``EMA``: an exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline.callbacks.weights.averaged_weights import AveragedWeights
from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run


class EMA(Callback):
    """Keeps an exponential moving average of the weights, evaluates with it, and gives it back.

    **What is averaged.** After each update of the weights (or ``every`` so much: ``"10st"``, ``"1ep"``) the average
    becomes ``decay * average + (1 - decay) * weights``, as in ``torch.optim.swa_utils``. The first update copies the
    weights; it comes when ``start`` is over, if there is one. ``warmup`` makes the average quick at first: its
    ``n``-th update has the decay ``min(decay, (1 + n) / (10 + n))``. ``use_buffers`` averages the buffers, too, such
    as the statistics of batch norm; without it the average goes with the buffers that the model has. Whole numbers,
    buffers that are not saved, and those with infinities in them are never averaged. The average of bf16 and fp16
    weights is kept in float32, where a thousandth of a difference is not lost; ``dtype`` says otherwise.

    **Where it is used.** Every evaluation and prediction is made with the average, as soon as there is one
    (``evaluate=False``: with the raw weights). When ``fit`` returns, the model has the averaged weights
    (``apply_at_end``). Checkpoints always hold the raw weights, and the average beside them, so a resume is exact;
    a further ``fit`` of the same trainer goes on from the raw ones. Weights that another callback has put in after
    training, such as ``EarlyStopping(restore_best=True)``, stay: they were evaluated as an average.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> ema = EMA(0.9)
    >>> trainer = Trainer(max_duration="2ep", callbacks=[ema], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> ema.updates, torch.equal(result.model.out.weight, ema.weights["out.weight"])
    (8, True)
    """

    writes = ("weights",)
    role = "average"
    state_depends_on = ("use_buffers",)

    def __init__(
        self,
        decay: float = 0.999,
        *,
        start: str | Duration | None = None,
        every: str | Duration = "1st",
        warmup: bool = False,
        use_buffers: bool = True,
        dtype: torch.dtype | str | None = None,
        evaluate: bool = True,
        apply_at_end: bool = True,
    ) -> None:
        if not 0 <= decay < 1:
            raise RegistrationError(f"EMA(decay={decay!r}): give a share from 0 up to, but not 1; 0.999 is usual")
        self.decay = decay
        self.start = None if start is None else Duration.parse(start, "EMA(start=…)")
        self.every = Duration.parse(every, "EMA(every=…)")
        self.warmup = warmup
        self.evaluate = evaluate
        self.apply_at_end = apply_at_end
        self.use_buffers = use_buffers
        self._average = AveragedWeights("EMA", use_buffers=use_buffers, dtype=dtype)
        self._is_every_step = str(self.every) == "1st"
        self._schedule = Schedule(Duration(1, "st"))
        self._start: Duration | None = None
        """What is left to wait for."""

    @property
    def updates(self) -> int:
        """How often the average was updated."""
        return self._average.updates

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The averaged weights and buffers by name; empty before the first update."""
        return self._average.tensors

    def on_setup(self, run: Run) -> None:
        if run.is_training_run:
            self._average.begin(run)
            self._schedule = Schedule(self.every.of(run.max_duration))
            self._start = None if self.start is None else self.start.of(run.max_duration)

    def on_model_ready(self, run: Run) -> None:
        if run.is_training_run:
            self._average.get_ready(run)
            self._schedule.fired(run.clock)

    def on_rollback(self, run: Run) -> None:
        self._schedule.fired(run.clock)

    def on_train_step_end(self, run: Run) -> None:
        if self._is_every_step:
            if self._start is None or self._has_started(run):
                self._update(run)
        elif self._schedule.due(run.clock):
            self._update_when_due(run)

    def on_train_epoch_end(self, run: Run) -> None:
        if not self._is_every_step and self._schedule.due(run.clock):  # epochs are counted after their last step
            self._update_when_due(run)

    def around_eval(self, run: Run) -> Iterator[None]:
        if not self.evaluate:
            yield
            return
        with self._average.swapped_in(run):
            yield

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self.around_eval(run)

    def on_train_end(self, run: Run) -> None:
        self._average.note_end(run)

    def on_teardown(self, run: Run) -> None:
        if self.apply_at_end:
            self._average.put_in(run)

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._average.load_state_dict(state)

    def _has_started(self, run: Run) -> bool:
        return self._start is None or run.clock.elapsed(self._start.unit) >= self._start.value

    def _update_when_due(self, run: Run) -> None:
        self._schedule.fired(run.clock)
        if self._has_started(run):
            self._update(run)

    def _update(self, run: Run) -> None:
        decay = self.decay
        if self.warmup:
            decay = min(decay, (1 + self._average.updates) / (10 + self._average.updates))
        self._average.update(run.model, 1 - decay)
