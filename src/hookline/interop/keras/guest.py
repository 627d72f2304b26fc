"""``to_keras``: callbacks of Hookline as one callback of Keras."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Never

import torch

from hookline.errors import NotAvailableError, SetupError
from hookline.interop.guest import Guest
from hookline.interop.keras.model import NAMES
from hookline.progress import Duration

LACKS: Final = frozenset(
    {
        *("batch_fetch_start", "batch_fetch_end", "forward_start", "forward_end", "loss_ready", "backward_start"),
        *("backward_end", "gradients_ready", "optimizer_step_start", "optimizer_step_end", "scheduler_step"),
        *("zero_grad", "step_settled", "eval_loader_start", "eval_loader_end", "exception", "interrupt"),
        *("checkpoint_save", "checkpoint_saved", "checkpoint_loaded", "around_save"),
    }
)
"""Events and scopes of Hookline that have no counterpart among the hooks of Keras."""


class KerasModelHost:
    """Answers for a model that trains in Keras.

    Args:
        model: The model.
        params: What Keras tells its callbacks.
    """

    library = "Keras"
    rank = 0
    world_size = 1
    folder: Path | None = None
    precision = "fp32"
    log_every: Duration | None = None

    def __init__(self, model: Any, params: Mapping[str, Any]) -> None:
        self.model, self._params = model, params
        self.device = next((its.device for its in model.parameters()), torch.device("cpu"))
        self.max_duration: Duration | None = Duration(params["epochs"], "ep") if params.get("epochs") else None
        self.eval_every: Duration | None = Duration(1, "ep")
        self.optimizers: dict[str, Any] = {}
        self.loaders: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}

    def show(self, logs: Mapping[str, Any], prefix: str) -> None:
        """Take over metrics of Keras.

        Args:
            logs: The metrics.
            prefix: Prefix of their names in Hookline.
        """
        self._values |= {f"{prefix}{name}": value for name, value in logs.items() if not name.startswith("val_")}

    def take_logged(self) -> dict[str, Any]:
        """Return what callbacks have logged since the last call, with the names of Keras."""
        found, self._logged = self._logged, {}
        return {NAMES.theirs(name): float(value) for name, value in found.items()}

    def metrics(self) -> dict[str, Any]:
        return self._values

    def log(self, values: Mapping[str, Any]) -> None:
        self._logged |= values

    def stop(self) -> None:
        self.model.stop_training = True

    def accumulate(self) -> int:
        return 1

    def num_batches(self, stage: str) -> int | None:
        return self._params.get("steps") if stage == "train" else None

    def reduce(self, value: Any, op: str) -> Never:
        raise NotAvailableError("run.reduce(): Keras trains in one process.")


def to_keras(*callbacks: object) -> Any:
    """See ``hookline.interop.to_keras``."""
    if "keras" not in sys.modules:
        raise SetupError("hl.interop.to_keras(): Keras is not imported. Import it first.")
    keras = import_module("keras")
    if keras.backend.backend() != "torch":
        raise SetupError(
            f"hl.interop.to_keras(): Keras uses the backend {keras.backend.backend()}. Set KERAS_BACKEND=torch before "
            f"Keras is imported."
        )
    guest = Guest(callbacks, "Keras", LACKS)
    return type("HooklineCallbacks", (_Hooks, keras.callbacks.Callback), {})(guest)


class _Hooks:
    """The hooks of the callback that Keras calls."""

    model: Any
    params: dict[str, Any]

    def __init__(self, guest: Guest) -> None:
        super().__init__()
        self._guest = guest
        self._is_open = self._has_steps = False
        self._trained: Any = None  # The model of the last training.

    # -- the run -----------------------------------------------------------------------------------

    def _open(self, entry_point: str) -> None:
        guest, self._is_open = self._guest, True
        self._host = KerasModelHost(self.model, self.params or {})
        guest.requests.allow_evaluation(False)
        is_new = entry_point == "fit" and self.model is not self._trained
        if is_new:
            self._trained = self.model
        guest.open(self._host, entry_point, is_new=is_new)
        guest.send("model_ready")

    def on_train_begin(self, logs: Any = None) -> None:
        guest = self._guest
        self._open("fit")
        guest.enter("fit", "fit_start")
        guest.show_stage("train")
        guest.enter("train", "train_start")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._has_steps = True
        self._guest.clock.mark_epoch()
        self._guest.enter("epoch", "train_epoch_start")

    def _end_steps(self, logs: Mapping[str, Any]) -> None:
        """End the training of an epoch, before its evaluation."""
        guest = self._guest
        if self._has_steps:
            self._has_steps = False
            if not self.model.stop_training:
                guest.clock.end_epoch()
            self._host.show(logs, "train/")
            self._host.show({f"{name}_epoch": value for name, value in logs.items()}, "train/")
            guest.metrics.record("step")
            guest.send("metrics_ready", "train_epoch_end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs
        self._end_steps(logs)
        self._guest.leave("epoch", "epoch_end")
        logs.update(self._host.take_logged())

    def on_train_end(self, logs: Any = None) -> None:
        guest = self._guest
        if guest.requests.agreed.stop is not None:
            guest.send("stop")
        guest.requests.end_training()
        guest.leave("train", "train_end")
        guest.leave("fit", "fit_end")
        self._close()

    def _close(self) -> None:
        self._guest.send("teardown")
        self._is_open = False

    # -- steps -------------------------------------------------------------------------------------

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._guest.enter("step", "train_step_start")
        self._guest.enter("batch", "train_batch_start")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        guest = self._guest
        self._host.show(logs or {}, "train/")
        guest.leave("batch", "train_batch_end")
        guest.clock.batch += 1
        guest.clock.step += 1
        guest.leave("step", "train_step_end")

    # -- evaluations and predictions ---------------------------------------------------------------

    def on_test_begin(self, logs: Any = None) -> None:
        guest = self._guest
        if self._is_open:
            found = self._host.metrics()
            self._end_steps({name.removeprefix("train/"): found[name] for name in found if _is_of_batch(name)})
        else:
            self._open("evaluate")
        guest.show_stage("val")
        guest.clock.begin_eval()
        guest.enter("eval", "eval_start")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._guest.send("eval_batch_start")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._guest.clock.eval.batch_done(0, None)
        self._guest.send("eval_batch_end")

    def on_test_end(self, logs: Any = None) -> None:
        guest = self._guest
        self._host.show(logs or {}, "val/")
        guest.metrics.record("eval")
        guest.leave("eval", "eval_end")
        guest.clock.end_eval()
        guest.show_stage("train")
        if guest.state.entry_point == "evaluate":
            self._close()

    def on_predict_begin(self, logs: Any = None) -> None:
        self._open("predict")
        self._guest.show_stage("predict")
        self._guest.clock.begin_eval()
        self._guest.enter("predict", "predict_start")

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._guest.send("predict_batch_start")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._guest.state.show_outputs((logs or {}).get("outputs"))
        self._guest.clock.eval.batch_done(0, None)
        self._guest.send("predict_batch_end")

    def on_predict_end(self, logs: Any = None) -> None:
        self._guest.leave("predict", "predict_end")
        self._guest.clock.end_eval()
        self._close()


def _is_of_batch(name: str) -> bool:
    return name.startswith("train/") and not name.endswith("_epoch")
