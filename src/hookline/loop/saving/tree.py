"""``RunTree``: captures and restores everything that the next step of a run depends on."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookline.checkpoint.matching import match
from hookline.checkpoint.snapshot import About, Snapshot
from hookline.distributed.random_states import random_states
from hookline.errors import CheckpointMismatchError
from hookline.events import Member
from hookline.loop.data.training_data import TrainingData
from hookline.loop.metrics.book import MetricBook
from hookline.loop.metrics.object_states import load_metric_states, metric_states
from hookline.loop.model.buffers import BuffersAsBuilt, load_buffers
from hookline.loop.model.precision import Precision
from hookline.loop.model.weights import Weights
from hookline.loop.record.records import Records
from hookline.loop.saving.callback_states import CallbackStates
from hookline.loop.saving.placing import placed_optimizer, placed_weights
from hookline.loop.saving.resharding import gathered
from hookline.loop.saving.state_shape import check_shape
from hookline.loop.settings import Settings
from hookline.loop.world.world import World
from hookline.progress.duration import PASSES
from hookline.records.redact import redact_text
from hookline.run import Run, RunState

logger = logging.getLogger("hookline")


class EdgeState(Protocol):
    """The position of training between its start and its end, which the engine keeps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position. Its key ``mid_epoch`` is True inside an epoch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a position, after the clock and the weights."""

    def went_back(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Adapt to a rollback.

        Args:
            epoch: The epoch of the snapshot.
            state: The position in the snapshot.
        """


class BatchesPerStep(Protocol):
    """The number of micro-batches per step, which a callback may change."""

    @property
    def accumulate(self) -> int:
        """Number of micro-batches per step."""

    def set_accumulate(self, batches: int) -> None:
        """Change the number of micro-batches per step, between two steps."""


class RunTree:
    """Everything that the next step of a run depends on.

    Args:
        state: The state of the run.
        world: The processes of the run.
        settings: The options of the run.
        data: The training data.
        book: The metrics.
        records: The rows of the run. A checkpoint holds their size.
        precision: The gradient scaler.
        weights: The weights of the model, and those that are swapped in.
        buffers: The non-persistent buffers as they were built.
        edge: The position of training: an ``Edge``.
        steps: The number of micro-batches per step.
        why_over: Function that returns why training is over, or ``None`` while it is not.
    """

    def __init__(
        self,
        state: RunState,
        world: World,
        settings: Settings,
        data: TrainingData,
        book: MetricBook,
        records: Records,
        precision: Precision,
        weights: Weights,
        buffers: BuffersAsBuilt,
        edge: EdgeState,
        steps: BatchesPerStep,
        why_over: Callable[[], str | None],
    ) -> None:
        self._state, self._world, self._settings, self._data = state, world, settings, data
        self._book, self._records, self._precision = book, records, precision
        self._weights, self._buffers = weights, buffers
        self._edge, self._steps, self._why_over = edge, steps, why_over
        self.callbacks = CallbackStates(state)

    # -- capture -----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors of the model's state dict, with raw weights in place of swapped ones."""
        weights = {name: value for name, value in self._state.model.state_dict().items() if isinstance(value, Tensor)}
        for raw in reversed(self._weights.raw):  # The outermost swap holds the raw weights.
            weights.update({name: value for name, value in raw.items() if name in weights})
        return weights

    def capture(self, *, in_memory: bool = False, save_due: bool = False) -> dict[str, Any]:
        """Return the state of this process without the weights. Tensors are not copied.

        Args:
            in_memory: True for a snapshot in memory.
            save_due: True if another checkpoint is due at this step.
        """
        state, settings, course = self._state, self._settings, self._edge.state_dict()
        given, accumulate = settings.max_duration, self._steps.accumulate
        training = self.capture_training(in_memory=in_memory)
        paths = {id(metric): path for path, metric in self.callbacks.metrics_by_path().items()}
        why_over = self._why_over()
        return {
            "clock": state.clock.state_dict(),
            "model": training["model"],
            "optimizers": training["optimizers"],
            "schedulers": training["schedulers"],
            "scheduler_owners": self._scheduler_owners(),
            "scaler": training["scaler"],
            "usual_weight": training["usual_weight"],
            "random": training["random"],
            "data": self._data.state_dict(is_epoch_begun=course["mid_epoch"]),
            "course": course,
            "accumulate": None if accumulate == settings.accumulate else accumulate,  # A callback may change it.
            "save": save_due,
            "ended": None if why_over is None else redact_text(why_over),
            "given_duration": None if given is None else str(given),  # A hook may have changed `run.max_duration`.
            "metrics": self._book.state_dict(paths),
            "history": {"bytes": self._records.size, "steps": self._records.steps.size},
            "messages": state.messages.state_dict(),
            "callbacks": self.callbacks.capture(in_memory=in_memory),
        }

    def capture_training(self, *, in_memory: bool) -> dict[str, Any]:
        """Return what ``restore_training`` restores, and the random states. Tensors are not copied.

        Args:
            in_memory: True for a snapshot in memory.
        """
        state, scaler = self._state, self._precision.scaler
        return {
            "model": self._capture_model(in_memory=in_memory),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in state.optimizers.items()},
            "schedulers": [scheduler.scheduler.state_dict() for scheduler in state.schedulers],
            "scaler": None if scaler is None else scaler.state_dict(),
            "usual_weight": self._world.usual_weight,
            "random": random_states(),
        }

    def capture_all(self, *, save_due: bool) -> dict[str, Any]:
        """Return the state of the run, with the part that belongs to each rank.

        All ranks must call it.

        Args:
            save_due: True if another checkpoint is due at this step.
        """
        if self._world.is_alone:
            return self.capture(save_due=save_due)
        return gathered(self._state.line.members, self._world.group, lambda: self.capture(save_due=save_due))

    def about(self, run_id: str, generation: int, **facts: Any) -> About:
        """Return the head of a checkpoint that is saved now.

        Args:
            run_id: The identity of the run.
            generation: The generation of the checkpoint.
            facts: Other fields of ``About``.
        """
        clock = self._state.clock
        return About(
            step=clock.step,
            epoch=clock.epoch,
            batch=clock.batch,
            sample=clock.sample,
            seconds=clock.seconds,
            passes=clock.elapsed(PASSES),
            run=run_id,
            generation=generation,
            metrics=self._book.measured_now(),
            environment=self.environment(),
            **facts,
        )

    def environment(self) -> dict[str, Any]:
        """Return the versions and settings that must be equal for a resume to be bitwise exact."""
        from hookline import __version__

        return {
            "hookline": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": self._state.device.type,
            "threads": torch.get_num_threads(),
            "world_size": self._state.world_size,
            "precision": self._settings.precision,
            "accumulate": self._settings.accumulate,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def _scheduler_owners(self) -> list[str | None]:
        """Return, for each scheduler, the key of the callback that made it, or ``None``."""
        keys = {id(member.callback): member.key for member in self._state.line.members}
        return [keys.get(id(getattr(scheduler, "by", None))) for scheduler in self._state.schedulers]

    def _capture_model(self, *, in_memory: bool) -> dict[str, Any]:
        """Return the state of the model without its weights.

        It holds frozen parameters, modules in eval mode, extra state, metrics and the other modules of the task. A
        snapshot in memory holds all non-persistent buffers separately: see ``MemorySnapshots.take``.
        """
        module, model = self._state.module, self._state.model
        state = model.state_dict()
        return {
            "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
            "evaluating": [name for name, part in module.named_modules() if not part.training],
            "extra": {name: value for name, value in state.items() if not isinstance(value, Tensor)},
            "task": {} if module is model else _outside(module, model),
            "metrics": metric_states(module),
            "buffers": {} if in_memory else self._buffers.changed(module),
        }

    # -- restore -----------------------------------------------------------------------------------

    def check_shape(self, saved: Mapping[str, Any], path: Path) -> None:
        """Check that the saved values have the same types as in this run.

        Args:
            saved: The state of a checkpoint, for this rank.
            path: The file that the state was read from.

        Raises:
            CheckpointCorruptError: If a saved value has another type.
        """
        counted = {
            "clock": self._state.clock.state_dict(),
            "course": self._edge.state_dict(),
            "data": self._data.state_dict(is_epoch_begun=False),
            "history": {"bytes": 0},
        }
        check_shape(saved, counted, self._state.optimizers, self._state.schedulers, path)

    def restore(self, snapshot: Snapshot, *, skip: Collection[str] = ()) -> Mapping[str, Any]:
        """Restore everything except random states and callbacks that are not structural.

        Args:
            snapshot: The content of the checkpoint, for this rank.
            skip: Parts that the checkpoint lacks now, as in ``hl.Resume``.

        Returns:
            The state of the checkpoint. The engine sets its random states when training continues.

        Raises:
            CheckpointMismatchError: If the checkpoint does not fit this run, or holds weights only.
        """
        state, saved = self._state, snapshot.state
        if saved is None:
            raise CheckpointMismatchError(
                "this checkpoint holds weights only, so a run cannot resume from it; start a new run with "
                "callbacks=[hl.LoadWeights(path)]"
            )
        self.callbacks.load(saved["callbacks"], structural=True)
        self.restore_training(snapshot.weights, saved, skip=skip)
        state.clock.load_state_dict(saved["clock"])
        self._warn_of_seed(saved["data"]["seed"])
        self._data.load_state_dict(saved["data"], is_epoch_begun=saved["course"]["mid_epoch"])
        if "seed" not in self._settings.config:  # Then it is the seed that was drawn when the run started.
            state.config["seed"] = self._data.seed
        self._book.load_state_dict(saved["metrics"], self.callbacks.metrics_by_path())
        state.messages.load_state_dict(saved["messages"])
        self._edge.load_state_dict(saved["course"])
        self._steps.set_accumulate(saved.get("accumulate") or self._steps.accumulate)
        return saved

    def restore_training(
        self, weights: Mapping[str, Tensor], saved: Mapping[str, Any], *, skip: Collection[str] = ()
    ) -> None:
        """Restore what an update changes: the model, optimizers, schedulers and the scaler.

        Args:
            weights: The weights of the model.
            saved: The state that ``capture`` returned.
            skip: ``"optimizer"``, ``"schedulers"`` or both, which keep their state.

        Raises:
            CheckpointMismatchError: If the model, an optimizer or the number of schedulers differs.
        """
        schedulers = self._state.schedulers
        self._load_model(weights, saved["model"])
        if "optimizer" not in skip:
            _load_optimizers(self._state.optimizers, saved["optimizers"])
        if "schedulers" not in skip:
            _load_schedulers(schedulers, saved["schedulers"])
        if "optimizer" in skip or "schedulers" in skip:
            _set_learning_rates(schedulers)
        if self._precision.scaler is not None and saved["scaler"] is not None:
            self._precision.scaler.load_state_dict(saved["scaler"])
        self._world.restore_usual_weight(saved.get("usual_weight"))

    def go_back(self, saved: Mapping[str, Any], but: Member[Run]) -> None:
        """Restore the rest of a snapshot in memory, after ``restore_training``.

        The data stays read.

        Args:
            saved: The state that ``capture`` returned.
            but: The callback that asked for the rollback. It keeps its state.
        """
        state, then = self._state, saved["clock"]
        same_epoch = state.clock.epoch == then["epoch"]
        state.clock.go_back(then["step"], then["updates"])
        state.messages.load_state_dict(saved["messages"])
        self._steps.set_accumulate(saved["accumulate"] or self._settings.accumulate)
        self.callbacks.load(saved["callbacks"], structural=False, but=but)
        # After the callbacks: the book resets the metric objects that they hold.
        self._book.go_back(saved["metrics"], self.callbacks.metrics_by_path(), same_epoch=same_epoch)
        self._edge.went_back(then["epoch"], saved["course"])

    def _warn_of_seed(self, saved: int) -> None:
        given = self._settings.seed
        if given not in (None, saved) and not self._state.rank:
            logger.warning("seed=%s is not used: the run continues with its own, %s", given, saved)

    def _load_model(self, weights: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
        module, model = self._state.module, self._state.model
        wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        match(wanted, weights, strict=True)
        model.load_state_dict({**placed_weights(wanted, weights), **saved["extra"]})
        if module is not model:
            others = _outside(module, model)
            if others or saved["task"]:
                match(others, saved["task"], strict=True)
            module.load_state_dict(placed_weights(others, saved["task"]), strict=False)
        load_metric_states(module, saved.get("metrics", {}))
        load_buffers(module, saved.get("buffers", {}), self._state.device)
        if saved["frozen"] is None:
            return
        frozen, evaluating = set(saved["frozen"]), set(saved["evaluating"])
        for name, parameter in module.named_parameters():
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
        for name, part in module.named_modules():
            part.training = name not in evaluating


def _outside(task: nn.Module, model: nn.Module) -> dict[str, Any]:
    """Return the state of a task outside of its model, such as a loss with parameters."""
    own = next((f"{name}." for name, part in task.named_modules() if part is model), "")
    return {name: value for name, value in task.state_dict().items() if not own or not name.startswith(own)}


def _load_schedulers(here: Sequence[Any], saved: Sequence[Any]) -> None:
    if len(saved) != len(here):
        raise CheckpointMismatchError(
            f"the checkpoint has {len(saved)} schedulers and this run {len(here)}; make the same ones as before"
        )
    for scheduler, its in zip(here, saved, strict=True):
        scheduler.scheduler.load_state_dict(its)


def _set_learning_rates(schedulers: Sequence[Any]) -> None:
    """Set the learning rates of the schedulers in optimizers that were restored without them, or the other way."""
    for scheduler in (planned.scheduler for planned in schedulers):
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate


def _load_optimizers(here: Mapping[str, torch.optim.Optimizer], saved: Mapping[str, Any]) -> None:
    if here.keys() != saved.keys():
        raise CheckpointMismatchError(
            f"the checkpoint has the optimizers {', '.join(saved) or 'none'}, this run has {', '.join(here) or 'none'};"
            f" make the same ones as before"
        )
    for name, optimizer in here.items():
        # Read before the load: torch then adds defaults that not every optimizer has in its groups, such as LBFGS.
        needed = list(optimizer.defaults)
        try:
            optimizer.load_state_dict(placed_optimizer(optimizer, saved[name]))
        except (ValueError, KeyError) as error:
            raise CheckpointMismatchError(f"optimizers/{name} does not fit the checkpoint: {error}") from error
        # Torch loads the state of another kind of optimizer without an error, and fails at the first step.
        if lacking := [key for key in needed if any(key not in group for group in optimizer.param_groups)]:
            raise CheckpointMismatchError(
                f"optimizers/{name} does not fit the checkpoint: that of the checkpoint has no {', '.join(lacking)}, "
                f"which {type(optimizer).__name__} needs; make one of the same kind as before"
            )
