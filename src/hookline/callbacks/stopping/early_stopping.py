"""``EarlyStopping``: stop when a metric has stopped improving."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from hookline.errors import MetricError, RegistrationError
from hookline.events import Callback
from hookline.progress import Duration
from hookline.records.direction import direction

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class EarlyStopping(Callback):
    """Stops when ``monitor`` has not improved for ``patience``.

    It decides after each evaluation, or, for a ``train/…`` metric, at the end of each epoch. ``patience`` is a
    number of such decisions, or a duration (``"500st"``, ``"2ep"``, ``"30m"``). In this order, the first that
    holds counts: the value is not finite (``check_finite``); it has reached ``stopping_threshold``; it is worse
    than ``divergence_threshold``; it has improved by more than ``min_delta``; the patience is used up.

    ``mode`` may be left out where the name says it (``loss``, ``acc``, …). With ``restore_best`` the weights of
    the best decision are put back when training ends.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> stopper = EarlyStopping("val/loss", patience=1, min_delta=10.0)
    >>> trainer = Trainer(max_duration="9ep", callbacks=[stopper], folder=False)
    >>> result = trainer.fit(
    ...     TinyModel(), tiny_data(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    ... )
    >>> result.clock.epoch, result.stopped_by
    (2, 'EarlyStopping')
    """

    state = ("best", "best_step", "waited", "best_at", "best_weights", "decided_epoch")

    def __init__(
        self,
        monitor: str = "val/loss",
        *,
        mode: Literal["min", "max"] | None = None,
        patience: int | str | Duration = 3,
        min_delta: float = 0.0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        restore_best: bool = False,
    ) -> None:
        self.monitor = monitor
        self.mode = direction(monitor, mode)
        self.patience = patience if isinstance(patience, int) else Duration.parse(patience)
        if isinstance(patience, int) and (isinstance(patience, bool) or patience < 0):
            raise RegistrationError(
                f"EarlyStopping(patience={patience!r}): give 0 or more decisions, or a duration such as '2ep'"
            )
        if min_delta < 0:
            raise RegistrationError(f"EarlyStopping(min_delta={min_delta}): how much counts as better; 0 or more")
        self.min_delta = min_delta
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_finite = check_finite
        self.restore_best = restore_best
        self.reads = (monitor,)
        self.writes = ("weights",) if restore_best else ()
        self._forget()

    def _forget(self) -> None:
        """A new run begins: nothing of an earlier one counts."""
        self._warned = self._has_decided = False
        self.best: float | None = None
        self.best_step = 0
        self.waited = 0
        self.best_at: float = 0
        """What the clock of the patience's unit showed at the best decision."""
        self.best_weights: dict[str, Any] | None = None
        self.decided_epoch = 0

    def on_setup(self, run: Run) -> None:
        if run.clock.step == 0 and self._has_decided:  # in another run; a state that was loaded stays
            self._forget()

    def on_eval_end(self, run: Run) -> None:
        if run.stage == "val" and run.entry_point == "fit" and not self.monitor.startswith("train/"):
            self._decide(run)

    def on_epoch_end(self, run: Run) -> None:
        if self.monitor.startswith("train/") and run.clock.epoch > self.decided_epoch:  # not in one that was cut short
            self.decided_epoch = run.clock.epoch
            self._decide(run)

    def on_train_end(self, run: Run) -> None:
        if self.best_weights is not None:
            run.model.load_state_dict(self.best_weights)

    def _decide(self, run: Run) -> None:
        self._has_decided = True
        if run.callbacks.lost(self.monitor):
            self._warn_once()
            return
        value = self._value(run)
        if self.check_finite and not math.isfinite(value):
            run.stop(f"{self.monitor} is {value}")
        elif self.stopping_threshold is not None and not self._better(self.stopping_threshold, value):
            run.stop(f"{self.monitor} = {value:.6g} has reached {self.stopping_threshold}")
        elif self.divergence_threshold is not None and self._better(self.divergence_threshold, value):
            run.stop(f"{self.monitor} = {value:.6g} is worse than {self.divergence_threshold}")
        elif self.best is None or math.isnan(self.best) or self._better(value, self.best, self.min_delta):
            self._keep(run, value)
        elif self._patience_is_over(run):
            run.stop(
                f"{self.monitor} has not improved on {self.best:.6g} (step {self.best_step}) for {self._waiting()}"
            )

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("EarlyStopping decides nothing: the callback that logged %s is switched off", self.monitor)

    def _value(self, run: Run) -> float:
        if self.monitor not in run.metrics:
            raise MetricError(
                f"EarlyStopping monitors {self.monitor!r}, which nobody logs; "
                f"there is {', '.join(sorted(run.metrics)) or 'none'}"
            )
        value = run.metrics[self.monitor]
        if isinstance(value, list):
            raise MetricError(f"EarlyStopping monitors {self.monitor!r}, which is an array; monitor a number")
        return value

    def _better(self, one: float, other: float, by: float = 0.0) -> bool:
        return one < other - by if self.mode == "min" else one > other + by

    def _keep(self, run: Run, value: float) -> None:
        self.best, self.best_step, self.waited = value, run.clock.step, 0
        if isinstance(self.patience, Duration):
            self.best_at = run.clock.elapsed(self.patience.of(run.max_duration).unit)
        if self.restore_best:
            self.best_weights = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}

    def _patience_is_over(self, run: Run) -> bool:
        self.waited += 1
        if isinstance(self.patience, int):
            return self.waited >= self.patience
        patience = self.patience.of(run.max_duration)
        return run.clock.elapsed(patience.unit) - self.best_at >= patience.value

    def _waiting(self) -> str:
        if isinstance(self.patience, Duration):
            return str(self.patience)
        what = "epoch" if self.monitor.startswith("train/") else "evaluation"
        return f"{self.waited} {what}{'' if self.waited == 1 else 's'}"
