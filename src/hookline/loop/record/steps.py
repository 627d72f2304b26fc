"""``StepRecord``: the loss and the samples of each step, for ``steps.bin``."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookline.loop.metrics.series import to_python
from hookline.progress import Clock
from hookline.records.steps import FILE, ROW_BYTES, StepRow, pack
from hookline.sinks.line_file import LineFile

logger = logging.getLogger("hookline")

STACK = 256
"""Number of losses on a device that become one tensor, because each tensor takes at least 512 bytes there."""

Loss = float | Tensor | list[tuple[Any, Any, Any]] | None
"""The loss of a step: a number or a copy on its device, or the losses of an accumulation window, as metrics keep them.

``None`` if the step had no loss.
"""


class StepRecord:
    """Collect the losses of steps without reading them, and write them when an interval ends.

    Args:
        clock: The clock of the run.
        digest_of: Returns the digest of the samples of the batches up to a position, since its last call.
    """

    def __init__(self, clock: Clock, digest_of: Callable[[int], int]) -> None:
        self._clock, self._digest_of = clock, digest_of
        self._file: LineFile | None = None
        self._size = 0
        self._values: list[Any] = []  # Losses that are not read yet: numbers, and tensors of one loss or many.
        self._weights: list[Any] = []
        self._sizes: list[int] = []  # The number of losses of each step.
        self.losses: list[Loss] = []
        """The losses of the steps since the last row. The steps append to it."""
        self.positions: list[int] = []
        """The positions in the data after these steps. The steps append to it."""

    # -- the file ----------------------------------------------------------------------------------

    def open(self, folder: Path | None) -> None:
        """Set the folder of the run. ``None``: write nothing."""
        self._file = None if folder is None else LineFile(folder / FILE)
        self._size = 0 if self._file is None else self._file.size

    def close(self) -> None:
        """Write the last rows, and close the file."""
        try:
            self.flush()
        except RuntimeError as error:  # The device has failed, and so has the run.
            logger.warning("the losses of the last steps cannot be read: %s", error)
        if self._file is not None:
            self._file.close()
        self._file, self._size = None, 0

    @property
    def size(self) -> int:
        """The size of the file in bytes. A resume truncates the file to the size in the checkpoint."""
        return self._size

    @property
    def rows(self) -> int:
        """The number of rows in the file, after those of steps that are not written yet are written."""
        self.flush()
        return self._size // ROW_BYTES

    def copy_from(self, source: Path) -> None:
        """Start with the rows of another run.

        Args:
            source: The folder of the run.
        """
        if self._file is not None and (source / FILE).is_file():
            shutil.copyfile(source / FILE, self._file.path)

    def keep(self, size: int) -> None:
        """Remove the rows after the first ``size`` bytes."""
        if self._file is not None:
            self._size = min(size, self._file.size) // ROW_BYTES * ROW_BYTES
            if self._file.size > self._size:
                os.truncate(self._file.path, self._size)

    # -- the rows ----------------------------------------------------------------------------------

    def fold(self) -> None:
        """Stack losses on a device, to limit their memory in a long interval. It does not wait for the device."""
        if len(self.losses) >= STACK:
            self._read_later(stacks=True)

    def flush(self) -> None:
        """Read the losses in one transfer, and write their rows. Call it at the end of a step."""
        if not self.positions:
            return
        losses, positions = self._take()
        if self._file is None:
            return
        first = self._clock.step - len(losses) + 1
        digests = map(self._digest_of, positions)
        found = zip(count(first), digests, losses)
        self._append(pack(StepRow(step, digest, loss) for step, digest, loss in found if loss is not None))

    def _take(self) -> tuple[list[float | None], list[int]]:
        """Return the losses as numbers, and the positions, and start again without any."""
        if not self._sizes and set(map(type, self.losses)) == {float}:  # One loss per step on the CPU.
            taken: tuple[list[Any], list[int]] = (self.losses[:], self.positions[:])
            self.losses.clear()
            self.positions.clear()
            return taken
        self._read_later()
        read = to_python([*self._values, *self._weights])
        values = iter(_flat(read[: len(self._values)]))
        weights = iter(_flat(read[len(self._values) :]))
        losses = [_mean([(next(values), next(weights)) for _ in range(size)]) for size in self._sizes]
        positions = self.positions[:]
        for held in (self._values, self._weights, self._sizes, self.positions):
            held.clear()
        return losses, positions

    def _read_later(self, *, stacks: bool = False) -> None:
        """Take the losses apart: values and weights of all batches, and the number of them in each step."""
        values: list[Any] = []
        for loss in self.losses:
            if isinstance(loss, list):
                values += [value for _, value, _ in loss]
                self._weights += [weight for _, _, weight in loss]
                self._sizes.append(len(loss))
            else:
                values += [] if loss is None else [loss]
                self._weights += [] if loss is None else [1.0]
                self._sizes.append(0 if loss is None else 1)
        is_alike = all(isinstance(value, Tensor) and value.device == values[0].device for value in values)
        self._values += [torch.stack(values)] if stacks and values and is_alike else values
        self.losses.clear()

    def _append(self, data: bytes) -> None:
        """Append rows. If they cannot be written, the run continues without further rows."""
        if self._file is None:
            return
        try:
            self._file.append(data)
            self._size += len(data)
        except OSError as error:
            logger.warning(
                "%s cannot be written: %s. Training continues, and a replay cannot compare the steps after step %d.",
                self._file.path,
                error,
                self._clock.step,
            )
            self._file.close()
            self._file = None


def _flat(values: list[Any]) -> list[float]:
    """Return numbers, and those in lists."""
    return [number for value in values for number in (value if isinstance(value, list) else [value])]


def _mean(losses: list[tuple[float, float]]) -> float | None:
    """Return the mean of losses with their weights. ``None`` if there is no loss."""
    if len(losses) == 1:
        return losses[0][0]
    total = sum(weight for _, weight in losses)
    if not total:  # A step without samples that count.
        return sum(loss for loss, _ in losses) / len(losses) if losses else None
    return sum(loss * weight for loss, weight in losses) / total
