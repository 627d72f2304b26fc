"""What ``run`` asks the engine for, such as ``run.evaluate``: it answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from hookline.distributed.guard import refuse_if_guarded
from hookline.errors import ScopeError, SetupError
from hookline.loop.data.batches import is_one_shot
from hookline.loop.data.loaders import LOADERS, check_loader, named_loaders
from hookline.loop.evaluation.tasks import Returning
from hookline.run.audience import Audience

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.engine.engine import Engine
    from hookline.run import Run


class LoopAnswers:
    """``run.evaluate`` and ``run.predict``: at once, silent, kept until the weights change."""

    def __init__(self, loop: Engine) -> None:
        self._loop = loop
        self._kept: dict[tuple[object, ...], tuple[int, Any, Any]] = {}

    def evaluate(self, what: Any) -> dict[str, Any]:
        loop = self._loop
        self._need("eval_batch", "run.evaluate")
        loaders, stage = self._loaders(what)

        def compute() -> dict[str, Any]:
            refuse_if_guarded("run.evaluate()")  # by its name, which a collective inside it has not
            batches = Returning(loop.evaluator.evaluate(loaders, stage, Audience.ANSWER))
            loop.tasks.evaluate(batches)
            return batches.value.metrics  # type: ignore[no-any-return]

        return dict(self._keep(("evaluate", stage), loaders, compute))

    def predict(self, what: Any) -> Any:
        loop = self._loop
        self._need("predict_batch", "run.predict")
        loaders, _ = self._loaders(what)

        def compute() -> Any:
            refuse_if_guarded("run.predict()")
            found = {
                name: loop.tasks.predict(loop.evaluator.predict(loader, Audience.ANSWER))
                for name, loader in loaders.items()
            }
            return found.get(None, found)

        return self._keep(("predict",), loaders, compute)

    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]:
        swapped = self._loop.weights
        if not swapped.is_watched:
            swapped.is_watched = True
            self._loop.opening.restore.callback(swapped.put_back)
        return swapped.swap(weights)

    def snapshot(self, member: Member[Run]) -> dict[str, Any]:
        loop = self._loop
        if loop.window.count or loop.state.stage != "train" or not loop.state.is_training:
            raise ScopeError(
                "run.snapshot(): inside a step or an evaluation there is no whole state; call it in on_train_start, "
                "on_train_step_start, on_train_step_end or on_step_settled"
            )
        return loop.snapshots.take(member)

    def gather(self, value: Any) -> list[Any]:
        refuse_if_guarded("run.gather()")
        world = self._loop.world
        return [value] if world.broken else world.group.exchange(value)

    def is_sharded(self) -> bool:
        return self._loop.world.is_sharded

    def replace_loader(self, stage: str, loader: Any) -> None:
        """``run.loaders[stage] = loader``: from the next epoch or evaluation on."""
        loop, where = self._loop, f"run.loaders[{stage!r}] = …"
        in_fit = loop.entry_point in ("fit", "train")
        if stage not in LOADERS:
            raise SetupError(f"{where}: no such loader. Use {', '.join(map(repr, LOADERS))}.")
        if stage not in loop.state.loaders and in_fit and not loop.is_custom:
            raise SetupError(f"{where}: this run has none. Pass one to fit(…, {stage}=…).")
        if stage == "train" and loop.requests.is_trained:
            raise SetupError(f"{where}: training is over. Pass the loader to the next fit(…).")
        if not in_fit and loop.clock.is_evaluating:
            raise SetupError(f"{where}: no evaluation follows this one. Replace the loader in on_setup.")
        if stage in ("train", "predict"):
            check_loader(loader, LOADERS[stage])
        else:
            named_loaders(loader, stage)
        loop.data.replace_loader(stage, loader)

    def _keep(self, asked: tuple[str, ...], loaders: dict[str | None, Any], compute: Any) -> Any:
        """The answer, kept with how it was asked for: stage and loaders give the names in it."""
        version = self._loop.weights.version()
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] == version}
        key = (asked, *((name, id(loader)) for name, loader in loaders.items()))
        if key not in self._kept:
            self._kept[key] = (version, loaders, compute())  # holds the loaders, so that their ids stay their own
        return self._kept[key][2]

    def _need(self, method: str, verb: str) -> None:
        if not hasattr(self._loop.state.task, method):
            raise SetupError(
                f"{verb}() needs a task with {method}(run, batch); the own loop evaluates with loop.eval_batches()"
            )

    def _loaders(self, what: Any) -> tuple[dict[str | None, Any], str]:
        if not isinstance(what, str):
            named = named_loaders(what, "val")
            stage = "val"
        else:
            known = self._loop.state.loaders
            if what not in known:
                raise SetupError(f"there is no {what!r} loader in this run; there is {', '.join(known) or 'none'}")
            named, stage = named_loaders(known[what], what), what
        for loader in named.values():
            if is_one_shot(loader):
                raise SetupError(
                    "an answer would use up a loader that can be iterated over only once; pass a DataLoader or a list"
                )
        return named, stage
