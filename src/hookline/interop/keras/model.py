"""The model that callbacks of Keras see, the logs that they get, and the host that keeps their books."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Final, Never

import torch

from hookline.errors import SetupError
from hookline.interop.adapter import Host
from hookline.interop.facade import Facade, of_host
from hookline.interop.keras.support import VERSIONS
from hookline.interop.names import MetricNames
from hookline.run import Run

NAMES: Final = MetricNames((("val_", "val/"),), bare="train/")


class KerasHost(Host):
    """The books of what all callbacks of Keras share: the model, the epoch, the logs."""

    library = "Keras"
    shows = "the model"
    state = ("epoch",)

    def _start(self) -> None:
        super()._start()
        self.names = replace(NAMES, given=self.aliases)
        self.history: Any = None
        self.is_stopping = False
        self.epoch = 0
        self.eval_batch = -1
        self.logs: dict[str, Any] = {}
        """Metrics of the epoch. Callbacks add to them, for those that come later."""
        self.eval_logs: dict[str, Any] = {}
        self.params: dict[str, Any] = {"verbose": 1, "epochs": 1, "steps": None}

    def on_model_ready(self, run: Run) -> None:
        self.model = Model(self, run.model if is_keras_model(run.model) else None)
        self._count(run, {"evaluate": "val", "test": "test", "predict": "predict"}.get(run.entry_point, "train"))

    def _count(self, run: Run, stage: str) -> None:
        limit = run.max_duration
        if run.is_training_run and limit is not None and limit.unit == "ep":
            self.params["epochs"] = math.ceil(limit.value)
        self.params["steps"] = run.num_batches(stage)

    def on_train_start(self, run: Run) -> None:
        self._count(run, "train")  # A custom loop gives its loader only now.

    def on_train_epoch_start(self, run: Run) -> None:
        self.epoch = run.clock.epoch

    def on_epoch_end(self, run: Run) -> None:
        clock, metrics = run.clock, run.metrics
        before = clock.step - clock.step_in_epoch
        found = {name: metrics[name] for name in metrics if (metrics.step_of(name) or 0) > before}
        means = {f"{name}_epoch" for name in found if f"{name}_epoch" in found}
        logs = {name: value for name, value in found.items() if f"{name}_epoch" not in means}
        self.logs = {
            self.names.theirs(name.removesuffix("_epoch") if name.startswith("train/") else name): value
            for name, value in sorted(logs.items())
            if name.startswith(("train/", "val/")) and isinstance(value, int | float)
        }

    def on_eval_start(self, run: Run) -> None:
        self.eval_batch = -1

    on_predict_start = on_eval_start

    def on_eval_batch_start(self, run: Run) -> None:
        self.eval_batch += 1

    on_predict_batch_start = on_eval_batch_start

    def on_eval_end(self, run: Run) -> None:
        self.eval_logs = eval_metrics(run)

    def request_stop(self) -> None:
        """Stop training, for the callback that is called now."""
        self.is_stopping = True
        self.run.stop(f"{self.run.member.name} set model.stop_training")


def is_keras_model(model: object) -> bool:
    """True if a model is one of Keras."""
    return any(cls.__module__ == "keras.src.models.model" and cls.__name__ == "Model" for cls in type(model).__mro__)


def eval_metrics(run: Run) -> dict[str, Any]:
    """Return the metrics of the evaluation, as far as it is, without the prefix of the stage."""
    prefix = f"{run.stage}/"
    return {name.removeprefix(prefix): value for name, value in run.metrics.new().items() if name.startswith(prefix)}


READ_FIRST: Final = (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__reversed__", "__len__", "__repr__"),
    *("__eq__", "__or__", "__ror__", "__ior__", "get", "pop", "popitem", "setdefault", "update", "clear", "copy"),
    *("keys", "values", "items"),
)
"""Methods of a dict for which ``Logs`` reads its values first."""


def _reads_first(kind: type[Logs]) -> type[Logs]:
    """Let the methods of a dict read the values first."""

    def reading(method: Any) -> Any:
        @wraps(method)
        def call(logs: Logs, *arguments: Any, **values: Any) -> Any:
            logs._fill()
            return method(logs, *arguments, **values)

        return call

    for name in READ_FIRST:
        setattr(kind, name, reading(getattr(dict, name)))
    return kind


@_reads_first
class Logs(dict[str, Any]):
    """The ``logs`` of a batch, which are read from the device only if a callback looks at them.

    Until then the dict is not empty, because ``json`` does not ask an empty dict for its items.

    Args:
        read: Returns the values.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        super().__init__(loss=None)
        self._read: Callable[[], dict[str, Any]] | None = read

    def _fill(self) -> None:
        if self._read is not None:
            read, self._read = self._read, None
            dict.clear(self)
            dict.update(self, read())

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)


class _Facade(Facade):
    __slots__ = ()

    stands_for: ClassVar[str] = f"Keras (tested with {VERSIONS})"
    _host: KerasHost


class Optimizer(_Facade):
    """``model.optimizer``: the optimizers of the run."""

    __slots__ = ("_optimizers",)
    _optimizers: list[torch.optim.Optimizer]

    def __init__(self, host: KerasHost, optimizers: list[torch.optim.Optimizer]) -> None:
        self._set(_host=host, _optimizers=optimizers)

    @property
    def name(self) -> str:
        return type(self._optimizers[0]).__name__

    @property
    def learning_rate(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(float(value))
                else:
                    group["lr"] = float(value)

    lr = learning_rate

    @property
    def built(self) -> bool:
        return True

    iterations = of_host("run.clock.step")


class Model(_Facade):
    """``callback.model``: what callbacks may ask of any model. Of a Keras model, they may ask everything.

    Args:
        host: The host of the run.
        keras_model: The model of the run, if it is one of Keras.
    """

    __slots__ = ("_keras_model",)

    metrics: ClassVar[list[Any]] = []

    def __init__(self, host: KerasHost, keras_model: Any) -> None:
        self._set(_host=host, _keras_model=keras_model)

    def __getattr__(self, name: str) -> Any:
        if self._keras_model is not None:
            return getattr(self._keras_model, name)
        return super().__getattr__(name)

    @property
    def name(self) -> str:
        return type(self._host.run.model).__name__

    @property
    def optimizer(self) -> Optimizer:
        return Optimizer(self._host, list(self._host.run.optimizers.values()))

    @property
    def stop_training(self) -> bool:
        return self._host.is_stopping or self._host.run.ending is not None

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value and not self._host.is_stopping:
            self._host.request_stop()
        elif not value and self.stop_training:
            raise AttributeError("Model.stop_training = False: Hookline cannot take back a request to stop.")

    @property
    def history(self) -> Any:
        return self._host.history

    @history.setter
    def history(self, value: Any) -> None:
        self._host.history = value

    @property
    def _initial_epoch(self) -> int:
        return 0

    @_initial_epoch.setter
    def _initial_epoch(self, value: int) -> Never:
        raise SetupError(
            f"{self._host.run.member.name} has found a backup of epoch {value}, but Hookline resumes from its own "
            f"checkpoints. Use hl.Checkpointer and resume='auto', or delete the backup."
        )

    def get_weights(self) -> list[Any]:
        """Return copies of the weights, as arrays."""
        return [self._array(tensor) for tensor in self._weights()]

    def set_weights(self, weights: list[Any]) -> None:
        """Copy arrays into the weights."""
        with torch.no_grad():
            for tensor, array in zip(self._weights(), weights, strict=True):
                tensor.copy_(torch.as_tensor(array))

    def _weights(self) -> list[torch.Tensor]:
        run = self._host.run
        if run.is_sharded:
            raise SetupError(f"{run.member.name} reads the weights, but they are sharded. Use hl.EarlyStopping.")
        return list(run.model.state_dict().values())

    @staticmethod
    def _array(tensor: torch.Tensor) -> Any:
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()
