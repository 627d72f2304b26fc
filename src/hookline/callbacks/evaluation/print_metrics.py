"""``PrintMetrics``: one line per epoch and evaluation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TextIO

from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

EVALUATIONS = ("val/", "test/")
USUAL = ("train/*", "val/*", "test/*")


class PrintMetrics(Callback):
    """Print new metric values: one line per epoch and evaluation.

    The line of an epoch appears when the epoch ends and includes the evaluation at its end. Every other
    evaluation, including those of ``evaluate`` and ``test``, gets its own line. A value is printed only when it
    is new. Metrics that are arrays are left out.

    Args:
        metrics: Names or patterns (``"val/*"``, ``"lr/*"``) to print, in this order. Default: all of
            ``train/…``, ``val/…`` and ``test/…``; of a training metric only the mean over the epoch, if there
            is one.
        every: How often to print a line for training: in epochs (``"5ep"``), or at the end of log intervals in
            any other unit (``"100st"``, ``"30s"``). The values of the last step are always printed.
        stream: File to write to. ``None``: standard output.
        format: Format specification of a number, for example ``".4g"``.

    Raises:
        ArgumentError: If an argument is invalid.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[PrintMetrics(format=".2f")], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        epoch 1, step 4: train/loss_epoch 0.97, val/loss 1.04
        epoch 2, step 8: train/loss_epoch 0.97, val/loss 1.04
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    """The callback runs last, so that it prints the values that other callbacks log."""

    def __init__(
        self,
        metrics: str | Iterable[str] = (),
        *,
        every: str | Duration = "1ep",
        stream: TextIO | None = None,
        format: str = ".4g",
    ) -> None:
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        try:
            _shown(0.5, format)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"PrintMetrics(format={format!r}): {error}. Write for example '.4g'.") from error
        self.every = Duration.parse(every, "PrintMetrics(every=…)")
        self.stream = stream
        self.format = format
        self._schedule: Schedule | None = None
        self._at_edge = False
        self._printed_step = -1
        self._matched: set[str] = set()

    def on_setup(self, run: Run) -> None:
        self._schedule, self._at_edge, self._matched = None, False, set()

    def on_train_start(self, run: Run) -> None:
        every = self.every
        if every.unit == "dur":
            every = Duration.parse("1ep") if run.max_duration is None else every.of(run.max_duration)
        self._schedule = Schedule(every)
        self._schedule.fired(run.clock)
        self._printed_step = run.clock.step

    def on_metrics_ready(self, run: Run) -> None:
        if self._in_epochs is False and self._take_line(run):
            new = run.metrics.new(pending=True)
            self._print(run, {name: value for name, value in new.items() if not name.startswith(EVALUATIONS)})

    def on_train_epoch_end(self, run: Run) -> None:
        self._at_edge = True

    def on_eval_end(self, run: Run) -> None:
        if not (self._at_edge and self._in_epochs):  # Otherwise the line of the epoch has these values.
            new = run.metrics.new()
            self._print(run, {name: value for name, value in new.items() if name.startswith(f"{run.stage}/")})

    def on_epoch_end(self, run: Run) -> None:
        self._at_edge = False
        if self._in_epochs and self._take_line(run):
            self._print(run, run.metrics.new(pending=True))

    def on_train_end(self, run: Run) -> None:
        if self._printed_step < run.clock.step:
            self._print(run, run.metrics.new(pending=True))

    def on_fit_end(self, run: Run) -> None:
        unknown = [name for name in self.metrics if name not in self._matched]
        if unknown:
            known = ", ".join(sorted(run.metrics)) or "none"
            logger.warning("PrintMetrics has found no metric for %s; there is %s", ", ".join(unknown), known)

    @property
    def _in_epochs(self) -> bool | None:
        """True if ``every`` is in epochs. ``None`` without training."""
        return None if self._schedule is None else self._schedule.every.unit == "ep"

    def _take_line(self, run: Run) -> bool:
        """Return whether a line is due, and count it as printed."""
        if self._schedule is None or not self._schedule.due(run.clock):
            return False
        self._schedule.fired(run.clock)
        return True

    def _print(self, run: Run, measured: Mapping[str, float]) -> None:
        """Print a line with the selected metrics, if there are any."""
        chosen = self._chosen(measured)
        if not chosen:
            return
        self._printed_step = run.clock.step
        when = f"epoch {run.clock.epoch}, step {run.clock.step}: " if run.clock.step else ""
        values = ", ".join(f"{name} {_shown(value, self.format)}" for name, value in chosen.items())
        stream = sys.stdout if self.stream is None else self.stream
        stream.write(f"{when}{values}\n")
        stream.flush()

    def _chosen(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to print, in the order of the patterns."""
        found = {}
        for pattern in self.metrics or USUAL:
            for name in measured:
                mean = not self.metrics and f"{name}_epoch" in measured
                if fnmatchcase(name, pattern) and not mean:
                    self._matched.add(pattern)
                    found[name] = measured[name]
        return found


def _shown(value: Any, spec: str) -> str:
    """Return the formatted value. The parameter ``format`` hides the built-in function."""
    return format(value, spec)
