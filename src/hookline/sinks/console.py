"""``Console``: records as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TextIO

from hookline.events.arguments import checked_init
from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
    Value,
)
from hookline.sinks.sink import RunInfo

LONGEST = 200
"""Maximum number of characters of a text or an array that are printed."""


class Console:
    """Print records as plain text: one line for the metrics of a step, one per other record.

    The output has no colors, so that it also suits a file or a pipe. For the progress of a run, use
    ``ProgressBar``.

    Args:
        stream: File to write to. ``None``: ``sys.stdout`` at the time of each line.

    Example:
        >>> console = Console()
        >>> console.write([MetricRow("train/loss", 100, 1, 0.3124, "step", 9.0)])
        step 100  train/loss 0.3124
    """

    @checked_init
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def start(self, info: RunInfo) -> None:
        """Do nothing: lines that were printed before a resume stay."""

    def write(self, records: Sequence[Record]) -> None:
        if not records:
            return
        stream = sys.stdout if self._stream is None else self._stream
        text = "".join([f"{line}\n" for line in _lines(records)])
        encoding = getattr(stream, "encoding", None) or "utf-8"  # A log that is not UTF-8 gets escapes.
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    def flush(self) -> None:
        """Do nothing: ``write`` flushes every line."""

    def close(self) -> None:
        """Do nothing: the stream belongs to the user."""


def _lines(records: Sequence[Record]) -> Iterator[str]:
    """Yield a line per step and kind of metric, and a line for every other record."""
    for (step, kind), group in groupby(records, key=lambda row: (row.step, getattr(row, "kind", None))):
        if kind is None:
            yield from (f"step {step}  {_shown(row.name)}{_described(row)}" for row in group)
        else:
            values = [f"{_shown(row.name)} {_number(row.value)}" for row in group if isinstance(row, MetricRow)]
            yield "  ".join([f"step {step}", *values])


def _described(row: Record) -> str:
    """Return a description of a record, after a colon."""
    match row:
        case ImageRow():
            parts = [f"image {row.width}x{row.height}", row.file, row.caption]
        case TextRow():
            parts = ["text", row.text]
        case TableRow():
            parts = [f"table of {len(row.rows)} rows", *row.columns]
        case HistogramRow():
            parts = [f"histogram of {sum(row.counts)} values"]
            parts += [f"{row.edges[0]:.4g} to {row.edges[-1]:.4g}"] if row.edges else []
            parts += [f"{row.odd} not finite"] if row.odd else []
        case FileRow():
            parts = ["file", row.file, f"{row.size:,} bytes"]
        case EventRow():
            parts = [row.text, f"{row.took:.3g} s" if row.took else ""]
        case _:
            parts = []
    text = ", ".join(_shown(part) for part in parts if part)
    return f": {text}" if text else ""


def _number(value: Value) -> str:
    """Return a value with four digits. Of a large array, return the number of values."""
    if isinstance(value, list):
        text = repr(value)
        return text if len(text) <= LONGEST else f"[{len(value)} values]"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _shown(text: str) -> str:
    """Return one line that cannot control a terminal."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "".join([char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut])
