"""``Newest``: the metric values that are shown next to the bars."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hookline.events.monitored import monitored_metrics
from hookline.records import Value
from hookline.records.chosen import choose_metrics

if TYPE_CHECKING:
    from hookline.run import Run

LOSS: Final = "train/loss"
MOST: Final[Mapping[str, int]] = {"train/": 2, "val/": 3, "test/": 3}
"""Maximum number of metrics per prefix if the user selects none."""
STALE: Final[Mapping[str, tuple[str, ...]]] = {
    "evaluate": ("train/", "test/"),
    "test": ("train/", "val/"),
    "predict": ("train/", "val/", "test/"),
}
"""Prefixes that a call does not measure. Their values are from an earlier ``fit``."""


class Newest:
    """Final values of the metrics to display, or the loss of a step until there is one.

    Args:
        names: Metrics to show. If empty: those that callbacks monitor, then some of ``train/…`` and ``val/…``.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._monitored: list[str] = []
        self._values: dict[str, Value] = {}
        self._loss: float | None = None
        self._has_averages = False

    def read(self, run: Run, only: str = "") -> None:
        """Record values that have just become final.

        Reading a value while it is still averaged would wait for the device, and would split its sum at a
        time-dependent step.

        Args:
            run: The run to read from.
            only: Prefix of the metrics to read.
        """
        metrics, stale = run.metrics, STALE.get(run.entry_point, ())
        self._monitored = monitored_metrics(run.callbacks, run.schedulers)
        for name in list(metrics):
            wanted = name in self._names or (not self._names and (_of_interest(name) or name in self._monitored))
            if wanted and name.startswith(only) and not name.startswith(stale):
                self._values[name] = metrics[name]
        if run.stage == "train" and run.log_every is not None and any(name.startswith("train/") for name in metrics):
            self._has_averages, self._loss = True, None  # A task with several optimizers has no train/loss.

    def peek(self, run: Run) -> None:
        """Record the loss of this step, until there is an average.

        Reading from the CPU costs nothing. Reading from a GPU would synchronize, so only the first loss is
        read, and none if no average will replace it.

        Args:
            run: The run to read from.
        """
        if self._has_averages or LOSS in self._values or (self._names and LOSS not in self._names):
            return
        before, self._loss = self._loss, None
        with suppress(Exception):  # A task with manual optimization may have no loss.
            loss = run.loss.detach()
            if loss.device.type == "cpu" or (before is None and run.log_every is not None):
                before = loss.reshape(1).tolist()[0]
            self._loss = before

    def shown(self, *, training: bool) -> dict[str, Value | None]:
        """Return the values to show, in order. In training, also names without a value."""
        values = self._values if self._loss is None else {LOSS: self._loss, **self._values}
        names = self._names or self._some(values)
        return {name: values.get(name) for name in names if training or name in values}

    def _some(self, values: Mapping[str, Any]) -> list[str]:
        """Return the monitored metrics, then some numbers of each prefix, losses first."""
        numbers = [name for name, value in values.items() if not isinstance(value, list)]
        return choose_metrics(sorted(numbers, key=lambda name: not name.endswith("loss")), self._monitored, MOST)


def _of_interest(name: str) -> bool:
    """True for metrics of a stage that are not means over an epoch."""
    return name.startswith(tuple(MOST)) and not name.endswith("_epoch")
