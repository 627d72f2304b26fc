"""The trainer that callbacks of pytorch-accelerated see, and the host that keeps its books."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Final, Never

import torch
from torch import nn

from hookline.errors import NotAvailableError, SetupError
from hookline.interop.adapter import Host
from hookline.interop.facade import Facade, of_host
from hookline.interop.names import MetricNames
from hookline.interop.pytorch_accelerated.support import VERSIONS
from hookline.progress import Duration
from hookline.run import Run

NAMES: Final = MetricNames((("eval_loss_epoch", "val/loss"), ("eval_", "val/"), ("train_", "train/")))
EVALUATION_LOSS: Final = "evaluation_loss"
"""Name of the loss in a run that only evaluates."""


class PytorchAcceleratedHost(Host):
    """The books of the trainer that all callbacks of pytorch-accelerated share: its history and its epoch.

    A step of pytorch-accelerated is a batch.
    """

    library = "pytorch-accelerated"
    shows = "the trainer"

    def _start(self) -> None:
        super()._start()
        self.names = replace(NAMES, given=self.aliases)
        self.history: Any = make_history(self)
        self.handler: Any = None
        """Another handler of callbacks, which a callback has set for a moment."""
        self.shown_model: nn.Module | None = None
        """Another model, which a callback has set for a moment."""
        self.is_stopping = False
        """True after a ``StopTrainingError``, until ``on_training_run_end``."""
        self.has_evaluated = False
        """True if there was an evaluation since the epoch began."""
        self._output: BatchOutput | None = None

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self.trainer = Trainer(self)

    def state_dict(self) -> dict[str, Any]:
        return {**self.history.saved(), "has_evaluated": self.has_evaluated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history.load(state)
        self.has_evaluated = state["has_evaluated"]

    # -- the books -----------------------------------------------------------------------------

    def on_train_epoch_start(self, run: Run) -> None:
        self.history._set_epoch(run.clock.epoch + 1)
        self.has_evaluated = False

    def on_train_epoch_end(self, run: Run) -> None:
        self._record(run, "train/", "_epoch")

    def on_eval_start(self, run: Run) -> None:
        if is_evaluation(run):
            self.is_stopping = False

    def on_eval_batch_start(self, run: Run) -> None:
        self._output = None  # Without a loss, it would be taken for that of the batch before.

    def on_eval_loader_end(self, run: Run) -> None:
        self.has_evaluated = True
        self._record(run, f"{run.stage}/", "")

    def on_train_end(self, run: Run) -> None:
        if not self.is_stopping:
            self.history._set_epoch(run.clock.epoch + 1)

    def _record(self, run: Run, prefix: str, suffix: str) -> None:
        if self.is_stopping:  # Its callbacks do not hear of an evaluation that follows.
            return
        for name, value in run.metrics.new().items():
            if name.startswith(prefix) and name.endswith(suffix):
                is_loss = name == f"{run.stage}/loss" and is_evaluation(run)
                self.history.record(EVALUATION_LOSS if is_loss else self.names.theirs(name), value)

    # -- what callbacks ask for ----------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model that callbacks see now."""
        return self.run.model if self.shown_model is None else self.shown_model

    @property
    def batch_output(self) -> BatchOutput:
        """The results of the step on the batch, one dict for all callbacks."""
        run, loss = self.run, _value(self.run, "loss")
        if self._output is None or self._output.loss is not loss:
            self._output = BatchOutput(loss, _value(run, "outputs"), run.batch_size)
        return self._output

    @property
    def is_loss_replaced(self) -> bool:
        """True if a callback has set another loss in ``batch_output``."""
        return self._output is not None and self._output.get("loss") is not self._output.loss

    def note_stop(self, error: Exception) -> None:
        """A callback has raised ``StopTrainingError``: the others hear of it, and of the end."""
        self.is_stopping = True
        self.print(error)

    def print(self, *values: object, **options: Any) -> None:
        """Print on rank zero."""
        if self.run.rank == 0:
            print(*values, **options)  # noqa: T201  # It is what the callback asks for.

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.run.world_size > 1:
            self.run.gather(None)

    def check_restored(self) -> None:
        """Raise if a callback has replaced the model or the handler for longer than one hook.

        Raises:
            SetupError: If it has.
        """
        name = "model" if self.shown_model is not None else "callback_handler" if self.handler is not None else ""
        if name:
            self.shown_model = self.handler = None
            raise SetupError(
                f"{self.run.member.name} replaced trainer.{name}: Hookline keeps it for the whole run. Change the "
                f"model before fit(…)."
            )

    def evaluate(self, loader: Any) -> None:
        """Evaluate the model that callbacks see, and record its loss."""
        run = self.run
        given = run.stage if run.stage in ("val", "test") else "val"
        if self.shown_model is None:
            found = run.evaluate(given if isinstance(loader, LoaderView) else loader)
        else:
            own = {name for name, _ in (*run.model.named_parameters(), *run.model.named_buffers())}
            shown = self.shown_model.state_dict()
            with run.swap_weights({name: value for name, value in shown.items() if name in own}):
                found = run.evaluate(given if isinstance(loader, LoaderView) else loader)
        for name, value in found.items():
            if name.endswith("/loss"):
                self.history.update_metric("eval_loss_epoch", value)


def is_evaluation(run: Run) -> bool:
    """True in an evaluation that is not a part of training: there, it is a separate run."""
    return run.stage == "test" or run.entry_point == "evaluate"


class BatchOutput(dict[str, Any]):
    """``batch_output``: the loss, the outputs of the model and the number of samples of a batch.

    Args:
        loss: The loss, or ``None`` if the task does not return it.
        outputs: The outputs of the model, or ``None`` if the task does not return them.
        batch_size: The number of samples.
    """

    __slots__ = ("loss",)

    def __init__(self, loss: Any, outputs: Any, batch_size: int) -> None:
        self.loss = loss
        if loss is not None:
            self["loss"] = loss
        if outputs is not None:
            self["model_outputs"] = outputs
        self["batch_size"] = batch_size

    def __missing__(self, name: str) -> Never:
        raise KeyError(
            f"batch_output has no {name!r}: the task did not return it. Return {{'loss': …, 'outputs': …}} from "
            f"train_batch and eval_batch."
        )


def _value(run: Run, field: str) -> Any:
    try:
        return getattr(run, field)
    except NotAvailableError:
        return None


def make_history(host: PytorchAcceleratedHost) -> Any:
    """Return a run history of pytorch-accelerated. Metrics that callbacks add to it are logged in Hookline.

    Args:
        host: The host of the run.
    """
    base = import_module("pytorch_accelerated.tracking").InMemoryRunHistory

    class RunHistory(base):  # type: ignore[misc, valid-type]
        """The ``run_history`` of the trainer."""

        def update_metric(self, metric_name: str, metric_value: Any) -> None:
            super().update_metric(metric_name, metric_value)
            name = host.names.ours(f"{self.metric_name_prefix}{metric_name}")
            if isinstance(metric_value, int | float | torch.Tensor):
                self._logged.add(name)
                host.run.log({name: metric_value}, reduce="last")

        def record(self, name: str, value: float) -> None:
            """Add a metric of Hookline, unless a callback has added it."""
            if host.names.ours(name) not in self._logged and name not in self._logged:
                super().update_metric(name, value)

        def reset(self) -> None:
            super().reset()
            self._logged: set[str] = set()

        def saved(self) -> dict[str, Any]:
            """Return the state: the epoch, and the metrics that are numbers or tensors."""
            values = {name: list(its) for name, its in self._metrics.items()}
            kept = {name: its for name, its in values.items() if all(isinstance(v, SAVED) for v in its)}
            return {"epoch": self.current_epoch, "metrics": kept, "logged": sorted(self._logged)}

        def load(self, state: Mapping[str, Any]) -> None:
            """Load the state."""
            self.reset()
            self._set_epoch(state["epoch"])
            self._metrics.update({name: list(its) for name, its in state["metrics"].items()})
            self._logged = set(state["logged"])

    history = RunHistory()
    history.reset()
    return history


SAVED: Final = (int, float, torch.Tensor)


class _Facade(Facade):
    __slots__ = ()

    stands_for: ClassVar[str] = f"pytorch-accelerated's trainer (tested with {VERSIONS})"
    _host: PytorchAcceleratedHost


class LoaderView:
    """A loader with the length of an epoch on this rank, and the device of its batches.

    Args:
        host: The host of the run.
        stage: The stage of the loader.
        loader: The loader.
    """

    def __init__(self, host: PytorchAcceleratedHost, stage: str, loader: Any) -> None:
        self._host, self._stage, self._loader = host, stage, loader

    @property
    def device(self) -> torch.device:
        return self._host.run.device

    def __len__(self) -> int:
        length = self._host.run.num_batches(self._stage, self._loader)
        if length is None:
            raise TypeError(f"the {self._stage} loader has no length")
        return length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class CallbackHandler(_Facade):
    """``trainer.callback_handler``: the callbacks of pytorch-accelerated in the run."""

    __slots__ = ()

    @property
    def callbacks(self) -> list[Any]:
        found = [its for its in self._host.run.callbacks if getattr(its, "host", None) is type(self._host)]
        return [its.callback for its in found]  # type: ignore[attr-defined]

    @property
    def callback_list(self) -> list[str]:
        return [type(callback).__name__ for callback in self.callbacks]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.callbacks)

    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of all callbacks that have it, such as an event that the user has defined."""
        for callback in self.callbacks:
            method = getattr(type(callback), event, None)
            if method is not None:
                method(callback, *args, **kwargs)


class Accelerator(_Facade):
    """``trainer._accelerator``: the processes of the run."""

    __slots__ = ()

    device = of_host("run.device")
    num_processes = of_host("run.world_size")
    process_index = of_host("run.rank")

    @property
    def is_main_process(self) -> bool:
        return self._host.run.rank == 0

    is_local_main_process = is_main_process

    @property
    def is_last_process(self) -> bool:
        return self._host.run.rank == self._host.run.world_size - 1

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        return model

    def print(self, *values: object, **options: Any) -> None:
        self._host.print(*values, **options)

    def wait_for_everyone(self) -> None:
        self._host.barrier()

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks, joined in their first dimension."""
        run = self._host.run
        if not isinstance(tensor, torch.Tensor):
            raise SetupError(f"{run.member.name} gathers {type(tensor).__name__}: give a tensor.")
        if run.world_size == 1:
            return tensor
        rows = tensor if tensor.ndim else tensor.reshape(1)
        found = [torch.as_tensor(its, dtype=tensor.dtype) for its in run.gather(rows.tolist())]
        return torch.cat([its.reshape(-1, *rows.shape[1:]) for its in found]).to(tensor.device)


class Trainer(_Facade):
    """The trainer that callbacks see."""

    __slots__ = ()

    run_history = of_host("history")

    @property
    def run_config(self) -> Any:
        return make_run_config(self._host.run)

    @property
    def model(self) -> nn.Module:
        return self._host.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._host.shown_model = None if model is self._host.run.model else model

    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        return self._host.model

    @property
    def callback_handler(self) -> Any:
        return CallbackHandler(self._host) if self._host.handler is None else self._host.handler

    @callback_handler.setter
    def callback_handler(self, handler: Any) -> None:
        self._host.handler = None if isinstance(handler, CallbackHandler) else handler

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        optimizers = list(self._host.run.optimizers.values())
        if len(optimizers) != 1:
            raise AttributeError(f"Trainer.optimizer: this run has {len(optimizers)} optimizers. Read run.optimizers.")
        return optimizers[0]

    @property
    def scheduler(self) -> Any:
        schedulers = self._host.run.schedulers
        return schedulers[0].scheduler if schedulers else None

    loss_func = of_host("run.task.loss")
    device = of_host("run.device")

    @property
    def train_dataset(self) -> Any:
        return getattr(self._host.run.loaders.get("train"), "dataset", None)

    @property
    def eval_dataset(self) -> Any:
        return getattr(self._eval_dataloader, "dataset", None)

    @property
    def _train_dataloader(self) -> Any:
        return self._view("train")

    @property
    def _eval_dataloader(self) -> Any:
        stage = self._host.run.stage
        return self._view(stage if stage in ("val", "test") else "val")

    def _view(self, stage: str) -> LoaderView | None:
        loader = self._host.run.loaders.get(stage)
        return None if loader is None else LoaderView(self._host, stage, loader)

    @property
    def _accelerator(self) -> Accelerator:
        return Accelerator(self._host)

    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> None:
        self._host.evaluate(valid_dl)

    def gather(self, tensor: Any, padding_value: float | None = None) -> Any:
        """Return the tensors of all ranks. They may have different lengths, so no padding is needed."""
        return self._accelerator.gather(tensor)

    def print(self, *values: object, **options: Any) -> None:
        self._host.print(*values, **options)

    def save_checkpoint(
        self,
        save_path: Any,
        checkpoint_kwargs: Mapping[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write the file that pytorch-accelerated writes. A run of Hookline resumes from its own checkpoints."""
        run = self._host.run
        if run.is_sharded:
            raise SetupError(f"{run.member.name} saves the weights, but they are sharded. Use hl.Checkpointer.")
        checkpoint: dict[str, Any] = {"model_state_dict": self.model.state_dict()}
        if save_optimizer:
            checkpoint["optimizer_state_dict"] = self.optimizer.state_dict()
        if save_scheduler and self.scheduler is not None:
            checkpoint["scheduler_state_dict"] = self.scheduler.state_dict()
        if run.rank == 0:
            torch.save(checkpoint | dict(checkpoint_kwargs or {}), f"{save_path}.part")
            os.replace(f"{save_path}.part", save_path)
        self._host.barrier()

    def load_checkpoint(self, checkpoint_path: Any, load_optimizer: bool = True, load_scheduler: bool = True) -> Any:
        """Load a file that ``save_checkpoint`` has written."""
        self._host.barrier()
        checkpoint = torch.load(checkpoint_path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(checkpoint["model_state_dict"])
        if load_optimizer and "optimizer_state_dict" in checkpoint:
            self.optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        if load_scheduler and "scheduler_state_dict" in checkpoint and self.scheduler is not None:
            self.scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
        return checkpoint


def make_run_config(run: Run) -> Any:
    """Return the ``run_config`` of pytorch-accelerated, also with ``run_config["name"]``.

    Args:
        run: The run.
    """
    base = import_module("pytorch_accelerated.run_config").TrainerRunConfig
    kind = type("TrainerRunConfig", (base,), {"__getitem__": lambda self, name: getattr(self, name)})
    train, evaluation = (_batch_size(run.loaders.get(stage)) for stage in ("train", "val"))
    batches, epochs = run.num_batches("train", run.loaders.get("train")) or 0, _count(run.max_duration, "ep")
    updates = -(-batches // run.accumulate)
    return kind(
        num_epochs=epochs,
        train_per_device_batch_size=train,
        train_dl_kwargs={},
        eval_per_device_batch_size=evaluation,
        eval_dl_kwargs={},
        gradient_accumulation_steps=run.accumulate,
        gradient_clip_value=None,
        train_total_batch_size=train and train * run.data_parallel_size * run.accumulate,
        eval_total_batch_size=evaluation and evaluation * run.data_parallel_size,
        num_update_steps_per_epoch=updates * run.data_parallel_size,
        num_local_update_steps_per_epoch=updates,
        max_num_train_steps=_count(run.max_duration, "st"),
        is_local_process_zero=run.rank == 0,
        is_world_process_zero=run.rank == 0,
        is_distributed=run.world_size > 1,
        mixed_precision="no" if run.precision == "fp32" else run.precision,
        num_processes=run.world_size,
    )


def _batch_size(loader: Any) -> int | None:
    return getattr(loader, "batch_size", None)


def _count(duration: Duration | None, unit: str) -> int | None:
    return int(duration.value) if duration is not None and duration.unit == unit and duration.value >= 1 else None
