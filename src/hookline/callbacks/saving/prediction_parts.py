"""Predictions in several files, and how an interrupted prediction resumes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hookline.callbacks._paths import replacing, write_parts
from hookline.callbacks.saving._predictions import Columns, Write
from hookline.callbacks.saving._weights import tensors_of
from hookline.checkpoint.tensor_bytes import memory, on_cpu_in_order
from hookline.errors import DataError

logger = logging.getLogger("hookline")

PROGRESS = "progress.json"


class Parts:
    """Folder with files ``part-<position of first row>`` and a record of the progress.

    The record is written after each part. A part that the record does not count was not finished, and is written again.
    """

    def __init__(self, folder: Path, suffix: str, write: Write, about: dict[str, Any]) -> None:
        self._folder, self._suffix, self._write, self._about = folder, suffix, write, about
        self.batches = self.rows = 0
        """Number of batches and rows that are written."""
        self._columns: list[str] | None = None

    def begin(self) -> None:
        """Resume an interrupted prediction of the same weights and format, or delete the old parts."""
        found = self._read()
        if found is not None and not found["complete"] and found["about"] == self._about:
            self.batches, self.rows, self._columns = found["batches"], found["rows"], found["columns"]
            logger.info("going on with the predictions in %s after %d batches", self._folder, self.batches)
            return
        suffixes = {self._suffix}
        if found is not None and not found["complete"]:
            suffixes.add(found["about"]["suffix"])
            logger.warning(
                "the predictions in %s were left by another model, loader or format; begun anew", self._folder
            )
        (self._folder / PROGRESS).unlink(missing_ok=True)  # Delete it first: without it, no prediction resumes.
        for path in {path for suffix in suffixes for path in self._folder.glob(f"part-*{suffix}")}:
            path.unlink()

    def check_columns(self, names: list[str]) -> None:
        """Raise if a batch has other columns than the batches before."""
        if self._columns is None:
            self._columns = names
        if names != self._columns:
            raise DataError(
                f"PredictionWriter: the parts in {self._folder} have the columns {', '.join(self._columns)}, and a "
                f"batch has {', '.join(names)} now; give the same columns, or remove the folder to begin anew"
            )

    def add(self, columns: Columns, rows: int, batches: int, *, complete: bool = False) -> None:
        """Write one more part. ``complete`` marks the last one."""
        with replacing(self._folder / f"part-{self.rows:010d}{self._suffix}") as fresh:
            self._write(fresh, columns)
        self.rows += rows
        self.batches += batches
        self._note(complete=complete)

    def end(self) -> None:
        """Record that the prediction is complete."""
        self._note(complete=True)

    def _note(self, *, complete: bool) -> None:
        """Write the record of the progress."""
        facts = {
            "complete": complete,
            "batches": self.batches,
            "rows": self.rows,
            "columns": self._columns,
            "about": self._about,
        }
        write_parts(self._folder / PROGRESS, [json.dumps(facts).encode()])

    def _read(self) -> dict[str, Any] | None:
        """Return the record of the progress, or ``None`` if there is no valid one."""
        try:
            found = json.loads((self._folder / PROGRESS).read_bytes())
            sizes = found["batches"] + found["rows"]
            known = {"complete", "columns", "about"} <= found.keys() and "suffix" in found["about"]
            return found if isinstance(sizes, int) and known else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Rest:
    """Loader that skips the batches that are already written when the iteration starts."""

    def __init__(self, loader: Any, skip: Callable[[], int]) -> None:
        self.loader = loader
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        loader, skip = self.loader, self._skip()
        if skip and _is_indexed(loader):
            yield from _without(loader, skip)  # The data of skipped batches is not read.
        else:
            yield from islice(iter(loader), skip, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def _is_indexed(loader: Any) -> bool:
    """True if the batches of a loader are lists of indices, not elements of a stream."""
    is_plain = type(loader) is DataLoader and loader.batch_sampler is not None
    return is_plain and not isinstance(loader.dataset, IterableDataset)


def _without(loader: DataLoader[Any], skip: int) -> Iterator[Any]:
    """Yield the batches of a ``DataLoader`` after the first ``skip`` ones."""
    sampler: Any = loader.batch_sampler
    batches: Any = islice(iter(sampler), skip, None)
    yield from DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )


def fingerprint(model: nn.Module) -> str:
    """Return a hash that is equal for equal weights."""
    digest = hashlib.sha256()
    for name, tensor in tensors_of(model).items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memory(on_cpu_in_order(tensor)))
    return digest.hexdigest()
