"""Columns of predictions, and files of them: parquet, csv and npz."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookline.checkpoint.tensor_bytes import memory
from hookline.errors import DataError, SetupError, kind_of

Columns = Mapping[str, Any]
"""Tensors on the CPU, or lists, of equal length."""
Write = Callable[[Path, Columns], None]
MAX_CSV_COLUMNS = 1_000
"""Maximum number of columns of a csv file. More columns are probably a mistake."""
ARGUMENTS_OF_SAVEZ = ("file", "allow_pickle")
"""Argument names of ``numpy.savez``, which a column cannot have."""


def check_installed(format: str) -> None:
    """Raise if a package that the format needs is missing."""
    needs = {"parquet": ("pyarrow", "'hookline[parquet]'"), "npz": ("numpy", "numpy")}
    package, install = needs.get(format, ("", ""))
    if package and find_spec(package) is None:
        raise SetupError(f"PredictionWriter(format={format!r}) needs {package}: pip install {install}")


def check_columns(format: str, names: Iterable[str]) -> None:
    """Raise if the format cannot store columns with these names."""
    if format == "npz" and (taken := [name for name in names if name in ARGUMENTS_OF_SAVEZ]):
        raise DataError(
            f"PredictionWriter(format='npz'): numpy cannot save a column called {taken[0]!r}; give it another name "
            f"with columns=lambda run: {{…}}, or use format='parquet' or 'csv'"
        )


# -- parquet -------------------------------------------------------------------------------------


def write_parquet(path: Path, columns: Columns) -> None:
    """Write a parquet file in which each column keeps its type.

    A tensor with more than one dimension becomes a column of lists of fixed length.
    """
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(pa.table({name: _arrow(value, pa) for name, value in columns.items()}), path)


def _arrow(value: Any, pa: Any) -> Any:
    """Return a column as an Arrow array."""
    if not isinstance(value, Tensor):
        return pa.array(value)
    flat = _storable(value).contiguous().reshape(-1)
    if flat.dtype is torch.bool:
        found = pa.array(flat.tolist(), pa.bool_())
    else:
        kind = getattr(pa, str(flat.dtype).removeprefix("torch."))()
        found = pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(bytes(memory(flat)))])
    for size in reversed(value.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size) if size else pa.array([[]] * len(value))
    return found


def _storable(tensor: Tensor) -> Tensor:
    """Return a tensor with a dtype that every format supports."""
    if tensor.is_complex():
        raise DataError("complex numbers cannot be written; give their parts with columns=lambda run: {…}")
    small_float = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    return tensor.float() if small_float else tensor


# -- csv -----------------------------------------------------------------------------------------


def write_csv(path: Path, columns: Columns) -> None:
    """Write a csv file with one line per sample.

    A vector becomes one column per element, such as ``logits.0``. A value with more dimensions becomes JSON.
    """
    texts: dict[str, list[Any]] = {}
    for name, value in columns.items():
        texts |= _texts(name, value)
    if len(texts) > MAX_CSV_COLUMNS:
        raise DataError(
            f"PredictionWriter(format='csv'): {len(texts):,} columns; use format='parquet' or 'npz', or choose with "
            f"columns=lambda run: {{…}}"
        )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(texts)
        writer.writerows(zip(*texts.values(), strict=True))


def _texts(name: str, value: Any) -> dict[str, list[Any]]:
    """Return the csv columns of one column."""
    if not isinstance(value, Tensor):
        return {name: [json.dumps(its) if isinstance(its, list | tuple | dict) else its for its in value]}
    rows = _storable(value)
    if rows.ndim == 1:
        return {name: rows.tolist()}
    if rows.ndim == 2:
        return {f"{name}.{index}": column.tolist() for index, column in enumerate(rows.unbind(1))}
    return {name: [json.dumps(row.tolist()) for row in rows]}


# -- npz -----------------------------------------------------------------------------------------


def write_npz(path: Path, columns: Columns) -> None:
    """Write one array per column, which ``numpy.load`` reads without pickle."""
    np = import_module("numpy")
    arrays = {
        name: _storable(value).numpy() if isinstance(value, Tensor) else np.asarray(value)
        for name, value in columns.items()
    }
    for name, array in arrays.items():
        if array.dtype == object:
            raise DataError(
                f"PredictionWriter(format='npz'): {name!r} is not an array of numbers or strings; leave it out"
            )
    with path.open("wb") as file:  # With a path, numpy.savez would add a suffix.
        np.savez(file, **arrays)


FORMATS: Mapping[str, Write] = {"parquet": write_parquet, "csv": write_csv, "npz": write_npz}


def column(name: str, value: Any) -> Any:
    """Return a column with one value per sample: a tensor on the CPU, or a list."""
    if isinstance(value, Tensor):
        if not value.ndim:
            raise DataError(f"PredictionWriter: {name!r} is one number for all of a batch; choose with columns=")
        return value.detach().cpu()
    if hasattr(value, "__array__"):
        return torch.as_tensor(value)
    if isinstance(value, list):
        return value
    raise DataError(f"PredictionWriter: {name!r} is {kind_of(value)}; give a tensor, or a list of texts")


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of all batches, concatenated."""
    return {name: _stacked(name, [batch[name] for batch in batches]) for name in batches[0]}


def _stacked(name: str, values: list[Any]) -> Any:
    """Return the values of one column, concatenated."""
    if not isinstance(values[0], Tensor):
        return [item for value in values for item in value]
    if len({value.shape[1:] for value in values}) > 1:
        shapes = ", ".join(sorted({str(tuple(value.shape[1:])) for value in values}))
        raise DataError(
            f"PredictionWriter: {name!r} has rows of several shapes ({shapes}); give it as a list: "
            f"columns=lambda run: {{{name!r}: run.outputs.tolist()}}"
        )
    return torch.cat(values)
