"""``Sink``: where records go. Callbacks say what, sinks say where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hookline.records import Record


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a sink is told when it starts."""

    project: str
    name: str
    run_id: str
    """The same after every resume, and of no other run."""
    folder: Path | None
    """The run's own folder; ``None`` if it writes nothing."""
    config: Mapping[str, Any]
    """The hyper-parameters as plain JSON values, secrets redacted."""
    started: datetime
    """When this session of the run began; ``seconds`` of a row count over all sessions."""
    step: int
    """0, or the step of the checkpoint that the run goes on from: what was written after it did not happen."""
    earlier: Callable[[], Iterator[Record]]
    """The rows until ``step`` that still hold, read anew from ``metrics.jsonl`` at each call; none without a folder."""


@runtime_checkable
class Sink(Protocol):
    """One interface for all: start, write records, flush, close.

    Every method is called in one thread that belongs to this sink alone, so it may wait for a network or a disk:
    training does not wait for it. ``write`` gets what has come together since the last time, in order. When it
    raises, the same rows are tried again a few times and then counted as lost. ``flush`` comes when there is nothing
    more to write for now, ``close`` on every way out of a run. One object serves one run after the other.

    A sink that needs to see the run itself may have ``callbacks``: they join those of the run.

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
        """A run begins, or goes on."""

    def write(self, records: Sequence[Record]) -> None:
        """These are new."""

    def flush(self) -> None:
        """Nothing more for now."""

    def close(self) -> None:
        """Nothing more follows."""
