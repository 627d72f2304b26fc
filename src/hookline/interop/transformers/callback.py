"""``TransformersAdapter``: one callback of transformers as a callback of Hookline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from hookline.interop.adapter import Adapter, Hook
from hookline.interop.transformers.support import REFUSED
from hookline.interop.transformers.trainer import NAMES, TransformersHost, names_with, with_prefix
from hookline.run import Run

LOGS: Final = {"on_log": "logs", "on_evaluate": "metrics", "on_predict": "metrics"}
"""Hooks that get values, and the name of the argument."""


class TransformersAdapter(Adapter):
    """A callback of transformers in a run of Hookline."""

    library = "Hugging Face"
    host = TransformersHost
    rule = NAMES
    refused: ClassVar[Mapping[str, str]] = REFUSED

    def __init__(self, callback: Any, **options: Any) -> None:
        kinds = type(callback).__mro__
        self._base = next(cls for cls in kinds if cls.__name__ == "TrainerCallback")
        super().__init__(callback, **options)

    @classmethod
    def instance_of(cls, kind: type) -> Any:
        """Return an instance of the class: transformers takes classes too.

        Args:
            kind: The class.
        """
        return kind()

    def overrides(self, hook: str) -> bool:
        ours = getattr(self.callback, hook)
        return getattr(ours, "__func__", ours) is not getattr(self._base, hook)

    def monitored(self) -> Iterable[str]:
        if not any(cls.__name__ == "EarlyStoppingCallback" for cls in type(self.callback).__mro__):
            return ()
        metric = "loss" if self.args is None else self.args.metric_for_best_model
        return () if metric is None else (self.names.ours(with_prefix(metric) or ""),)

    def begin(self, run: Run, host: TransformersHost) -> None:
        self._host = host
        host.serve(run)
        host.names = names_with(self.names.given, host.names)
        if self.args is not None:
            host.use(self.args)

    def caller(self, hook: str, event: str) -> Hook:
        call, adapter, argument = getattr(self.callback, hook), self, LOGS.get(hook, "")
        is_substep = hook == "on_substep_end"

        def plain(run: Run) -> None:
            host = adapter._host
            host.serve(run)
            control = host.control
            found = call(host.args, host.state_view, control, **host.keywords)
            if found is not None and found is not control:
                host.take(found)

        def with_logs(run: Run) -> None:
            host = adapter._host
            host.serve(run)
            control = host.control
            found = call(host.args, host.state_view, control, **host.keywords, **{argument: host.logs})
            if found is not None and found is not control:
                host.take(found)

        def of_substep(run: Run) -> None:
            if not run.window_is_full:
                plain(run)

        return of_substep if is_substep else with_logs if argument else plain

    # -- state -----------------------------------------------------------------------------------

    @property
    def declares_state(self) -> bool:
        return any(cls.__name__ == "ExportableState" for cls in type(self.callback).__mro__)

    def state_dict(self) -> dict[str, Any]:
        return {"attributes": self.callback.state()["attributes"]} if self.declares_state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            own = self.callback.state()["args"]  # Options that were changed for the resume count.
            restored = type(self.callback).from_state({"args": own, "attributes": state["attributes"]})
            vars(self.callback).update(vars(restored))
