"""``MemoryMonitor``: memory of the process and of its devices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks._memory import sizes_in
from hookline.callbacks.watch._interval import IntervalMonitor, named_for_stage, stage_name

if TYPE_CHECKING:
    from hookline.run import Run

MB = 1e6


class MemoryMonitor(IntervalMonitor):
    """Log the memory of the process and of its GPUs, in MB (10⁶ bytes).

    The callback logs at the end of each log interval and of each epoch:

    - ``memory/process``: resident memory of this process, and ``memory/process_peak``: its maximum so far.
    - ``memory/cuda0/allocated`` and ``memory/cuda0/reserved`` of each accelerator that this process uses, and
      both with ``_peak``: the maximum since the process started or since you reset it.
    - ``memory/cuda0/retries``: how often the allocator emptied its cache because memory was short, and
      ``memory/cuda0/ooms``: the number of out-of-memory errors.

    It also logs at the end of each evaluation and prediction, as ``memory/val/process``,
    ``memory/test/process`` or ``memory/predict/process``.

    Args:
        children: Also log ``memory/children``: resident memory of the child processes, such as the workers of a
            loader. Memory that a child shares with this process counts in each child.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[MemoryMonitor()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> 10 < result.metrics["memory/process"] <= result.metrics["memory/process_peak"]
        True
    """

    writes = ("memory/*",)

    def __init__(self, *, children: bool = False) -> None:
        self.children = children
        super().__init__()

    def report(self, run: Run) -> None:
        """Log a row."""
        run.log(self._values(run), reduce="max")

    def on_eval_end(self, run: Run) -> None:
        run.log(named_for_stage(self._values(run), stage_name(run)), reduce="max")

    def on_predict_end(self, run: Run) -> None:
        run.log(named_for_stage(self._values(run), stage_name(run)), reduce="max")

    def _values(self, run: Run) -> dict[str, float]:
        """Return the memory now."""
        values = process_memory()
        if self.children:
            values["memory/children"] = children_memory()
        if run.device.type != "cpu":
            values |= device_memory(run.device, torch.accelerator)
        return values


# -- this process and its children -----------------------------------------------------------------


def process_memory() -> dict[str, float]:
    """Return the current and the maximum memory of this process."""
    found = status("self")
    if "VmRSS" in found:  # Linux updates the maximum with a delay.
        return {"memory/process": found["VmRSS"] / MB, "memory/process_peak": max(found["VmHWM"], found["VmRSS"]) / MB}
    values = {}
    with suppress(ImportError):  # Other systems need psutil.
        values["memory/process"] = import_module("psutil").Process().memory_info().rss / MB
    with suppress(ImportError):
        resource = import_module("resource")
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        values["memory/process_peak"] = most * (1 if sys.platform == "darwin" else 1024) / MB
    return values


def children_memory() -> float:
    """Return the resident memory of all descendants of this process."""
    return sum(status(pid).get("VmRSS", 0) for pid in children("self")) / MB


def children(pid: str) -> Iterator[str]:
    """Yield the process ids of all descendants of a process. Linux only."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # The process may have ended.
            for child in listed.read_text().split():
                yield child
                yield from children(child)


def status(pid: str) -> dict[str, int]:
    """Return the sizes in ``/proc/<pid>/status`` in bytes."""
    return sizes_in(Path(f"/proc/{pid}/status"))


# -- devices ---------------------------------------------------------------------------------------


def device_memory(device: torch.device, accelerator: Any) -> dict[str, float]:
    """Return the statistics of torch's allocator for each device in use. Empty if it has none."""
    values: dict[str, float] = {}
    try:
        for index in range(accelerator.device_count()):
            stats = accelerator.memory_stats(index)
            if stats.get("reserved_bytes.all.peak", 0):
                values |= _of_device(f"memory/{device.type}{index}", stats)
    except (RuntimeError, NotImplementedError):  # MPS, for example, has no statistics.
        return {}
    return values


def _of_device(name: str, stats: dict[str, int]) -> dict[str, float]:
    """Return the rows of one device."""
    return {
        f"{name}/allocated": stats["allocated_bytes.all.current"] / MB,
        f"{name}/allocated_peak": stats["allocated_bytes.all.peak"] / MB,
        f"{name}/reserved": stats["reserved_bytes.all.current"] / MB,
        f"{name}/reserved_peak": stats["reserved_bytes.all.peak"] / MB,
        f"{name}/retries": stats.get("num_alloc_retries", 0),
        f"{name}/ooms": stats.get("num_ooms", 0),
    }
