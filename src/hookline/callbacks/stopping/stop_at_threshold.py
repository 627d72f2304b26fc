"""``StopAtThreshold``: stop training when a metric reaches, or keeps missing, a threshold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from hookline.callbacks._monitor import (
    DecideAt,
    MonitorCallback,
    clock_of,
    in_words,
    is_over,
    read_patience,
    with_all_units,
)
from hookline.errors import ArgumentError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class StopAtThreshold(MonitorCallback):
    """Stop training when a metric reaches a threshold, or when it keeps missing one.

    A value reaches the threshold if it is equal to the threshold or better. Any other value misses it, also NaN.

    Args:
        monitor: Name of the metric, for example ``"val/acc"``.
        threshold: A finite number.
        when: ``"reached"``: stop when the metric reaches the threshold. ``"missed"``: stop when the metric misses it.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name (``loss``, ``acc``, …).
        patience: Number of decisions in a row that must agree; 0 and 1 both stop at the first. Or a duration such as
            ``"2ep"``, ``"500st"`` or ``"1h"``. It counts from the first decision that reached the threshold or, with
            ``when="missed"``, from the last one that did, else from the start of the run.
        decide_at: When to decide: after each ``"eval"`` or ``"epoch"``, or at each ``"interval"`` (``log_every``).
            ``None``: ``"epoch"`` for a ``train/…`` metric, else ``"eval"``. A ``val/…`` value counts once.

    Raises:
        ArgumentError: If an argument is invalid, or ``mode`` cannot be inferred from the metric's name.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="9ep", callbacks=[StopAtThreshold("val/loss", 100.0)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> result.clock.epoch, result.stopped_by
        (1, 'StopAtThreshold')
    """

    state = ("in_a_row", "since", *MonitorCallback.state)
    state_depends_on = ("monitor", "mode", "threshold", "when")
    settings = ("patience",)

    def __init__(
        self,
        monitor: str,
        threshold: float,
        *,
        when: Literal["reached", "missed"] = "reached",
        mode: Literal["min", "max"] | None = None,
        patience: int | str | Duration = 1,
        decide_at: DecideAt | None = None,
    ) -> None:
        if not math.isfinite(threshold):
            raise ArgumentError(f"StopAtThreshold(threshold={threshold!r}): must be finite.")
        super().__init__(monitor, mode=mode, decide_at=decide_at)
        self.threshold = threshold
        self.when = when
        self.patience = read_patience("StopAtThreshold", patience)
        self.in_a_row = 0
        """Number of decisions in a row that agree with ``when``."""
        self.since: dict[str, float] = {}
        """Clock from which a duration counts, by unit. Empty: the start of the run."""

    def on_train_start(self, run: Run) -> None:
        self.since = with_all_units(run, self.patience, self.since)

    def decide(self, run: Run, value: float) -> None:
        """Compare the newest value with the threshold and stop the run if the patience is over."""
        reached = value <= self.threshold if self.mode == "min" else value >= self.threshold
        if reached != (self.when == "reached"):
            self.in_a_row, self.since = 0, clock_of(run, self.patience)
            return
        if self.when == "reached" and not self.in_a_row:
            self.since = clock_of(run, self.patience)
        self.in_a_row += 1
        self.since = with_all_units(run, self.patience, self.since)  # The patience may have another unit now.
        if is_over(run, self.patience, waited=self.in_a_row, since=self.since):
            run.stop(self._reason(value))

    def _reason(self, value: float) -> str:
        """Return the stop reason."""
        for_long = in_words(self.patience, self.in_a_row, self._decisions)
        alone = isinstance(self.patience, int) and self.in_a_row == 1
        held = "" if alone else f" for {for_long}"
        return f"{self.monitor} = {value:.6g} has {self.when} {self.threshold}{held}"
