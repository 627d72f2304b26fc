"""``Edge``: the end of a step. It goes through its stages in one order, and decides whether training continues.

The stages: look (roll back, end the interval or the steps of the epoch, find out what is due); evaluate; end the epoch;
settle; decide; save. A custom loop evaluates in its body: ``loop.eval_due`` goes through the edge up to the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Any

from hookline.events import Scopes
from hookline.loop.engine.agenda import Agenda
from hookline.loop.engine.control import Control
from hookline.loop.engine.window import AccumulationWindow
from hookline.loop.evaluation.handles import Handles
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.scheduler_steps import SchedulerSteps
from hookline.loop.model.weights import Weights
from hookline.loop.record.monitors import Doubts, check_train_monitors
from hookline.loop.record.records import Records
from hookline.loop.saving.saver import Saver
from hookline.loop.world.world import World
from hookline.records.redact import redact_text
from hookline.run import BREAK, RunState, StopRequest


class Stage(IntEnum):
    """The next stage of the edge under way."""

    DONE = 0
    LOOK = 1
    EVALUATE = 2


class EpochPhase(Enum):
    """Where in an epoch the run is."""

    CLOSED = "between two epochs"
    OPEN = "its steps are made"
    TRAINED = "its steps are done, its evaluation and its end are to come"


class Resumed(Enum):
    """Where the checkpoint was saved that the run continues from."""

    NOWHERE = "the run was not resumed"
    BETWEEN_EPOCHS = "between two epochs"
    INSIDE_EPOCH = "inside an epoch"
    BEFORE_EVALUATION = "inside an epoch, before an evaluation that was due"
    AT_EPOCH_END = "after the last step of an epoch, before its evaluation and its end"


class Edge:
    """The end of a step, and of an epoch.

    Args:
        state: The state of the run.
        world: The processes of the run.
        scopes: The open scopes.
        book: The metrics of the run.
        records: The record of the run.
        agenda: When something is due.
        weights: The weights of the model, whose version an evaluation is of.
        schedulers: Steps the schedulers.
        window: The micro-batches of the step.
        handles: The generators that the body of a custom loop holds.
    """

    def __init__(
        self,
        state: RunState,
        world: World,
        scopes: Scopes,
        book: MetricBook,
        records: Records,
        agenda: Agenda,
        weights: Weights,
        schedulers: SchedulerSteps,
        window: AccumulationWindow,
        handles: Handles,
    ) -> None:
        self._state, self._world, self._scopes, self._book, self._records = state, world, scopes, book, records
        self._agenda, self._weights, self._schedulers = agenda, weights, schedulers
        self._window, self._handles = window, handles
        self._line, self._clock, self._requests = state.line, state.clock, state.requests
        self._mark = 0  # The number of open scopes below those of the epoch.
        self._evaluated = -1  # The version of the weights at the last evaluation.
        self._updates_before = 0  # The updates of the weights before this training.
        self._is_announced = False  # Callbacks have heard of the stop.
        self._is_monitor_checked = False
        self._is_last_step = False  # The step under way is the last of its epoch.
        self.stage = Stage.DONE
        self.epoch_phase = EpochPhase.CLOSED
        self.resumed = Resumed.NOWHERE
        self.is_epoch_begun = False
        """The clock is inside an epoch: its start was announced, and it is not counted."""
        self.doubts = Doubts()
        """The monitored metrics that the first interval must have."""
        self.evaluate: Callable[[], None] | None = None
        """Evaluates, in a run with a task and validation loaders. The body of a custom loop evaluates itself."""

    def evaluate_with(self, evaluate: Callable[[], None] | None) -> None:
        """Set how the run evaluates by itself, if it does."""
        self.evaluate = evaluate

    def doubt(self, doubts: Doubts) -> None:
        """Set the monitored metrics that the first interval must have."""
        self.doubts = doubts

    def connect(self, saver: Saver, control: Control, roll_back: Callable[[], bool]) -> None:
        """Set the parts that are made after this one.

        Args:
            saver: Saves checkpoints.
            control: Does what other processes ask for.
            roll_back: Rolls back if a callback has asked for it. Returns whether it has.
        """
        self._saver, self._control, self._roll_back = saver, control, roll_back

    # -- reaching it -----------------------------------------------------------------------------

    @property
    def is_reached(self) -> bool:
        """True after a step at which something may be due, until it is looked at."""
        return self.stage is Stage.LOOK

    @property
    def is_due(self) -> bool:
        """True after a step if there is anything to do before the next one."""
        requests = self._requests
        is_asked = requests.attention or requests.rollback is not None
        return bool(self.stage or is_asked or self._line.hooks.step_settled)

    def reach(self) -> None:
        """A step is done at which something may be due."""
        self.stage = Stage.LOOK

    def open(self) -> None:
        """The run is opened: an earlier call may have failed inside an epoch."""
        self.stage, self.epoch_phase, self._is_last_step = Stage.DONE, EpochPhase.CLOSED, False

    def unreach(self) -> None:
        """Nothing more is due at this step."""
        self.stage = Stage.DONE

    def cancel_epoch_end(self) -> None:
        """The step under way is dropped, so the epoch does not end with it."""
        self._is_last_step = False

    def reach_epoch_end(self) -> None:
        """The step under way is the last of its epoch."""
        self._is_last_step = True
        self._agenda.wake_now()

    # -- going through it ------------------------------------------------------------------------

    def advance_to_evaluation(self) -> None:
        """Look what is due, up to the evaluation. Nothing happens if this has been done at this edge."""
        if self.stage is Stage.LOOK or self._requests.rollback is not None:
            self.stage = Stage.EVALUATE
            self._roll_back()  # First: nothing is due at steps that are undone.
            self._look_at_step()

    def advance(self) -> bool:
        """Go through the rest of the edge. Return whether this epoch makes no more steps: it or training is over."""
        requests = self._requests
        self.advance_to_evaluation()
        self.stage = Stage.DONE
        if not requests.attention and not self._line.hooks.step_settled:
            return False
        if requests.attention:
            self._handles.send_end_hooks()
            self._leave_before_evaluation()
            self._evaluate_if_due()
            if self._is_last_step:
                self.end_epoch()
        if not self._window.last_was_skipped:
            self._line.emit(self._line.hooks.step_settled)
        if self._roll_back():  # Asked for in the evaluation, at the end of the epoch, or just now.
            self._look()
            requests.call_attention()
        if not requests.attention:
            return False
        if self._control.is_due:
            self._control.take()
        self.announce_and_replan()
        is_over = self.is_over
        self._save()
        return is_over or self.epoch_phase is EpochPhase.CLOSED

    def _save(self) -> None:
        """Save what is due at this step. After a signal, save and end the process."""
        self._saver.save_due()
        if self._control.is_saving and not self._saver.is_deferred:
            self._saver.finish_writing()
            self._control.saves_ended(is_saved=self._saver.is_saved)
        self.leave_if_preempted()
        if self._requests.is_interrupted:
            self._saver.save_after_interrupt()

    def _look_at_step(self) -> None:
        """End the interval or the epoch's training, if they are over, and see what else is due."""
        if not self._is_last_step and self._agenda.take_sample():
            self._time_hooks()
            return
        if self._is_last_step:
            if self.epoch_phase is EpochPhase.OPEN:  # Not again after a rollback at the end of the epoch.
                self._end_epoch_training(is_completed=True)
        elif self._agenda.take_interval():
            self._end_interval()
        else:
            self._book.fold()
            self._records.steps.fold()
        self._look()
        if self._is_last_step:
            self._requests.call_attention()

    def _look(self) -> None:
        requests = self._requests
        self._agenda.look()
        self._time_hooks()
        if self._agenda.take_evaluation() and requests.can_evaluate:
            requests.require_eval()
        is_due = any(schedule.due(self._clock) for schedule in self._agenda.saves)
        is_due |= requests.agreed.evaluate or self._agenda.is_duration_reached or self._control.is_due
        if is_due and self._state.is_training:
            self.vote()  # Before ranks do together what a rank whose body was left would not come to.
        if is_due:
            requests.call_attention()

    def _time_hooks(self) -> None:
        self._line.time_hooks(self._agenda.sampling)

    def _leave_before_evaluation(self) -> None:
        """After a signal: save before the evaluation or the end of the epoch. A resume makes them up."""
        if not self._is_last_step and (self.evaluate is None or not self.is_eval_due):
            return
        if self._requests.agreed.preempt is not None:
            raise self._saver.save_and_leave(pending_eval=True)
        if self._requests.is_interrupted:
            self._saver.save_after_interrupt(pending_eval=True)  # The evaluation that follows is left at once.

    def leave_if_preempted(self, *, pending_eval: bool = False) -> None:
        """After a signal: save, and end the process."""
        if self._requests.agreed.preempt is not None:
            raise self._saver.save_and_leave(pending_eval=pending_eval)

    def leave_wait(self) -> None:
        """After a signal during a wait for data: save."""
        self.leave_if_preempted()
        if self._requests.is_interrupted:
            self._saver.save_after_interrupt()

    # -- deciding --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True if training has ended, by a stop or by ``max_duration``."""
        return self._requests.agreed.stop is not None or self._agenda.is_duration_reached

    def vote(self) -> bool:
        """Agree on requests. Return whether any rank has logged a value since the last row. All ranks must call it."""
        return self._world.vote(logged=self._book.has_pending)

    def announce_and_replan(self) -> None:
        """Announce an agreed stop once, use a new ``max_duration``, and keep requests that are left for the next step.

        ``is_over`` then says whether training has ended.
        """
        requests = self._requests
        # An evaluation that is asked for now counts in the next step. A custom loop asks `eval_due` itself.
        evaluates = requests.agreed.evaluate and self.evaluate is not None
        requests.keep_attention(evaluates=evaluates)
        self._agenda.replan(self._state.max_duration)
        self._announce_stop()

    def _announce_stop(self) -> None:
        """Send ``stop``, and ``interrupt`` before it after Ctrl-C, once."""
        stop, line = self._requests.agreed.stop, self._line
        if stop is not None and not self._is_announced:
            self._is_announced = True
            self._records.note("interrupt" if stop.interrupt else "stop", f"{stop.reason} (by {stop.by})")
            if stop.interrupt:
                line.emit(line.hooks.interrupt)
            line.emit(line.hooks.stop)

    # -- evaluations -----------------------------------------------------------------------------

    @property
    def is_eval_due(self) -> bool:
        """True if an evaluation is due: by ``eval_every``, by request, or at the end. Never two of the same weights."""
        stop = self._requests.agreed.stop
        if stop is not None and stop.left_body:
            return False  # The body was left, on this rank or on another: no body evaluates.
        is_trained = self._weights.updates() > self._updates_before
        is_interrupted = stop is not None and stop.interrupt
        is_final = self.is_over and is_trained and self._agenda.has_evaluations and not is_interrupted
        return (self._requests.agreed.evaluate or is_final) and self._evaluated != self._weights.version()

    @property
    def has_evaluated(self) -> bool:
        """True if there was an evaluation, also before a resume."""
        return self._evaluated != -1  # A version is never -1, because it is a hash.

    def note_evaluation(self, *, is_left: bool = False) -> None:
        """An evaluation of the current weights has ended, or was left, which is not tried again."""
        self._evaluated = self._weights.version()
        self._requests.drop_eval()
        if not is_left:
            self._schedulers.after_evaluation()
        self.vote()

    def _evaluate_if_due(self) -> None:
        if self.evaluate is None:
            return
        if self.is_eval_due:
            self.evaluate()
        if self._requests.agreed.evaluate and self._evaluated == self._weights.version():
            self._requests.drop_eval()  # It was asked for again, of the same weights.

    # -- intervals and epochs --------------------------------------------------------------------

    def _end_interval(self, *, is_widened: bool = False) -> None:
        self._agenda.interval_ended()
        self._records.steps.flush()
        if self._book.end_interval(widened=is_widened):
            if not self._is_monitor_checked:
                self._is_monitor_checked = True
                names = list(self._book.names())
                check_train_monitors(self._line, {*names, *map(self._book.inner_name, names)}, self.doubts)
            self._line.emit(self._line.hooks.metrics_ready)
            if self.vote():
                self._book.end_interval(of_epoch=False)  # Values that monitors have just logged belong to this step.

    def start_epoch(self) -> None:
        """Open the scopes of an epoch, and announce one that begins here."""
        self._state.clear_batch()
        self._is_last_step, self._mark, self.epoch_phase = False, len(self._scopes), EpochPhase.OPEN
        begins = not self.is_epoch_begun
        if begins:
            self._clock.mark_epoch()
            self.is_epoch_begun = True
        self._scopes.enter(self._line.hooks.around_epoch)
        if begins:
            self._line.emit(self._line.hooks.train_epoch_start)
            self.vote()  # Before the first batch: a hook may have changed `run.accumulate` on one rank only.

    @property
    def is_resumed_inside(self) -> bool:
        """True after a resume inside an epoch, until its data is open."""
        return self.is_epoch_begun and self.resumed in (Resumed.INSIDE_EPOCH, Resumed.BEFORE_EVALUATION)

    def continue_epoch(self) -> None:
        """The data of the epoch is open: the resume is done."""
        self.resumed = Resumed.NOWHERE

    def finish_epoch_of_checkpoint(self) -> None:
        """A signal came after the last step of an epoch: go through the rest of its edge, from the evaluation on."""
        self._is_last_step, self._mark, self.epoch_phase = True, len(self._scopes), EpochPhase.TRAINED
        self.resumed = Resumed.NOWHERE
        self._scopes.enter(self._line.hooks.around_epoch)
        self._requests.call_attention()
        self.advance()

    def _end_epoch_training(self, *, is_completed: bool) -> None:
        """The steps of the epoch are done. The clock counts it if it was completed."""
        if is_completed:
            self._clock.end_epoch()
            self.is_epoch_begun = False
            self._schedulers.after_epoch(self._clock.epoch)
        self.epoch_phase = EpochPhase.TRAINED
        self._agenda.take_interval()  # The end of the epoch ends the interval, due or not.
        self._end_interval(is_widened=self._agenda.interval_is_short)
        self._world.compare_parameters()  # Before they are evaluated and saved.
        if is_completed:
            self._book.end_epoch()
        self._line.emit(self._line.hooks.train_epoch_end)

    def end_epoch(self) -> None:
        """The evaluation at the end of the epoch is also done."""
        self.epoch_phase, self._is_last_step = EpochPhase.CLOSED, False
        self._line.emit(self._line.hooks.epoch_end)
        self._state.messages.end_epoch()
        self._scopes.leave(self._mark)
        self._book.end_interval(of_epoch=False)  # Values logged since the edge belong to this step.
        self.vote()

    def cut_epoch(self, *, is_completed: bool) -> None:
        """End an epoch whose end was not known: it is cut by a stop, or its data has no length."""
        if self.is_over:
            self.announce_and_replan()  # Before the epoch ends, also when Ctrl-C left a wait for data.
        self._end_epoch_training(is_completed=is_completed)
        self._is_last_step = is_completed
        self._look()
        if is_completed:
            self._leave_before_evaluation()
        self._evaluate_if_due()
        self.end_epoch()
        self.announce_and_replan()
        self._saver.save_due()

    # -- the whole -------------------------------------------------------------------------------

    def start_training(self) -> None:
        """Training begins, or continues after a resume."""
        resumed = self.resumed
        if resumed is Resumed.NOWHERE:
            self._updates_before = self._weights.updates()
            self._is_announced = False
        self._agenda.plan(self._state.max_duration)
        self._scopes.enter(self._line.hooks.around_train)
        self._line.emit(self._line.hooks.train_start)
        self.vote()  # Also on the time, before the time decides anything.
        if self._requests.agreed.stop is None:
            self._is_announced = False  # The stop of the checkpoint was dropped.
        self._look()
        if resumed is Resumed.BETWEEN_EPOCHS:
            self.resumed = Resumed.NOWHERE

    def end_training(self, mark: int) -> None:
        """Training ends.

        Args:
            mark: The number of open scopes below those of training.
        """
        self._evaluate_if_due()  # After a stop that came after the end of an epoch.
        self._state.clear_batch()
        self._line.time_hooks(False)
        self._requests.end_training()
        self._line.emit(self._line.hooks.train_end)
        self._book.end_interval(of_epoch=False)  # The next fit may continue inside this epoch.
        self._scopes.leave(mark)

    def end_broken_training(self) -> None:
        """The body of a custom loop was left by ``break`` or ``return``: its scopes are closed already."""
        self._state.ask_stop(BREAK, "the body of the loop", left_body=True)
        self.vote()  # All ranks have left it, and one of them may have asked for another stop before.
        self.announce_and_replan()
        if self.epoch_phase is EpochPhase.OPEN:
            self._end_epoch_training(is_completed=False)
        if self.epoch_phase is EpochPhase.TRAINED:
            self.end_epoch()
        self.end_training(len(self._scopes))

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs of it, as plain values."""
        stop = self._requests.agreed.stop
        ends = stop is not None and not stop.goes_on
        return {
            "agenda": self._agenda.state_dict(),
            "mid_epoch": self.is_epoch_begun,
            "edge_pending": self.epoch_phase is EpochPhase.TRAINED and self._is_last_step,
            "evaluated": self._evaluated == self._weights.version(),
            "plateaus": self._schedulers.state_dict(),
            "updates_before": self._updates_before,
            "monitors_checked": self._is_monitor_checked,
            "evaluate": self._requests.agreed.evaluate,
            "announced": self._is_announced and ends,
            "stop": None if stop is None or stop.goes_on else (redact_text(stop.reason), stop.by, stop.step),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, whose clock and weights are loaded already."""
        self._agenda.load_state_dict(state["agenda"])
        self.is_epoch_begun = state["mid_epoch"]
        self.resumed = Resumed.INSIDE_EPOCH if self.is_epoch_begun else Resumed.BETWEEN_EPOCHS
        if state["edge_pending"]:
            self.resumed = Resumed.AT_EPOCH_END
        self._evaluated = self._weights.version() if state["evaluated"] else -1
        self._schedulers.load_state_dict(state.get("plateaus", {}))  # Older checkpoints lack it.
        self._updates_before = state["updates_before"]
        self._is_monitor_checked = state["monitors_checked"]
        if state["evaluate"] and self._requests.can_evaluate:
            self._requests.agree(evaluate=True)
        self._is_announced = state["announced"]
        if state["stop"] is not None:
            self._requests.ask_stop(StopRequest(*state["stop"]))

    def resume_before_evaluation(self) -> None:
        """The checkpoint was saved before an evaluation that was due inside an epoch."""
        if self.resumed is not Resumed.AT_EPOCH_END:
            self.resumed = Resumed.BEFORE_EVALUATION

    def went_back(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Steps were undone, and with them the schedulers, back to an epoch. The data is in the current epoch.

        Args:
            epoch: The epoch of the snapshot.
            state: The state of the snapshot.
        """
        self._schedulers.load_state_dict(state.get("plateaus", {}))
        for done in range(epoch + 1, self._clock.epoch + 1):
            self._schedulers.after_epoch(done)
        self._agenda.went_back(state["agenda"])
        self._evaluated = -1
        self._requests.drop_eval()
