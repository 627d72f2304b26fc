"""The metrics of a run by name and step: bounded in memory, complete in ``metrics.jsonl``."""

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
"""So many of the step values of each metric stay in memory; all evaluation and epoch values do."""


class UnknownMetricError(MetricError, KeyError):
    """A metric that nobody has logged."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


def unknown_metric(name: str, known: list[str]) -> UnknownMetricError:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UnknownMetricError(f"no metric {name!r}; {hint}there is {', '.join(sorted(known)) or 'none yet'}")


def missing_metric(reader: str, name: str, known: Iterable[str]) -> MetricError:
    """A callback monitors a metric that is not there.

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
    """``history["val/loss"]`` is a list of values, ``history.steps("val/loss")`` the steps they are of.

    >>> history = History()
    >>> history.record(MetricRow("val/loss", 10, 1, 0.5, "eval", 1.0))
    >>> history["val/loss"], history.steps("val/loss")
    ([0.5], [10])
    """

    def __init__(self, step_rows: int = STEP_ROWS) -> None:
        self._step_rows = step_rows
        # By name: the newest step values, and all others. One metric can have both.
        self._rows: dict[str, tuple[deque[MetricRow], list[MetricRow]]] = {}

    def record(self, row: MetricRow) -> None:
        """Add a row. A second value of a metric at the same step takes the place of the first."""
        if row.name not in self._rows:
            self._rows[row.name] = deque(maxlen=self._step_rows), []
        both = self._rows[row.name]
        for rows in both:
            if rows and rows[-1].step == row.step:
                rows.pop()
        both[0 if row.kind == "step" else 1].append(row)

    def clear(self) -> None:
        """Forget all rows, because those of a checkpoint follow."""
        self._rows.clear()

    def go_back(self, step: int) -> None:
        """Forget the rows of steps after this one: they were taken back."""
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
        return [row.step for row in self._named(name)]

    def rows(self) -> list[MetricRow]:
        """All rows in memory, by step."""
        return sorted((row for name in self._rows for row in self._named(name)), key=_step)

    def to_pandas(self) -> Any:
        """A frame of pandas: a row for each step, a column for each metric, NaN where a metric has no value.

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
