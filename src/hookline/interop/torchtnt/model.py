"""Units of TorchTNT as the model of a run: ``AutoUnit``, ``TrainUnit``, ``EvalUnit`` and ``PredictUnit``."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from types import MethodType
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookline.errors import SetupError
from hookline.interop.adapter import Adapter, Hook
from hookline.interop.torchtnt.callback import TorchTNTAdapter
from hookline.interop.torchtnt.support import NOT_CALLED
from hookline.interop.torchtnt.unit import NAMES, TorchTNTHost
from hookline.run import Run

STEPS: Final = {
    "train_step": ("TrainUnit", "training"),
    "eval_step": ("EvalUnit", "an evaluation"),
    "predict_step": ("PredictUnit", "a prediction"),
}
"""Methods of a unit, with the class that has the method, and what needs it."""

HOOKS: Final = frozenset(
    f"on_{phase}_{event}"
    for phase in ("train", "eval", "predict")
    for event in ("start", "epoch_start", "epoch_end", "end")
) | {"on_exception"}
"""Hooks of a unit. Those of the steps are called by the steps."""

NEVER: Final = "1000000000ep"
"""Interval of a scheduler that the unit steps itself."""


class UnitSteps:
    """Methods of a task for a unit: the loop makes a task of this class and of ``hl.Task``.

    The loss of an ``AutoUnit`` goes through Hookline's loop, and the weights are updated there. Any other unit updates
    the weights in its ``train_step``.

    Args:
        unit: The unit.

    Raises:
        SetupError: If the unit overrides a method that Hookline would not call.
    """

    scheduler: ClassVar[Callable[..., Any]]
    """``hl.Scheduler``, which the loop sets."""

    def __init__(self, unit: Any) -> None:
        super().__init__()
        self.unit, self.title = unit, f"{type(unit).__name__} of TorchTNT"
        _check_methods(unit, self.title)
        self.model = _model_of(unit, self.title)
        self.drives_updates = not hasattr(unit, "compute_loss") or _is_overridden(unit, "train_step")
        self._ended: tuple[Any, ...] | None = None
        self._grad_norm: Tensor | None = None

    def own_callbacks(self) -> list[object]:
        """Return the callback with the hooks of the unit."""
        return [UnitHooks(self)]

    def on_setup(self, run: Run) -> None:
        self._host = TorchTNTHost.of(run)
        entry = {"fit": "train_step", "train": "train_step", "predict": "predict_step"}
        needed = {entry.get(run.entry_point, "eval_step"), *(["eval_step"] if {"val", "test"} & {*run.loaders} else [])}
        for step in sorted(needed):
            if not hasattr(self.unit, step):
                kind, what = STEPS[step]
                raise SetupError(f"{self.title} has no {step}, which {what} needs. Make it a {kind}.")
        self._check_settings(run)

    def _check_settings(self, run: Run) -> None:
        """Raise if settings of the unit and of the run contradict each other."""
        unit = self.unit
        device = getattr(unit, "device", None)
        if isinstance(device, torch.device) and device.type != run.device.type:
            raise SetupError(f"{self.title} is on {device}, and the run on {run.device}. Pass device='{device.type}'.")
        if run.world_size > 1 and len(unit.tracked_modules()) > 1:
            raise SetupError(
                f"{self.title} has {len(unit.tracked_modules())} modules: such a unit trains in one process. Give it "
                f"one module."
            )
        if not run.is_training_run:
            return
        batches = getattr(unit, "gradient_accumulation_steps", 1)
        if self.drives_updates and (run.world_size > 1 or run.precision == "fp16" or max(run.accumulate, batches) > 1):
            raise SetupError(
                f"{self.title} updates the weights in train_step: such a unit trains in one process, with accumulate=1 "
                f"and without fp16. Make it an AutoUnit with compute_loss, or write a hl.Task."
            )
        if not self.drives_updates and batches != run.accumulate:
            raise SetupError(
                f"{self.title} has gradient_accumulation_steps={batches}, and the run accumulate={run.accumulate}. "
                f"Pass accumulate={batches}."
            )

    # -- batches ---------------------------------------------------------------------------------

    def train_batch(self, run: Run, batch: Any, /) -> Any:
        host, unit = self._host, self.unit
        host.serve(run)
        if self.drives_updates:
            host.step_output = unit.train_step(host.their_state, batch)
            loss, run.outputs = _loss_and_outputs(host.step_output)
            if loss is not None:
                run.log({"train/loss": loss.detach()})
            return None
        with unit.maybe_autocast_precision:
            loss, outputs = unit.compute_loss(host.their_state, batch)
        host.step_output = loss.detach() / run.accumulate, outputs
        self._ended = batch, outputs
        # TorchTNT takes the mean over the batches of a step and over the ranks, and not over their samples.
        weight = {} if run.accumulate == run.world_size == 1 else {"weight": 1}
        return {"loss": loss, "outputs": outputs, **weight}

    def end_train_batch(self, run: Run) -> None:
        """Call the hook with which an ``AutoUnit`` ends a training step, before the progress counts the step."""
        if self._ended is None:
            return
        (batch, outputs), self._ended = self._ended, None
        norm, self._grad_norm = self._grad_norm, None
        host, unit = self._host, self.unit
        results = import_module("torchtnt.framework.auto_unit").TrainStepResults(host.step_output[0], norm, outputs)
        host.serve(run)
        unit.on_train_step_end(host.their_state, batch, unit.train_progress.num_steps_completed, results)

    def eval_batch(self, run: Run, batch: Any, /) -> Any:
        host = self._host
        if host.is_sanity_check:
            return None  # TorchTNT has none: the unit would count these batches.
        host.serve(run)
        host.step_output = self.unit.eval_step(host.their_state, batch)
        loss, run.outputs = _loss_and_outputs(host.step_output)
        return None if loss is None else {"loss": loss, "outputs": run.outputs}

    def predict_batch(self, run: Run, batch: Any, /) -> Any:
        host = self._host
        host.serve(run)
        host.step_output = self.unit.predict_step(host.their_state, batch)
        return host.step_output

    # -- updates ---------------------------------------------------------------------------------

    def configure_optimizers(self, run: Run) -> Any:
        """Return the optimizers and schedulers of the unit, which steps the schedulers itself."""
        optimizers = self.unit.tracked_optimizers()
        schedulers = [its for its in self.unit.tracked_lr_schedulers().values() if _can_be_listed(its)]
        return (
            next(iter(optimizers.values())) if len(optimizers) == 1 else dict(optimizers),
            [type(self).scheduler(its, every=NEVER) for its in schedulers],
        )

    def clip(self, run: Run) -> None:
        """Clip the gradients as the ``AutoUnit`` asks for."""
        unit = self.unit
        if unit.clip_grad_norm:
            self._grad_norm = nn.utils.clip_grad_norm_(unit.module.parameters(), unit.clip_grad_norm)
        if unit.clip_grad_value:
            nn.utils.clip_grad_value_(unit.module.parameters(), unit.clip_grad_value)

    def step_schedulers(self, run: Run) -> None:
        """Step the scheduler and update the averaged weights of an ``AutoUnit``, after an update."""
        self._host.serve(run)
        self.unit._update_lr_and_swa(self._host.their_state, self.unit.train_progress.num_steps_completed)


class UnitHooks(Adapter):
    """The hooks of a unit, before those of callbacks, as in TorchTNT."""

    library = "TorchTNT"
    host = TorchTNTHost
    rule = NAMES
    before = (TorchTNTAdapter,)

    def __init__(self, task: UnitSteps) -> None:
        self._task = task
        self._steps: dict[Optimizer, Any] = {}
        """The optimizers whose ``step`` goes through the loop, and the attributes ``step`` that they had."""
        self._loaded: dict[str, Tensor] = {}
        super().__init__(task.unit)
        if not task.drives_updates:
            unit = task.unit
            if unit.clip_grad_norm or unit.clip_grad_value:
                self.on_gradients_ready = task.clip  # type: ignore[method-assign]
            if unit.step_lr_interval == "step":
                self.on_optimizer_step_end = task.step_schedulers  # type: ignore[method-assign]

    def overrides(self, hook: str) -> bool:
        return hook in HOOKS and hasattr(self.callback, hook)

    def caller(self, hook: str, event: str) -> Hook:
        if event == "epoch_end":
            return _nothing  # The hook of a unit comes before the evaluation.
        call, adapter, starts_epoch = getattr(self.callback, hook), self, event == "train_epoch_start"

        def call_unit(run: Run) -> None:
            host = adapter.run_host
            if not starts_epoch or host.is_at_epoch_start:
                host.serve(run)
                call(host.their_state, *((run.exception,) if hook == "on_exception" else ()))

        return call_unit

    def begin(self, run: Run, host: TorchTNTHost) -> None:
        host.attach(self._task)
        if self._task.drives_updates and run.is_training_run:
            for optimizer in self.callback.tracked_optimizers().values():
                self._redirect(run, optimizer)

    def _redirect(self, run: Run, optimizer: Optimizer) -> None:
        """Let ``optimizer.step()`` go through the loop, which sends its events, until the run ends."""
        original, is_inside, title = optimizer.step, False, self._task.title
        self._steps[optimizer] = vars(optimizer).get("step")

        @wraps(original)
        def step(optimizer: Optimizer, *values: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return original()
            if values or options:
                raise SetupError(
                    f"{title} calls optimizer.step with a closure: Hookline needs the gradients before the update. "
                    f"Call loss.backward() and optimizer.step(), or write a hl.Task."
                )
            is_inside = True
            try:
                run.loop.step(optimizer)
            finally:
                is_inside = False

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def on_teardown(self, run: Run) -> None:
        for optimizer, own in self._steps.items():
            del optimizer.step
            if own is not None:
                optimizer.step = own  # type: ignore[method-assign]
        self._steps = {}

    # -- state -----------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        """The parts with a state that the loop does not save."""
        schedulers = self.callback.tracked_lr_schedulers().items()
        others = {name: its for name, its in schedulers if not _can_be_listed(its)}
        return {**self.callback.tracked_misc_statefuls(), **others}

    @property
    def state_key(self) -> str:
        return f"{self.kind}: the hooks and parts of the unit"

    def _gradients(self) -> dict[str, Tensor]:
        """The gradients of a unit that accumulates them itself, between two updates."""
        weights = self._task.model.named_parameters() if self._task.drives_updates else ()
        return {name: weight.grad for name, weight in weights if weight.grad is not None}

    def state_dict(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {"parts": parts, "gradients": self._gradients()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts().items():
            if name in state["parts"]:
                part.load_state_dict(state["parts"][name])
        self._loaded = dict(state["gradients"])

    def around_train(self, run: Run) -> Iterator[None]:
        """Put saved gradients back: the loop has cleared all gradients."""
        weights = dict(self._task.model.named_parameters())
        for name, gradient in self._loaded.items():
            weights[name].grad = gradient.to(weights[name].device)
        self._loaded = {}
        yield


def _nothing(run: Run) -> None:
    """Do nothing."""


def _check_methods(unit: Any, title: str) -> None:
    """Raise if a unit overrides a method that Hookline would not call, or has settings that it cannot follow."""
    for name, instead in NOT_CALLED.items():
        if _is_overridden(unit, name):
            raise SetupError(f"{title} overrides {name}, which Hookline does not call. {instead}")
    for name in STEPS:
        data = inspect.signature(getattr(unit, name)).parameters.get("data") if hasattr(unit, name) else None
        if data is not None and typing.get_origin(data.annotation) is Iterator:
            raise SetupError(f"{title}.{name}(data: Iterator): Hookline passes one batch. Write data: Batch.")
    if getattr(unit, "grad_scaler", None) is not None:
        raise SetupError(f"{title} has precision='fp16'. Leave it out, and pass precision='fp16' to hl.fit.")
    if getattr(unit, "detect_anomaly", None) is not None:
        raise SetupError(f"{title} has detect_anomaly. Leave it out, and call torch.autograd.set_detect_anomaly(True).")


def _model_of(unit: Any, title: str) -> nn.Module:
    """Return the module of a unit. If the unit has several, a module that holds them."""
    modules = unit.tracked_modules()
    if not modules:
        raise SetupError(f"{title} has no module. Set one in __init__, such as self.module = module.")
    wrappers = (nn.parallel.DistributedDataParallel, torch.distributed.fsdp.FullyShardedDataParallel)
    if any(isinstance(module, wrappers) for module in modules.values()):
        raise SetupError(f"{title} has a wrapped module. Leave strategy= out of it, and pass strategy= to hl.fit.")
    if len(modules) == 1:
        return next(iter(modules.values()))  # type: ignore[no-any-return]
    model: nn.Module = type(type(unit).__name__, (nn.Module,), {})()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def _can_be_listed(scheduler: Any) -> bool:
    """True if ``run.schedulers`` can have the scheduler of a unit without stepping it: not after an evaluation."""
    return isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)


def _loss_and_outputs(output: Any) -> tuple[Tensor | None, Any]:
    """Return the loss and the outputs of a step, if it returns them as those of ``AutoUnit`` do."""
    if isinstance(output, tuple) and len(output) == 2 and _is_scalar(output[0]):
        return output
    return (output, None) if _is_scalar(output) else (None, output)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _is_overridden(unit: Any, name: str) -> bool:
    """True if a class outside of TorchTNT defines the method."""
    owner = next((cls for cls in type(unit).__mro__ if name in vars(cls)), None)
    return owner is not None and owner.__module__.split(".")[0] != "torchtnt"
