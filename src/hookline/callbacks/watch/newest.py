"""``Newest``: the values of metrics that are shown beside the bars."""

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
"""So many metrics of each kind are shown when the user names none."""
STALE: Final[Mapping[str, tuple[str, ...]]] = {
    "evaluate": ("train/", "test/"),
    "test": ("train/", "val/"),
    "predict": ("train/", "val/", "test/"),
}
"""What these calls do not measure: a value of it is of an earlier ``fit``."""


class Newest:
    """The last final value of each metric, and until the first interval is over, the loss of a step.

    ``names`` are those to show; none means those that callbacks monitor, and some of ``train/…`` and ``val/…``.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._monitored: list[str] = []
        self._values: dict[str, Value] = {}
        self._loss: float | None = None
        self._has_averages = False

    def read(self, run: Run, only: str = "") -> None:
        """Note the values that have just become final. Between two such moments none is read.

        To read one that is still being averaged would wait for the device, and fold its sum at a moment that
        depends on the time of day.
        """
        metrics, stale = run.metrics, STALE.get(run.entry_point, ())
        self._monitored = monitored_metrics(run.callbacks, run.schedulers)
        for name in list(metrics):
            wanted = name in self._names or (not self._names and (_of_interest(name) or name in self._monitored))
            if wanted and name.startswith(only) and not name.startswith(stale):
                self._values[name] = metrics[name]
        if run.stage == "train" and run.log_every is not None and any(name.startswith("train/") for name in metrics):
            self._has_averages, self._loss = True, None  # a task with several optimizers has no train/loss

    def peek(self, run: Run) -> None:
        """Note the loss of this step, as long as there is no average yet.

        From the memory of this machine that costs nothing. A GPU would have to be waited for, so only the first
        is read, and none where no average will take its place.
        """
        if self._has_averages or LOSS in self._values or (self._names and LOSS not in self._names):
            return
        before, self._loss = self._loss, None
        with suppress(Exception):  # a task that steps its optimizers itself may have none
            loss = run.loss.detach()
            if loss.device.type == "cpu" or (before is None and run.log_every is not None):
                before = loss.reshape(1).tolist()[0]
            self._loss = before

    def shown(self, *, training: bool) -> dict[str, Value | None]:
        """What to show, in order; of a run that trains also the names that have no value yet."""
        values = self._values if self._loss is None else {LOSS: self._loss, **self._values}
        names = self._names or self._some(values)
        return {name: values.get(name) for name in names if training or name in values}

    def _some(self, values: Mapping[str, Any]) -> list[str]:
        """Those that callbacks monitor, then some numbers of each kind, losses first."""
        numbers = [name for name, value in values.items() if not isinstance(value, list)]
        return choose_metrics(sorted(numbers, key=lambda name: not name.endswith("loss")), self._monitored, MOST)


def _of_interest(name: str) -> bool:
    return name.startswith(tuple(MOST)) and not name.endswith("_epoch")
