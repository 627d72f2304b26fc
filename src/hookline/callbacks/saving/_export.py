"""Export a model with ``torch.export``, ONNX or TorchScript, run the file, and compare its outputs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookline.callbacks._text import format_error
from hookline.callbacks._trees import map_tensors, tensors
from hookline.distributed.random_states import same_random_state
from hookline.errors import SetupError

BATCH: Final = "batch"
"""Name of the variable batch dimension in an exported file."""
LOGGERS: Final = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "torch.fx")
"""Loggers of the exporters."""


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    """Batch size: dimension 0 of the tensors that have a batch dimension."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the arguments."""
        return list(tensors((self.args, self.kwargs)))

    def map(self, function: Callable[[Tensor], Any], otherwise: Callable[[Any], Any] = lambda value: value) -> Call:
        """Return the call with a function applied to each tensor, and another to each other value."""
        args, kwargs = (map_tensors(function, value, otherwise) for value in (self.args, self.kwargs))
        return Call(args, kwargs, self.rows)

    def of_size(self, rows: int) -> Call:
        """Return the call with this batch size. Samples are repeated if there are too few."""

        def resized(tensor: Tensor) -> Tensor:
            if not self.has_batch(tensor):
                return tensor
            times = -(-rows // self.rows)
            return torch.cat([tensor] * times)[:rows] if times > 1 else tensor[:rows]

        call = self.map(resized)
        return Call(call.args, call.kwargs, rows)

    def has_batch(self, tensor: Tensor) -> bool:
        """True if dimension 0 of the tensor is the batch."""
        return tensor.ndim > 0 and tensor.shape[0] == self.rows


@dataclass(frozen=True, slots=True)
class Format:
    """One export format."""

    suffix: str
    exporter: str
    """Name of the exporter in messages."""
    write: Callable[[nn.Module, Call, bool, Path], None]
    run: Callable[[Path, Call], Any]
    """Function that returns the output of the file for a call."""
    needs: tuple[str, ...] = ()


def outputs_of(value: Any) -> list[Tensor]:
    """Return the tensors of a model's output, in order, on the CPU."""
    return [tensor.detach().cpu() for tensor in tensors(value)]


def _dynamic(call: Call, dynamic: bool) -> Any:
    """Return the dynamic shapes for ``torch.export``."""
    if not dynamic:
        return None
    batch = torch.export.Dim(BATCH, min=1)
    shapes = call.map(lambda tensor: {0: batch} if call.has_batch(tensor) else None, otherwise=lambda value: None)
    return (*shapes.args, *shapes.kwargs.values()) if not shapes.kwargs else _named(shapes)


def _named(shapes: Call) -> dict[str, Any]:
    """Return the shapes of keyword arguments. Raise if there are positional arguments as well."""
    if shapes.args:
        raise ValueError("arguments by place and by name are not exported together; give all by name with inputs=")
    return shapes.kwargs


# -- torch.export --------------------------------------------------------------------------------


def _write_pt2(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    """Export with ``torch.export``."""
    program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=_dynamic(call, dynamic))
    torch.export.save(program, path)


def _run_pt2(path: Path, call: Call) -> Any:
    """Run a ``torch.export`` file."""
    return torch.export.load(path).module()(*call.args, **call.kwargs)


# -- TorchScript ---------------------------------------------------------------------------------


def _write_torchscript(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    """Export a trace.

    The trace loses everything that depends on values of a batch. Its sizes may always vary.
    """
    given: dict[str, Any] = {"example_kwarg_inputs": call.kwargs} if call.kwargs else {"example_inputs": call.args}
    if call.args and call.kwargs:
        raise ValueError("arguments by place and by name are not traced together; give all by name with inputs=")
    jit: Any = torch.jit  # torch.jit has no type annotations.
    jit.save(jit.trace(model, **given, check_trace=False), path)


def _run_torchscript(path: Path, call: Call) -> Any:
    """Run a TorchScript file."""
    jit: Any = torch.jit
    return jit.load(path)(*call.args, **call.kwargs)


# -- ONNX ----------------------------------------------------------------------------------------


def _write_onnx(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    """Export one ONNX file.

    Above two gigabytes, the limit of the format, the weights are in a second file next to it.
    """
    program: Any = torch.onnx.export(
        model, call.args, kwargs=call.kwargs, dynamo=True, dynamic_shapes=_dynamic(call, dynamic), verbose=False
    )
    program.save(path)


def _run_onnx(path: Path, call: Call) -> Any:
    """Run an ONNX file in onnxruntime."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names, given = [wanted.name for wanted in session.get_inputs()], call.tensors()
    if len(names) != len(given):
        raise ValueError(f"the file has the inputs {names}, and the model was called with {len(given)} tensors")
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, given, strict=True)}
    return [torch.as_tensor(array) for array in session.run(None, arrays)]


# ------------------------------------------------------------------------------------------------

FORMATS: Final[Mapping[str, Format]] = {
    "pt2": Format(".pt2", "torch.export", _write_pt2, _run_pt2),
    "onnx": Format(".onnx", "torch.onnx", _write_onnx, _run_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "torchscript": Format(".ts", "torch.jit.trace", _write_torchscript, _run_torchscript),
}


def check_installed(format: str) -> None:
    """Raise if a package that the format needs is missing."""
    if missing := [name for name in FORMATS[format].needs if find_spec(name) is None]:
        raise SetupError(
            f"ExportModel(format={format!r}) needs {' and '.join(missing)}: pip install 'hookline[{format}]'"
        )


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the warnings and loggers of the exporters.

    Users cannot act on these warnings, and an error contains the reason of a failure.
    """
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def export(format: str, model: nn.Module, sample: Call, path: Path, *, dynamic: bool, tolerance: float) -> None:
    """Write the file and check it.

    Raises:
        SetupError: If the export fails, or the file does not run or computes something else. It names the exporter.
    """
    way, name = FORMATS[format], type(model).__qualname__
    call = sample.of_size(1) if dynamic else sample  # Exporters treat the size 1 as a constant.
    with same_random_state(), torch.no_grad(), quietly():
        try:
            way.write(model, sample, dynamic, path)
        except Exception as error:
            raise SetupError(
                f"ExportModel: {way.exporter} cannot export {name}: {_cause(error)}; change the model, try another "
                f"format, dynamic=False, or ExportModel(on_error='warn')"
            ) from error
        expected = outputs_of(model(*call.args, **call.kwargs))
        try:
            found = outputs_of(way.run(path, call))
        except Exception as error:
            raise SetupError(
                f"ExportModel: what {way.exporter} made of {name} does not run with a batch of {call.rows}: "
                f"{_cause(error)}; try dynamic=False, or another format"
            ) from error
    _compare(found, expected, tolerance, f"{way.exporter}, batch of {call.rows}")


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


def _cause(error: BaseException) -> str:
    """Return the root cause of an error on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return format_error(error, 400)
