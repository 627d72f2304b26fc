"""``ExportModel``: export the trained model to a file that runs without its source code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from hookline.callbacks._ending import is_complete
from hookline.callbacks._paths import check_own, check_writable, replacing_with_others, written_path
from hookline.callbacks.saving._export import FORMATS, Call, check_installed, export
from hookline.callbacks.saving._weights import BestSoFar, check_whole, load_into
from hookline.errors import ArgumentError, HooklineWarning, SetupError
from hookline.events import Callback
from hookline.events.validate import overridden
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

ROWS = 8
"""Maximum number of samples in the batch for the export."""


class ExportModel(Callback):
    """Export the model when a ``fit`` is complete, and check that the file computes the same.

    The callback exports a copy of the model, on the CPU and in eval mode. It loads the file again and compares its
    outputs with those of the model. After an error, a signal or Ctrl-C it exports nothing.

    Args:
        format: ``"pt2"`` (``torch.export``), ``"onnx"`` (needs ``hookline[onnx]``; checked in onnxruntime) or
            ``"torchscript"`` (a trace).
        path: Path of the file, absolute or inside the run's folder. ``None``: ``model.pt2``, ``model.onnx`` or
            ``model.ts``.
        monitor: Name of a metric: export the weights with its best value. ``None``: the weights that ``fit`` returns.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name (``loss``, ``acc``, …).
        averaged: Export the weights that a prediction uses, if a callback such as ``EMA`` swaps others in.
        inputs: Function of a batch that returns the inputs of the model: a tensor, a tuple, or a dict for keyword
            arguments. ``None``: all but the last element of a tuple, a dict as keyword arguments, any other batch
            itself. The batch is that of the first step, or of an evaluation before it.
        module: Name of the submodule of the model or task to export. Empty: the model, or its attribute ``model`` if it
            has no ``forward``.
        dynamic: Export a variable batch size, and check the file with a batch of one sample.
        tolerance: Largest absolute and relative difference of an output.
        on_error: ``"raise"`` if the export fails, or ``"warn"`` and continue without a file. An error at the end is
            raised after everything else is saved.

    Raises:
        ArgumentError: If an argument is invalid, or ``monitor`` and ``averaged`` are both given.
        SetupError: If the model is sharded or cannot be exported, a package is missing, or the outputs differ.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = Trainer(max_duration="1ep", folder=folder, callbacks=[ExportModel("torchscript")])
        ...     loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        ...     result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        ...     print([path.name for path in result.folder.glob("model.*")])
        ['model.ts']
    """

    ranks = "zero"
    state_depends_on = ("monitor", "mode")

    def __init__(
        self,
        format: Literal["pt2", "onnx", "torchscript"] = "pt2",
        *,
        path: str | os.PathLike[str] | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        averaged: bool = False,
        inputs: Callable[[Any], Any] | None = None,
        module: str = "",
        dynamic: bool = True,
        tolerance: float = 1e-4,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        if tolerance < 0:
            raise ArgumentError(f"ExportModel(tolerance={tolerance}): must be >= 0.")
        if monitor is not None and averaged:
            raise ArgumentError(
                "ExportModel(averaged=True): the best weights by monitor are already those that were evaluated. Leave "
                "out averaged."
            )
        self.format = format
        self.path = path_to_write(f"model{FORMATS[format].suffix}" if path is None else path, "path", "ExportModel")
        self.monitor = monitor
        self.averaged = averaged
        self.inputs = inputs
        self.module = module
        self.dynamic = dynamic
        self.tolerance = tolerance
        self.on_error = on_error
        self._best = None if monitor is None else BestSoFar("ExportModel", monitor, mode, 0.0)
        self.mode = None if self._best is None else self._best.mode
        self.reads = ("weights", "*") if monitor is None else ("weights", "*", monitor)
        self._sample: Call | None = None
        self._file: Path | None = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._best is None else self._best.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._best is not None:
            self._best.load_state_dict(state)

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._sample = self._file = None
        if not run.is_training_run:
            return
        check_installed(self.format)
        check_whole(run, "ExportModel")
        self._part(run.model)
        if self.averaged and not _swaps(run):
            raise SetupError("ExportModel(averaged=True): no callback of this run swaps weights in; add one like EMA()")
        self._file = self._place(run)
        check_writable(self._file, "ExportModel")
        check_own(run, self, ExportModel, lambda its: [its._place(run)], "path")

    def _place(self, run: Run) -> Path:
        """Return the path of the exported file."""
        return written_path(run, self.path, "path", "ExportModel")

    def on_train_step_end(self, run: Run) -> None:
        if self._sample is None:
            self._take_sample(run)

    def on_eval_batch_end(self, run: Run) -> None:
        if run.is_training_run:
            self._take_sample(run)

    def on_eval_end(self, run: Run) -> None:
        if self._best is not None:
            self._best.update_after_eval(run)

    def on_epoch_end(self, run: Run) -> None:
        if self._best is not None:
            self._best.update_after_epoch(run)

    def on_teardown(self, run: Run) -> None:
        sample, file, self._sample = self._sample, self._file, None
        if not is_complete(run) or file is None or (sample is None and file.exists()):
            return  # A resumed run that was already finished has its file.
        with self._policy():
            if sample is None:
                raise SetupError(
                    f"ExportModel({self.format!r}) has seen no batch, and needs one to call the model with"
                )
            with run.prediction_weights() if self.averaged else nullcontext(), replacing_with_others(file) as fresh:
                export(self.format, self._copy(run), sample, fresh, dynamic=self.dynamic, tolerance=self.tolerance)

    # -- what ----------------------------------------------------------------------------------

    def _take_sample(self, run: Run) -> None:
        """Keep the current batch as the sample."""
        if self._sample is not None or self._file is None:
            return
        with self._policy():
            self._sample = self._call(run)

    def _call(self, run: Run) -> Call:
        """Return a copy of the model's inputs for the current batch, on the CPU."""
        made = _inputs(run.batch) if self.inputs is None else self.inputs(run.batch)
        args = () if isinstance(made, Mapping) else tuple(made) if isinstance(made, tuple | list) else (made,)
        call = Call(args, dict(made) if isinstance(made, Mapping) else {}, 0)
        first = next((tensor for tensor in call.tensors() if tensor.ndim), None)
        if first is None:
            raise SetupError("ExportModel: there is no tensor in the batch that the model could be called with")
        call = Call(call.args, call.kwargs, len(first)).map(lambda tensor: tensor.detach().cpu().clone())
        return call.of_size(min(max(call.rows, 2), ROWS))  # torch.export would take a batch size of 1 for a constant.

    def _copy(self, run: Run) -> nn.Module:
        """Return a copy of the module to export, with the weights to export, in eval mode."""
        whole = deepcopy(run.model)
        weights = None if self._best is None else self._best.to_use(run)
        if weights is not None:
            load_into(whole, weights)
        copied = self._part(whole).cpu().eval().requires_grad_(False)
        for part in copied.modules():
            part._compiled_call_impl = None  # A module that was compiled in place cannot be traced.
        return copied

    def _part(self, model: nn.Module) -> nn.Module:
        """Return the module to export."""
        if self.module:
            names = dict(model.named_modules())
            if self.module not in names:
                raise SetupError(
                    f"ExportModel(module={self.module!r}): the model has no such part; it has {_listed(names)}"
                )
            part: nn.Module = names[self.module]
            return part
        if type(model).forward is not nn.Module.forward:
            return model
        inner: Any = getattr(model, "model", None)
        if isinstance(inner, nn.Module):
            return inner
        raise SetupError(
            f"ExportModel: {type(model).__qualname__} has no forward() and cannot be exported; name a part that has: "
            f"module='…', one of {_listed(dict(model.named_children()))}"
        )

    @contextmanager
    def _policy(self) -> Iterator[None]:
        """Raise an error of the export, or warn and give the export up, as ``on_error`` says."""
        try:
            yield
        except Exception as error:
            if self.on_error == "raise":
                raise
            warnings.warn(f"nothing is exported: {error}", HooklineWarning, stacklevel=2)
            self._file = None


def _inputs(batch: Any) -> Any:
    """Return the inputs of a batch, as ``Trainer.fit`` calls a plain model."""
    if isinstance(batch, tuple | list):
        return tuple(batch[:1] if len(batch) <= 2 else batch[:-1])
    return batch


def _listed(names: Mapping[str, Any]) -> str:
    """Return the first names for a message."""
    return ", ".join(repr(name) for name in list(names)[:12] if name) or "none"


def _swaps(run: Run) -> bool:
    """True if a callback swaps weights in for predictions."""
    return any("weights" in callback.writes and overridden(callback, "around_predict") for callback in run.callbacks)
