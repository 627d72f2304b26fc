"""``TransformersAdapter``: one callback of transformers as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from hookline.interop.adapter import Adapter, Hook, is_cut
from hookline.interop.transformers.support import REFUSED
from hookline.interop.transformers.trainer import NAMES, TransformersHost, with_prefix
from hookline.run import Run

LOGS: Final = {"on_log": "logs", "on_evaluate": "metrics", "on_predict": "metrics"}
"""Hooks that get values, and the name of the argument."""

ONLY: Final[dict[tuple[str, str], Callable[[Run], bool]]] = {
    ("on_substep_end", "train_batch_end"): lambda run: not run.window_is_full,
    ("on_epoch_end", "train_epoch_end"): lambda run: not is_cut(run),
    ("on_log", "train_end"): lambda run: not is_cut(run),
    ("on_train_end", "train_end"): lambda run: not is_cut(run),
}
"""Conditions for a hook at an event."""


class TransformersAdapter(Adapter):
    """A callback of transformers in a run of Hookline."""

    library = "Hugging Face"
    host = TransformersHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED
    run_host: TransformersHost

    @classmethod
    def instance_of(cls, kind: type) -> Any:
        """Return an instance of the class: transformers takes classes too.

        Args:
            kind: The class.
        """
        return kind()

    def monitored(self) -> Iterable[str]:
        if "EarlyStoppingCallback" not in self.classes:
            return ()
        metric = "loss" if self.args is None else self.args.metric_for_best_model
        return () if metric is None else (self.names.ours(with_prefix(metric) or ""),)

    def begin(self, run: Run, host: TransformersHost) -> None:
        if self.args is not None:
            host.use(self.args)

    def caller(self, hook: str, event: str) -> Hook:
        call, adapter, argument = getattr(self.callback, hook), self, LOGS.get(hook, "")
        only = ONLY.get((hook, event))

        def plain(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            control = host.control
            found = call(host.args, host.state_view, control, **host.keywords)
            if found is not None and found is not control:
                host.take(found)

        def with_logs(run: Run) -> None:
            host = adapter.run_host
            host.serve(run)
            control = host.control
            found = call(host.args, host.state_view, control, **host.keywords, **{argument: host.logs})
            if found is not None and found is not control:
                host.take(found)

        always = with_logs if argument else plain

        def conditional(run: Run) -> None:
            if only(run):  # type: ignore[misc]
                always(run)

        return always if only is None else conditional

    # -- state -----------------------------------------------------------------------------------

    @property
    def declares_state(self) -> bool:
        return "ExportableState" in self.classes

    def state_dict(self) -> dict[str, Any]:
        return {"attributes": self.callback.state()["attributes"]} if self.declares_state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            own = self.callback.state()["args"]  # Options that were changed for the resume count.
            restored = type(self.callback).from_state({"args": own, "attributes": state["attributes"]})
            vars(self.callback).update(vars(restored))
