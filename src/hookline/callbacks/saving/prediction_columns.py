"""Columns of predictions: for one batch, and concatenated over batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookline.errors import DataError, kind_of


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
    names = list(batches[0])
    for batch in batches:
        if list(batch) != names:
            raise DataError(f"PredictionWriter: the columns of one batch are {names}, of another {list(batch)}")
    return {name: _stacked(name, [batch[name] for batch in batches]) for name in names}


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
