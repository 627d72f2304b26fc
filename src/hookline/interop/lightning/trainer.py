"""The trainer that callbacks and modules of Lightning see, and the host that keeps its books."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar, Final

import torch

from hookline.errors import SetupError
from hookline.interop.adapter import Adapter, Host
from hookline.interop.facade import Facade, of_host
from hookline.interop.lightning.checkpoint import save_checkpoint
from hookline.interop.lightning.module import as_lightning_module
from hookline.interop.lightning.support import VERSIONS
from hookline.interop.names import MetricNames
from hookline.run import Run

NAMES: Final = MetricNames((("val_", "val/"), ("train_", "train/"), ("test_", "test/")))
PRECISIONS: Final = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
FUNCTIONS: Final = {"evaluate": "validate", "test": "test", "predict": "predict"}
"""Entry points of Hookline, and the values of ``TrainerFn``. All others are ``"fit"``."""
STAGES: Final = {"train": "TRAINING", "val": "VALIDATING", "test": "TESTING", "predict": "PREDICTING"}
"""Stages of Hookline, and the names of the ``RunningStage``."""


class LightningHost(Host):
    """The books of the trainer that all callbacks of Lightning share: epoch, indices, metrics, a requested stop."""

    library = "Lightning"
    shows = "the trainer"
    state = ("sums", "aliases")

    def __init__(self) -> None:
        super().__init__()
        self.trainers: dict[str, Trainer] = {}

    def _start(self) -> None:
        super()._start()
        self.modules: dict[str, Any] = {}
        self.epoch = self._eval_batch = self.eval_batches = 0
        self.is_sanity_check = self.is_stopping = self.has_failed = self.has_evaluated = False
        self.metrics: dict[str, torch.Tensor] = {}
        """Metrics that callbacks have put into ``trainer.callback_metrics``."""
        self.bar: set[str] = set()
        """Metrics that were logged with ``prog_bar=True``."""
        self.sums: dict[str, list[Any]] = {}
        """Sums and weights of the metrics of this epoch or evaluation: their means are bitwise those of Lightning."""
        self.datamodule: Any = None
        self._is_manual = False
        self._output: dict[str, Any] | None = None
        self.optimizers: dict[tuple[str, int], Any] = {}

    def trainer_of(self, package: str) -> Trainer:
        """Return the trainer with the classes of one of the two packages."""
        if package not in self.trainers:
            self.trainers[package] = Trainer(self, package)
        return self.trainers[package]

    def module_of(self, package: str) -> Any:
        """Return the model of the run as a ``LightningModule`` of one of the two packages."""
        if package not in self.modules:
            self.modules[package] = as_lightning_module(self.run.model, package, self)
        return self.modules[package]

    def attach(self, module: Any, datamodule: Any, *, drives_updates: bool) -> None:
        """Serve a ``LightningModule`` that is the model of the run.

        Args:
            module: The module.
            datamodule: The ``LightningDataModule`` of the run, or ``None``.
            drives_updates: True if the module steps its optimizers itself.
        """
        self.datamodule, self._is_manual = datamodule, drives_updates

    def set_step_output(self, loss: Any, extra: dict[str, Any]) -> None:
        """Keep what ``training_step`` returned, for ``on_train_batch_end``."""
        self._output = extra if loss is None else {"loss": loss, **extra}

    def step_output(self, run: Run) -> dict[str, Any]:
        """Return what ``on_train_batch_end`` gets. Lightning divides the loss by the number of batches of a step."""
        found = self._output
        if found is not None and "loss" not in found:
            return found
        loss = (run.loss if found is None else found["loss"]).detach()
        if run.accumulate > 1:
            loss = loss / run.accumulate
        return {"loss": loss} if found is None else {**found, "loss": loss}

    @property
    def global_step(self) -> int:
        """Number of updates, of all optimizers together."""
        clock = self.run.clock
        return sum(clock.updates.values()) if self._is_manual else clock.step

    def request_stop(self) -> None:
        """Stop training, for the callback that is called now."""
        self.is_stopping = True
        self.run.stop(f"{self.run.member.name} set trainer.should_stop")

    def log(self, values: Mapping[str, Any], **how: Any) -> None:
        """Log values under the names of Hookline. The training loss is the loop's own metric."""
        ours = {NAMES.ours(name): value for name, value in values.items()}
        if not self._is_manual:
            ours.pop("train/loss", None)
        if ours:
            self.run.log(ours, **how)

    def log_for_module(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        **more: Any,
    ) -> None:
        """Log a value as ``LightningModule.log`` does. Hookline logs means over intervals and over epochs.

        Args:
            name: Name of the metric.
            value: The value.
            prog_bar: True to show the metric in a progress bar.
            logger: Not used: Hookline records all metrics.
            on_step: True for the value of the step, by default only in training.
            on_epoch: True for the mean of the epoch, by default only in evaluations.
            reduce_fx: How the values of an epoch are reduced: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``.
            batch_size: Weight of the value. By default, the number of samples in the batch.
            add_dataloader_idx: True for one metric per loader, if there are several.
            **more: Options that Hookline does not need: metrics are always those of all ranks.
        """
        run, ours = self.run, NAMES.ours(name)
        stage, _, metric = ours.rpartition("/") if "/" in ours else (run.stage, "", ours)
        loader = getattr(run, "loader_name", None)  # It has a value in the batches of an evaluation.
        if loader is not None and len(self.batch_index) > 1 and add_dataloader_idx:
            stage, name = f"{stage}/{loader}", f"{name}/dataloader_idx_{self.batch_index[1]}"
        ours = f"{stage}/{metric}"
        weight = batch_size or getattr(run, "batch_size", None)  # Outside of a batch it has no value.
        self.log({ours: value}, weight=weight, reduce=getattr(reduce_fx, "__name__", reduce_fx))
        in_training = run.stage == "train"
        has_mean = bool(on_epoch) if in_training else on_epoch is not False
        self.aliases[name] = f"{ours}_epoch" if in_training and has_mean else ours
        if in_training and has_mean:
            self.aliases[f"{name}_epoch"] = f"{ours}_epoch"
        if isinstance(value, torch.Tensor) and run.world_size == 1:
            if in_training and on_step is not False:
                self.metrics[f"{name}_step" if has_mean else name] = value.detach()
            if has_mean and reduce_fx == "mean":
                total, count = self.sums.get(name, (0.0, 0))
                self.sums[name] = [total + value.detach() * (weight or 1), count + (weight or 1)]
        if prog_bar:
            self.bar.add(name)

    # -- the books -----------------------------------------------------------------------------

    def on_train_start(self, run: Run) -> None:
        self.epoch = run.clock.epoch

    def on_train_epoch_start(self, run: Run) -> None:
        self.epoch = run.clock.epoch

    def on_train_end(self, run: Run) -> None:
        self.epoch = run.clock.epoch

    def _take_means(self, run: Run) -> None:
        is_epoch = run.stage == "train"
        for name in [name for name in self.sums if self.aliases[name].endswith("_epoch") is is_epoch]:
            total, count = self.sums.pop(name)
            self.metrics[name] = total / count
            if f"{name}_epoch" in self.aliases:
                self.metrics[f"{name}_epoch"] = total / count

    def on_sanity_check_start(self, run: Run) -> None:
        self.is_sanity_check = True

    def on_sanity_check_end(self, run: Run) -> None:
        self.is_sanity_check = False

    def on_eval_loader_start(self, run: Run) -> None:
        self._eval_batch = -1

    def on_eval_batch_start(self, run: Run) -> None:
        self._eval_batch += 1
        self.eval_batches += 1

    def on_eval_end(self, run: Run) -> None:
        self.has_evaluated = True
        self._take_means(run)

    on_epoch_end = _take_means

    def on_predict_start(self, run: Run) -> None:
        self._eval_batch = -1

    on_predict_batch_start = on_eval_batch_start

    def on_exception(self, run: Run) -> None:
        self.has_failed = True

    @property
    def batch_index(self) -> tuple[int, ...]:
        """Index of the evaluation batch in its loader and, if there are several loaders, the index of the loader."""
        run = self.run
        loaders = run.loaders.get(run.stage)
        if not isinstance(loaders, Mapping) or len(loaders) == 1:
            return (self._eval_batch,)
        return self._eval_batch, list(loaders).index(run.loader_name)


class _Facade(Facade):
    """A facade over the host, with the classes of one package."""

    __slots__ = ("_package",)

    stands_for: ClassVar[str] = f"Lightning (tested with {VERSIONS})"
    _host: LightningHost
    _package: str

    def __init__(self, host: LightningHost, package: str) -> None:
        self._set(_host=host, _package=package)

    @property
    def _run(self) -> Run:
        return self._host.run

    @property
    def _version(self) -> str:
        return str(import_module(self._package.split(".")[0]).__version__)


class Metrics(MutableMapping[str, torch.Tensor]):
    """``trainer.callback_metrics``: the metrics of the run under both names, and those that callbacks have added.

    A value is read only when a callback asks for it: a training metric may still be on its device.
    """

    def __init__(self, host: LightningHost) -> None:
        self._host = host

    def __getitem__(self, name: str) -> torch.Tensor:
        host = self._host
        if name in host.metrics:
            return host.metrics[name]
        value = host.run.metrics.get(host.aliases.get(name) or NAMES.ours(name))
        if value is None:
            raise KeyError(name)
        return torch.tensor(value, device=host.run.device)

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self._host.metrics[name] = value

    def __delitem__(self, name: str) -> None:
        del self._host.metrics[name]

    def __iter__(self) -> Iterator[str]:
        host = self._host
        ours = list(host.run.metrics)
        aliases = [name for name, metric in host.aliases.items() if metric in ours]
        return iter(dict.fromkeys([*host.metrics, *aliases, *map(NAMES.theirs, ours), *ours]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __deepcopy__(self, memo: object) -> dict[str, torch.Tensor]:
        return {name: self[name].clone() for name in self}


class State(_Facade):
    """``trainer.state``."""

    __slots__ = ()

    @property
    def fn(self) -> Any:
        return _states(self._package).TrainerFn(FUNCTIONS.get(self._run.entry_point, "fit"))

    @property
    def stage(self) -> Any:
        stages = _states(self._package).RunningStage
        return stages.SANITY_CHECKING if self._host.is_sanity_check else getattr(stages, STAGES[self._run.stage])

    @property
    def status(self) -> Any:
        return _states(self._package).TrainerStatus.RUNNING


class Strategy(_Facade):
    """``trainer.strategy``: the device, what several processes do together, and manual optimization."""

    __slots__ = ()

    @property
    def lightning_module(self) -> Any:
        return self._host.module_of(self._package)

    @property
    def _lightning_optimizers(self) -> list[Any]:
        """The optimizers of ``self.optimizers()``. Their ``step`` calls ``optimizer_step``."""
        wrapper = import_module(f"{self._package}.core.optimizer").LightningOptimizer
        for optimizer in self._run.optimizers.values():
            key = self._package, id(optimizer)
            if key not in self._host.optimizers:
                self._host.optimizers[key] = wrapper(optimizer)
                self._host.optimizers[key]._strategy = self
        return [self._host.optimizers[self._package, id(optimizer)] for optimizer in self._run.optimizers.values()]

    def backward(self, loss: torch.Tensor, optimizer: Any, *values: Any, **options: Any) -> None:
        self._run.loss = loss
        for event in ("loss_ready", "backward_start"):
            self._run.emit(event)
        torch.autograd.backward(loss, *values, **options)
        self._run.emit("backward_end")

    def optimizer_step(self, optimizer: Any, closure: Any, *values: Any, **options: Any) -> Any:
        found = closure()
        self._run.loop.step(optimizer)
        return found

    root_device = of_host("run.device")

    @property
    def is_global_zero(self) -> bool:
        return self._run.rank == 0

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return value if self._run.world_size == 1 else self._run.gather(value)[src]

    def barrier(self, name: str | None = None) -> None:
        if self._run.world_size > 1:
            self._run.gather(None)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return bool(self._run.reduce(int(decision), "min" if all else "max"))

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return self._run.reduce(tensor, str(reduce_op or "mean").lower())  # type: ignore[arg-type]

    def remove_checkpoint(self, filepath: str) -> None:
        if self._run.rank == 0 and os.path.exists(filepath):
            os.remove(filepath)


class Experiment(_Facade):
    """``trainer.logger.experiment``: the methods of a ``SummaryWriter``."""

    __slots__ = ()

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, *more: Any, **other: Any) -> None:
        self._host.log({tag: scalar_value}, reduce="last")

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None:
        self._host.log({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, reduce="last")

    def add_image(self, tag: str, img_tensor: Any, global_step: int | None = None, *more: Any, **other: Any) -> None:
        self._run.log_image(tag, img_tensor)

    add_images = add_image

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, *more: Any, **other: Any) -> None:
        self._run.log_figure(tag, figure)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, *more: Any) -> None:
        self._run.log_text(tag, text_string)

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None, *more: Any, **other: Any) -> None:
        self._run.log_histogram(tag, values)

    def flush(self) -> None:
        """Nothing to do: Hookline writes its records itself."""


class Logger(_Facade):
    """``trainer.logger``: what a callback logs becomes metrics of the run."""

    __slots__ = ()

    name = ""
    version = ""
    group_separator = "/"

    @property
    def save_dir(self) -> str:
        return default_folder(self._run)

    root_dir = log_dir = save_dir

    @property
    def experiment(self) -> Experiment:
        return Experiment(self._host, self._package)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._host.log(metrics, reduce="last")

    def log_hyperparams(self, params: Any, *more: Any, **other: Any) -> None:
        self._run.config.update(vars(params) if hasattr(params, "__dict__") else params)

    def log_image(self, key: str, images: list[Any], step: int | None = None, **other: Any) -> None:
        for number, image in enumerate(images):
            self._run.log_image(key if len(images) == 1 else f"{key}/{number}", image)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Nothing to do: the file is where the callback wrote it."""

    def save(self) -> None:
        """Nothing to do: Hookline writes its records itself."""


class BatchProgress(_Facade):
    """``batch_progress`` of a loop."""

    __slots__ = ()

    @property
    def is_last_batch(self) -> bool:
        return self._run.clock.batch_in_epoch >= (self._run.num_batches("train") or math.inf)

    @property
    def total(self) -> BatchProgress:
        return self

    ready = of_host("eval_batches")


class EvaluationLoop(_Facade):
    """``trainer.validate_loop`` and similar loops."""

    __slots__ = ()

    current_batch_indices: ClassVar[list[Any]] = []
    epoch_batch_indices: ClassVar[list[Any]] = []
    predictions: ClassVar[list[Any]] = []

    _has_run = of_host("has_evaluated")

    @property
    def batch_progress(self) -> BatchProgress:
        return BatchProgress(self._host, self._package)


class EpochLoop(_Facade):
    """``trainer.fit_loop.epoch_loop``."""

    __slots__ = ()

    @property
    def val_loop(self) -> EvaluationLoop:
        return EvaluationLoop(self._host, self._package)

    @property
    def batch_progress(self) -> BatchProgress:
        return BatchProgress(self._host, self._package)

    batch_idx = of_host("run.clock.batch_in_epoch")
    _batches_that_stepped = of_host("run.clock.step")

    def _should_check_val_epoch(self) -> bool:
        every = self._run.eval_every
        in_epochs = every is not None and every.unit == "ep" and (self._host.epoch + 1) % every.value == 0
        return "val" in self._run.loaders and (in_epochs or (every is not None and every.unit != "ep"))


class FitLoop(_Facade):
    """``trainer.fit_loop``."""

    __slots__ = ()

    @property
    def epoch_loop(self) -> EpochLoop:
        return EpochLoop(self._host, self._package)

    @property
    def total_batch_idx(self) -> int:
        return self._run.clock.batch - 1

    def _should_accumulate(self) -> bool:
        return not self._run.window_is_full


class LoggerConnector(_Facade):
    """``trainer._logger_connector``."""

    __slots__ = ()

    @property
    def should_update_logs(self) -> bool:
        every = self._run.log_every
        steps = int(every.value) if every is not None and every.unit == "st" else 1
        return (self._run.clock.step + 1) % steps == 0 or self._host.is_stopping

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._host.log(metrics, reduce="last")


class Trainer(_Facade):
    """Lightning's ``Trainer`` as its callbacks and modules see it in a run of Hookline."""

    __slots__ = ()

    fast_dev_run = False
    barebones = False
    enable_progress_bar = True
    max_time = None
    min_epochs = None
    min_steps = None
    num_nodes = 1
    node_rank = 0
    ckpt_path = None
    gradient_clip_val = None
    gradient_clip_algorithm = None

    # -- progress ------------------------------------------------------------------------------

    current_epoch = of_host("epoch")
    global_step = of_host("global_step")

    @property
    def max_epochs(self) -> int:
        return self._limit("ep")

    @property
    def max_steps(self) -> int:
        return self._limit("st")

    def _limit(self, unit: str) -> int:
        limit = self._run.max_duration
        return int(limit.value) if limit is not None and limit.unit == unit else -1

    @property
    def estimated_stepping_batches(self) -> float:
        if self.max_steps > 0:
            return self.max_steps
        return math.ceil(self.num_training_batches / self._run.accumulate) * max(self.max_epochs, 1)

    @property
    def state(self) -> State:
        return State(self._host, self._package)

    sanity_checking = of_host("is_sanity_check")

    @property
    def training(self) -> bool:
        return self._run.stage == "train"

    @property
    def validating(self) -> bool:
        return self._run.stage == "val" and not self._host.is_sanity_check

    @property
    def testing(self) -> bool:
        return self._run.stage == "test"

    @property
    def predicting(self) -> bool:
        return self._run.stage == "predict"

    @property
    def is_last_batch(self) -> bool:
        return self.fit_loop.epoch_loop.batch_progress.is_last_batch

    @property
    def evaluating(self) -> bool:
        return self._run.stage in ("val", "test")

    @property
    def should_stop(self) -> bool:
        ending = self._run.ending
        return self._host.is_stopping or (ending is not None and ending.kind != "duration")

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and not self.should_stop:
            self._host.request_stop()
        elif not value and self.should_stop:
            raise AttributeError("Trainer.should_stop = False: Hookline cannot take back a request to stop.")

    @property
    def received_sigterm(self) -> bool:
        ending = self._run.ending
        return ending is not None and ending.kind == "signal"

    # -- settings ------------------------------------------------------------------------------

    @property
    def enable_validation(self) -> bool:
        return "val" in self._run.loaders

    @property
    def check_val_every_n_epoch(self) -> int | None:
        every = self._run.eval_every
        return int(every.value) if every is not None and every.unit == "ep" and every.value >= 1 else None

    @property
    def val_check_interval(self) -> float:
        every = self._run.eval_every
        if every is not None and every.unit == "st":
            return int(every.value) * self._run.accumulate
        return float(every.value) if every is not None and every.unit == "ep" and every.value < 1 else 1.0

    @property
    def log_every_n_steps(self) -> int:
        every = self._run.log_every
        return int(every.value) if every is not None and every.unit == "st" else 1

    @property
    def accumulate_grad_batches(self) -> int:
        return self._run.accumulate

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        if value != self._run.accumulate:
            self._run.accumulate = value

    @property
    def precision(self) -> str:
        return PRECISIONS[self._run.precision]

    @property
    def precision_plugin(self) -> Any:
        return import_module(f"{self._package}.plugins.precision").Precision()

    @property
    def accelerator(self) -> Any:
        accelerators = import_module(f"{self._package}.accelerators")
        return accelerators.CUDAAccelerator() if self._run.device.type == "cuda" else accelerators.CPUAccelerator()

    # -- model, optimizers and data ------------------------------------------------------------

    @property
    def lightning_module(self) -> Any:
        return self._host.module_of(self._package)

    model = lightning_module

    datamodule = of_host("datamodule")

    @property
    def optimizers(self) -> list[Any]:
        return list(self._run.optimizers.values())

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        config = import_module(f"{self._package}.utilities.types").LRSchedulerConfig
        return [
            config(
                its.scheduler,
                interval="step" if its.unit == "st" else "epoch",
                reduce_on_plateau=its.unit == "eval",
                monitor=its.monitor if its.unit == "eval" else None,
            )
            for its in self._run.schedulers
        ]

    @property
    def train_dataloader(self) -> Any:
        return self._run.loaders.get("train")

    @property
    def val_dataloaders(self) -> Any:
        return self._loaders("val")

    @property
    def test_dataloaders(self) -> Any:
        return self._loaders("test")

    @property
    def predict_dataloaders(self) -> Any:
        return self._loaders("predict")

    def _loaders(self, stage: str) -> Any:
        found = self._run.loaders.get(stage)
        return list(found.values()) if isinstance(found, dict) else found

    @property
    def num_training_batches(self) -> float:
        return self._run.num_batches("train") or math.inf

    @property
    def num_val_batches(self) -> list[float]:
        return self._batches("val")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        return [min(2, batches) for batches in self._batches("val")]

    @property
    def num_test_batches(self) -> list[float]:
        return self._batches("test")

    @property
    def num_predict_batches(self) -> list[float]:
        return self._batches("predict")

    def _batches(self, stage: str) -> list[float]:
        found = self._loaders(stage)
        loaders = found if isinstance(found, list) and stage in ("val", "test") else [found]
        if isinstance(self._run.loaders.get(stage), dict):
            return [self._run.num_batches(stage, loader) or math.inf for loader in loaders]
        return [] if found is None else [self._run.num_batches(stage) or math.inf]

    # -- metrics and files ---------------------------------------------------------------------

    @property
    def callback_metrics(self) -> Metrics:
        return Metrics(self._host)

    logged_metrics = callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        metrics = Metrics(self._host)
        return {name: metrics[name].item() for name in self._host.bar if name in metrics}

    @property
    def logger(self) -> Logger:
        return Logger(self._host, self._package)

    @property
    def loggers(self) -> list[Logger]:
        return [self.logger]

    @property
    def default_root_dir(self) -> str:
        return default_folder(self._run)

    log_dir = default_root_dir

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        save_checkpoint(self, self._run, str(filepath), weights_only=bool(weights_only))

    def print(self, *values: Any, **options: Any) -> None:
        if self.is_global_zero:
            print(*values, **options)  # noqa: T201  # It is what the callback asks for.

    # -- callbacks and ranks -------------------------------------------------------------------

    @property
    def callbacks(self) -> list[Any]:
        return [its.callback for its in self._run.callbacks if isinstance(its, Adapter) and its.library == "Lightning"]

    def _of_class(self, module: str, name: str) -> list[Any]:
        kind = getattr(import_module(f"{self._package}.callbacks.{module}"), name)
        return [callback for callback in self.callbacks if isinstance(callback, kind)]

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return self._of_class("checkpoint", "Checkpoint")

    @property
    def checkpoint_callback(self) -> Any:
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        return self._of_class("early_stopping", "EarlyStopping")

    @property
    def early_stopping_callback(self) -> Any:
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Any:
        return next(iter(self._of_class("progress", "ProgressBar")), None)

    @property
    def is_global_zero(self) -> bool:
        return self._run.rank == 0

    global_rank = of_host("run.rank")

    local_rank = global_rank

    world_size = of_host("run.world_size")

    num_devices = world_size

    @property
    def device_ids(self) -> list[int]:
        return [self._run.device.index or 0]

    @property
    def strategy(self) -> Strategy:
        return Strategy(self._host, self._package)

    # -- parts that shipped callbacks read -----------------------------------------------------

    @property
    def fit_loop(self) -> FitLoop:
        return FitLoop(self._host, self._package)

    @property
    def validate_loop(self) -> EvaluationLoop:
        return EvaluationLoop(self._host, self._package)

    test_loop = predict_loop = _evaluation_loop = validate_loop

    @property
    def _logger_connector(self) -> LoggerConnector:
        return LoggerConnector(self._host, self._package)

    @property
    def _accelerator_connector(self) -> AcceleratorConnector:
        return AcceleratorConnector(self._host, self._package)


class AcceleratorConnector(_Facade):
    """``trainer._accelerator_connector``."""

    __slots__ = ()

    @property
    def is_distributed(self) -> bool:
        return self._run.world_size > 1


def default_folder(run: Run) -> str:
    """Return the folder for files of Lightning's callbacks."""
    if not run.has_folder:
        raise SetupError(
            f"{run.member.name} writes files, but the run has no folder. Write hl.fit(…, folder='…'), or give the "
            f"callback a dirpath."
        )
    folder = run.folder / "lightning"
    folder.mkdir(exist_ok=True)
    return str(folder)


def _states(package: str) -> Any:
    return import_module(f"{package}.trainer.states")
