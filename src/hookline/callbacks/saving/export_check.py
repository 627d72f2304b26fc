"""Export a model, run the exported file, and compare its outputs with the model."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hookline.callbacks.saving._export import FORMATS, Call, outputs_of, quietly
from hookline.errors import SetupError


def export(format: str, model: nn.Module, sample: Call, path: Path, *, dynamic: bool, tolerance: float) -> None:
    """Write the file and check it.

    Raises:
        SetupError: If the export fails, or the file does not run or computes something else. It names the exporter.
    """
    way, name = FORMATS[format], type(model).__qualname__
    sizes = (sample.rows, 1, sample.rows + 1) if dynamic else (sample.rows,)
    calls = [sample.of_size(size) for size in sizes]
    with _same_random_state(), torch.no_grad(), quietly():
        try:
            way.write(model, sample, dynamic, path)
        except Exception as error:
            raise SetupError(
                f"ExportModel: {way.exporter} cannot export {name}: {_short(error)}; change the model, try another "
                f"format, dynamic=False, or ExportModel(on_error='warn')"
            ) from error
        expected = [outputs_of(model(*call.args, **call.kwargs)) for call in calls]
        try:
            found = way.run(path, calls)
        except Exception as error:
            raise SetupError(
                f"ExportModel: what {way.exporter} made of {name} does not run with batches of "
                f"{', '.join(map(str, sizes))}: {_short(error)}; try dynamic=False, or another format"
            ) from error
    for size, its, wanted in zip(sizes, found, expected, strict=True):
        _compare(its, wanted, tolerance, f"{way.exporter}, batch of {size}")


def _compare(found: list[Tensor], expected: list[Tensor], tolerance: float, where: str) -> None:
    """Raise if shapes or values of the outputs differ."""
    shapes, wanted = [tuple(t.shape) for t in found], [tuple(t.shape) for t in expected]
    if shapes != wanted:
        raise SetupError(f"ExportModel ({where}): the file gives outputs of {shapes}, and the model {wanted}")
    for number, (its, own) in enumerate(zip(found, expected, strict=True)):
        its, own = its.double(), own.double()
        if not torch.allclose(its, own, rtol=tolerance, atol=tolerance, equal_nan=True):
            off = (its - own).abs().max().item()
            raise SetupError(
                f"ExportModel ({where}): output {number} of the file is off by {off:.3g}, more than the "
                f"tolerance={tolerance:g}; what depends on values of a batch is lost in a trace"
            )


def _short(error: BaseException) -> str:
    """Return the root cause of an error in one line, without colors."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return f"{type(error).__name__}: {text[:400]}{'…' if len(text) > 400 else ''}"


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Restore the random states at the end, because an exporter may draw random numbers."""
    numpy: Any = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])
