"""The train loop that callbacks of AIToolbox see, and the host that keeps its books."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler

from hookline.distributed.random_states import same_random_state
from hookline.errors import DataError, SetupError
from hookline.interop.adapter import Host
from hookline.interop.aitoolbox.model import TTModelSteps
from hookline.interop.aitoolbox.support import VERSIONS
from hookline.interop.facade import Facade, of_host
from hookline.interop.names import MetricNames
from hookline.progress import Duration
from hookline.run import Run
from hookline.run.targets import SEQUENCES, find_target

EPOCH_LOSS: Final = "train/loss_epoch"
NAMES: Final = MetricNames(
    (
        ("accumulated_loss", EPOCH_LOSS),
        ("loss", EPOCH_LOSS),
        ("train_end_", "train_end/"),
        ("train_", "train/"),
        ("val_", "val/"),
        ("test_", "test/"),
    )
)


class AIToolboxHost(Host):
    """The books of the train loop that all callbacks of AIToolbox share: its history, its epoch, its losses.

    An iteration of AIToolbox is a batch.
    """

    library = "AIToolbox"
    shows = "the train loop"

    def _start(self) -> None:
        super()._start()
        base = "aitoolbox.torchtrain.train_loop.components.message_passing"
        self.names = replace(NAMES, given=self.aliases)
        self.callbacks: list[Any] = []
        """The callbacks of AIToolbox that are registered."""
        self.message_service = import_module(base).MessageService()
        self.history = self._new_history(has_validation=True)
        self.grad_cb_used = False
        """A callback has asked for the hooks of gradients."""
        self.is_stopping = False
        self.epoch = 0
        self.iteration, self.total_iteration = 0, -1
        self.updates = False
        """True in a batch that an update follows, and after that update."""
        self.losses: list[torch.Tensor] = []
        """Losses of the batches of this epoch."""
        self.has_evaluated = False
        """True if there was an evaluation since the epoch began."""
        self._is_in_epoch = False
        self._asked_by: Run | None = None
        self._logged: set[str] = set()
        self._ordered: dict[int, tuple[Any, Any]] = {}
        """By ``id`` of a loader: the loader, and one without shuffling."""
        self._targets: dict[int, tuple[Any, Any]] = {}
        """By ``id`` of a loader: the loader, and its targets."""

    @staticmethod
    def _new_history(*, has_validation: bool) -> Any:
        return import_module("aitoolbox.experiment.training_history").TrainingHistory(has_validation)

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self.train_loop = TrainLoop(self)
        self.history = self._new_history(has_validation="val" in run.loaders)

    def state_dict(self) -> dict[str, Any]:
        history = {
            name: values
            for name, values in self.history.get_train_history().items()
            if all(isinstance(value, int | float) for value in values)
        }
        own = {"epoch": self.epoch, "has_evaluated": self.has_evaluated, "logged": sorted(self._logged)}
        return {**own, "history": {name: list(values) for name, values in history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.has_evaluated = state["epoch"], state["has_evaluated"]
        self._logged = set(state["logged"])
        self.history.wrap_pre_prepared_history({name: list(values) for name, values in state["history"].items()})

    # -- the books -----------------------------------------------------------------------------

    def on_train_start(self, run: Run) -> None:
        self.total_iteration, self._is_in_epoch = run.clock.batch - 1, True

    def on_train_epoch_start(self, run: Run) -> None:
        self.message_service.end_of_epoch_trigger()
        self.epoch, self.has_evaluated, self._is_in_epoch = run.clock.epoch, False, True

    def on_train_batch_start(self, run: Run) -> None:
        self.iteration, self.total_iteration = run.clock.batch_in_epoch, run.clock.batch
        self.updates = run.window_is_full

    def on_loss_ready(self, run: Run) -> None:
        self.losses.append(run.loss.detach())

    def on_eval_end(self, run: Run) -> None:
        if run.stage == "val":
            self.has_evaluated = True
        elif run.is_training_run and "test/loss" in run.metrics:
            self.history.insert_single_result_into_history("train_end_test_loss", run.metrics["test/loss"])

    def on_epoch_end(self, run: Run) -> None:
        self.losses, self._is_in_epoch = [], False
        if self._asked_by is not None:
            self._asked_by.stop(f"{self._asked_by.member.name} set train_loop_obj.early_stop")
        if EPOCH_LOSS in run.metrics:
            for name in ("accumulated_loss", "loss"):
                self.history.insert_single_result_into_history(name, run.metrics[EPOCH_LOSS])
        clock = run.clock
        before = clock.step - clock.step_in_epoch
        for name in run.metrics:
            if name == EPOCH_LOSS or name in self._logged or (run.metrics.step_of(name) or 0) <= before:
                continue
            value = run.metrics[name]
            if (name.startswith("val/") or name.endswith("_epoch")) and isinstance(value, int | float):
                self.history.insert_single_result_into_history(self.names.theirs(name), value)

    def on_fit_end(self, run: Run) -> None:
        self.message_service.end_of_epoch_trigger()

    # -- what callbacks ask for ----------------------------------------------------------------

    def insert(self, name: str, value: Any) -> None:
        """Add a metric to the history, and log it in Hookline if it is a number."""
        self.history.insert_single_result_into_history(name, value)
        ours = self.names.ours(name)
        if isinstance(value, int | float | np.number):
            self._logged.add(ours)
            self.run.log({ours: float(value)}, reduce="last")

    def use_gradients(self, value: bool) -> None:
        """Call the hooks of gradients from now on, or do not."""
        self.grad_cb_used = value

    def request_stop(self) -> None:
        """Stop training at the end of this epoch, for the callback that is called now."""
        self.is_stopping = True
        if self._is_in_epoch:
            self._asked_by = self.run
        else:
            self.run.stop(f"{self.run.member.name} set train_loop_obj.early_stop")

    def predict(self, stage: str, *, execute_callbacks: bool) -> tuple[Any, Any, dict[str, Any]]:
        """Return the predictions for a loader of the run, the targets, and the metadata.

        Args:
            stage: ``"train"``, ``"val"`` or ``"test"``.
            execute_callbacks: True to call ``on_after_batch_prediction``, which Hookline cannot.
        """
        run = self.run
        if execute_callbacks:
            raise SetupError(
                f"{run.member.name} predicts with execute_callbacks=True: Hookline does not call "
                f"on_after_batch_prediction. Leave it out, or write a hl.Callback with on_eval_batch_end."
            )
        loader = self._ordered_loader(stage)
        found = run.predict(loader)
        if isinstance(run.task, TTModelSteps):
            predictions, targets, metadata = found
            parts = {name: _joined(value) for name, value in metadata.items()} if isinstance(metadata, dict) else {}
        else:
            predictions, targets, parts = found, self._targets_of(loader), {}
        return _on_cpu(predictions), _on_cpu(targets), {name: _on_cpu(value) for name, value in parts.items()}

    def _ordered_loader(self, stage: str) -> Any:
        """Return the loader of a stage, without shuffling, so that predictions and targets have the same order."""
        loader = self.run.loaders.get(stage)
        if loader is None or isinstance(loader, Mapping):
            how = "none" if loader is None else "several"
            raise SetupError(f"{self.run.member.name} predicts with the {stage!r} loader, but this run has {how}.")
        if type(loader) is DataLoader and type(loader.sampler) is RandomSampler:
            if id(loader) not in self._ordered:
                ordered = DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)
                self._ordered[id(loader)] = loader, ordered
            return self._ordered[id(loader)][1]
        return loader

    def _targets_of(self, loader: Any) -> Any:
        """Return the targets of a loader, in its order."""
        if id(loader) not in self._targets:
            with same_random_state([]):
                found = [_target(batch) for batch in loader]
            self._targets[id(loader)] = loader, torch.cat(found)
        return self._targets[id(loader)][1]

    def evaluate(self, stage: str, *, as_float: bool) -> Any:
        """Return the loss of an evaluation on a loader of the run."""
        metrics = self.run.evaluate(stage)
        name = f"{stage}/loss"
        if name not in metrics:
            raise SetupError(f"{self.run.member.name} needs the loss on the {stage!r} loader. Let the task return it.")
        return metrics[name] if as_float else torch.tensor(metrics[name], dtype=torch.float64)


def _target(batch: Any) -> torch.Tensor:
    target = batch[-1] if isinstance(batch, SEQUENCES) and batch else find_target(batch)
    if not isinstance(target, torch.Tensor):
        raise DataError(
            "predictions need the targets of a batch, and none was found. Let the loader give (inputs, targets), or a "
            "dict with 'labels'."
        )
    return target


def _joined(value: Any) -> Any:
    """Join the metadata of all batches, as AIToolbox does."""
    if isinstance(value, list) and value and all(isinstance(its, list) for its in value):
        return list(chain.from_iterable(value))
    if isinstance(value, list) and value and all(isinstance(its, np.ndarray) for its in value):
        return np.concatenate(value)
    return value


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


class TrainLoop(Facade):
    """``train_loop_obj``: the train loop that callbacks see."""

    __slots__ = ()

    stands_for: ClassVar[str] = f"AIToolbox's TrainLoop (tested with {VERSIONS})"
    use_amp = False
    gpu_mode = "single"
    lazy_experiment_save = False

    _host: AIToolboxHost

    # -- progress ------------------------------------------------------------------------------

    epoch = of_host("epoch")
    iteration = of_host("iteration")
    total_iteration_idx = of_host("total_iteration")

    @property
    def num_epochs(self) -> int | None:
        limit: Duration | None = self._host.run.max_duration
        return int(limit.value) if limit is not None and limit.unit == "ep" else None

    grad_accumulation = of_host("run.accumulate")

    def should_execute_optimizer_update(self) -> bool:
        return self._host.updates

    @property
    def early_stop(self) -> bool:
        return self._host.is_stopping

    @early_stop.setter
    def early_stop(self, value: bool) -> None:
        if value and not self._host.is_stopping:
            self._host.request_stop()
        elif not value and self._host.is_stopping:
            raise AttributeError("TrainLoop.early_stop = False: Hookline cannot take back a request to stop.")

    # -- parts ---------------------------------------------------------------------------------

    model = of_host("run.model")

    @property
    def criterion(self) -> Any:
        task = self._host.run.task
        return task.criterion if isinstance(task, TTModelSteps) else task.loss

    @property
    def optimizer(self) -> Any:
        optimizers = list(self._host.run.optimizers.values())
        if len(optimizers) == 1:
            return optimizers[0]
        return import_module("aitoolbox.torchtrain.multi_loss_optim").MultiOptimizer(optimizers)

    @property
    def num_optimizers(self) -> int:
        return len(self._host.run.optimizers)

    @property
    def amp_scaler(self) -> Any:
        return torch.amp.GradScaler(enabled=False)  # Gradients are unscaled already in hooks.

    device = of_host("run.device")

    @property
    def train_loader(self) -> Any:
        return self._host.run.loaders.get("train")

    @property
    def validation_loader(self) -> Any:
        return self._host.run.loaders.get("val")

    @property
    def test_loader(self) -> Any:
        return self._host.run.loaders.get("test")

    @property
    def callbacks(self) -> list[Any]:
        return sorted(self._host.callbacks, key=lambda callback: callback.execution_order)

    @property
    def callbacks_handler(self) -> Any:
        module = import_module("aitoolbox.torchtrain.train_loop.components.callback_handler")
        handler = module.CallbacksHandler(self)
        handler.split_on_execution_position(self.callbacks)
        return handler

    message_service = of_host("message_service")

    @property
    def grad_cb_used(self) -> bool:
        return self._host.grad_cb_used

    @grad_cb_used.setter
    def grad_cb_used(self, value: bool) -> None:
        self._host.use_gradients(value)

    def get_schedulers(self) -> list[Any]:
        base = import_module("aitoolbox.torchtrain.schedulers.basic").AbstractScheduler
        return [callback for callback in self.callbacks if isinstance(callback, base)]

    # -- metrics -------------------------------------------------------------------------------

    train_history = of_host("history")
    loss_batch_accum = of_host("losses")

    def parse_loss(self, loss_record: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean of losses on this rank."""
        return torch.stack(loss_record).double().mean()

    def insert_metric_result_into_history(self, metric_name: str, metric_result: Any) -> None:
        self._host.insert(metric_name, metric_result)

    def predict_on_train_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._host.predict("train", execute_callbacks=execute_callbacks)

    def predict_on_validation_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._host.predict("val", execute_callbacks=execute_callbacks)

    def predict_on_test_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._host.predict("test", execute_callbacks=execute_callbacks)

    def evaluate_loss_on_train_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._host.evaluate("train", as_float=float_dict_format)

    def evaluate_loss_on_validation_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._host.evaluate("val", as_float=float_dict_format)

    def evaluate_loss_on_test_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._host.evaluate("test", as_float=float_dict_format)

    # -- processes -----------------------------------------------------------------------------

    @property
    def ddp_training_mode(self) -> bool:
        return self._host.run.world_size > 1

    @property
    def ddp_rank(self) -> int | None:
        return self._host.run.rank if self._host.run.world_size > 1 else None

    def is_main_process(self) -> bool:
        return self._host.run.rank == 0

    # -- the experiment ------------------------------------------------------------------------

    @property
    def experiment_timestamp(self) -> str:
        return self._host.run.started.strftime("%Y-%m-%d_%H-%M-%S")

    def __getattr__(self, name: str) -> Any:
        # Callbacks ask whether a train loop has these: they are attributes of an experiment only.
        if name in EXPERIMENT and self._host.run.has_folder:
            return EXPERIMENT[name](self._host.run)
        return super().__getattr__(name)


def _hyperparams(run: Run) -> dict[str, Any]:
    script = getattr(sys.modules["__main__"], "__file__", None)
    return {**run.config, **({"experiment_file_path": script} if script else {})}


FOLDER: Final = "aitoolbox"
"""Folder in the folder of a run in which experiments of AIToolbox are."""

EXPERIMENT: Final[dict[str, Callable[[Run], Any]]] = {
    "project_name": lambda run: run.project,
    "experiment_name": lambda run: run.name,
    "local_model_result_folder_path": lambda run: str(run.folder / FOLDER),
    "hyperparams": _hyperparams,
    "source_dirs": lambda run: (),
    **dict.fromkeys(("cloud_save_mode", "bucket_name", "cloud_dir_prefix"), lambda run: None),
}
"""Attributes of a train loop that tracks an experiment. A run without a folder does not have them."""
