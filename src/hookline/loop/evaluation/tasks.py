"""``TaskRunner``: calls the task on the batches of an evaluation or a prediction."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from hookline.errors import DataError, StopTraining, add_place, kind_of
from hookline.loop.evaluation.evaluate import Evaluator
from hookline.loop.metrics.book import MetricBook
from hookline.loop.tasks.loss_weights import LossWeights
from hookline.loop.tasks.returned import check_returned
from hookline.loop.tasks.supervised import title_of
from hookline.loop.world.leaving import stop_in_batch
from hookline.loop.world.world import World
from hookline.run import Run, RunState
from hookline.run.targets import TARGET_KEYS, find_target


class Batches(Protocol):
    """Batches that can be iterated over and closed, such as a generator."""

    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> None: ...


class TaskRunner:
    """Call ``eval_batch`` or ``predict_batch`` of the task on each batch.

    Args:
        state: The state of the run.
        run: The ``run`` of the task.
        world: The processes of the run.
        book: The metrics of the run.
        loss_weights: The weights of the losses of a plain model. ``None``: the task is the user's own.
        evaluator: Gathers the predictions of all ranks.
    """

    def __init__(
        self,
        state: RunState,
        run: Run,
        world: World,
        book: MetricBook,
        loss_weights: LossWeights | None,
        evaluator: Evaluator,
    ) -> None:
        self._state, self._run, self._world, self._book = state, run, world, book
        self._loss_weights, self._evaluator = loss_weights, evaluator

    def evaluate(self, batches: Batches) -> None:
        """Call ``eval_batch`` on every batch, and log the loss that it returns as ``loss``."""
        with self._closed(batches):
            for batch in batches:
                self._evaluate_batch(batch)

    def _evaluate_batch(self, batch: Any) -> None:
        state, weight = self._state, None
        try:
            found = state.task.eval_batch(self._run, batch)
        except StopTraining as stop:
            state.ask_stop(stop.reason, title_of(state.task))
            state.requests.set_leave_evaluation(True)
            return
        if isinstance(found, dict):
            check_returned("eval_batch", found)
            if "outputs" in found:
                state.show_outputs(found["outputs"])
            weight, found = found.get("weight"), found.get("loss")
        if found is not None:
            state.show_loss(found)
        if self._loss_weights is not None and found is not None and weight is None:
            found, weight = self._loss_weights.in_evaluation(found, state.samples)
        if found is not None:
            self._book.log_loss(found, state.samples if weight is None else weight)

    def predict(self, batches: Batches, *, targets: bool = False) -> Any:
        """Call ``predict_batch`` on every batch.

        Args:
            batches: The batches.
            targets: Return the targets of the batches as well.

        Returns:
            The predictions of all ranks in the loader's order, joined if the shapes allow it; with ``targets``, a tuple
            of predictions and targets.
        """
        state, found = self._state, []
        with self._closed(batches):
            for batch in batches:
                try:
                    state.show_outputs(state.task.predict_batch(self._run, batch))
                except StopTraining as stop:
                    refused = stop_in_batch(title_of(state.task), stop.reason, state.clock.step, "predict_batch")
                    refused.__cause__ = stop
                    self._world.refuse(refused)
                    raise
                if not self._book.muted:
                    found.append(_detached((state.outputs, _target_of(batch)) if targets else state.outputs))
        return joined(self._evaluator.all_predictions(found))

    @contextmanager
    def _closed(self, batches: Batches) -> Iterator[None]:
        """Close the batches after the block, also after an error, which first gets its notes.

        Otherwise the traceback of the error would keep the generator open.
        """
        try:
            yield
        except BaseException as error:
            self._state.note_failure(error)
            add_place(error, self._state.where())
            raise
        finally:
            batches.close()


def _target_of(batch: Any) -> Any:
    """Return the target of a batch, or raise ``DataError``."""
    target = find_target(batch)
    if target is None:
        raise DataError(
            f"predict(…, targets=True): a batch that is {kind_of(batch)} has no target. Give batches "
            f"(inputs, targets), or dicts with one of {', '.join(TARGET_KEYS)}."
        )
    return target


def joined(batches: list[Any]) -> Any:
    """Join the predictions of all batches.

    Returns:
        One tensor, or one dict or tuple of tensors, if the shapes allow it. Otherwise the list of batches.
    """
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
    """Iterable over a generator that keeps the generator's return value in ``value``."""

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self.value: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.value = yield from self._generator

    def close(self) -> None:
        self._generator.close()
