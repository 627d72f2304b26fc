"""``ModelGraph``: the graph of the model for TensorBoard."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.distributed.random_states import same_random_state
from hookline.errors import SetupError
from hookline.events import Callback
from hookline.run.targets import argument_names, model_inputs

if TYPE_CHECKING:
    from hookline.run import Run


_COMPILED = "_compiled_call_impl"
"""Attribute that ``module.compile()`` sets. A compiled module cannot be traced."""


class ModelGraph(Callback):
    """Trace the model on a training batch, for ``TensorBoard(graph=True)``.

    The model is traced at the end of the first log interval. It is called as a plain model: with the first
    element of ``(inputs, targets)``, with all but the last of more elements, with the values of a dict by name,
    otherwise with the batch. Of a task without ``forward``, its ``model`` is traced. If the model cannot be
    traced, Hookline disables only this callback.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> graph = ModelGraph()
        >>> trainer = Trainer(max_duration="1ep", callbacks=[graph], folder=False)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> [node.op for node in graph.take().node][:1]
        ['IO Node']
    """

    optional = True
    ranks = "zero"
    reads = ("weights",)

    def __init__(self) -> None:
        self._traced = False
        self._found: Any = None

    def on_setup(self, run: Run) -> None:
        self._traced, self._found = False, None

    def on_metrics_ready(self, run: Run) -> None:
        if not self._traced:
            self._traced = True
            self._found = trace(run.model, run.batch)

    def take(self) -> Any:
        """Return the new graph, or ``None``. The thread of the sink calls this."""
        found, self._found = self._found, None
        return found


def trace(model: nn.Module, batch: Any) -> Any:
    """Return the graph of a model, without changing the model.

    Args:
        model: The model or task.
        batch: A training batch.

    Raises:
        SetupError: If the model cannot be traced.
    """
    inner = getattr(model, "model", None)
    if type(model).forward is nn.Module.forward and isinstance(inner, nn.Module):
        model = inner
    called: nn.Module = model
    if isinstance(batch, tuple | list):
        inputs = tuple(batch[:1] if len(batch) <= 2 else batch[:-1])
    elif isinstance(batch, Mapping):
        called, inputs = _ByName(model), (dict(model_inputs(batch, argument_names(model.forward))),)
    else:
        inputs = (batch,)
    try:
        with _untouched(model), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _graph(called, inputs)
    except Exception as error:
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise SetupError(
            f"TensorBoard(graph=True): {type(model).__name__} cannot be traced with "
            f"{', '.join(type(part).__name__ for part in inputs)} of a training batch ({what}); "
            f"leave graph out, or give it a forward(inputs)"
        ) from error


def _graph(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Return the graph as ``torch.utils.tensorboard`` does.

    Its check is left out, because it fails for models with random numbers.
    """
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._pytorch_graph import parse

    jit: Any = torch.jit
    traced = jit.trace(model, inputs, strict=False, check_trace=False)
    torch._C._jit_pass_inline(traced.graph)
    return GraphDef(node=parse(traced.graph, traced, inputs), versions=VersionDef(producer=22))


class _ByName(nn.Module):
    """Pass a dict by keyword, because the tracer passes inputs by position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, batch: dict[str, Any]) -> Any:
        return self.model(**batch)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Restore modes, buffers and random states. A compiled model is called without compilation."""
    modes = [(part, part.training) for part in model.modules()]
    compiled = [(part, part.__dict__.pop(_COMPILED)) for part in model.modules() if _COMPILED in part.__dict__]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with same_random_state():
            model.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        for part, call in compiled:
            part.__dict__[_COMPILED] = call
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
