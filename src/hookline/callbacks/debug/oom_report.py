"""``OOMReport``: write a report when memory runs out."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks._memory import is_out_of_memory
from hookline.callbacks._paths import check_folder, output_folder
from hookline.callbacks._text import format_size
from hookline.callbacks.debug._memory import host_memory, live_tensors, table, tensors_in
from hookline.errors import ArgumentError, NotAvailableError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

PACKAGE = Path(__file__).parents[2]
MODULE_CALL = Path(str(torch.nn.modules.module.__file__))


class OOMReport(Callback):
    """Write a report when a run fails because memory runs out.

    The report covers the error, the batch, the sizes of weights and optimizer state, host and device memory, live
    tensors, and the tensors in the lines that failed. The error is raised unchanged. The callback does nothing while
    a run succeeds.

    Args:
        rows: Number of groups of live tensors, and of tensors per section, in the report.
        folder: Folder for the report. A relative path is in the run's folder. ``None``: ``oom/`` in the run's
            folder. A run without a folder writes the report to the log.

    Raises:
        ArgumentError: If ``rows`` is below 1.
        SetupError: If ``folder`` is not writable.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> class Hungry(TinyModel):
        ...     def forward(self, x):
        ...         return super().forward(x) + torch.empty(10**15)
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="1ep", callbacks=[OOMReport()], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> try:
        ...     trainer.fit(Hungry(), tiny_data(), loss=loss, optimizer=optimizer)
        ... except RuntimeError:
        ...     print(Path(folder, "oom/step-00000000-rank0.txt").read_text().splitlines()[0])
        out of memory at step 0, epoch 0
    """

    writes = ()
    optional = True

    def __init__(self, *, rows: int = 20, folder: str | os.PathLike[str] | None = None) -> None:
        if rows < 1:
            raise ArgumentError(f"OOMReport(rows={rows!r}): must be >= 1.")
        self.rows = rows
        self.folder = None if folder is None else path_to_write(folder, "folder", "OOMReport")

    def on_setup(self, run: Run) -> None:
        check_folder(run, self.folder, "OOMReport")

    def on_exception(self, run: Run) -> None:
        if not is_out_of_memory(run.exception):
            return
        text = "\n".join(self._report(run))
        folder = output_folder(run, self.folder, "oom", "OOMReport")
        if folder is None:
            logger.error("%s", text)
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{run.clock.step:08d}-rank{run.rank}.txt"
        path.write_text(text)
        logger.error("out of memory; what was in it is in %s", path)
        if run.device.type == "cuda":
            write_history(path.with_suffix(".pickle"), torch.cuda.memory)

    def _report(self, run: Run) -> Iterator[str]:
        """Yield the lines of the report."""
        clock = run.clock
        yield f"out of memory at step {clock.step}, epoch {clock.epoch}"
        yield f"{type(run.exception).__name__}: {run.exception}"
        yield from ("", "the batch:", *(_lines(tensors_in(_batch(run), "batch"), self.rows) or ["not known"]))
        groups = live_tensors(run.model, run.optimizers)
        yield from ("", "sizes:")
        for kind in ("weights", "buffers", "optimizer state", "other"):
            name = "other tensors" if kind == "other" else kind
            yield f"{name:>24}: {format_size(sum(group.nbytes for group in groups if group.kind == kind), 3)}"
        trained = sum(parameter.nbytes for parameter in run.model.parameters() if parameter.requires_grad)
        # The gradients are already freed, so their size is computed.
        yield f"{'gradients of a backward':>24}: {format_size(trained, 3)}"
        yield from ("", "memory of the host:")
        for name, size in host_memory().items():
            yield f"{name:>24}: {format_size(size, 3)}"
        if run.device.type == "cuda":
            yield from ("", "memory of the device:", torch.cuda.memory_summary(run.device))
        yield from ("", "live tensors:", *table(groups, self.rows))
        yield from ("", "tensors in the lines that failed, the last line last:")
        yield from (*_in_frames(run.exception, self.rows), "")


def write_history(path: Path, memory: Any) -> None:
    """Write the CUDA history if PyTorch has recorded one. ``memory`` is ``torch.cuda.memory``."""
    if any(memory._snapshot()["device_traces"]):
        memory._dump_snapshot(str(path))


def _batch(run: Run) -> Any:
    """Return the batch that failed: the innermost local variable ``batch``, or ``run.batch``.

    Local variables come first because an evaluation has already ended. A ``batch`` without tensors is something else,
    such as a batch size.
    """
    frames = [frame for frame, _ in traceback.walk_tb(run.exception.__traceback__)]
    for frame in reversed(frames):
        batch = frame.f_locals.get("batch")
        if any(True for _ in tensors_in(batch)):
            return batch
    with suppress(NotAvailableError):
        return run.batch
    return None


def _lines(tensors: Iterable[tuple[str, torch.Tensor]], most: int) -> list[str]:
    """Format the largest tensors, one per line."""
    found = sorted(tensors, key=lambda pair: -pair[1].nbytes)
    lines = [
        f"{format_size(tensor.nbytes, 3):>12}  {path:<12} {str(tensor.dtype).removeprefix('torch.'):<9} "
        f"{tuple(tensor.shape)} {tensor.device}"
        for path, tensor in found[:most]
    ]
    return lines + ([f"{'':>12}  and {len(found) - most} smaller ones"] if len(found) > most else [])


def _in_frames(error: BaseException, most: int) -> Iterator[str]:
    """Yield the tensors in the local variables of each frame of the traceback."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents or path == MODULE_CALL:
            # Frames of Hookline and of `Module.__call__` do not help the user.
            continue
        held = [pair for name, value in frame.f_locals.items() for pair in tensors_in(value, name, depth=2)]
        if held:
            yield f"{path}:{line} in {frame.f_code.co_name}"
            yield from _lines(held, most)
