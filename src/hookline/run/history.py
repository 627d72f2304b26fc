"""Metrics of a run by name and step. ``metrics.jsonl`` also has rows that left memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from heapq import merge
from importlib import import_module
from typing import Any

from hookline.errors import MetricError, SetupError
from hookline.records import MetricRow

STEP_ROWS = 10_000
"""Number of step values per metric that stay in memory.

All evaluation and epoch values stay in memory.
"""


class UnknownMetricError(MetricError, KeyError):
    """No value of this metric was logged."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message.


def unknown_metric(name: str, known: list[str]) -> UnknownMetricError:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UnknownMetricError(f"no metric {name!r}; {hint}there is {', '.join(sorted(known)) or 'none yet'}")


def missing_metric(reader: str, name: str, known: Iterable[str]) -> MetricError:
    """Return the error for a callback that monitors a metric without a value.

    Args:
        reader: Name of the callback.
        name: Name of the metric.
        known: Names of the metrics that have a value.

    >>> print(missing_metric("EarlyStopping", "val/acc", ["train/loss", "val/accuracy"]))
    EarlyStopping monitors 'val/acc', but no such metric was logged. Available: train/loss, val/accuracy. Did you mean \
'val/accuracy'? A callback that logs 'val/acc' must declare it: writes = ('val/acc',), or hl.on(…, writes=('val/acc',)).
    """
    available = sorted(set(known))
    same_ending = [other for other in available if other.rpartition("/")[2] == name.rpartition("/")[2]]
    close = get_close_matches(name, same_ending, n=1, cutoff=0.0) or get_close_matches(name, available, n=1, cutoff=0.7)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return MetricError(
        f"{reader} monitors {name!r}, but no such metric was logged. "
        f"Available: {', '.join(available) or 'none'}. {hint}"
        f"A callback that logs {name!r} must declare it: writes = ({name!r},), or hl.on(…, writes=({name!r},))."
    )


class History(Mapping[str, list[Any]]):
    """Past values of each metric: ``history["val/loss"]`` is a list.

    ``history.steps("val/loss")`` returns the steps of these values.

    Args:
        step_rows: Number of step values per metric that stay in memory.

    Example:
        >>> history = History()
        >>> history.record(MetricRow("val/loss", 10, 1, 0.5, "eval", 1.0))
        >>> history["val/loss"], history.steps("val/loss")
        ([0.5], [10])
    """

    def __init__(self, step_rows: int = STEP_ROWS) -> None:
        self._step_rows = step_rows
        # Each name has two lists, because a metric can have step values and other values.
        self._rows: dict[str, tuple[deque[MetricRow], list[MetricRow]]] = {}

    def record(self, row: MetricRow) -> None:
        """Add a row. It replaces the last row of the same metric if that has the same step.

        Args:
            row: The row.
        """
        if row.name not in self._rows:
            self._rows[row.name] = deque(maxlen=self._step_rows), []
        both = self._rows[row.name]
        for rows in both:
            if rows and rows[-1].step == row.step:
                rows.pop()
        both[0 if row.kind == "step" else 1].append(row)

    def clear(self) -> None:
        """Remove all rows, before the rows of a checkpoint are loaded."""
        self._rows.clear()

    def go_back(self, step: int) -> None:
        """Remove the rows after a step, because a rollback has undone those steps.

        Args:
            step: The last step whose rows stay.
        """
        for name, (steps, others) in self._rows.items():
            kept = deque((row for row in steps if row.step <= step), maxlen=self._step_rows)
            self._rows[name] = kept, [row for row in others if row.step <= step]

    def __getitem__(self, name: str) -> list[Any]:
        return [row.value for row in self._named(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def steps(self, name: str) -> list[int]:
        """Return the steps of the values of a metric, oldest first.

        Args:
            name: Full name of the metric.
        """
        return [row.step for row in self._named(name)]

    def rows(self) -> list[MetricRow]:
        """Return all rows in memory, sorted by step."""
        return sorted((row for name in self._rows for row in self._named(name)), key=_step)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per step and one column per metric.

        The DataFrame has NaN where a metric has no value.

        Raises:
            SetupError: If pandas is not installed.

        Example:
            >>> history = History()
            >>> history.record(MetricRow("val/loss", 10, 1, 0.5, "eval", 1.0))
            >>> history.to_pandas()  # doctest: +NORMALIZE_WHITESPACE
                  val/loss
            step
            10         0.5
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise SetupError("history.to_pandas() needs pandas: pip install 'hookline[pandas]'") from error
        columns = {
            name: pandas.Series([row.value for row in rows], index=[row.step for row in rows])
            for name, rows in ((name, self._named(name)) for name in self._rows)
        }
        frame = pandas.DataFrame(columns).sort_index()
        frame.index.name = "step"
        return frame

    def _named(self, name: str) -> list[MetricRow]:
        if name not in self._rows:
            raise unknown_metric(name, list(self._rows))
        return list(merge(*self._rows[name], key=_step))

    def __repr__(self) -> str:
        return f"History({ {name: len(self[name]) for name in self} })"


def _step(row: MetricRow) -> int:
    return row.step
