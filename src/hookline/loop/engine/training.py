"""The story of training: it starts, makes the steps of one epoch after the other, and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hookline.distributed.random_states import set_random_states
from hookline.errors import DataError, SetupError, StopTraining
from hookline.events import Scopes
from hookline.loop.data import Feed, SharedFeed
from hookline.loop.data.batches import END, LEFT, begun
from hookline.loop.data.training_data import TrainingData
from hookline.loop.engine.agenda import Agenda
from hookline.loop.engine.edge import Edge, EpochPhase, Resumed
from hookline.loop.engine.steps import Count, Steps
from hookline.loop.engine.window import AccumulationWindow
from hookline.loop.evaluation.handles import Handles
from hookline.loop.model.gradients import clear_gradients
from hookline.loop.model.precision import Precision
from hookline.loop.record.notices import warn_of_epoch_fractions
from hookline.loop.saving.saver import Saver
from hookline.loop.settings import Settings
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.world.world import World
from hookline.run import MISSING, Run, RunState


class Training:
    """Trains, epoch after epoch, until ``max_duration`` or a stop.

    Args:
        state: The state of the run.
        settings: The options of the run.
        world: The processes of the run.
        scopes: The open scopes.
        data: The training data.
        precision: The precision of the forward.
        agenda: When something is due.
        edge: The end of a step.
        steps: Makes the steps.
        window: The micro-batches of the step under way.
        handles: The generators that the body of a custom loop holds.
        saver: Saves checkpoints.
        count: Counts the samples and tokens of a batch.
    """

    def __init__(
        self,
        state: RunState,
        settings: Settings,
        world: World,
        scopes: Scopes,
        data: TrainingData,
        precision: Precision,
        agenda: Agenda,
        edge: Edge,
        steps: Steps,
        window: AccumulationWindow,
        handles: Handles,
        saver: Saver,
        count: Count,
    ) -> None:
        self._state, self._settings, self._world, self._scopes, self._data = state, settings, world, scopes, data
        self._precision, self._agenda, self._edge, self._steps = precision, agenda, edge, steps
        self._window, self._handles, self._saver, self._count = window, handles, saver, count
        self._clock, self._requests = state.clock, state.requests
        self._random: dict[str, Any] | None = None

    def resume_with(self, random: dict[str, Any]) -> None:
        """Continue with saved random states, from the first batch on."""
        self._random = random

    @property
    def is_resumed(self) -> bool:
        """True before the first batch after a resume."""
        return self._random is not None

    # -- the two drivers -------------------------------------------------------------------------

    def with_task(self, run: Run) -> None:
        """Train a task."""
        steps = self._steps
        with self._training():
            while self._decide_on_next_epoch():
                feed = self.open_data()
                if self._begin_epoch(feed):
                    last = MISSING
                else:
                    last = steps.of_task(run) if steps.fits_of_task else steps.by_halves(run)
                self._end_epoch(feed, last)

    def with_body(self) -> Generator[Any, None, None]:
        """Give the batches of training to the body of a custom loop."""
        edge, steps, window = self._edge, self._steps, self._window
        autocasts = self._precision.dtype is not None
        with self._training(has_body=True):
            while self._decide_on_next_epoch():
                feed, batch = self.open_data(), MISSING
                is_over = self._begin_epoch(feed)
                while not is_over:
                    batch = steps.next_batch()
                    if batch is END or batch is LEFT:
                        break
                    if autocasts:
                        with self._precision.autocast():
                            yield batch
                    else:
                        yield batch
                    batch = MISSING  # It would stay in memory until the next one is there.
                    self._world.body_ended()
                    if window.has_batch:  # The body stepped its optimizers itself.
                        steps.step()
                    steps.end_shard()
                    if not window.count and edge.is_due:
                        is_over = edge.advance()
                self._end_epoch(feed, batch)

    @contextmanager
    def _training(self, *, has_body: bool = False) -> Iterator[None]:
        """Start training, and end it after the block, also after an error.

        Args:
            has_body: True in a custom loop, whose body may be left.
        """
        state, edge, scopes = self._state, self._edge, self._scopes
        mark = len(scopes)
        try:
            state.start_training()
            self.set_train_mode()
            for optimizer in state.optimizers.values():
                clear_gradients(optimizer)
            edge.start_training()
            self._restore_random()
            if edge.resumed is Resumed.AT_EPOCH_END:
                edge.finish_epoch_of_checkpoint()
            self._data.warn_of_lost_loader()
            yield
            edge.leave_if_preempted()
            edge.end_training(mark)
        except BaseException as error:
            if has_body and isinstance(error, GeneratorExit):
                # `break`, `return` or an exception in the body: the next call of the loop knows which.
                self._world.body_left()
                self._handles.leave(scopes, mark, finish=partial(self._end_broken, edge.is_reached))
                self._steps.drop()
                return  # This suppresses `GeneratorExit`: `with_body` ends without an error, as Python asks of it.
            if isinstance(error, StopTraining) and not has_body and self._world.is_alone:
                # Not in a hook, but in a scheduler, an optimizer or `Task.count`: it is a stop, and ends training.
                self._handles.leave(scopes, mark, finish=partial(self._end_broken, edge.is_reached))
                self._steps.drop()
                raise
            scopes.leave(mark, because=error)
            raise

    def _end_broken(self, is_reached: bool) -> None:
        """The body was left by ``break`` or ``return``.

        Args:
            is_reached: True if it was left after a step at which something may be due.
        """
        self._world.leave_body()
        if is_reached:
            self._edge.reach()
        self._edge.advance_to_evaluation()
        self._edge.end_broken_training()

    def set_train_mode(self) -> None:
        """Set the model to train mode. A model in train mode keeps its frozen parts as they are."""
        task = self._state.task
        if not (task.model if isinstance(task, SupervisedTask) else self._state.model).training:
            self._state.module.train()

    def _restore_random(self) -> None:
        """After a resume, once nothing more is drawn that the run before did not draw."""
        if self._random is not None:
            set_random_states(self._random)

    # -- an epoch --------------------------------------------------------------------------------

    def open_data(self) -> Feed:
        """Open the training loader, which a hook may have replaced."""
        return self._data.open(
            self._state.loaders["train"],
            seed=self._data.seed,
            world=self._world,
            is_epoch_begun=self._edge.is_epoch_begun,
            warn=self._saver.is_used,
        )

    def _decide_on_next_epoch(self) -> bool:
        """Announce a stop. Return whether another epoch follows, or the rest of an epoch after a resume.

        All ranks must call it.
        """
        self._edge.announce_and_replan()
        if self._edge.is_over and not self._edge.is_resumed_inside:
            return False
        self._data.check_replaced("train", self._world)
        return True

    def _begin_epoch(self, feed: Feed) -> bool:
        """Open the data at the first batch or at the batch to continue with. Return whether the epoch is over."""
        edge, data, clock, agenda = self._edge, self._data, self._clock, self._agenda
        is_pending, is_resumed_inside = edge.resumed is Resumed.BEFORE_EVALUATION, edge.is_resumed_inside
        edge.leave_if_preempted(pending_eval=is_pending)
        # The run has ended before the resume. A stop that is asked for now is met at the end of a step.
        has_ended = is_resumed_inside and edge.is_over
        self._steps.open_epoch(self._counting(), gives_shards=isinstance(feed, SharedFeed))
        data.begin_epoch(feed)
        edge.start_epoch()
        epoch = 0 if data.repeat_epoch else clock.epoch
        data.start(begun(lambda: feed.iterate(epoch, data.taken(clock.batch_in_epoch))))
        data.measure_epoch(feed)  # Not before: a hook or `set_epoch` may have changed the data.
        if not math.isinf(data.length):
            clock.set_lengths(epoch_batches=int(data.length))
        elif clock.epoch_batches is None and agenda.has_epoch_fractions:
            warn_of_epoch_fractions(self._state.rank)
        if agenda.has_epoch_fractions:
            agenda.wake_now()  # The steps at fractions of this epoch are known only now.
        if is_resumed_inside:  # Its hooks and its iterator have drawn their numbers before the checkpoint.
            self._restore_random()
        self._random = None
        edge.continue_epoch()
        return (is_pending and edge.advance()) or has_ended

    def _end_epoch(self, feed: Feed, last: Any) -> None:
        """The steps of the epoch have ended.

        Args:
            feed: The training data.
            last: ``END``, ``LEFT``, or ``MISSING`` if the steps ended at an edge.
        """
        edge, data, steps, window = self._edge, self._data, self._steps, self._window
        if last is LEFT:
            steps.drop()
            edge.leave_wait()
        if window.count and last is END and feed.length is None:  # That was the last step, with a short window.
            edge.reach_epoch_end()
            steps.complete_window()
            edge.advance()
        if edge.epoch_phase is not EpochPhase.CLOSED:
            steps.drop()
            is_completed = last is END and not edge.is_over
            if is_completed:
                self._check_data(data.given, data.length if feed.length else math.inf)
            edge.cut_epoch(is_completed=is_completed)

    def _check_data(self, position: int, length: float) -> None:
        """Refuse data that has ended before its end."""
        if position == 0:
            raise DataError(
                f"the training loader gave no batch in epoch {self._clock.epoch}; a generator is used up after one "
                f"epoch: pass something that can be iterated over again"
            )
        if position < length < math.inf:
            raise DataError(
                f"the training loader ended after {position} of {length} batches; "
                f"a StopIteration that is raised inside a data set ends the epoch like this"
            )

    def _counting(self) -> Callable[[Any], tuple[int, int | None]]:
        """How batches are counted. Where a duration is in tokens, a batch without their number is an error."""
        settings, saves, count = self._settings, [save.every for save in self._agenda.saves], self._count
        durations = (self._state.max_duration, settings.eval_every, settings.log_every, *saves)
        if not any(duration is not None and duration.unit == "tok" for duration in durations):
            return count

        def with_tokens(batch: Any) -> tuple[int, int | None]:
            samples, tokens = count(batch)
            if tokens is None:
                raise SetupError(
                    "a duration in tokens needs their number: give the task count(self, batch) -> (samples, tokens); "
                    "the default counts samples only"
                )
            return samples, tokens

        return with_tokens
