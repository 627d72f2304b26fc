"""``Memory``: records in a list, for notebooks and tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from hookline.errors import ArgumentError
from hookline.events.arguments import checked_init
from hookline.records import MetricRow, Record
from hookline.sinks.sink import RunInfo


class Memory:
    """Keep records in memory and write nothing.

    The records can be read during and after the run, until the next run starts.

    Args:
        most: Maximum number of records. The oldest are dropped. ``None``: keep all records.

    Raises:
        ArgumentError: If ``most`` is less than 1.

    Example:
        >>> memory = Memory(most=2)
        >>> memory.write([MetricRow("train/loss", step, 0, 1 / step, "step", 0.0) for step in (1, 2, 4)])
        >>> [(row.step, row.value) for row in memory.metrics("train/loss")]
        [(2, 0.5), (4, 0.25)]
    """

    @checked_init
    def __init__(self, most: int | None = None) -> None:
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ArgumentError(f"Memory(most={most!r}): must be 1 or more, or None to keep all records.")
        self.most = most
        self._records: deque[Record] = deque(maxlen=most)
        self._lock = threading.Lock()  # The sink's thread writes, the user's thread reads.

    @property
    def records(self) -> list[Record]:
        """All records, oldest first."""
        with self._lock:
            return list(self._records)

    def metrics(self, name: str) -> list[MetricRow]:
        """Return the rows of one metric, oldest first.

        Args:
            name: Name of the metric, for example ``"train/loss"``.
        """
        return [row for row in self.records if isinstance(row, MetricRow) and row.name == name]

    def start(self, info: RunInfo) -> None:
        earlier = deque(info.earlier(), maxlen=self.most)
        with self._lock:
            if info.folder is None:  # The earlier records are only here.
                earlier.extend(row for row in self._records if row.step <= info.step and info.step)
            self._records = earlier

    def write(self, records: Sequence[Record]) -> None:
        with self._lock:
            self._records.extend(records)

    def flush(self) -> None:
        """Do nothing: every record is available after ``write``."""

    def close(self) -> None:
        """Do nothing: the records stay readable."""
