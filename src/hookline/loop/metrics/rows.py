"""The rows of metrics: their names, the history, and the newest value of each metric."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hookline.errors import HooklineWarning, MetricError
from hookline.records import Kind, MetricRow, Value
from hookline.run.state import RunState

Thing = TypeVar("Thing")


class MetricNames:
    """Renamed metrics.

    Rows, history, sinks and ``run.metrics`` show a metric under its new name.

    >>> names = MetricNames()
    >>> names.rename("train/loss", "train/nll")
    >>> names.rows({"train/loss": 0.5, "train/acc": 0.9})
    {'train/nll': 0.5, 'train/acc': 0.9}
    >>> names.rows({"train/loss": 0.5}, "_epoch")
    {'train/nll_epoch': 0.5}
    """

    __slots__ = ("_inner", "_shown")

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, ...]] = {}  # shown names by the name in the book
        self._inner: dict[str, str] = {}  # name in the book by a shown name

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        """Show a metric under another name.

        Args:
            old: Current name, which may be the result of a rename.
            new: New name.
            keep: True to show the metric under both names.
        """
        inner = self.inner(old)
        if self._inner.get(new, inner) != inner:
            raise MetricError(f"{old} is to be called {new}, and so is {self._inner[new]}; use two names")
        shown = self.shown(inner)
        if new not in shown:
            shown = (*shown, new) if keep else tuple(new if name == old else name for name in shown)
        self._shown[inner] = shown
        self._inner = {name: inside for inside, names in self._shown.items() for name in names}

    def clear(self) -> None:
        """Drop all renames."""
        self._shown.clear()
        self._inner.clear()

    def inner(self, name: str) -> str:
        """Return the name in the book of a metric that is shown as ``name``."""
        return self._inner.get(name, name)

    def is_hidden(self, name: str) -> bool:
        """True if the metric that is logged under this name is shown only under another name."""
        return name in self._shown and name not in self._inner

    def shown(self, name: str) -> tuple[str, ...]:
        """Return the names under which a metric is shown."""
        return self._shown.get(name, (name,))

    def rows(self, values: Mapping[str, Thing], suffix: str = "") -> dict[str, Thing]:
        """Return values by the names of their rows.

        Args:
            values: Values by the names in the book.
            suffix: Suffix of the rows of an epoch. A name with the suffix may be renamed as well.
        """
        if not self._shown and not suffix:
            return dict(values)
        found: dict[str, Thing] = {}
        for name, value in values.items():
            for shown in self.shown(name):
                for row in self.shown(f"{shown}{suffix}") if suffix else (shown,):
                    if row in found:
                        raise MetricError(f"{name} is called {row}, which is also logged; use two names")
                    found[row] = value
        return found


class MetricRows:
    """Make rows of values, and keep the newest value of each metric by its shown name.

    Args:
        state: The state of the run.
        names: The renamed metrics.
        write: Writes rows to the record of the run.
    """

    def __init__(self, state: RunState, names: MetricNames, write: Callable[[list[MetricRow]], None]) -> None:
        self._state, self._names, self._write = state, names, write
        self.newest: dict[str, Value] = {}
        """The newest value of each metric."""
        self.measured: dict[str, int] = {}
        """The step of the newest value of each metric."""
        self._late: set[str] = set()  # metrics about which Hookline has warned

    def state_dict(self) -> dict[str, Any]:
        return {"newest": dict(self.newest), "measured": dict(self.measured)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.newest, self.measured = dict(state["newest"]), dict(state["measured"])

    def record(self, metrics: Mapping[str, Value], kind: Kind) -> None:
        """Write rows of the current step."""
        clock = self._state.clock
        now = clock.seconds
        self._keep([MetricRow(name, clock.step, clock.epoch, value, kind, now) for name, value in metrics.items()])

    def record_dated(self, metrics: Mapping[tuple[str, int], Value], kind: Kind) -> None:
        """Write rows of values that were logged with ``step=``, by name and step."""
        clock = self._state.clock
        rows = [
            MetricRow(shown, step, clock.epoch, value, kind, clock.seconds)
            for (name, step), value in metrics.items()
            for shown in self._names.shown(name)
        ]
        self._keep(sorted(rows, key=lambda row: row.step))

    def _keep(self, rows: list[MetricRow]) -> None:
        # Outside a fit, an evaluation writes no rows and may be repeated at the same step.
        trains = self._state.entry_point in ("fit", "train")
        kept: list[MetricRow] = []
        for row in rows:
            if (trains or row.kind == "step") and self._is_late(row):
                continue  # Callbacks must not decide by a value that has no row.
            kept.append(row)
            self.newest[row.name], self.measured[row.name] = row.value, row.step
        if kept and trains:
            for row in kept:
                self._state.history.record(row)
            self._write(kept)

    def _is_late(self, row: MetricRow) -> bool:
        """True if the step has a row already, which a second row would contradict.

        Warn once per metric.
        """
        late = self.measured.get(row.name, -1) >= row.step
        if late and row.name not in self._late:
            self._late.add(row.name)
            warnings.warn(
                f"{row.name} was logged again for step {row.step}, which has its row already, and is left out there: "
                f"log it once per step, or under another name; one without a slash gets that of the stage",
                HooklineWarning,
                stacklevel=2,
            )
        return late
