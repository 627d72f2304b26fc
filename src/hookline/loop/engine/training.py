"""Training: the one engine of Hookline, which reads from top to bottom.

``batches`` hands out the training batches; ``backward`` and ``step`` (``step.py``) are called on each; events,
windows and the clock happen around them. What happens at the edges of epochs is in ``course.py``.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

from hookline.events import Member
from hookline.loop.data import Feed, SharedFeed
from hookline.loop.data.batches import END, LEFT, to_device
from hookline.loop.data.part import Part
from hookline.loop.data.random_states import set_random_states
from hookline.loop.engine.leaving import leave_wait
from hookline.loop.engine.session import Session
from hookline.loop.engine.step import Steps
from hookline.loop.record.notices import warn_of_parts
from hookline.loop.saving.rollback import roll_back
from hookline.loop.saving.saver import Saving
from hookline.loop.tasks.task import counter
from hookline.loop.world.world import World
from hookline.progress.counted import counted
from hookline.run import MISSING, Run


class Training(Steps):
    """Epochs and batches. ``Loop`` adds what surrounds them."""

    saving: Saving
    _open: bool

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.counter = self.count = counter(session.task)
        self.data = session.data
        self.in_hand: Any = MISSING  # what a plain step has fetched and left to the general way: a batch, END or LEFT
        self.part: Part | None = None
        """In several processes: the part of an evaluation or prediction that is under way."""
        self.saved_random: dict[str, Any] | None = None
        self.move = None if self.state.device.type == "cpu" else (lambda batch: to_device(batch, self.state.device))

    def _train(self) -> Generator[Any, None, None]:
        mark = len(self.scopes)
        try:
            self.course.start_training()
            self._restore_random()
            if self.course.edge_pending:
                self.course.finish_pending_edge()
            self.data.warn_of_lost_loader()
            while not self.course.decided() or self.course.cut_pending:
                self.check_replaced("train")
                yield from self._epoch(self._feed_of(self.state.loaders["train"]))
            self._leave_if_preempted()
            self.course.end_training(mark)
        except GeneratorExit:  # break, return or an exception in the body: which of them, the next call knows
            self.world.body_left()
            self.handles.leave(self.scopes, mark, finish=partial(self._end_broken, self.look_due))
            self._drop_window()
        except BaseException as error:
            self.scopes.leave(mark, because=error)
            raise

    def _epoch(self, feed: Feed) -> Generator[Any, None, None]:
        state, line, requests, course = self.state, self.line, self.requests, self.course
        autocast, move, world = self._autocast, self.move, self.world
        over, batch, gives_parts = self._begin_epoch(feed), MISSING, isinstance(feed, SharedFeed)
        fetch, count, data = self.session.fetcher.fetch, self.count, self.data
        iterator, length = data.iterator, data.length
        while not over:
            hooks = line.hooks
            if hooks.batch_fetch_start and self.in_hand is MISSING:
                self._ask_for_batch()
            batch, self.in_hand = fetch(iterator) if self.in_hand is MISSING else self.in_hand, MISSING
            if batch is END or batch is LEFT:  # the last batch stays in `run`, for the hooks of the edge
                break
            state.batch = state.outputs = state.loss = MISSING
            data.position = position = data.position + 1
            if gives_parts:
                part, batch = batch, batch.batch
                length = data.length = position if part.is_last else length
            state.batch = batch if move is None else move(batch)
            if hooks.batch_fetch_end:
                line.emit(hooks.batch_fetch_end)
            if not self._window:
                self._begin_step()
            self._window += 1
            if position == length:
                course.at_edge, course.agenda.wake = True, 0
            self._window_full = self._window >= self._accumulate or position == length
            self._batch_open, batch = True, MISSING  # the latter would stay in memory through all plain steps
            if hooks.around_batch or hooks.train_batch_start:
                self.open_batch()
            self.state.samples, self.state.tokens = count(state.batch)
            if gives_parts:
                self._count_part(world, part)
            if autocast:
                with self.precision.autocast():
                    yield state.batch
            else:
                yield state.batch
            world.body_ended()
            if self._batch_open:  # the body drove its optimizers itself
                self.step()
            if gives_parts:
                self.session.book.unmute()
            if self._window:
                continue
            if self.look_due or requests.rollback is not None:
                self.look()
            if (requests.attention or line.hooks.step_settled) and self._settle():
                break
        if batch is LEFT:
            leave_wait(self.state.loop)
        if self._window and batch is END and feed.length is None:  # that was the edge: its window is short
            course.at_edge, course.agenda.wake, self._window_full = True, 0, True
            self._complete_window()
            self.look()
            self._settle()
        if course.epoch_open:
            self._drop_window()
            course.cut_epoch(
                exhausted=batch is END, position=data.position, length=data.length if feed.length else math.inf
            )
            self.saving.settle()

    def _ask_for_batch(self) -> None:
        """Send ``batch_fetch_start``: the last batch is over, but an edge may still be to come."""
        state = self.state
        shown = state.batch, state.outputs, state.loss
        state.batch = state.outputs = state.loss = MISSING
        self.line.emit(self.line.hooks.batch_fetch_start)
        state.batch, state.outputs, state.loss = shown

    def _begin_step(self) -> None:
        """Before the first batch of a window."""
        hooks, clock = self.line.hooks, self.clock
        self.requests.can_skip, self._skipped = True, False
        self.world.begin_window()
        if hooks.around_step:
            self._step_mark = len(self.scopes)
            self.scopes.enter(hooks.around_step)
        if hooks.train_step_start:
            self.line.emit(hooks.train_step_start)
        self._window_start = (clock.batch, clock.sample, clock.token)

    def _count_part(self, world: World, part: Part) -> None:
        """This rank's part of the data: it may be there only for the others, and then counts nothing."""
        if self._window == 1:
            self.precision.common_unit = world.unit(part.known, scaled=self._scaled)
        state = self.state
        known = part.known if part.samples in (None, state.samples) and state.tokens is None else None
        if not part.counts:
            state.samples, state.tokens = 0, state.tokens and 0
        if part.counts:
            self.session.book.unmute()
        else:
            self.session.book.mute()
        world.fetched(state.samples, state.tokens, counts=part.counts, known=known)

    def _begin_epoch(self, feed: Feed) -> bool:
        """The data of the epoch, from its first batch or from where it was left. Whether it is over at once."""
        if self.requests.agreed.preempt is not None:
            raise self.saving.preempted(pending_eval=self.course.step_pending)
        ended = self.course.cut_pending and self.course.over  # in the process before; a stop now is for a step's end
        self.count = self.course.counting(self.counter)
        data = self.data
        data.begin_epoch(feed)
        data.iterator = self.course.start_epoch(feed, data.taken, repeat=data.repeat_epoch)
        data.measure_epoch(feed)  # not before: a hook or `set_epoch` may have changed the data
        if not math.isinf(data.length):
            self.clock.epoch_batches = int(data.length)
        elif self.clock.epoch_batches is None and self.course.agenda.has_parts:
            warn_of_parts(self.state.rank)
        if self.course.agenda.has_parts:
            self.course.agenda.wake = 0  # when a part of this epoch is done is known only now
        self._restore_random()
        self.saved_random, self.in_hand = None, MISSING
        pending, self.course.step_pending = self.course.step_pending, False
        return (pending and self._settle()) or ended  # pending: a signal came before an evaluation, or inside it

    def look(self) -> None:
        """After a step, and what the body did after it: is an interval over, an evaluation due, the epoch over?"""
        self.look_due = False
        self._roll_back()  # first: what the steps that are taken back made due is not due
        self.course.wake_up()

    def _roll_back(self) -> bool:
        """If a callback has asked to go back to a snapshot. Whether one has."""
        asked, self.requests.rollback = self.requests.rollback, None
        if asked is not None:
            roll_back(self.state.loop, *asked)
            self.world.undone()
        return asked is not None

    def _end_broken(self, look_due: bool) -> None:
        """The body was left.

        Args:
            look_due: Whether it was left after a step at which something may be due.
        """
        self.world.leave_body()
        if look_due or self.requests.rollback is not None:
            self.look()
        self.course.end_broken_training()

    def _settle(self) -> bool:
        """The edge of a step: evaluate, end the epoch, decide. Whether the epoch is over."""
        requests, course = self.requests, self.course
        if self.in_hand is LEFT:  # the step is settled: a plain one has waited for the next batch, and left that wait
            return False
        if requests.attention:
            self.handles.settle()
            if course.edge_is_open:
                if requests.agreed.preempt is not None:
                    raise self.saving.preempted(pending_eval=True)
                if requests.is_interrupted:
                    self.saving.interrupted(pending_eval=True)  # the evaluation that follows is left at once
            course.settle_edge()
        if not self._skipped:
            self.line.emit(self.line.hooks.step_settled)
        if self._roll_back():  # asked for in the evaluation, at the end of the epoch, or just now
            course.look_again()
        if not requests.attention:
            return False
        over = course.decided() or not course.epoch_open
        self.saving.settle()
        self._leave_if_preempted()
        if requests.is_interrupted:
            self.saving.interrupted()
        return over

    def _feed_of(self, loader: Any) -> Feed:
        """Return the feed of the training loader."""
        session, mid_epoch = self.session, self.course.mid_epoch
        return self.data.open(
            loader, seed=session.data.seed, world=self.world, mid_epoch=mid_epoch, warn=self.saving.is_used
        )

    def share_of(self, stage: str, loader: Any, length: int) -> int:
        """The number of batches of a rank, of a loader that says it has ``length`` of them."""
        return self.data.shard_length(stage, loader, length, self.session.world)

    def check_replaced(self, stage: str) -> None:
        """By all ranks, before an epoch or an evaluation: each has replaced the loader as often as the others."""
        times = counted(self.data.times_replaced(stage), "time")
        self.world.compare(lambda: {f"run.loaders[{stage!r}], replaced": times}, "Replace it on all ranks.")

    def added(self, member: Member[Run]) -> None:
        """A callback joined a run that is under way."""
        if self._open:
            self.session.move_held_modules(member)
            self._send(self.line.fast.setup, member)

    def removed(self, member: Member[Run]) -> None:
        """A callback leaves a run that is under way: it undoes what it has done."""
        if self._open:
            self._send(self.line.fast.teardown, member)

    def _send(self, heard: Iterable[Any], member: Member[Run]) -> None:
        """An event to one of those that hear it."""
        for hook, run in [pair for pair in heard if pair[1] is member.view]:
            hook(run)

    def _leave_if_preempted(self) -> None:
        """At the edge of a step, or before the first: a signal ends the process, after a checkpoint."""
        if self.requests.agreed.preempt is not None:
            raise self.saving.preempted()

    def _restore_random(self) -> None:
        """After a resume, once nothing more is drawn that the run before did not draw."""
        if self.saved_random is not None:
            set_random_states(self.saved_random)
