"""``steps.bin``: one row of 16 bytes for each step of training, from which a replay is compared."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from hookline.records.regular_file import open_regular

FILE = "steps.bin"
_ROW = struct.Struct("<IId")
ROW_BYTES = _ROW.size


class StepRow(NamedTuple):
    """A step: its number, a digest of the indices of its samples, and its loss.

    A rollback leaves the rows of the steps that it undoes, so the number of the next row is lower.

    >>> list(unpack(pack([StepRow(7, 123, 0.5)])))
    [StepRow(step=7, samples=123, loss=0.5)]
    """

    step: int
    samples: int
    """CRC-32 of the indices of all samples of the step. 0 if they are not known."""
    loss: float
    """Mean loss over the batches of the step, on rank zero."""

    @property
    def bits(self) -> bytes:
        """The bytes of the row. They are equal for equal rows, also if the loss is NaN."""
        return _ROW.pack(*self)


def pack(rows: Iterable[StepRow]) -> bytes:
    """Return the rows as bytes."""
    return b"".join(row.bits for row in rows)


def unpack(data: bytes) -> Iterator[StepRow]:
    """Yield the rows in some bytes. An incomplete last row is left out."""
    whole = len(data) - len(data) % ROW_BYTES
    return starmap(StepRow, _ROW.iter_unpack(data[:whole]))


def read_steps(folder: Path) -> list[StepRow]:
    """Return the rows of a run, in the order in which the steps were made.

    Args:
        folder: The folder of the run.

    Returns:
        No rows if the run has no such file.
    """
    try:
        with open_regular(folder / FILE) as file:
            return list(unpack(file.read()))
    except FileNotFoundError:
        return []
