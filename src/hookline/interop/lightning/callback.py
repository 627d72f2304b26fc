"""``LightningAdapter``: one callback of Lightning as a callback of Hookline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Final

from hookline.interop.adapter import Adapter, Hook, is_cut, is_last_batch, reads_gradients
from hookline.interop.lightning.checkpoint import added_state, checkpoint_of, load_added_state, plain, state_of
from hookline.interop.lightning.support import REFUSED
from hookline.interop.lightning.trainer import FUNCTIONS, NAMES, LightningHost, Trainer
from hookline.run import Run

PACKAGES: Final = {
    "lightning.pytorch.callbacks.callback": "lightning.pytorch",
    "lightning.pytorch.core.module": "lightning.pytorch",
    "pytorch_lightning.callbacks.callback": "pytorch_lightning",
    "pytorch_lightning.core.module": "pytorch_lightning",
}
"""Modules of the base classes, and their packages."""
MODULE_HOOKS: Final = "ModuleHooks"
"""Class of the callback that calls the hooks of a ``LightningModule``."""
NOT_OWN: Final = ("lightning", "pytorch_lightning", "builtins")
"""Packages of classes whose methods read no gradients after the update."""
STAGE_OF: Final = {"on_valid": "val", "on_test_": "test"}
"""Stages of Hookline in which a hook is called, by the beginning of its name."""


class LightningAdapter(Adapter):
    """A callback of Lightning in a run of Hookline."""

    library = "Lightning"
    host = LightningHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED
    trainer: Trainer
    run_host: LightningHost

    def __init__(self, callback: Any, **options: Any) -> None:
        self._package = next(PACKAGES[cls.__module__] for cls in type(callback).__mro__ if cls.__module__ in PACKAGES)
        super().__init__(callback, **options)
        # The hooks of the module come after those of callbacks that do not monitor, and before all others.
        self.before = () if self.reads else (MODULE_HOOKS,)
        self.after = (self.host, MODULE_HOOKS) if self.reads else (self.host,)
        own = [cls for cls in type(callback).__mro__ if cls.__module__.split(".")[0] not in NOT_OWN]
        if self.foreign_hooks.keys() & {"train_step_end", "epoch_end"} and reads_gradients(own):
            # Lightning clears the gradients in the next batch, or in an evaluation.
            self.show_gradients_at(
                "train_step_end",
                "epoch_end",
                is_last_step=lambda run: run.loaders.get("val") is None and is_last_batch(run),
            )

    def monitored(self) -> Iterable[str]:
        # A checkpoint is the last of all, as in Lightning.
        checkpoint = import_module(f"{self._package}.callbacks.checkpoint").Checkpoint
        return ("*",) if isinstance(self.callback, checkpoint) else super().monitored()

    def begin(self, run: Run, host: LightningHost) -> None:
        self.trainer = host.trainer_of(self._package)

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        stage = STAGE_OF.get(hook[:8])
        arguments = ARGUMENTS.get(hook.replace("_test_", "_validation_"), no_arguments)
        call, only, adapter = getattr(self.callback, hook), ONLY.get((hook, event)), self

        def plain(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            call(adapter.trainer, host.module_of(adapter._package))

        def with_arguments(run: Run) -> None:
            host = adapter.run_host
            if (stage is None or run.stage == stage) and (only is None or only(run, host)):
                host.serve(run)
                call(adapter.trainer, host.module_of(adapter._package), *arguments(run, host, event))

        is_plain = arguments is no_arguments and stage is None and only is None
        return plain if is_plain else with_arguments

    @property
    def _module(self) -> Any:
        return self.run_host.module_of(self._package)

    # -- state -----------------------------------------------------------------------------------

    @property
    def declares_state(self) -> bool:
        return self.overrides("state_dict") or self.overrides("on_save_checkpoint")

    @property
    def _has_early_hooks(self) -> bool:
        """True if ``on_save_checkpoint`` returns a state that ``on_load_checkpoint`` gets, as before version 1.8."""
        names = [*inspect.signature(self.callback.on_load_checkpoint).parameters]
        return self.overrides("on_save_checkpoint") and names[-1] == "callback_state"

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: ``Lightning:`` and the callback's own key."""
        return super().state_key if self.is_named else f"{self.library}:{self.callback.state_key}"

    def state_dict(self) -> dict[str, Any]:
        state = {"state": state_of(self.callback)}
        if self._has_early_hooks:
            checkpoint = checkpoint_of(self.trainer, self.run_host.run)
            state["returned"] = plain(self.callback.on_save_checkpoint(self.trainer, self._module, checkpoint) or {})
        elif self.overrides("on_save_checkpoint"):
            save = partial(self.callback.on_save_checkpoint, self.trainer, self._module)
            state["added"] = added_state(save, self.trainer, self.run_host.run)
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("returned"):
            self.callback.on_load_checkpoint(self.trainer, self._module, dict(state["returned"]))
        if state.get("added"):
            load = partial(self.callback.on_load_checkpoint, self.trainer, self._module)
            load_added_state(load, self.trainer, self.run_host.run, state["added"])
        if state.get("state"):
            self.callback.load_state_dict(dict(state["state"]))


def no_arguments(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return ()


def _function(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return (FUNCTIONS.get(run.entry_point, "fit"),)


def _optimizer(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return (run.optimizer,)


def _train_batch(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return run.batch, run.clock.batch_in_epoch


def _train_outputs(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    counted = event != "train_batch_end"  # The clock counts the batch before its update.
    return host.step_output(run), run.batch, run.clock.batch_in_epoch - counted


def _eval_batch(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return run.batch, *host.batch_index


def _eval_outputs(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return run.outputs, run.batch, *host.batch_index


def _exception(run: Run, host: LightningHost, event: str) -> tuple[Any, ...]:
    return (KeyboardInterrupt() if event == "interrupt" else run.exception,)


ARGUMENTS: Final[dict[str, Callable[[Run, LightningHost, str], tuple[Any, ...]]]] = {
    "setup": _function,
    "teardown": _function,
    "on_train_batch_start": _train_batch,
    "on_train_batch_end": _train_outputs,
    "on_before_backward": lambda run, host, event: (run.loss,),
    "on_before_optimizer_step": _optimizer,
    "on_before_zero_grad": _optimizer,
    "on_validation_batch_start": _eval_batch,
    "on_validation_batch_end": _eval_outputs,
    "on_predict_batch_start": _eval_batch,
    "on_predict_batch_end": _eval_outputs,
    "on_exception": _exception,
}
"""Arguments of the hooks that follow ``trainer`` and ``pl_module``. Hooks of a test have those of a validation."""

ONLY: Final[dict[tuple[str, str], Callable[[Run, LightningHost], bool]]] = {
    ("on_train_batch_end", "train_batch_end"): lambda run, host: not run.window_is_full,
    ("on_train_epoch_end", "epoch_end"): lambda run, host: not is_cut(run),
    ("on_train_end", "train_end"): lambda run, host: not is_cut(run),
    ("on_fit_end", "fit_end"): lambda run, host: not is_cut(run),
    ("teardown", "teardown"): lambda run, host: not host.has_failed and not is_cut(run),
}
"""Conditions for a hook at an event."""
