"""``LightningModule`` as the model of a run, and ``LightningDataModule`` as its data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookline.errors import LossError, SetupError
from hookline.interop.adapter import Hook
from hookline.interop.lightning.callback import ARGUMENTS, ONLY, STAGE_OF, LightningAdapter, no_arguments
from hookline.interop.lightning.checkpoint import added_state, load_added_state
from hookline.interop.lightning.trainer import NAMES, LightningHost
from hookline.run import Run

_TRANSFER: Final = "Hookline moves batches itself. Do it in the data set, or in training_step."
_MODES: Final = "Hookline sets the modes itself. Leave it out."
NOT_CALLED: Final = {
    "backward": "Hookline calls loss.backward() itself. Use automatic_optimization=False.",
    "configure_gradient_clipping": "Hookline clips by a callback. Use hl.GradientClip.",
    "lr_scheduler_step": "Hookline steps the schedulers itself. Use automatic_optimization=False.",
    "optimizer_step": "Hookline steps the optimizer itself. Use automatic_optimization=False.",
    "optimizer_zero_grad": "Hookline clears the gradients itself. Leave it out.",
    "configure_sharded_model": "Use configure_model.",
    **dict.fromkeys(("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"), _TRANSFER),
    **dict.fromkeys(("on_validation_model_eval", "on_validation_model_train", "on_validation_model_zero_grad"), _MODES),
    **dict.fromkeys(("on_test_model_eval", "on_test_model_train", "on_predict_model_eval"), _MODES),
}
"""Methods of a module or a data module that Hookline does not call, and what to do instead."""

LOADERS: Final = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
"""Loaders of a data module, by the stage of Lightning."""


class LightningSteps:
    """Methods of a task for a ``LightningModule``: the loop makes a task of this class and of ``hl.Task``.

    Args:
        model: The module.

    Raises:
        SetupError: If the module overrides a method that Hookline would not call.
    """

    scheduler: ClassVar[Callable[..., Any]]
    """``hl.Scheduler``, which the loop sets."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        refuse_overridden(model, f"{type(model).__name__} of Lightning")
        self.model = model
        self.datamodule: Any = None
        self.drives_updates: bool = not model.automatic_optimization
        steps = ("training_step", "validation_step", "test_step", "predict_step")
        self._takes_index = {name: _takes_index(getattr(model, name)) for name in steps}
        if "dataloader_iter" in inspect.signature(model.training_step).parameters:
            raise SetupError(
                f"{type(model).__name__}.training_step(dataloader_iter): Hookline passes one batch. Write "
                f"training_step(self, batch, batch_idx)."
            )

    def own_callbacks(self) -> list[object]:
        """Return the callbacks that the module brings: its own hooks, and those of ``configure_callbacks``."""
        configured = self.model.configure_callbacks()
        return [ModuleHooks(self), *(configured if isinstance(configured, list | tuple) else [configured])]

    def use_data(self, datamodule: Any) -> None:
        """Show a ``LightningDataModule`` as ``trainer.datamodule``, and call its ``teardown``."""
        self.datamodule = datamodule

    def on_setup(self, run: Run) -> None:
        self._host = LightningHost.of(run)
        if self.drives_updates and (run.world_size > 1 or run.precision == "fp16" or run.accumulate > 1):
            raise SetupError(
                f"{type(self.model).__name__}.automatic_optimization = False: such a module trains in one process, "
                f"with accumulate=1 and without fp16. Set automatic_optimization = True, or write a hl.Task."
            )

    # -- batches ---------------------------------------------------------------------------------

    def train_batch(self, run: Run, batch: Any, /) -> Any:
        host = self._host
        host.serve(run)
        index = (run.clock.batch_in_epoch,) if self._takes_index["training_step"] else ()
        found = self.model.training_step(batch, *index)
        extra = {name: value for name, value in found.items() if name != "loss"} if isinstance(found, Mapping) else {}
        loss = found.get("loss") if isinstance(found, Mapping) else found
        host.set_step_output(loss, extra)
        if self.drives_updates:
            return None
        if loss is None:
            raise LossError(
                f"{type(self.model).__name__}.training_step returned no loss. Return the loss, or a dict with 'loss'. "
                f"To leave out updates, set automatic_optimization = False and step the optimizer yourself."
            )
        # Lightning takes the mean over the batches of a step and over the ranks, and not over their samples.
        return loss if run.accumulate == run.world_size == 1 else {"loss": loss, "weight": 1}

    def eval_batch(self, run: Run, batch: Any, /) -> None:
        self._host.serve(run)
        name = "validation_step" if run.stage == "val" else "test_step"
        if not _is_overridden(self.model, name):
            raise SetupError(f"{type(self.model).__name__} has no {name}, which an evaluation on {run.stage!r} needs.")
        run.outputs = self._call(name, batch)

    def predict_batch(self, run: Run, batch: Any, /) -> Any:
        self._host.serve(run)
        return self._call("predict_step", batch)

    def _call(self, name: str, batch: Any) -> Any:
        return getattr(self.model, name)(batch, *(self._host.batch_index if self._takes_index[name] else ()))

    # -- optimizers ------------------------------------------------------------------------------

    def configure_optimizers(self, run: Run) -> Any:
        """Return the optimizers and schedulers of the module, in any form that Lightning accepts."""
        title = type(self.model).__name__
        optimizers, schedulers = _parts_of(self.model.configure_optimizers(), title)
        if len(optimizers) > 1 and not self.drives_updates:
            raise SetupError(
                f"{title}.configure_optimizers() returned {len(optimizers)} optimizers: with several, set "
                f"self.automatic_optimization = False and step them in training_step."
            )
        return optimizers, [self._scheduler(given, title) for given in schedulers]

    def _scheduler(self, given: dict[str, Any], title: str) -> Any:
        scheduler, interval = given["scheduler"], given.get("interval", "epoch")
        frequency, monitor = given.get("frequency", 1), given.get("monitor", "")
        is_plateau = isinstance(scheduler, ReduceLROnPlateau)
        if self.drives_updates and not is_plateau:
            return type(self).scheduler(scheduler, every=NEVER)
        if self.drives_updates or (frequency != 1 and interval == "step"):
            raise SetupError(
                f"{title}.configure_optimizers(): {type(scheduler).__name__} with {given} is counted in another way "
                f"in Hookline. Use interval='epoch' or frequency=1."
            )
        if is_plateau and not monitor:
            raise SetupError(f"{title}.configure_optimizers(): ReduceLROnPlateau needs 'monitor': 'val_loss'.")
        every = f"{frequency}{'st' if interval == 'step' else 'ep'}"
        return type(self).scheduler(scheduler, every, **({"monitor": NAMES.ours(monitor)} if is_plateau else {}))


NEVER: Final = "1000000000ep"
"""Interval of a scheduler that the module steps itself."""


class ModuleHooks(LightningAdapter):
    """The hooks of a ``LightningModule``, after those of callbacks and before those that monitor, as in Lightning."""

    def __init__(self, task: LightningSteps) -> None:
        self._task = task
        super().__init__(task.model)
        self.before, self.after = (), (self.host,)

    def monitored(self) -> tuple[str, ...]:
        return ()

    def begin(self, run: Run, host: LightningHost) -> None:
        super().begin(run, host)
        module, datamodule = self.callback, self._task.datamodule
        host.attach(module, datamodule, drives_updates=self._task.drives_updates)
        module.trainer = self.trainer
        vars(module)["log"] = _logging_through(host)
        if datamodule is not None:
            datamodule.trainer = self.trainer
        run.config.update({name: value for name, value in module.hparams.items() if isinstance(value, PLAIN)})
        if run.rank == 0:
            module.prepare_data()
        for hook in ("setup", "configure_model"):
            host.serve(run)
            getattr(module, hook)(*ARGUMENTS.get(hook, no_arguments)(run, host, "setup"))

    def on_model_ready(self, run: Run) -> None:
        self.callback.to(run.device)  # It keeps its device in a separate field.

    def on_teardown(self, run: Run) -> None:
        self.run_host.serve(run)
        if ONLY["teardown", "teardown"](run, self.run_host):
            arguments = ARGUMENTS["teardown"](run, self.run_host, "teardown")
            self.callback.teardown(*arguments)
            if self._task.datamodule is not None:
                self._task.datamodule.teardown(*arguments)
        vars(self.callback).pop("log", None)

    def overrides(self, hook: str) -> bool:
        return hook not in ("setup", "teardown") and super().overrides(hook)

    def caller(self, hook: str, event: str) -> Hook:
        stage = STAGE_OF.get(hook[:8])
        arguments = ARGUMENTS.get(hook.replace("_test_", "_validation_"), no_arguments)
        call, only, adapter = getattr(self.callback, hook), ONLY.get((hook, event)), self

        def call_module(run: Run) -> None:
            host = adapter.run_host
            if (stage is None or run.stage == stage) and (only is None or only(run, host)):
                host.serve(run)
                if call(*arguments(run, host, event)) == -1:
                    raise SetupError(f"{adapter.name}.{hook} returned -1: Hookline cannot leave an epoch. Return None.")

        return call_module

    @property
    def state_key(self) -> str:
        return f"{self.kind}: the hooks of the module"

    def state_dict(self) -> dict[str, Any]:
        if not self.overrides("on_save_checkpoint"):
            return {}
        return {"added": added_state(self.callback.on_save_checkpoint, self.trainer, self.run_host.run)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("added"):
            load_added_state(self.callback.on_load_checkpoint, self.trainer, self.run_host.run, state["added"])


PLAIN: Final = (str, int, float, bool, type(None))


def loaders_of(datamodule: Any, stage: str) -> dict[str, Any]:
    """Return the loaders of a ``LightningDataModule`` by the names of Hookline's stages.

    Args:
        datamodule: The data module.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
    """
    refuse_overridden(datamodule, f"{type(datamodule).__name__} of Lightning")
    datamodule.prepare_data()
    datamodule.setup(stage)
    names = [name for name in LOADERS[stage] if _is_overridden(datamodule, f"{name}_dataloader")]
    found = {name: getattr(datamodule, f"{name}_dataloader")() for name in names}
    return {
        name: {f"dataloader_idx_{number}": one for number, one in enumerate(loader)}
        if isinstance(loader, list | tuple) and name != "train"
        else loader
        for name, loader in found.items()
    }


def refuse_overridden(given: Any, title: str) -> None:
    """Raise if a module or data module overrides a method that Hookline would not call."""
    for name, instead in NOT_CALLED.items():
        if _is_overridden(given, name):
            raise SetupError(f"{title} overrides {name}, which Hookline does not call. {instead}")


def _is_overridden(given: Any, name: str) -> bool:
    """True if a class outside of Lightning defines the method."""
    owner = next((cls for cls in type(given).__mro__ if name in vars(cls)), None)
    return owner is not None and owner.__module__.split(".")[0] not in ("lightning", "pytorch_lightning")


def _takes_index(step: Callable[..., Any]) -> bool:
    parameters = inspect.signature(step).parameters
    return (
        "batch_idx" in parameters or len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    )


def _parts_of(configured: Any, title: str) -> tuple[list[Optimizer], list[dict[str, Any]]]:
    """Return the optimizers and the schedulers with their options, from any form that Lightning accepts."""
    monitor = configured.get("monitor") if isinstance(configured, dict) else None
    schedulers: list[Any] = []
    if isinstance(configured, list | tuple) and len(configured) == 2 and isinstance(configured[0], list):
        optimizers, schedulers = configured[0], configured[1] if isinstance(configured[1], list) else [configured[1]]
    else:
        parts = list(configured) if isinstance(configured, list | tuple) else [configured]
        optimizers = [part["optimizer"] if isinstance(part, dict) else part for part in parts]
        schedulers = [part["lr_scheduler"] for part in parts if isinstance(part, dict) and "lr_scheduler" in part]
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise SetupError(
            f"{title}.configure_optimizers() returned {configured!r:.80}. Return an optimizer, a list of optimizers, "
            f"or a dict with 'optimizer' and 'lr_scheduler'."
        )
    found = [its if isinstance(its, dict) else {"scheduler": its} for its in schedulers]
    return optimizers, [{"monitor": monitor, **its} if monitor else its for its in found]


def _logging_through(host: LightningHost) -> Callable[..., None]:
    """Return a function and not a method: a copy of the module must not copy the host."""

    def log(*values: Any, **options: Any) -> None:
        host.log_for_module(*values, **options)

    return log
