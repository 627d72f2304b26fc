"""The task at work on an evaluation or a prediction, and the answers that ``run`` gives at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hookline.distributed.guard import refuse_if_guarded
from hookline.errors import LossError, SetupError, StopTraining, add_place
from hookline.loop.audience import Audience
from hookline.loop.data import is_one_shot
from hookline.loop.evaluating import evaluation, prediction
from hookline.loop.evaluation_parts import all_predictions
from hookline.loop.leaving import stop_in_batch
from hookline.loop.loaders import LOADERS, check_loader, named_loaders
from hookline.loop.moment import take_moment
from hookline.loop.supervised import title_of

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.loop import Loop
    from hookline.run import Run, RunState


RETURNED = {"loss", "weight", "outputs"}


def check_returned(method: str, found: dict[str, Any]) -> None:
    """What a batch may return besides a loss; a metric is logged, not returned."""
    if not found.keys() <= RETURNED or "loss" not in found:
        raise LossError(
            f"{method} returned a dict with {', '.join(map(str, found)) or 'nothing'}: it must have 'loss' "
            f"and may have 'weight' and 'outputs'; log metrics with run.log({{...}})"
        )


class Batches(Protocol):
    """Batches that can be iterated over and closed: a generator."""

    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> None: ...


@contextmanager
def _closed(loop: Loop, batches: Batches) -> Iterator[None]:
    """On every way out: a traceback would keep the evaluation open. An error is told where it was before that."""
    try:
        yield
    except BaseException as error:
        loop.session.note_stage(error)
        add_place(error, loop.session.where())
        raise
    finally:
        batches.close()


def evaluate_task(loop: Loop, batches: Batches) -> None:
    """``eval_batch`` on every batch; a loss that it returns is logged as ``loss``."""
    task, run, state = loop.session.task, loop.session.run, loop.state
    with _closed(loop, batches):
        for batch in batches:
            _evaluate_batch(loop, task, run, state, batch)


def _evaluate_batch(loop: Loop, task: Any, run: Run, state: RunState, batch: Any) -> None:
    try:
        found = task.eval_batch(run, batch)
    except StopTraining as stop:
        loop.session.stop(stop.reason, title_of(task))
        loop.requests.leave_evaluation = True
        return
    weight = None
    if isinstance(found, dict):
        check_returned("eval_batch", found)
        if "outputs" in found:
            state.outputs = found["outputs"]
        weight, found = found.get("weight"), found.get("loss")
    if loop.loss_weights is not None and found is not None and weight is None:
        found, weight = loop.loss_weights.in_evaluation(found, loop.samples)
    if found is not None:
        loop.session.book.log_loss(found, loop.samples if weight is None else weight)


def predict_task(loop: Loop, batches: Batches) -> Any:
    """``predict_batch`` on every batch; the predictions in the loader's order, on every rank those of all."""
    task, run, book = loop.session.task, loop.session.run, loop.session.book
    found = []
    with _closed(loop, batches):
        for batch in batches:
            try:
                loop.state.outputs = task.predict_batch(run, batch)
            except StopTraining as stop:
                refused = stop_in_batch(title_of(task), stop.reason, loop.clock.step, "predict_batch")
                refused.__cause__ = stop
                loop.world.refuse(refused)
                raise
            if not book.muted:
                found.append(_detached(loop.state.outputs))
    return joined(found if loop.world.is_alone else all_predictions(loop, loop.world, found))


def joined(batches: list[Any]) -> Any:
    """One tensor (or dict or tuple of tensors) for all batches where shapes allow it, else the list."""
    first = batches[0] if batches else None
    if isinstance(first, torch.Tensor):
        same = all(isinstance(b, torch.Tensor) and b.ndim and b.shape[1:] == first.shape[1:] for b in batches)
        return torch.cat(batches) if same else batches
    if isinstance(first, dict) and all(isinstance(b, dict) and b.keys() == first.keys() for b in batches):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and all(isinstance(b, tuple) and len(b) == len(first) for b in batches):
        return tuple(joined([batch[index] for batch in batches]) for index in range(len(first)))
    return batches


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_detached(item) for item in value)
    return value


class LoopAnswers:
    """``run.evaluate`` and ``run.predict``: at once, silent, kept until the weights change."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._kept: dict[tuple[object, ...], tuple[int, Any, Any]] = {}

    def evaluate(self, what: Any) -> dict[str, Any]:
        loop = self._loop
        self._need("eval_batch", "run.evaluate")
        loaders, stage = self._loaders(what)

        def compute() -> dict[str, Any]:
            refuse_if_guarded("run.evaluate()")  # by its name, which a collective inside it has not
            generator = Returning(evaluation(loop, loaders, stage, Audience.ANSWER))
            evaluate_task(loop, generator)
            return generator.value  # type: ignore[no-any-return]

        return dict(self._keep(("evaluate", stage), loaders, compute))

    def predict(self, what: Any) -> Any:
        loop = self._loop
        self._need("predict_batch", "run.predict")
        loaders, _ = self._loaders(what)

        def compute() -> Any:
            refuse_if_guarded("run.predict()")
            found = {
                name: predict_task(loop, prediction(loop, loader, Audience.ANSWER)) for name, loader in loaders.items()
            }
            return found.get(None, found)

        return self._keep(("predict",), loaders, compute)

    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]:
        swapped = self._loop.weights
        if not swapped.is_watched:
            swapped.is_watched = True
            self._loop.session.restore.callback(swapped.put_back)
        return swapped.swap(weights)

    def snapshot(self, member: Member[Run]) -> dict[str, Any]:
        return take_moment(self._loop, member)

    def gather(self, value: Any) -> list[Any]:
        refuse_if_guarded("run.gather()")
        world = self._loop.session.world
        return [value] if world.broken else world.group.exchange(value)

    def is_sharded(self) -> bool:
        return self._loop.session.world.is_sharded

    def replace_loader(self, stage: str, loader: Any) -> None:
        """``run.loaders[stage] = loader``: from the next epoch or evaluation on."""
        loop, where = self._loop, f"run.loaders[{stage!r}] = …"
        in_fit = loop.entry_point in ("fit", "train")
        if stage not in LOADERS:
            raise SetupError(f"{where}: no such loader. Use {', '.join(map(repr, LOADERS))}.")
        if stage not in loop.state.loaders and in_fit and not loop.is_own:
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
        if not hasattr(self._loop.session.task, method):
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


class Returning:
    """Iterates over a generator and keeps what it returns."""

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self.value: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.value = yield from self._generator

    def close(self) -> None:
        self._generator.close()
