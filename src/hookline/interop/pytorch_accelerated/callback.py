"""``PytorchAcceleratedAdapter``: one callback of pytorch-accelerated as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Final

from hookline.errors import LossError, RegistrationError
from hookline.interop.adapter import Adapter, Hook, is_cut
from hookline.interop.pytorch_accelerated.support import REFUSED
from hookline.interop.pytorch_accelerated.trainer import (
    NAMES,
    PytorchAcceleratedHost,
    is_evaluation,
)
from hookline.run import Run

AFTER_STOP: Final = frozenset({"on_stop_training_error", "on_training_run_end", "on_evaluation_run_end"})
"""Hooks that are called after a ``StopTrainingError``."""
BEFORE_UPDATE: Final = frozenset({"train_batch_start", "loss_ready"})
"""Events of a batch before its update."""
STOPS: Final = frozenset({"on_init_end", "on_training_run_start"}) | AFTER_STOP
"""Hooks in which a ``StopTrainingError`` is an error of the run, as there."""


class PytorchAcceleratedAdapter(Adapter):
    """A callback of pytorch-accelerated in a run of Hookline."""

    library = "pytorch-accelerated"
    host = PytorchAcceleratedHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED
    set_by_run = ()
    run_host: PytorchAcceleratedHost

    def __init__(self, callback: Any, **options: Any) -> None:
        # A missing attribute of a callback raises no AttributeError: look in its dict and its class.
        self._own = vars(callback)
        if list(self._own.get("callback_handler", ())):
            raise RegistrationError(
                f"{type(callback).__name__}(callbacks=…) of pytorch-accelerated: these callbacks would not get the "
                f"batches of its evaluation. Leave callbacks= out."
            )
        super().__init__(callback, **options)
        module = import_module(self.base.__module__)
        self._stop_error, self._missing = module.StopTrainingError, module.CallbackMethodNotImplementedError

    @classmethod
    def instance_of(cls, kind: type) -> Any:
        return kind()

    def overrides(self, hook: str) -> bool:
        return hook in self._own or getattr(type(self.callback), hook) is not getattr(self.base, hook)

    def monitored(self) -> Iterable[str]:
        ours = self.names.ours(self._own.get("watch_metric", ""))
        return (ours,) if "/" in ours else ()

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        call, arguments, only, adapter = getattr(self.callback, hook), ARGUMENTS.get(hook), ONLY.get(hook), self
        is_after_stop, may_stop = hook in AFTER_STOP, hook not in STOPS

        def call_hook(run: Run) -> None:
            host = adapter.run_host
            if (host.is_stopping and not is_after_stop) or (only is not None and not only(run, adapter, event)):
                return
            host.serve(run)
            try:
                if arguments is None:
                    call(host.trainer)
                else:
                    call(host.trainer, **arguments(run, host))
            except adapter._stop_error as error:
                if not may_stop:
                    raise
                adapter._stop(run, error, before_update=event in BEFORE_UPDATE)
            except adapter._missing as error:
                raise AttributeError(
                    f"{adapter.name}.{hook} reads an attribute that the callback does not have. pytorch-accelerated "
                    f"would leave out the rest of the hook. Set the attribute in __init__."
                ) from error
            if host.shown_model is not None or host.handler is not None:
                host.check_restored()

        def start(run: Run) -> None:
            call_hook(run)
            adapter.restore_plain_state()  # The hook resets what a checkpoint has restored.

        def after_batch(run: Run) -> None:
            call_hook(run)
            if adapter.run_host.is_loss_replaced:
                raise LossError(
                    f"{adapter.name}.{hook} replaced batch_output['loss']: Hookline uses the loss of the model. "
                    f"Write a hl.Callback with writes = ('loss',) that sets run.loss in on_loss_ready."
                )

        if hook == "on_train_step_end":
            return after_batch
        return start if hook == "on_training_run_start" else call_hook

    def _stop(self, run: Run, error: Exception, *, before_update: bool) -> None:
        """End training after a ``StopTrainingError``, without the update if that is still to come."""
        self.run_host.note_stop(error)
        if before_update:
            run.skip_step()
        run.stop(f"{self.name} raised StopTrainingError: {error}")

    @property
    def monitors_evaluation(self) -> bool:
        return "eval_" in self._own.get("watch_metric", "") and self._own.get("evaluate_during_training", True)


def _intermediate(run: Run, host: PytorchAcceleratedHost) -> dict[str, Any]:
    return {"is_intermediate": False}


def _eval_step(run: Run, host: PytorchAcceleratedHost) -> dict[str, Any]:
    return {"batch_output": host.batch_output, "batch": run.batch}


def _train_step(run: Run, host: PytorchAcceleratedHost) -> dict[str, Any]:
    return {"batch_output": host.batch_output, "batch": run.batch, "step": run.clock.batch_in_epoch}


ARGUMENTS: Final[dict[str, Callable[[Run, PytorchAcceleratedHost], dict[str, Any]]]] = {
    "on_train_step_end": _train_step,
    "on_eval_step_end": _eval_step,
    "on_eval_epoch_start": _intermediate,
    "on_eval_epoch_end": _intermediate,
}
"""Keyword arguments of the hooks."""


def _in_this_epoch(run: Run, its: PytorchAcceleratedAdapter, event: str) -> bool:
    """A progress bar needs the start of the epoch also after a resume inside it."""
    return event == "train_epoch_start" or run.clock.batch_in_epoch > 0


def _at_epoch_end(run: Run, its: PytorchAcceleratedAdapter, event: str) -> bool:
    return not is_cut(run) and (its.run_host.has_evaluated or not its.monitors_evaluation)


def _at_stop(run: Run, its: PytorchAcceleratedAdapter, event: str) -> bool:
    return not is_cut(run) if event == "stop" else its.run_host.is_stopping and is_evaluation(run)


ONLY: Final[dict[str, Callable[[Run, PytorchAcceleratedAdapter, str], bool]]] = {
    "on_train_epoch_start": _in_this_epoch,
    "on_training_run_epoch_end": _at_epoch_end,
    "on_training_run_end": lambda run, its, event: not is_cut(run),
    "on_stop_training_error": _at_stop,
    "on_evaluation_run_start": lambda run, its, event: is_evaluation(run),
    "on_evaluation_run_end": lambda run, its, event: is_evaluation(run),
}
"""Conditions for a hook."""
