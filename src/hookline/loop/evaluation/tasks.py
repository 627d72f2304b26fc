"""The task at work on the batches of an evaluation or a prediction."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hookline.errors import LossError, StopTraining, add_place
from hookline.loop.evaluation.over_ranks import all_predictions
from hookline.loop.tasks.supervised import title_of
from hookline.loop.world.leaving import stop_in_batch

if TYPE_CHECKING:
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
        loop.state.note_failure(error)
        add_place(error, loop.state.where())
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
        loop.state.ask_stop(stop.reason, title_of(task))
        loop.requests.leave_evaluation = True
        return
    weight = None
    if isinstance(found, dict):
        check_returned("eval_batch", found)
        if "outputs" in found:
            state.outputs = found["outputs"]
        weight, found = found.get("weight"), found.get("loss")
    if loop.loss_weights is not None and found is not None and weight is None:
        found, weight = loop.loss_weights.in_evaluation(found, loop.state.samples)
    if found is not None:
        loop.session.book.log_loss(found, loop.state.samples if weight is None else weight)


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


class Returning:
    """Iterates over a generator and keeps what it returns."""

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self.value: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.value = yield from self._generator

    def close(self) -> None:
        self._generator.close()
