"""``EMA``: an exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hookline.callbacks.weights._averaging import AveragingCallback
from hookline.errors import ArgumentError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class EMA(AveragingCallback):
    """Keep an exponential moving average of the weights and evaluate with it.

    Each update sets the average to ``decay * average + (1 - decay) * weights``. The first update copies the weights.
    Checkpoints hold the raw weights and, separately, the average.

    Args:
        decay: Weight of the old average, from 0 to below 1.
        start: When averaging starts, such as ``"1ep"``. ``None``: at the first step.
        every: How often to update the average, such as ``"10st"`` or ``"1ep"``.
        warmup: Use the decay ``min(decay, (1 + n) / (10 + n))`` after ``n`` updates, so that the first weights do not
            dominate early evaluations.
        use_buffers: Also average the buffers, such as batch norm statistics. Integer buffers, non-persistent buffers
            and buffers with infinite values are never averaged. ``False``: use the buffers of the model.
        dtype: Floating-point dtype of the average. ``None``: the dtype of the weights, but float32 for bf16 and fp16.
        evaluate: Evaluate and predict with the average as soon as it exists. ``False``: use the raw weights.
        apply_at_end: Load the average into the model when ``fit`` returns.

    Raises:
        ArgumentError: If ``decay`` is out of range, or ``dtype`` is not a floating-point dtype.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> ema = EMA(0.9)
        >>> trainer = Trainer(max_duration="2ep", callbacks=[ema], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> ema.updates, torch.equal(result.model.out.weight, ema.weights["out.weight"])
        (8, True)
    """

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
            raise ArgumentError(f"EMA(decay={decay!r}): must be >= 0 and < 1.")
        self.decay = decay
        self.start = None if start is None else Duration.parse(start, "EMA(start=…)")
        self.warmup = warmup
        super().__init__(every, use_buffers=use_buffers, dtype=dtype, evaluate=evaluate, apply_at_end=apply_at_end)
        self._is_every_step = str(self.every) == "1st"
        self._start: Duration | None = None
        """``start``, resolved for this run."""

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if run.is_training_run:
            self._start = None if self.start is None else self.start.of(run.max_duration)

    def on_train_step_end(self, run: Run) -> None:
        if self._is_every_step:
            if self._start is None or self._has_started(run):
                self._update(run)
        elif self._schedule.due(run.clock):
            self._update_when_due(run)

    def on_train_epoch_end(self, run: Run) -> None:
        # The clock counts an epoch after the last step of the epoch.
        if not self._is_every_step and self._schedule.due(run.clock):
            self._update_when_due(run)

    def _has_started(self, run: Run) -> bool:
        """True if ``start`` is reached."""
        return self._start is None or run.clock.elapsed(self._start.unit) >= self._start.value

    def _update_when_due(self, run: Run) -> None:
        """Update the average if ``start`` is reached."""
        self._schedule.fired(run.clock)
        if self._has_started(run):
            self._update(run)

    def _update(self, run: Run) -> None:
        """Move the average towards the weights."""
        decay = self.decay
        if self.warmup:
            decay = min(decay, (1 + self.updates) / (10 + self.updates))
        self.update(run.model, 1 - decay)
