"""``TorchTNTAdapter``: one callback of TorchTNT as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from hookline.events.foreign_classes import CALLBACKS
from hookline.interop.adapter import Adapter, Hook
from hookline.interop.torchtnt.support import REFUSED
from hookline.interop.torchtnt.unit import NAMES, TorchTNTHost
from hookline.run import Run

STAGES_OF: Final = {"on_train": ("train",), "on_eval_": ("val", "test"), "on_predi": ("predict",)}
"""Stages of Hookline in which a hook is called, by the beginning of its name."""


class TorchTNTAdapter(Adapter):
    """A callback of TorchTNT in a run of Hookline."""

    library = "TorchTNT"
    host = TorchTNTHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED

    def __init__(self, callback: Any, **options: Any) -> None:
        self._base = next(cls for cls in type(callback).__mro__ if (cls.__module__, cls.__name__) in CALLBACKS)
        super().__init__(callback, **options)

    def overrides(self, hook: str) -> bool:
        ours = getattr(self.callback, hook, None)
        return ours is not None and getattr(ours, "__func__", ours) is not getattr(self._base, hook, None)

    def monitored(self) -> Iterable[str]:
        # A checkpoint is the last of all.
        if any(cls.__name__ == "BaseCheckpointer" for cls in type(self.callback).__mro__):
            return ("*",)
        monitor = getattr(self.callback, "_monitored_attr", None)
        ours = self.names.ours(monitor) if isinstance(monitor, str) else ""
        return (ours,) if "/" in ours else ()

    def begin(self, run: Run, host: TorchTNTHost) -> None:
        self._host = host
        host.serve(run)
        host.aliases.update(self.names.given)

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        call, adapter = getattr(self.callback, hook), self
        only = ONLY.get((hook, event))
        stages = STAGES_OF.get(hook[:8], ()) if event in ("batch_fetch_start", "batch_fetch_end") else ()

        def plain(run: Run) -> None:
            host = adapter._host
            host.serve(run)
            call(host.their_state, host.unit)

        def conditional(run: Run) -> None:
            host = adapter._host
            if (not stages or run.stage in stages) and (only is None or only(run, adapter)):
                host.serve(run)
                call(host.their_state, host.unit)

        def failed(run: Run) -> None:
            host = adapter._host
            host.serve(run)
            call(host.their_state, host.unit, run.exception)

        if hook == "on_exception":
            return failed
        return conditional if stages or only is not None else plain

    @property
    def monitors_evaluation(self) -> bool:
        """True if the callback monitors a metric of an evaluation, which an epoch has only after its evaluation."""
        return any(name.startswith(("val/", "test/")) for name in self.reads)

    # -- state -----------------------------------------------------------------------------------

    @property
    def _stateful(self) -> Any:
        """The object that has the state: the callback, or the ``EarlyStopChecker`` of ``EarlyStopping``."""
        found = (self.callback, getattr(self.callback, "_esc", None))
        return next((its for its in found if hasattr(its, "state_dict") and hasattr(its, "load_state_dict")), None)

    @property
    def declares_state(self) -> bool:
        return self._stateful is not None

    def state_dict(self) -> dict[str, Any]:
        return dict(self._stateful.state_dict()) if self._stateful is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._stateful is not None:
            self._stateful.load_state_dict(dict(state))


ONLY: Final[dict[tuple[str, str], Callable[[Run, TorchTNTAdapter], bool]]] = {
    ("on_train_epoch_start", "train_epoch_start"): lambda run, its: its._host.is_at_epoch_start,
    ("on_train_step_end", "train_batch_end"): lambda run, its: not run.window_is_full,
    ("on_train_epoch_end", "train_epoch_end"): lambda run, its: not its.monitors_evaluation,
    ("on_train_epoch_end", "epoch_end"): lambda run, its: its.monitors_evaluation and its._host.has_evaluated,
}
"""Conditions for a hook at an event."""
