"""``TorchTNTAdapter``: one callback of TorchTNT as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

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
    run_host: TorchTNTHost

    def monitored(self) -> Iterable[str]:
        # A checkpoint is the last of all.
        if "BaseCheckpointer" in self.classes:
            return ("*",)
        monitor = getattr(self.callback, "_monitored_attr", None)
        ours = self.names.ours(monitor) if isinstance(monitor, str) else ""
        return (ours,) if "/" in ours else ()

    # -- hooks -----------------------------------------------------------------------------------

    def caller(self, hook: str, event: str) -> Hook:
        call, adapter = getattr(self.callback, hook), self
        only = ONLY.get((hook, event))
        stages = STAGES_OF.get(hook[:8], ()) if event in ("batch_fetch_start", "batch_fetch_end") else ()

        def plain(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            call(host.their_state, host.unit)

        def conditional(run: Run) -> None:
            host = adapter.run_host
            if (not stages or run.stage in stages) and (only is None or only(run, adapter)):
                host.serve(run)
                call(host.their_state, host.unit)

        def failed(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            call(host.their_state, host.unit, run.exception)

        if hook == "on_exception":
            return failed
        return conditional if stages or only is not None else plain

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
    ("on_train_epoch_start", "train_epoch_start"): lambda run, its: its.run_host.is_at_epoch_start,
    ("on_train_step_end", "train_batch_end"): lambda run, its: not run.window_is_full,
    ("on_train_epoch_end", "train_epoch_end"): lambda run, its: not its.monitors_evaluation,
    ("on_train_epoch_end", "epoch_end"): lambda run, its: its.monitors_evaluation and its.run_host.has_evaluated,
}
"""Conditions for a hook at an event."""
