"""``KerasAdapter``: one callback of Keras as a callback of Hookline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from hookline.errors import SetupError
from hookline.interop.adapter import Adapter, Hook, is_cut
from hookline.interop.keras.model import NAMES, KerasHost, Logs, eval_metrics, is_keras_model
from hookline.interop.keras.support import REFUSED, SAVES_KERAS_MODEL, WRITES
from hookline.run import Run

ALIASES: Final = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}
"""Hooks with a second name, which the first one calls by default."""


class KerasAdapter(Adapter):
    """A callback of Keras in a run of Hookline."""

    library = "Keras"
    host = KerasHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED
    set_by_run = ("params", "_model", "min_delta")  # Keras changes the sign of min_delta when it first compares.
    run_host: KerasHost

    def __init__(self, callback: Any, **options: Any) -> None:
        self._set_later = _names_of_code(type(callback))
        super().__init__(callback, **options)
        self._saves_keras_model = not SAVES_KERAS_MODEL.isdisjoint(self.classes)
        if not WRITES.isdisjoint(self.classes):
            self.ranks = "zero"

    def overrides(self, hook: str) -> bool:
        names = (hook, ALIASES[hook]) if hook in ALIASES else (hook,)
        return any(
            not getattr(getattr(self.callback, name), "_is_default", False) or name in self._set_later for name in names
        )

    def monitored(self) -> Iterable[str]:
        monitor = getattr(self.callback, "monitor", getattr(self.callback, "_monitor", None))
        return (self.names.ours(monitor),) if isinstance(monitor, str) else ()

    def on_model_ready(self, run: Run) -> None:
        if self._saves_keras_model and not is_keras_model(run.model):
            raise SetupError(
                f"{self.name} of Keras saves Keras models, but the model of this run is a {type(run.model).__name__}. "
                f"Use hl.Checkpointer."
            )
        self.run_host.serve(run)
        self.callback.set_params(self.run_host.params)
        self.callback.set_model(self.run_host.model)

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        # A callback may set hooks on itself while it runs, so the hook is looked up in each call.
        callback, arguments, only, adapter = self.callback, ARGUMENTS[hook], ONLY.get((hook, event)), self

        def plain(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            getattr(callback, hook)(*arguments(run, host, event))

        def conditional(run: Run) -> None:
            if only(run):  # type: ignore[misc]
                plain(run)

        def first(run: Run) -> None:
            plain(run)
            adapter.restore_plain_state()  # The hook resets what a checkpoint has restored.

        if hook == "on_train_begin":
            return first
        return plain if only is None else conditional

    # -- state -----------------------------------------------------------------------------------

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the class, and the metric that it monitors."""
        monitor = getattr(self.callback, "monitor", None)
        return f"{self.kind}({monitor})" if isinstance(monitor, str) and not self.is_named else super().state_key


def _nothing(run: Run, host: KerasHost, event: str) -> tuple[Any, ...]:
    return ({},)


def _eval_batch(run: Run, host: KerasHost, event: str) -> tuple[Any, ...]:
    return host.eval_batch, {}


def _batch_logs(run: Run, host: KerasHost, event: str) -> tuple[Any, ...]:
    counted = event != "train_batch_end"  # The clock counts the batch before its update.
    loss = run.loss.detach()
    return run.clock.batch_in_epoch - counted, Logs(lambda: {"loss": loss.item()})


ARGUMENTS: Final[dict[str, Callable[[Run, KerasHost, str], tuple[Any, ...]]]] = {
    **dict.fromkeys(("on_train_begin", "on_test_begin", "on_predict_begin", "on_predict_end"), _nothing),
    **dict.fromkeys(("on_test_batch_begin", "on_predict_batch_begin"), _eval_batch),
    "on_epoch_begin": lambda run, host, event: (host.epoch, {}),
    "on_epoch_end": lambda run, host, event: (host.epoch, host.logs),
    "on_train_batch_begin": lambda run, host, event: (run.clock.batch_in_epoch, {}),
    "on_train_batch_end": _batch_logs,
    "on_test_batch_end": lambda run, host, event: (host.eval_batch, Logs(lambda: eval_metrics(run))),
    "on_predict_batch_end": lambda run, host, event: (host.eval_batch, {"outputs": run.outputs}),
    "on_test_end": lambda run, host, event: (host.eval_logs,),
    "on_train_end": lambda run, host, event: (host.logs,),
}
"""Arguments of the hooks."""

ONLY: Final[dict[tuple[str, str], Callable[[Run], bool]]] = {
    ("on_train_batch_end", "train_batch_end"): lambda run: not run.window_is_full,
    ("on_epoch_end", "epoch_end"): lambda run: not is_cut(run),
    ("on_train_end", "train_end"): lambda run: not is_cut(run),
}
"""Conditions for a hook at an event."""


def _names_of_code(kind: type) -> set[str]:
    """Return the names that methods of a callback's own classes use. A hook among them may be set while it runs."""
    return {
        name
        for cls in kind.__mro__
        if cls.__module__.split(".")[0] not in ("keras", "builtins")
        for value in vars(cls).values()
        if inspect.isfunction(value)
        for name in value.__code__.co_names
    }
