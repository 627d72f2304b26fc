"""Files with the batches of spikes in the folder of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hookline.checkpoint.tensor_file import lay_out

FOLDER = "spikes"
TABLE = "spikes.jsonl"
TEXT = 200
"""Maximum number of ``repr`` characters of a value that is neither a tensor nor plain."""

Row = dict[str, Any]


class BadBatches:
    """Writer of ``spikes.jsonl``, with one row per spike, and of the tensors of the batches.

    The tensors are in safetensors files next to the table.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self._folder = folder / FOLDER / (f"rank-{rank}" if rank else "")

    def tidy(self, rows: list[Row]) -> None:
        """Remove the files of spikes that a new or resumed run has not seen."""
        if not self._folder.is_dir():
            return
        known = {row["file"] for row in rows}
        for path in self._folder.glob("epoch-*.safetensors"):
            if path.name not in known:
                path.unlink()
        self._write_table(rows)

    def keep(self, rows: list[Row], batches: Mapping[int, Any]) -> Path:
        """Write the tensors of the last row's batches, by batch number, and the table of all rows."""
        row = rows[-1]
        tensors: dict[str, torch.Tensor] = {}
        others: dict[str, Any] = {}
        for number, batch in batches.items():
            for name, part in _parts(batch, str(number)):
                if isinstance(part, torch.Tensor):
                    tensors[name] = part.detach()
                else:
                    others[name] = part
        if others:
            row["others"] = others
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / str(row["file"])
        _replace(path, lay_out(tensors, "a bad batch: ").parts())
        self._write_table(rows)
        return path

    def _write_table(self, rows: list[Row]) -> None:
        """Replace the table."""
        _replace(self._folder / TABLE, (f"{json.dumps(row)}\n".encode() for row in rows))


def _parts(batch: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch with their paths in it, and other values in a form for JSON."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _parts(value, f"{name}/{key}")
    elif isinstance(batch, list | tuple) and not all(isinstance(item, str | int | float) for item in batch):
        for index, value in enumerate(batch):
            yield from _parts(value, f"{name}/{index}")
    elif type(batch).__module__ == "numpy" and batch.dtype.kind in "biuf":
        yield name, torch.as_tensor(batch)
    elif isinstance(batch, torch.Tensor | str | int | float | list | tuple | None):
        yield name, batch
    else:
        yield name, repr(batch)[:TEXT]


def _replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file completely, or leave the old file as it was."""
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        file.writelines(parts)
    os.replace(beside, path)
