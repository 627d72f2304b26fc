"""``AIToolboxAdapter``: one callback of AIToolbox as a callback of Hookline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from hookline.interop.adapter import Adapter, Hook, is_cut
from hookline.interop.aitoolbox.support import REFUSED
from hookline.interop.aitoolbox.train_loop import EPOCH_LOSS, FOLDER, NAMES, AIToolboxHost
from hookline.run import Run

STATELESS: Final = frozenset({"FunctionOnTrainLoop", "ModelPerformanceEvaluation", "MetricHistoryRename"})
"""Callbacks without state, of which a run may have several without names."""


class Earlier(type):
    """Class of the adapters of callbacks with a lower ``execution_order``, for ``after``."""

    order: int

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, AIToolboxAdapter) and other.callback.execution_order < cls.order


class AIToolboxAdapter(Adapter):
    """A callback of AIToolbox in a run of Hookline."""

    library = "AIToolbox"
    host = AIToolboxHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED

    set_by_run = ("train_loop_obj", "message_service")
    run_host: AIToolboxHost

    def __init__(self, callback: Any, **options: Any) -> None:
        super().__init__(callback, **options)
        self.after = (self.host, Earlier("Earlier", (), {"order": callback.execution_order}))
        if callback.device_idx_execution is not None:
            self.ranks = frozenset({callback.device_idx_execution})

    def overrides(self, hook: str) -> bool:
        return hook == "register_train_loop_object" or super().overrides(hook)

    def monitored(self) -> Iterable[str]:
        # Any other metric may come from a callback of AIToolbox, which adds it to the history at the end of the epoch.
        found = super().monitored()
        return tuple(name for name in found if name in (EPOCH_LOSS, "val/loss") or self.names.given)

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        if hook == "register_train_loop_object":
            return self._register
        call, only, adapter = getattr(self.callback, hook), ONLY.get(hook), self
        takes_index = hook == "on_after_gradient_update" and bool(inspect.signature(call).parameters)

        def call_hook(run: Run) -> None:
            if only is not None and not only(run, adapter, event):
                return
            adapter.run_host.serve(run)
            if takes_index:
                call(list(run.optimizers).index(run.optimizer_name) if event == "gradients_ready" else 0)
            else:
                call()

        return call_hook

    def _register(self, run: Run) -> None:
        """Show the train loop to the callback, with optimizers as they were saved if the run is resumed."""
        if not run.is_training_run:
            return
        host = self.run_host
        if run.has_folder and hasattr(self.callback, "local_model_result_folder_path"):
            (run.folder / FOLDER).mkdir(exist_ok=True)
        groups = [group for optimizer in run.optimizers.values() for group in optimizer.param_groups]
        saved = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        host.serve(run)
        host.callbacks.append(self.callback.register_train_loop_object(host.train_loop))
        self.restore_plain_state()
        if run.clock.step:  # A new scheduler has set the learning rate of its first step.
            for group, values in zip(groups, saved, strict=True):
                group.update(values)

    # -- state -----------------------------------------------------------------------------------

    @property
    def declares_state(self) -> bool:
        return super().declares_state and type(self.callback).__name__ not in STATELESS


def _of_gradients(run: Run, its: AIToolboxAdapter, event: str) -> bool:
    is_now = event != "backward_end" or not run.window_is_full
    return its.run_host.grad_cb_used and is_now


ONLY: Final[dict[str, Callable[[Run, AIToolboxAdapter, str], bool]]] = {
    "on_multiprocess_start": lambda run, its, event: run.is_training_run and run.world_size > 1,
    "on_after_gradient_update": _of_gradients,
    "on_after_optimizer_step": _of_gradients,
    "on_batch_end": lambda run, its, event: event != "train_batch_end" or not run.window_is_full,
    "on_epoch_end": lambda run, its, event: (
        not is_cut(run) and (its.run_host.has_evaluated or not its.monitors_evaluation)
    ),
    "on_train_end": lambda run, its, event: not is_cut(run),
}
"""Conditions for a hook."""
