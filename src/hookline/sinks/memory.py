"""``Memory``: records in a list, for notebooks and tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from hookline.errors import SetupError
from hookline.records import MetricRow, Record
from hookline.sinks.sink import RunInfo


class Memory:
    """Keeps every record, or the newest ``most`` of them, and writes nothing.

    They can be read while the run goes on and after it, until the next run begins. After a resume the earlier
    rows are there again.

    >>> memory = Memory(most=2)
    >>> memory.write([MetricRow("train/loss", step, 0, 1 / step, "step", 0.0) for step in (1, 2, 4)])
    >>> [(row.step, row.value) for row in memory.metrics("train/loss")]
    [(2, 0.5), (4, 0.25)]
    """

    def __init__(self, most: int | None = None) -> None:
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise SetupError(f"Memory(most={most!r}): give a number of records from 1 on, or None to keep all")
        self.most = most
        self._records: deque[Record] = deque(maxlen=most)
        self._lock = threading.Lock()  # written in the sink's thread, read in the user's

    @property
    def records(self) -> list[Record]:
        """All that are kept, the oldest first."""
        with self._lock:
            return list(self._records)

    def metrics(self, name: str) -> list[MetricRow]:
        """The rows of one metric, the oldest first."""
        return [row for row in self.records if isinstance(row, MetricRow) and row.name == name]

    def start(self, info: RunInfo) -> None:
        earlier = deque(info.earlier(), maxlen=self.most)
        with self._lock:
            if info.folder is None:  # then what was is nowhere but here
                earlier.extend(row for row in self._records if row.step <= info.step and info.step)
            self._records = earlier

    def write(self, records: Sequence[Record]) -> None:
        with self._lock:
            self._records.extend(records)

    def flush(self) -> None:
        """Every record is there as soon as it is written."""

    def close(self) -> None:
        """What was kept stays readable."""
