"""Evaluation and prediction: the batches of some loaders, with nothing left changed behind them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from hookline.errors import DataError, Preempted
from hookline.loop.data.batches import END, LEFT, begun, generators, second_iterator, sure_length
from hookline.loop.data.random_states import same_random_state
from hookline.loop.data.workers import Workers, end_at_exit, ignoring_workers
from hookline.loop.evaluation.over_ranks import fetched_parts, idle_batch, open_parts
from hookline.loop.evaluation.untouched import same_gradients, same_modes
from hookline.progress import EvalClock
from hookline.run import MISSING
from hookline.run.audience import Audience

if TYPE_CHECKING:
    from hookline.loop.loop import Loop


def evaluation(
    loop: Loop,
    loaders: dict[str | None, Any],
    stage: str,
    audience: Audience = Audience.ALL,
    *,
    limit: int | None = None,
) -> Generator[Any, None, dict[str, Any]]:
    """Run one evaluation and return its metrics. Only ``Audience.ALL`` hears events and keeps the metrics."""
    silent = audience is not Audience.ALL
    state, line, scopes, book = loop.state, loop.line, loop.scopes, loop.session.book
    mark = len(scopes)
    metrics: dict[str, Any] = {}
    began = perf_counter()
    left, interrupted = False, loop.requests.is_interrupted
    if not silent:
        loop.requests.leave_evaluation = False
    states = None if silent else loop.saving.states_before_evaluation()
    with saved_if_preempted(loop, stage, states), untouched(loop, stage, list(loaders.values()), audience):
        loop.world.before_evaluation()  # all ranks evaluate one model: buffers are rank zero's
        if not silent:
            loop.check_replaced(stage)
        depth = book.open_layer(loop.session.module if silent else None)
        try:
            if not silent:
                scopes.enter(line.hooks.around_eval)
            loop.session.module.eval()
            line.emit(line.hooks.eval_start)
            left = yield from _loaders(loop, loaders, limit)
            if not left:
                line.emit(line.hooks.eval_end)
            if not silent:
                scopes.leave(mark)
                _note(loop, stage, began, left)
            metrics = book.drop_layers(depth) if left else book.close_layer(keep=not silent)
        except GeneratorExit:
            if silent:
                book.drop_layers(depth)
                return metrics
            layer, name, clock = book.detach_layer(), state.loader_name, loop.clock.eval
            loop.world.body_left()
            loop.handles.leave(scopes, mark, finish=lambda: _finish_left(loop, stage, name, layer, clock))
            return metrics
        except BaseException as error:
            scopes.leave(mark, because=error)
            book.drop_layers(depth)
            raise
    if left and loop.requests.is_interrupted and not interrupted and states is not None:
        loop.saving.as_before_evaluation(states)  # as after another signal
        loop.saving.interrupted(pending_eval=stage == "val")
    if not silent and stage == "val" and state.entry_point in ("fit", "train"):
        loop.course.evaluated(left=left)
    return metrics


def _loaders(loop: Loop, loaders: dict[str | None, Any], limit: int | None) -> Generator[Any, None, bool]:
    """The batches of each loader in turn. Whether a rank has left the evaluation, so that nothing of it counts."""
    state, line, book = loop.state, loop.line, loop.session.book
    for state.loader_name, loader in loaders.items():
        line.emit(line.hooks.eval_loader_start)
        yield from _batches(loop, loader, "eval_batch", limit)
        if book.agree(left=_is_left(loop)):
            return True
        line.emit(line.hooks.eval_loader_end)
        book.end_loader()
        state.loader_name = MISSING
    return book.agree(left=_is_left(loop))


def _note(loop: Loop, stage: str, began: float, left: bool) -> None:
    loop.session.records.note("eval", f"{stage}, left before its end" if left else stage, took=perf_counter() - began)


@contextmanager
def saved_if_preempted(loop: Loop, stage: str, states: dict[str, Any] | None) -> Iterator[None]:
    """A signal left the evaluation: callbacks are as they were before it, and it is made up after the resume."""
    try:
        yield
    except Preempted as preempted:
        if states is not None and preempted.checkpoint is None:
            loop.saving.as_before_evaluation(states)
            raise loop.saving.preempted(pending_eval=stage == "val") from None
        if loop.signals.in_fit and not loop.course.training and not loop.clock.step:
            raise loop.saving.preempted() from None  # the sanity check: nothing is done yet
        raise


def _finish_left(loop: Loop, stage: str, name: Any, layer: Any, clock: EvalClock) -> None:
    """The body was left by ``break``, on all ranks: what was measured until then counts.

    By ``StopTraining`` it is left without end hooks, and nothing counts.
    """
    book, state = loop.session.book, loop.state
    with untouched(loop, stage, []):
        again = loop.clock.eval
        again.batch, again.sample, again.token = clock.batch, clock.sample, clock.token
        book.attach_layer(layer)
        state.loader_name = name
        loop.world.leave_body()
        left = book.agree(left=loop.requests.leave_evaluation)
        if not left:
            loop.line.emit(loop.line.hooks.eval_loader_end)
        state.loader_name = MISSING
        left = left or book.agree(left=loop.requests.leave_evaluation)
        if left:
            book.drop_layers(book.depth - 1)
        else:
            loop.line.emit(loop.line.hooks.eval_end)
            book.close_layer(keep=True)
    loop.session.records.note(
        "eval", f"{stage}, left before its end" if left else f"{stage}, left by break", took=clock.seconds
    )
    if stage == "val":
        loop.course.evaluated(left=left)


def prediction(loop: Loop, loader: Any, audience: Audience = Audience.ALL) -> Generator[Any, None, None]:
    """Run one prediction."""
    silent = audience is not Audience.ALL
    line, scopes, book = loop.line, loop.scopes, loop.session.book
    mark = len(scopes)
    if not silent:
        loop.requests.leave_evaluation = False
    with untouched(loop, "predict", [loader], audience):
        loop.world.before_evaluation()  # all ranks evaluate one model: buffers are rank zero's
        depth = book.open_layer(loop.session.module if silent else None)
        try:
            if not silent:
                scopes.enter(line.hooks.around_predict)
            loop.session.module.eval()
            line.emit(line.hooks.predict_start)
            yield from _batches(loop, loader, "predict_batch")
            line.emit(line.hooks.predict_end)
            if not silent:
                scopes.leave(mark)
            book.close_layer(keep=not silent)
        except GeneratorExit:
            if silent:
                book.drop_layers(depth)
                return
            layer = book.detach_layer()
            loop.world.body_left()
            loop.handles.leave(scopes, mark, finish=lambda: _finish_left_prediction(loop, layer))
        except BaseException as error:
            scopes.leave(mark, because=error)
            book.drop_layers(depth)
            raise


def _finish_left_prediction(loop: Loop, layer: Any) -> None:
    """The body was left by ``break``, on all ranks: nothing that was logged counts."""
    book = loop.session.book
    with untouched(loop, "predict", []):
        book.attach_layer(layer)
        loop.world.leave_body()
        book.agree()
        book.drop_layers(book.depth - 1)
        loop.line.emit(loop.line.hooks.predict_end)


def _batches(loop: Loop, loader: Any, event: str, limit: int | None = None) -> Generator[Any, None, None]:
    """Give this rank's batches of one loader, moved and counted, each between its events."""
    if loop.world.is_alone:
        yield from _with_events(loop, _fetched(loop, loader, limit), event)
        return
    if not is_answer(loop):
        loop.world.begin_votes_of_evaluation()
    feed = open_parts(loop, loop.world, loader, limit)
    yield from _with_events(loop, fetched_parts(loop, loop.world, feed, partial(_next, loop)), event)


def _with_events(loop: Loop, batches: Iterator[Any], event: str) -> Generator[Any, None, None]:
    state, line, clock, world = loop.state, loop.line, loop.clock.eval, loop.world
    seen = 0
    for batch in batches:
        seen += 1
        if not world.is_alone and (_is_left(loop) or (loop.part is not None and not loop.part.counts)):
            world.before_eval_batch()
            yield from idle_batch(loop, batch)
            world.body_ended()
            _make_up(loop)
            if _agree_to_leave(loop):
                return
            continue
        state.batch, state.outputs = batch, MISSING
        line.emit(getattr(line.hooks, f"{event}_start"))
        loop.state.samples, loop.state.tokens = loop.count(state.batch)  # a hook may have replaced it
        world.before_eval_batch()
        if loop.precision.dtype is None:
            yield state.batch
        else:
            with loop.precision.autocast():
                yield state.batch
        world.body_ended()
        if loop.requests.leave_evaluation:
            _make_up(loop)
        clock.batch += 1
        clock.sample += loop.state.samples
        clock.token += loop.state.tokens or 0
        line.emit(getattr(line.hooks, f"{event}_end"))
        state.batch = state.outputs = MISSING
        if _agree_to_leave(loop):
            return
    if not seen and not _is_left(loop):
        raise DataError(f"the {state.stage} loader gave no batch; is it empty, or an iterator that is used up?")


def _agree_to_leave(loop: Loop) -> bool:
    """Agree with all ranks, after a batch, on whether they leave the evaluation here.

    A rank that wants to leave continues with batches that count nothing until the next vote.
    """
    abandons = None if is_answer(loop) else loop.world.vote_in_evaluation(abandons=_is_left(loop))
    if abandons is None:
        return False
    loop.requests.leave_evaluation |= abandons
    return _is_left(loop)


def _make_up(loop: Loop) -> None:
    """Make the forward of a batch that was left before it or in it: the ranks of a sharded model wait for it."""
    with loop.precision.autocast(enabled=loop.precision.dtype is not None):
        loop.world.make_up_batch()


def _is_left(loop: Loop) -> bool:
    """Whether ``StopTraining`` or Ctrl-C ends the evaluation under way; an answer is always given whole."""
    requests = loop.requests
    if is_answer(loop):
        return False
    requests.leave_evaluation |= loop.requests.is_interrupted
    return requests.leave_evaluation


def is_answer(loop: Loop) -> bool:
    """True inside ``run.evaluate`` and ``run.predict``, which no stop and no signal cuts short."""
    return loop.state.audience is Audience.ANSWER


def can_be_left(loop: Loop) -> bool:
    """Whether a signal may end it: not an answer, and in a fit only what a resume makes up or begins with."""
    if is_answer(loop):
        return False
    in_training = loop.signals.in_fit and loop.course.training
    return loop.saving.can_leave_evaluation or not in_training


def _fetched(loop: Loop, loader: Any, limit: int | None) -> Iterator[Any]:
    """The batches of a loader between the events of their fetch; the end is not fetched where it is known."""
    line, move = loop.line, loop.move
    length = sure_length(loader)
    last = min(length or math.inf, limit or math.inf, loop.data.limit(loop.state.stage))
    with ignoring_workers(loader):
        iterator, position = begun(lambda: iter(loader)), 0
    workers = Workers()
    second = loop.state.audience is not Audience.ALL and _is_trained_on(loop, loader)  # see second_iterator
    if second or not getattr(loader, "persistent_workers", False):
        workers.watch(iterator)  # one that never returns ignores torch's SIGTERM, and torch waits for it for ever
    else:
        end_at_exit(iterator)
    try:
        while position < last:
            if line.hooks.batch_fetch_start:
                line.emit(line.hooks.batch_fetch_start)
            batch = _next(loop, iterator)
            if batch is LEFT:
                return
            if batch is END:
                if length is not None:
                    raise DataError(
                        f"the {loop.state.stage} loader ended after {position} of {length} batches; "
                        f"a StopIteration that is raised inside a data set ends it like this"
                    )
                return
            position += 1
            loop.state.batch = batch if move is None else move(batch)
            if line.hooks.batch_fetch_end:
                line.emit(line.hooks.batch_fetch_end)
            yield loop.state.batch
    finally:
        workers.end()


def _is_trained_on(loop: Loop, loader: Any) -> bool:
    """Whether training reads from this loader, or will."""
    return loader is loop.data.loader or loader is loop.state.loaders.get("train")


def _next(loop: Loop, iterator: Iterator[Any]) -> Any:
    """The next batch, unless a signal ends the evaluation before it or while it is waited for."""
    leave_if_preempted(loop)
    batch = loop.session.fetcher.fetch(iterator, leave=not is_answer(loop), whole=not can_be_left(loop))
    leave_if_preempted(loop)
    return batch


def leave_if_preempted(loop: Loop) -> None:
    """A signal ends an evaluation at its next batch; not an answer, and not one that the body of an own loop makes."""
    asked = loop.requests.agreed.preempt
    if asked is None or not can_be_left(loop):
        return
    if loop.state.entry_point not in ("fit", "train"):
        raise loop.saving.preempted()
    raise Preempted(asked)


@contextmanager
def untouched(loop: Loop, stage: str, loaders: list[Any], audience: Audience = Audience.ALL) -> Iterator[None]:
    """Modes, random states, gradients, grad mode, clocks and the moment are put back on every way out."""
    state, line, module = loop.state, loop.line, loop.session.module
    hooks = line.hooks
    with ExitStack() as stack:
        stack.enter_context(same_random_state([g for loader in loaders for g in generators(loader)]))
        for loader in loaders:
            if audience is not Audience.ALL and _is_trained_on(loop, loader):
                stack.enter_context(second_iterator(loader))
        stack.enter_context(same_gradients(module))
        stack.enter_context(same_modes(module))
        stack.enter_context(torch.no_grad())
        stack.enter_context(state.aside(stage, audience))
        loop.clock.begin_eval()
        line.hooks = line.fast if audience is Audience.ALL else line.silent  # the costs of a step are those of training
        try:
            yield
        finally:
            loop.clock.end_eval()
            line.hooks = hooks
