"""``ComposerAdapter``: one callback of Composer as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Final

from hookline.interop.adapter import Adapter, Hook, is_cut, is_last_batch, reads_gradients
from hookline.interop.composer.signals import restore_default_handlers
from hookline.interop.composer.state import NAMES, ComposerHost, metric_name, state_of_timestamp, timestamp_of_state
from hookline.interop.composer.support import NOT_CALLBACKS, REFUSED
from hookline.run import Run

STAGES: Final = {
    "before_": ("train",),
    "after_": ("train",),
    "eval_": ("val", "test"),
    "predict_": ("predict",),
}
"""Stages of Hookline in which hooks around a fetch or a forward are called, by the beginning of their names."""
SHARED_EVENTS: Final = ("batch_fetch_start", "batch_fetch_end", "forward_start", "forward_end")
"""Events of Hookline that all stages have."""


class ComposerAdapter(Adapter):
    """A callback of Composer in a run of Hookline."""

    library = "Composer"
    host = ComposerHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = {**REFUSED, **NOT_CALLBACKS}
    run_host: ComposerHost

    def __init__(self, callback: Any, **options: Any) -> None:
        self._loaded: Mapping[str, Any] | None = None
        self._has_begun = False
        super().__init__(callback, **options)
        restore_default_handlers()
        classes = type(callback).__mro__
        own = classes[: classes.index(self.base)]
        if self.foreign_hooks.keys() & {"train_step_end", "train_epoch_end"} and reads_gradients(own):
            # Composer clears the gradients in the next batch.
            self.show_gradients_at("train_step_end", "train_epoch_end", is_last_step=is_last_batch)

    def overrides(self, hook: str) -> bool:
        if hook not in NOT_EVENTS and self._hears_all:
            return True
        if hook == "after_load" and self.declares_state:
            return True  # The state is restored before it.
        return super().overrides(hook)

    @property
    def _hears_all(self) -> bool:
        return super().overrides("run_event")

    @property
    def _keeps_best(self) -> bool:
        return "EarlyStopper" in self.classes

    def monitored(self) -> Iterable[str]:
        monitor, label = (getattr(self.callback, name, None) for name in ("monitor", "dataloader_label"))
        if not isinstance(monitor, str) or not isinstance(label, str):
            return ()
        return (self.names.given.get(monitor) or metric_name(monitor, label),)

    def begin(self, run: Run, host: ComposerHost) -> None:
        self._has_begun = False

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        call, only, adapter = self._method(hook), ONLY.get(hook), self
        stages = STAGES[hook[: hook.index("_") + 1]] if event in SHARED_EVENTS else ()

        def plain(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            call(host.state_of_composer, host.logger)

        def conditional(run: Run) -> None:
            if (not stages or run.stage in stages) and (only is None or only(run)):
                plain(run)

        def first(run: Run) -> None:
            adapter._take_loaded()
            plain(run)

        def last(run: Run) -> None:
            adapter.run_host.serve(run)
            adapter.callback.post_close()

        if hook in ("after_load", "post_close"):
            return first if hook == "after_load" else last
        return conditional if stages or only is not None else plain

    def _method(self, hook: str) -> Callable[[Any, Any], Any]:
        """Return the hook, or ``run_event`` of a callback that overrides it, as Composer calls them."""
        if self._hears_all and hook not in NOT_EVENTS:
            return partial(self.callback.run_event, import_module("composer.core").Event(hook))
        method: Callable[[Any, Any], Any] = getattr(self.callback, hook)
        return method

    # -- state -----------------------------------------------------------------------------------

    @property
    def declares_state(self) -> bool:
        return self._keeps_best or super().overrides("state_dict")

    def state_dict(self) -> dict[str, Any]:
        if not self._has_begun:  # Before ``init``, the parts that hold the state may be missing.
            return dict(self._loaded or {})
        state = dict(self.callback.state_dict())
        its = self.callback
        if self._keeps_best and its.best is not None:
            state["best"], state["best_occurred"] = its.best, state_of_timestamp(its.best_occurred)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state
        if self._has_begun:
            self._take_loaded()

    def _take_loaded(self) -> None:
        """Restore a state after ``init``, which may make the parts that hold it."""
        state, self._loaded, self._has_begun = self._loaded, None, True
        if state is None:
            return
        if self._keeps_best:
            best = "best" in state
            self.callback.best = state["best"] if best else None
            self.callback.best_occurred = timestamp_of_state(state["best_occurred"]) if best else None
        self.callback.load_state_dict({name: value for name, value in state.items() if name not in BEST})


BEST: Final = ("best", "best_occurred")
"""Attributes of ``EarlyStopper``, of which Composer saves none."""
NOT_EVENTS: Final = ("close", "post_close")
"""Methods of a callback that are no events of Composer."""


def _starts_window(run: Run) -> bool:
    return run.clock.batch_in_epoch % run.accumulate == 0


def _is_not_cut(run: Run) -> bool:
    return not is_cut(run)


ONLY: Final[dict[str, Callable[[Run], bool]]] = {
    "iteration_start": lambda run: run.clock.epoch == 0,
    "before_dataloader": _starts_window,
    "after_dataloader": _starts_window,
    "eval_before_all": lambda run: run.is_training_run,
    "eval_after_all": lambda run: run.is_training_run,
    "eval_standalone_start": lambda run: not run.is_training_run,
    "eval_standalone_end": lambda run: not run.is_training_run,
    "epoch_checkpoint": _is_not_cut,
    "fit_end": _is_not_cut,
}
"""Conditions for a hook."""
