"""A trial: steps of training that leave no trace, for callbacks that look for a learning rate or a batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline.errors import DataError, ScopeError, SetupError
from hookline.loop.data import Feed, SharedFeed
from hookline.loop.data.batches import is_one_shot
from hookline.loop.data.loaders import check_loader
from hookline.loop.data.part import Part
from hookline.loop.data.training_data import make_feed
from hookline.loop.engine.audience import Audience
from hookline.loop.engine.optimizers import needs_closure
from hookline.loop.evaluation.tasks import check_returned
from hookline.loop.evaluation.untouched import same_gradients, same_modes
from hookline.loop.saving.rollback import put_back, take_moment
from hookline.loop.tasks.supervised import title_of
from hookline.loop.world.world import Alone, World
from hookline.run import MISSING

if TYPE_CHECKING:
    from hookline.loop.loop import Loop


class Trial:
    """Batches to try, and whole steps on them. Schedulers stand still; nobody hears anything."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._part = Part(None)  # that was given last

    def batches(self, count: int, loader: Any = None, *, whole: bool = False) -> Iterator[Any]:
        """So many batches of the training loader, or of another one, from the first on; again if it is short.

        With several ranks each gets so many of its own; or, if they are asked for as a ``whole``, all get the same.
        """
        loop = self._loop
        loader = loop.state.loaders.get("train") if loader is None else loader
        check_loader(loader, "training")
        if is_one_shot(loader):
            raise SetupError("a trial would use up a loader that can be iterated over only once; pass a DataLoader")
        feed: Feed = make_feed(loader, loop.session.seed, loop.state.rank, Alone(loop.clock) if whole else loop.world)
        given = epoch = 0
        try:
            while given < count:
                before = given
                for batch in feed.iterate(epoch, 0):
                    self._part = batch if isinstance(feed, SharedFeed) else Part(batch)
                    yield self._part.batch
                    given += 1
                    if given == count:
                        return
                if given == before:
                    raise DataError("the training loader gave no batch to try")
                epoch += 1
        finally:
            feed.close()

    def step(self, batch: Any) -> Tensor:
        """Forward, backward and update on one batch; the loss."""
        loop, task, run = self._loop, self._loop.session.task, self._loop.session.run
        state = loop.state
        loop._drop_window()  # of a step that failed
        loop.requests.can_skip = True
        state.outputs = state.loss = MISSING
        state.batch = batch if loop.move is None else loop.move(batch)
        loop.samples, loop.tokens = loop.count(state.batch)
        self._meet(loop.world, batch)
        loop._window, loop._window_full, loop._batch_open = 1, True, True
        with loop.precision.autocast(enabled=loop.precision.dtype is not None):
            if any(map(needs_closure, state.optimizers.values())):
                loop.step(closure=partial(task.train_batch, run, state.batch))
                found = None
            else:
                found = task.train_batch(run, state.batch)
            if isinstance(found, dict):
                check_returned("train_batch", found)
                loop.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
            elif found is not None:
                loop.backward(found)
            loop.step()
        if state.loss is MISSING:
            raise SetupError(f"{title_of(task)}.train_batch gave no loss, so a trial cannot judge its steps")
        return state.loss.detach().clone()  # type: ignore[no-any-return]

    def _meet(self, world: World, batch: Any) -> None:
        """A step of all ranks, with what the part says that was given last, if the batch is its."""
        loop, part = self._loop, self._part if self._part.batch is batch else Part(batch)
        is_known = part.samples in (None, loop.samples) and loop.tokens is None
        world.begin_window()
        loop.precision.common_unit = None if world.is_alone else world.unit(part.known, scaled=loop._scaled)
        samples = loop.samples if part.counts else 0
        world.fetched(samples, loop.tokens, counts=part.counts, known=part.known if is_known else None)


@contextmanager
def trial(loop: Loop) -> Iterator[Trial]:
    """Everything is bitwise as it was, on every way out."""
    state, line, book, module = loop.state, loop.line, loop.session.book, loop.session.module
    if not hasattr(loop.session.task, "train_batch"):
        raise SetupError("a trial needs a task with train_batch(run, batch): use Trainer.fit, not the own loop")
    if loop.course.epoch_open:
        raise ScopeError("run.trial(): an epoch is under way; call it in on_fit_start or on_train_start")
    moment, clock = take_moment(loop), loop.clock.state_dict()
    loader: Any = state.loaders.get("train")
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    position = deepcopy(loader.state_dict()) if has_state else None
    moments = (state.stage, state.batch, state.outputs, state.loss)
    kept = (loop._losses, loop.samples, loop.tokens, loop.course.agenda.wake, line.hooks)
    schedulers = state.schedulers[:]
    with ExitStack() as stack:
        stack.enter_context(same_gradients(module))
        stack.enter_context(same_modes(module))
        stack.enter_context(torch.enable_grad())
        depth = book.open_layer(module)
        state.schedulers.clear()
        loop._losses, loop.course.agenda.wake, line.hooks, state.stage = None, math.inf, line.silent, "train"
        stack.enter_context(loop.session.heard_by(Audience.TRIAL))
        loop.course.train_mode()
        try:
            yield Trial(loop)
        finally:
            loop._drop_window()
            state.schedulers[:] = schedulers
            book.drop_layers(depth)
            put_back(loop, moment)
            loop.clock.load_state_dict(clock)
            if position is not None:
                loader.load_state_dict(position)
            state.stage, state.batch, state.outputs, state.loss = moments
            loop._losses, loop.samples, loop.tokens, loop.course.agenda.wake, line.hooks = kept
