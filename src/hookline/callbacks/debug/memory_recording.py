"""Record memory use: the CUDA allocation history, or the growth on the host."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookline.callbacks.debug import _memory as live_tensors
from hookline.callbacks.debug._memory import Group, megabytes
from hookline.callbacks.debug.host_memory import host_memory

OURS = (tracemalloc.__file__, __file__, live_tensors.__file__)


class CudaRecording:
    """Record every allocation and release on CUDA devices with its stack trace.

    ``memory`` is ``torch.cuda.memory``.
    """

    def __init__(self, max_entries: int, memory: Any = torch.cuda.memory) -> None:
        self._max_entries, self._memory = max_entries, memory

    def begin(self) -> None:
        """Start recording."""
        self._memory._record_memory_history(max_entries=self._max_entries)

    def write(self, folder: Path, name: str) -> str:
        """Write the snapshot for https://pytorch.org/memory_viz and return a note about it."""
        path = folder / f"{name}.pickle"
        self._memory._dump_snapshot(str(path))
        return f"{path.name}: open it at https://pytorch.org/memory_viz"

    def end(self) -> None:
        """Stop recording."""
        self._memory._record_memory_history(enabled=None)


class HostRecording:
    """Record growth on the host: tensors by shape, and Python memory by line.

    Garbage is collected before both measurements, because it is not a leak.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], rows: int) -> None:
        self._model, self._optimizers, self._rows = model, optimizers, rows
        self._traced_before = False

    def begin(self) -> None:
        """Start recording."""
        self._traced_before = tracemalloc.is_tracing()
        gc.collect()
        self._tensors = live_tensors.live_tensors(self._model, self._optimizers)
        self._process = host_memory().get("this process", 0.0)
        if not self._traced_before:
            tracemalloc.start()
        self._lines = tracemalloc.take_snapshot()

    def write(self, folder: Path | None, name: str) -> str:
        """Write the report and return its text."""
        gc.collect()
        lines = tracemalloc.take_snapshot()
        tensors = live_tensors.live_tensors(self._model, self._optimizers)
        process = host_memory().get("this process", 0.0)
        text = [
            f"this process: {megabytes(process)}, {_signed(process - self._process)}",
            "",
            "tensors that there are more or less of:",
            *(tensor_growth(self._tensors, tensors)[: self._rows] or ["none"]),
            "",
            "memory of Python that was taken and is still held, by the line that took it:",
            *(line_growth(self._lines, lines)[: self._rows] or ["none"]),
            "",
            "tensors at the end:",
            *live_tensors.table(tensors, self._rows),
            "",
        ]
        if folder is not None:
            (folder / f"{name}.txt").write_text("\n".join(text))
        return "\n".join(text)

    def end(self) -> None:
        """Stop recording."""
        if not self._traced_before:
            tracemalloc.stop()


def tensor_growth(before: list[Group], after: list[Group]) -> list[str]:
    """Return the groups whose count or size has changed, largest change first."""
    earlier, later = ({group.key: group for group in groups} for groups in (before, after))
    changes = []
    for key in earlier | later:
        old, new = earlier.get(key), later.get(key)
        count = (new.count if new else 0) - (old.count if old else 0)
        nbytes = (new.nbytes if new else 0) - (old.nbytes if old else 0)
        if count or nbytes:
            changes.append((nbytes, count, key))
    changes.sort(key=lambda change: -abs(change[0]))
    return [
        f"{_signed(nbytes):>14} {count:>+6}  {kind:<15} {device:<7} {dtype:<9} {shape}"
        for nbytes, count, (kind, device, dtype, shape) in changes
    ]


def line_growth(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[str]:
    """Return the source lines that hold more memory than before, largest first, without our own."""
    filters = [tracemalloc.Filter(False, path) for path in OURS]
    found = after.filter_traces(filters).compare_to(before.filter_traces(filters), "lineno")
    grown = sorted((stat for stat in found if stat.size_diff > 0), key=lambda stat: -stat.size_diff)
    return [f"{_signed(s.size_diff):>14} {s.count_diff:>+6}  {s.traceback}" for s in grown]


def _signed(size: float) -> str:
    """Format a change of size in MB with its sign."""
    return f"{size / 1e6:+,.3f} MB"
