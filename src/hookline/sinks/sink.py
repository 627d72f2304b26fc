"""``Sink``: the protocol of a sink. Callbacks log records, sinks write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hookline.records import Record


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Information about the run for ``Sink.start``."""

    project: str
    """Project of the run."""
    name: str
    """Name of the run."""
    run_id: str
    """Unique id of the run, which stays the same after a resume."""
    folder: Path | None
    """Folder of the run. ``None`` if the run writes no files."""
    config: Mapping[str, Any]
    """Hyper-parameters as plain JSON values, with secrets redacted."""
    started: datetime
    """Start of this session of the run. ``seconds`` of a row count over all sessions."""
    step: int
    """Step of the checkpoint that the run resumes from, or 0. Rows of later steps are invalid."""
    earlier: Callable[[], Iterator[Record]]
    """Function that reads the valid rows up to ``step`` from ``metrics.jsonl``.

    Without a folder there are none.
    """


@runtime_checkable
class Sink(Protocol):
    """Protocol of a sink: start, write records, flush, close.

    Hookline calls every method in a thread that belongs to this sink, so a method may wait for a network or a
    disk without delaying training. If ``write`` raises an error, Hookline retries the same records a few times
    and then counts them as dropped. One object can serve several runs, one after the other.

    A sink that needs to observe the run may have an attribute ``callbacks``, which are added to those of the
    run.

    Example:
        >>> class Printer:
        ...     def start(self, info): ...
        ...     def write(self, records):
        ...         for record in records:
        ...             print(record.name, record.step)
        ...
        ...     def flush(self): ...
        ...     def close(self): ...
        >>> isinstance(Printer(), Sink)
        True
    """

    def start(self, info: RunInfo) -> None:
        """Start or resume a run.

        Args:
            info: Information about the run.
        """

    def write(self, records: Sequence[Record]) -> None:
        """Write the new records.

        Args:
            records: All records since the last call, in order.
        """

    def flush(self) -> None:
        """Flush buffers. Hookline calls this when no more records are waiting."""

    def close(self) -> None:
        """Close the sink. Hookline calls this however the run ends."""
