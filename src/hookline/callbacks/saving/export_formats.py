"""Models as files for other programs: ``torch.export``, ONNX, TorchScript; and what such a file computes."""

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

from hookline.callbacks.saving.batch_parts import leaves
from hookline.errors import SetupError

BATCH: Final = "batch"
"""What the dimension that may vary is called in a file."""
LOGGERS: Final = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "torch.fx")
"""Of the exporters."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    """The size of the batch: the dimension 0 of what belongs to it."""

    def tensors(self) -> list[Tensor]:
        return [value for _, value in leaves((self.args, self.kwargs), "") if isinstance(value, Tensor)]

    def map(self, function: Callable[[Tensor], Any], otherwise: Callable[[Any], Any] = lambda value: value) -> Call:
        def change(value: Any) -> Any:
            if isinstance(value, Tensor):
                return function(value)
            if isinstance(value, Mapping):
                return {key: change(its) for key, its in value.items()}
            return type(value)(map(change, value)) if type(value) in (tuple, list) else otherwise(value)

        return Call(change(self.args), change(self.kwargs), self.rows)

    def of_size(self, rows: int) -> Call:
        """The same call with so many samples; they are repeated if there are not enough."""

        def resized(tensor: Tensor) -> Tensor:
            if not self.has_batch(tensor):
                return tensor
            times = -(-rows // self.rows)
            return torch.cat([tensor] * times)[:rows] if times > 1 else tensor[:rows]

        call = self.map(resized)
        return Call(call.args, call.kwargs, rows)

    def has_batch(self, tensor: Tensor) -> bool:
        return tensor.ndim > 0 and tensor.shape[0] == self.rows


@dataclass(frozen=True, slots=True)
class Format:
    """One way to export."""

    suffix: str
    exporter: str
    """Its name in messages."""
    write: Callable[[nn.Module, Call, bool, Path], None]
    run: Callable[[Path, list[Call]], list[list[Tensor]]]
    """What the file computes for some calls."""
    needs: tuple[str, ...] = ()


def outputs_of(value: Any) -> list[Tensor]:
    """The tensors that a model has given back, in order."""
    return [its.detach().cpu() for _, its in leaves(value, "") if isinstance(its, Tensor)]


def _dynamic(call: Call, dynamic: bool) -> Any:
    """The shapes that may vary, in the form of ``torch.export``."""
    if not dynamic:
        return None
    batch = torch.export.Dim(BATCH, min=1)
    shapes = call.map(lambda tensor: {0: batch} if call.has_batch(tensor) else None, otherwise=lambda value: None)
    return (*shapes.args, *shapes.kwargs.values()) if not shapes.kwargs else _named(shapes)


def _named(shapes: Call) -> dict[str, Any]:
    if shapes.args:
        raise ValueError("arguments by place and by name are not exported together; give all by name with inputs=")
    return shapes.kwargs


# -- torch.export --------------------------------------------------------------------------------


def _write_pt2(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=_dynamic(call, dynamic))
    torch.export.save(program, path)


def _run_pt2(path: Path, calls: list[Call]) -> list[list[Tensor]]:
    loaded = torch.export.load(path).module()
    return [outputs_of(loaded(*call.args, **call.kwargs)) for call in calls]


# -- TorchScript ---------------------------------------------------------------------------------


def _write_torchscript(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    """Traced: what depends on the values of a batch is not in it. Its sizes may always vary."""
    given: dict[str, Any] = {"example_kwarg_inputs": call.kwargs} if call.kwargs else {"example_inputs": call.args}
    if call.args and call.kwargs:
        raise ValueError("arguments by place and by name are not traced together; give all by name with inputs=")
    jit: Any = torch.jit  # it has no types
    jit.save(jit.trace(model, **given, check_trace=False), path)


def _run_torchscript(path: Path, calls: list[Call]) -> list[list[Tensor]]:
    jit: Any = torch.jit
    loaded = jit.load(path)
    return [outputs_of(loaded(*call.args, **call.kwargs)) for call in calls]


# -- ONNX ----------------------------------------------------------------------------------------


def _write_onnx(model: nn.Module, call: Call, dynamic: bool, path: Path) -> None:
    """One file; above two gigabytes, which is all that one can hold, the weights are beside it."""
    program: Any = torch.onnx.export(
        model, call.args, kwargs=call.kwargs, dynamo=True, dynamic_shapes=_dynamic(call, dynamic), verbose=False
    )
    program.save(path)


def _run_onnx(path: Path, calls: list[Call]) -> list[list[Tensor]]:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [wanted.name for wanted in session.get_inputs()]
    found = []
    for call in calls:
        tensors = call.tensors()
        if len(names) != len(tensors):
            raise ValueError(f"the file has the inputs {names}, and the model was called with {len(tensors)} tensors")
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}
        found.append([torch.as_tensor(array) for array in session.run(None, arrays)])
    return found


# ------------------------------------------------------------------------------------------------

FORMATS: Final[Mapping[str, Format]] = {
    "pt2": Format(".pt2", "torch.export", _write_pt2, _run_pt2),
    "onnx": Format(".onnx", "torch.onnx", _write_onnx, _run_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "torchscript": Format(".ts", "torch.jit.trace", _write_torchscript, _run_torchscript),
}


def check_installed(format: str) -> None:
    if missing := [name for name in FORMATS[format].needs if find_spec(name) is None]:
        raise SetupError(
            f"ExportModel(format={format!r}) needs {' and '.join(missing)}: pip install 'hookline[{format}]'"
        )


@contextmanager
def quietly() -> Iterator[None]:
    """Exporters warn of their own inside, which nobody but their authors can change; what fails is in the error."""
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
