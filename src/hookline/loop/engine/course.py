"""The course of training: what happens at the edges of steps, intervals, epochs and the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookline.errors import DataError, SetupError
from hookline.events.order import overlaps
from hookline.loop.data import Feed
from hookline.loop.data.batches import begun
from hookline.loop.engine.agenda import Agenda
from hookline.loop.engine.session import Session
from hookline.loop.metrics.series import Series
from hookline.loop.model.gradients import clear_gradients
from hookline.loop.model.schedulers import Scheduler
from hookline.loop.model.weights import Weights
from hookline.loop.record.monitors import Doubts, check_train_monitors
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.records.redact import redact_text
from hookline.run import BREAK, MISSING, StopRequest
from hookline.run.history import missing_metric


class Course:
    """Starts and ends epochs and training, decides on stops, knows when an evaluation is due."""

    def __init__(self, session: Session, weights: Weights) -> None:
        self._session = session
        self._state, self._line, self._scopes = session.state, session.line, session.scopes
        self._clock, self._book, self._requests = session.state.clock, session.book, session.state.requests
        self._weights = weights
        self._evaluated = -1  # the version of the weights at the last evaluation
        self._plateaus: dict[str, int | None] = {}  # the step of the value that they moved on last, by metric
        self._updates_before = 0  # this training began
        self.mid_epoch = self._resumed = False
        self.doubts = Doubts()
        """Which monitored metrics the first interval must have."""
        self._announced = self._monitors_checked = self._epoch_trained = False
        self._mark = 0
        settings = session.settings
        self.agenda = Agenda(
            self._clock, self._line.sampler, settings.log_every, settings.eval_every, settings.max_duration
        )
        self.evaluate: Callable[[], None] | None = None
        """How the loop evaluates by itself, if it can; the own loop asks ``eval_due`` instead."""
        self.at_edge = False
        """The batch under way is known to be the last of its epoch."""
        self.epoch_open = False
        self.training = False
        self.edge_pending = False
        """A checkpoint was loaded that was saved at the edge of an epoch, before its evaluation: this comes first."""
        self.step_pending = False
        """The same at the edge of a step inside an epoch."""
        self.cut_pending = False
        """A checkpoint was loaded that was saved inside an epoch: if the run is over, the epoch is still to end."""

    # -- the whole -----------------------------------------------------------------------------

    def start_training(self) -> None:
        self.training = True
        self._state.stage = "train"
        self._drop_moment()
        if not self._resumed:
            self._updates_before = self._weights.updates()
        self._announced = self._announced and self._resumed and self._requests.agreed.stop is not None
        self.cut_pending = self._resumed and self.mid_epoch and not self.edge_pending
        self._resumed = False
        self.train_mode()
        for optimizer in self._state.optimizers.values():
            clear_gradients(optimizer)
        self.agenda.plan(self._state.max_duration)
        self._scopes.enter(self._line.hooks.around_train)
        self._line.emit(self._line.hooks.train_start)
        self.agree()  # on the time, too, before it decides anything
        self._look()

    def train_mode(self) -> None:
        """A model that is in train mode keeps its frozen parts as they are."""
        task = self._session.task
        if not (task.model if isinstance(task, SupervisedTask) else self._state.model).training:
            self._session.module.train()

    def end_training(self, mark: int) -> None:
        self.evaluate_if_due()  # a stop that came after the edge of an epoch
        self._drop_moment()
        self._line.hooks = self._line.fast
        self._requests.is_trained = True
        self._line.emit(self._line.hooks.train_end)
        self._book.end_interval(of_epoch=False)  # the next fit may go on inside this epoch
        self._scopes.leave(mark)

    def end_broken_training(self) -> None:
        """The body of the own loop was left by ``break`` or ``return``: its scopes are closed already."""
        self._session.state.ask_stop(BREAK, "the body of the loop", left_body=True)
        self.agree()  # all ranks have left it, and one of them may have asked for another stop before
        self.decided()
        if self.epoch_open:
            if not self._epoch_trained:
                self.end_epoch_training(completed=False)
            self.end_epoch()
        self.end_training(len(self._scopes))

    def counting(self, count: Callable[[Any], tuple[int, int | None]]) -> Callable[[Any], tuple[int, int | None]]:
        """How batches are counted; where a duration is in tokens, a batch without their number is an error."""
        settings, saves = self._session.settings, [save.every for save in self.agenda.saves]
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

    def losses(self, optimizer: str | None = None) -> Series | None:
        """Where the loss of each batch is kept: for each of several optimizers apart, nowhere without ``log_every``."""
        if self._session.settings.log_every is None:
            return None
        series = self._book.series("train/loss" if optimizer is None else f"train/{optimizer}/loss")
        series.is_direct = True
        return series

    # -- saving --------------------------------------------------------------------------------

    @property
    def edge_is_open(self) -> bool:
        """Before the edge of a step is settled: whether an evaluation or the end of the epoch is still to come."""
        return self.at_edge or (self.evaluate is not None and self.eval_due)

    def state_dict(self) -> dict[str, Any]:
        stop = self._requests.agreed.stop
        return {
            "agenda": self.agenda.state_dict(),
            "mid_epoch": self.mid_epoch,
            "edge_pending": self.epoch_open and self.at_edge,
            "evaluated": self._evaluated == self._weights.version(),
            "plateaus": dict(self._plateaus),
            "updates_before": self._updates_before,
            "monitors_checked": self._monitors_checked,
            "evaluate": self._requests.agreed.evaluate,
            "announced": self._announced and stop is not None and not stop.goes_on,
            "stop": None if stop is None or stop.goes_on else (redact_text(stop.reason), stop.by, stop.step),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The clock and the weights are loaded already."""
        self._resumed = True
        self.agenda.load_state_dict(state["agenda"])
        self.mid_epoch, self.edge_pending = state["mid_epoch"], state["edge_pending"]
        self._evaluated = self._weights.version() if state["evaluated"] else -1
        self._plateaus = dict(state.get("plateaus", {}))  # older checkpoints lack it
        self._updates_before = state["updates_before"]
        self._monitors_checked = state["monitors_checked"]
        if state["evaluate"] and self._requests.can_evaluate:
            self._requests.agree(evaluate=True)
        self._announced = state["announced"]
        if state["stop"] is not None:
            self._requests.ask_stop(StopRequest(*state["stop"]))

    def went_back(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Steps were taken back, and with them the schedulers, to that epoch; the data is in this one."""
        self._plateaus = dict(state.get("plateaus", {}))
        for done in range(epoch + 1, self._clock.epoch + 1):
            self.step_schedulers([s for s in self._state.schedulers if s.unit == "ep" and s.due(done)])
        self.agenda.went_back(state["agenda"])
        self._evaluated = -1
        self._requests.drop_eval()

    # -- an epoch ------------------------------------------------------------------------------

    def start_epoch(self, feed: Feed, taken: Callable[[int], int], *, repeat: bool = False) -> Iterator[Any]:
        """The epoch's iterator; where the last ``fit`` was stopped inside it, at the batch that comes next."""
        line, clock = self._line, self._clock
        self._drop_moment()
        self.at_edge = self.cut_pending = False
        self.epoch_open, self._mark = True, len(self._scopes)
        self._epoch_trained = False
        begins = not self.mid_epoch
        if begins:
            clock.mark_epoch()
            self.mid_epoch = True
        self._scopes.enter(line.hooks.around_epoch)
        if begins:
            line.emit(line.hooks.train_epoch_start)
        return begun(lambda: feed.iterate(0 if repeat else clock.epoch, taken(clock.batch_in_epoch)))

    def finish_pending_edge(self) -> None:
        """A signal came at an edge, before its evaluation or inside it: the run begins with what was left."""
        self.edge_pending, self.epoch_open, self.at_edge, self._mark = False, True, True, len(self._scopes)
        self._scopes.enter(self._line.hooks.around_epoch)
        self.settle_edge()
        self._line.emit(self._line.hooks.step_settled)

    def end_epoch_training(self, *, completed: bool) -> None:
        """The updates of the epoch are done; ``clock.epoch`` counts it if it was completed."""
        if completed:
            self._clock.end_epoch()
            self.mid_epoch = False
            self.step_schedulers([s for s in self._state.schedulers if s.unit == "ep" and s.due(self._clock.epoch)])
        self._epoch_trained = True
        self.agenda.interval_due()  # the edge ends it, due or not
        self._end_interval(widened=self.agenda.interval_is_short)
        self._session.world.compare_parameters()  # before they are evaluated and saved
        if completed:
            self._book.end_epoch()
        self._line.emit(self._line.hooks.train_epoch_end)

    def end_epoch(self) -> None:
        """The evaluation at the edge is done, too."""
        self.epoch_open = self.at_edge = False
        self._line.emit(self._line.hooks.epoch_end)
        self._state.messages.end_epoch()
        self._scopes.leave(self._mark)
        self._book.end_interval(of_epoch=False)  # what was logged since the edge belongs to this step
        self.agree()

    def cut_epoch(self, *, exhausted: bool, position: int, length: float) -> None:
        """An epoch that ends at no known edge: in the middle, by a stop; or with data of unknown length."""
        if self.over:
            self.decided()  # a stop is announced before the epoch ends, also when Ctrl-C left a wait for data
        completed = exhausted and not self.over
        if completed and position == 0:
            raise DataError(
                f"the training loader gave no batch in epoch {self._clock.epoch}; a generator is used up after one "
                f"epoch: pass something that can be iterated over again"
            )
        if completed and position < length < math.inf:
            raise DataError(
                f"the training loader ended after {position} of {length} batches; "
                f"a StopIteration that is raised inside a data set ends the epoch like this"
            )
        self.end_epoch_training(completed=completed)
        self._look()
        self.evaluate_if_due()
        self.end_epoch()
        self.decided()

    # -- the edge of a step --------------------------------------------------------------------

    def wake_up(self) -> None:
        """After a step at which something may be due: an interval, an evaluation, the edge, the end."""
        if self.take_sample():
            return
        if self.at_edge:
            self.end_epoch_training(completed=True)
        elif self.agenda.interval_due():
            self._end_interval()
        else:
            self._book.fold()
        self._look()
        if self.at_edge:
            self._requests.attention = True

    def take_sample(self) -> bool:
        """Whether nothing is due after a step but to begin or to end the timing of hooks; that is done then."""
        if self.at_edge or not self.agenda.take_sample():
            return False
        self._line.hooks = self._line.timed if self.agenda.sampling else self._line.fast
        return True

    def look_again(self) -> None:
        """Steps were taken back at the edge itself: is training over now?"""
        self._look()
        self._requests.attention = True

    def _look(self) -> None:
        requests = self._requests
        self.agenda.look()
        self._line.hooks = self._line.timed if self.agenda.sampling else self._line.fast
        if self.agenda.eval_due() and requests.can_evaluate:
            requests.require_eval()
        due = any(schedule.due(self._clock) for schedule in self.agenda.saves)
        due |= requests.agreed.evaluate or self.agenda.finished
        if due and self.training:
            self.agree()  # before ranks do together what one of them, whose body was left, would not come to
        requests.attention = requests.attention or due

    def _end_interval(self, *, widened: bool = False) -> None:
        self.agenda.interval_ended()
        if self._book.end_interval(widened=widened):
            if not self._monitors_checked:
                self._monitors_checked = True
                names = list(self._book.names())
                check_train_monitors(self._line, {*names, *map(self._book.inner_name, names)}, self.doubts)
            self._line.emit(self._line.hooks.metrics_ready)
            if self.agree():
                self._book.end_interval(of_epoch=False)  # what monitors have just logged is of this step, too

    def agree(self) -> bool:
        """An edge: what has been asked for on some rank is known on all of them, and counts here.

        Whether there may be something that was logged since the last row, on any rank.
        """
        return self._session.world.vote(logged=self._book.has_pending)

    @property
    def eval_due(self) -> bool:
        """An evaluation is due: by ``eval_every``, by request, or one at the end. Never two of the same weights."""
        stop = self._requests.agreed.stop
        trained = self._weights.updates() > self._updates_before
        interrupted = stop is not None and stop.interrupt
        final = self.over and trained and self.agenda.has_evaluations and not interrupted
        if stop is not None and stop.left_body:
            return False  # the body was left, on this rank or on another: nobody is there to evaluate
        return (self._requests.agreed.evaluate or final) and self._evaluated != self._weights.version()

    @property
    def has_evaluated(self) -> bool:
        """Whether there was an evaluation, in this session or in the one that it goes on with."""
        return self._evaluated != -1  # no hash is that

    def evaluated(self, *, left: bool = False) -> None:
        """An evaluation of the current weights was made; or was left, which is not tried again."""
        self._evaluated = self._weights.version()
        self._requests.drop_eval()
        if not left:
            self.step_schedulers([s for s in self._state.schedulers if s.unit == "eval"])
        self.agree()

    def evaluate_if_due(self) -> None:
        if self.evaluate is None:
            return
        if self.eval_due:
            self.evaluate()
        if self._requests.agreed.evaluate and self._evaluated == self._weights.version():
            self._requests.drop_eval()  # asked for again, of the same weights

    def settle_edge(self) -> None:
        """Before a step is settled: the evaluation that is due, then the end of the epoch."""
        self.evaluate_if_due()
        if self.at_edge:
            self.end_epoch()

    def decided(self) -> bool:
        """Whether training is over; a stop is announced once."""
        requests, stop = self._requests, self._requests.agreed.stop
        # Asked for too late for this step: it counts in the next one. The own loop asks `eval_due` itself.
        evaluate = requests.agreed.evaluate and self.evaluate is not None
        requests.attention = requests.agreed.preempt is not None or requests.rollback is not None or evaluate
        if self.agenda.max_duration != self._state.max_duration:  # a hook has changed it
            self.agenda.plan(self._state.max_duration)
            self.agenda.look()
        if stop is not None and not self._announced:
            self._announced = True
            self._session.records.note("interrupt" if stop.interrupt else "stop", f"{stop.reason} (by {stop.by})")
            if stop.interrupt:
                self._line.emit(self._line.hooks.interrupt)
            self._line.emit(self._line.hooks.stop)
        return self.over

    @property
    def over(self) -> bool:
        """Whether training has come to its end, by a stop or by ``max_duration``."""
        return self._requests.agreed.stop is not None or self.agenda.finished

    def step_schedulers(self, schedulers: list[Scheduler]) -> None:
        """Move the schedulers that are due: by count, or on the metric of a plateau."""
        names = dict.fromkeys(scheduler.monitor for scheduler in schedulers if scheduler.unit == "eval")
        values = {name: self._plateau_metric(name) for name in names}  # several may have one metric
        for scheduler in schedulers:
            if scheduler.unit != "eval":
                scheduler.scheduler.step()
            elif (value := values[scheduler.monitor]) is not None:
                scheduler.scheduler.step(value)
        if schedulers and self._line.hooks.scheduler_step:
            self._line.emit(self._line.hooks.scheduler_step)

    def _plateau_metric(self, name: str) -> Any:
        """The metric of a plateau; ``None`` if it was not measured since the last evaluation that had it."""
        found = self._book.value(name) if self._is_measured(name) else None
        # Inside an interval each rank has its own value, and the learning rate must be the same on all ranks.
        said = self._session.world.group.exchange(found)
        if any(value is None for value in said):
            return None
        self._plateaus[name] = self._book.measured_at(name)
        return sum(said) / len(said)

    def _is_measured(self, name: str) -> bool:
        """Whether there is a new value. A callback may log a metric that it declares at some evaluations only."""
        if name in self._book.names():
            return self._book.measured_at(name) != self._plateaus.get(name)
        if not any(overlaps(name, written) for written in self._line.written()):
            raise missing_metric("ReduceLROnPlateau", name, self._book.names())
        return False

    def _drop_moment(self) -> None:
        state = self._state
        state.batch = state.outputs = state.loss = state.optimizer = MISSING
