"""Requests of hooks and signals to the loop, and the requests that all ranks have agreed on.

Hooks and signal handlers write ``asked``. The world moves requests from ``asked`` to ``agreed``, and the end of a step
takes them from ``agreed``. In a single process, both names are the same object. Requests that are the same on all ranks
go to ``agreed`` directly: those of the agenda and of a checkpoint, and those of a callback with ``together=True``.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hookline.errors import ScopeError, SetupError

logger = logging.getLogger("hookline")

BREAK = "break"
"""Stop reason of a custom loop that was left by ``break`` or ``return``."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop the run: the reason, who asked, and at which step."""

    reason: str
    by: str
    step: int
    interrupt: bool = False
    left_body: bool = False
    """True if the body of a custom loop was left by ``break`` or ``return``."""
    by_user: bool = False
    """True after Ctrl-C on any rank. ``by`` is for display, and names that rank on other ranks."""
    asker: str = ""
    """The key of the callback that asked. It is the same on all ranks."""

    @property
    def goes_on(self) -> bool:
        """True if a resume continues the run, as after Ctrl-C or a ``break``."""
        return self.interrupt or self.left_body


@dataclass(slots=True)
class Wanted:
    """Requests that the end of a step has not handled yet."""

    stop: StopRequest | None = None
    preempt: int | None = None
    """The signal that asks the run to end this process."""
    evaluate: bool = False
    save: bool = False
    plan: bool = False
    """True if a callback asks for a save by its own plan."""
    control: bool = False
    """True if there are requests of another process in the run's folder."""
    skip: str | None = None
    """The callback that asks to skip the update of this step."""


class Requests:
    """Requests to stop, evaluate, save or skip, which the end of a step handles."""

    __slots__ = (
        "agreed",
        "asked",
        "attention",
        "can_evaluate",
        "can_save",
        "can_skip",
        "changes",
        "is_leaving",
        "is_trained",
        "leave_evaluation",
        "may_save",
        "observer",
        "rollback",
        "skip_phase",
        "unheard_stop",
        "waiting",
        "whole",
    )

    def __init__(self) -> None:
        self.can_evaluate = True
        self.can_save = False
        self.observer: Callable[[str, StopRequest | None], None] | None = None
        """Called with "stop", "eval", "save" or "skip" at each such request of a callback."""
        self.asked = self.agreed = Wanted()
        self.clear()

    def clear(self) -> None:
        """Drop all requests when a run is opened. ``Signals.listen`` drops the signal of an earlier run."""
        self.asked = self.agreed = Wanted(preempt=self.agreed.preempt)
        self.attention = self.can_skip = False
        self.leave_evaluation = False
        self.is_leaving = False
        """True while the run leaves because of a signal, and saves its last checkpoint."""
        self.is_trained = False
        """True after the end of training, when there is nothing left to stop."""
        self.changes: dict[str, str] = {}
        """With several ranks: what hooks have changed since the last vote. It must be the same on all ranks."""
        self.may_save = True
        """False after a second signal, which may have interrupted a change of the state."""
        self.waiting = False
        """True while the run waits for data. Only then does a signal leave at once."""
        self.whole = False
        """True while the run waits for data of an evaluation that only Ctrl-C may end early."""
        self.rollback: tuple[Any, Any] | None = None
        """The snapshot to return to, and the callback that asked for it."""
        self.unheard_stop: StopRequest | None = None
        """A request to stop that came on this rank after the last vote."""
        self.skip_phase: Literal["alone", "before vote", "no vote", "after vote"] = "alone"
        """The current position in a step, relative to the vote of the ranks on skipping the step."""

    # -- the world ---------------------------------------------------------------------------------

    @property
    def voted(self) -> bool:
        """True if there are other processes: a request counts after a vote of all ranks."""
        return self.asked is not self.agreed

    @property
    def is_interrupted(self) -> bool:
        """True after Ctrl-C, or if a callback such as ``TimeLimit`` ends training like Ctrl-C."""
        return self.agreed.stop is not None and self.agreed.stop.interrupt

    def join(self) -> None:
        """Join other processes. Earlier requests wait for the first vote."""
        self.agreed = Wanted()

    def leave(self) -> None:
        """Leave the other processes. A signal after the last vote is for this process alone."""
        self.agreed.preempt = self.agreed.preempt or self.asked.preempt
        self.unheard_stop = self.asked.stop
        self.asked, self.skip_phase = self.agreed, "alone"

    def agree(self, *, evaluate: bool = False, save: bool = False, plan: bool = False, control: bool = False) -> None:
        """Agree on requests of any rank, after a vote.

        Args:
            evaluate: True if a rank has asked for an evaluation.
            save: True if a rank has asked for a checkpoint.
            plan: True if a callback on a rank has asked for a save by its own plan.
            control: True if rank zero has found requests of another process.
        """
        asked, agreed = self.asked, self.agreed
        if evaluate:
            asked.evaluate, agreed.evaluate = False, True
        if save:
            asked.save, agreed.save = False, True
        if plan:
            asked.plan, agreed.plan = False, True
        if control:
            asked.control, agreed.control = False, True
        self.attention |= evaluate or save or plan or control

    def agree_on_stop(self, request: StopRequest) -> None:
        """Agree on a stop, after a vote. The first request sets the stop reason of the run."""
        if self._is_too_late(request):
            return
        self.agreed.stop = self.agreed.stop or request
        self.attention = True

    def agree_on_signal(self, number: int) -> None:
        """Agree on a signal that has come on any rank, after a vote."""
        self.agreed.preempt = self.agreed.preempt or number
        self.attention = True

    def agree_on_changes(self) -> None:
        """All ranks have made the same changes, after a vote. The end of the step checks what they change."""
        self.changes.clear()
        self.attention = True

    def grant_skip(self, by: str) -> None:
        """Agree on the request of a rank to skip the update of this step, after a vote."""
        self.agreed.skip = by

    def forget_asked(self, stop: StopRequest | None, *, skip: bool) -> None:
        """Drop the requests of this rank that were part of a vote.

        Args:
            stop: The request to stop that was part of the vote.
            skip: True if the request to skip the step was also part of it.
        """
        if self.asked.stop is stop:  # Otherwise Ctrl-C came during the vote, and no other rank knows of it.
            self.asked.stop = None
        if skip:
            self.asked.skip = None

    def set_leave_evaluation(self, leave: bool) -> None:
        """Set whether to leave the current evaluation at its next batch."""
        self.leave_evaluation = leave

    def allow_evaluation(self, can_evaluate: bool) -> None:
        """Allow ``run.request_eval()``, or refuse it in a run without validation data."""
        self.can_evaluate = can_evaluate

    def end_training(self) -> None:
        """Record the end of training. There is nothing left to stop."""
        self.is_trained = True

    def forbid_saving(self) -> None:
        """Save nothing more: a second signal may have interrupted a change of the state."""
        self.may_save = False

    def set_skip_phase(self, phase: Literal["before vote", "no vote", "after vote"]) -> None:
        """Set the position in a step, relative to the vote of the ranks on skipping the step."""
        self.skip_phase = phase

    def allow_skip(self, can_skip: bool) -> None:
        """Allow ``run.skip_step()``, or refuse it outside of a step."""
        self.can_skip = can_skip

    def keep_attention(self, *, evaluates: bool) -> None:
        """Keep ``attention`` for requests that are left after this step. The end of the next step checks them.

        Args:
            evaluates: True if a requested evaluation has not been made yet.
        """
        agreed = self.agreed  # A save that is asked for before the first step is made after it.
        is_asked = agreed.preempt is not None or self.rollback is not None or agreed.save or agreed.plan
        self.attention = is_asked or agreed.control or evaluates

    def leave_if_interrupted(self) -> bool:
        """Leave the current evaluation if the run is interrupted. Return whether it is left."""
        self.leave_evaluation |= self.is_interrupted
        return self.leave_evaluation

    def wait(self, *, leave: bool, whole: bool = False) -> None:
        """Set whether the run waits for data, and which signals may end the wait.

        Args:
            leave: True if a signal may end the wait. False after the wait.
            whole: True if only Ctrl-C may end it.
        """
        self.waiting, self.whole = leave, whole

    # -- hooks and signals -------------------------------------------------------------------------

    def ask_stop(self, request: StopRequest) -> None:
        """Ask to stop. After training, only Ctrl-C can stop the run."""
        self._observe("stop", request)
        if self._is_too_late(request):
            return
        self.asked.stop = self.asked.stop or request
        self.attention |= not self.voted

    def _is_too_late(self, request: StopRequest) -> bool:
        if self.is_trained and not request.interrupt:
            logger.warning("%s asked to stop (%s) when training was over", request.by, request.reason)
            return True
        return False

    def leave_because_of_signal(self) -> None:
        """Record that the run leaves because of a signal."""
        self.is_leaving = True

    def ask_preempt(self, number: int) -> None:
        """Ask to end this process because of a signal.

        Args:
            number: The number of the signal.
        """
        self.asked.preempt = number if self.asked.preempt is None else self.asked.preempt
        self.attention |= not self.voted

    def ask_eval(self) -> None:
        """Ask for an evaluation at the end of this step."""
        if not self.can_evaluate:
            raise SetupError("run.request_eval(): there is nothing to evaluate on; pass a validation loader to fit")
        self.asked.evaluate = True
        self.attention |= not self.voted
        self._observe("eval")

    def ask_save(self) -> None:
        """Ask for a checkpoint at the end of this step."""
        if not self.can_save:
            raise SetupError("run.request_save(): this run has no folder to save in; pass folder='runs/mine'")
        self.asked.save = True
        self.attention |= not self.voted
        self._observe("save")

    def ask_plan(self) -> None:
        """Ask for a save by a callback's own plan at the end of this step."""
        self.asked.plan = True
        self.attention |= not self.voted

    def ask_control(self) -> None:
        """Ask the end of this step to read the requests of other processes. Any thread may call this method."""
        self.asked.control = True
        if not self.voted:
            self.attention = True

    def note_change(self, what: str, value: str) -> None:
        """Note that a hook has changed how the run trains, which it must do on all ranks.

        The end of this step checks what the change means. With several ranks, it waits for the next vote, in which the
        ranks compare their changes.

        Args:
            what: The name of the change, for example ``"run.max_duration"``.
            value: The new value, for an error.
        """
        if self.voted:
            self.changes[what] = value
        else:
            self.attention = True

    def take_rollback(self) -> tuple[Any, Any] | None:
        """Take the request to roll back: the snapshot, and the callback that asked for it."""
        asked, self.rollback = self.rollback, None
        return asked

    def ask_rollback(self, snapshot: Any, member: Any) -> None:
        """Ask to return to a snapshot. Skip an update in preparation, which would be undone.

        Args:
            snapshot: The snapshot to return to.
            member: The callback that asks for it.
        """
        if self.can_skip:
            self.agreed.skip = member.name
        self.rollback = (snapshot, member)
        self.attention = True

    def ask_skip(self, by: str) -> None:
        """Ask to skip the update of this step.

        Args:
            by: The name of the callback.

        Raises:
            ScopeError: If no update is being prepared, or if it is too late for a vote of the ranks.
        """
        self._check_can_skip()
        if self.skip_phase == "after vote":
            raise ScopeError(
                "run.skip_step(): the ranks have voted on this step already, and the others would not skip it; call "
                "it before the backward, in on_backward_start at the latest"
            )
        if self.skip_phase == "no vote":
            raise ScopeError(
                "run.skip_step(): steps are so short that there is no vote of the ranks in this one, so that the "
                "others would not skip it; leave a batch out by returning its loss with 'weight': 0, or return the "
                "weight of each batch from the first on: then there is a vote in every step"
            )
        self.asked.skip = self.asked.skip or by
        self._observe("skip")

    def agree_on_skip(self, by: str) -> None:
        """Skip the update of this step. All ranks have decided this without a vote.

        Args:
            by: The name of the callback.

        Raises:
            ScopeError: If no update is being prepared.
        """
        self._check_can_skip()
        self.agreed.skip = by
        self._observe("skip")

    def _check_can_skip(self) -> None:
        if not self.can_skip:
            raise ScopeError(
                "run.skip_step(): no update is being prepared; call it from on_train_step_start to on_gradients_ready, "
                "or to on_train_batch_start where an optimizer with a closure (LBFGS) computes the batch itself"
            )

    def set_can_save(self, can_save: bool) -> None:
        """Allow ``run.request_save()``, or refuse it in a run without a folder."""
        self.can_save = can_save

    def call_attention(self) -> None:
        """Make the end of the next step check requests. Any thread may call this method."""
        self.attention = True

    def _observe(self, what: str, stop: StopRequest | None = None) -> None:
        if self.observer is not None:
            self.observer(what, stop)

    # -- the end of a step -------------------------------------------------------------------------

    def take_skip(self) -> str | None:
        """Take the request to skip the update. Return who asked, or ``None``."""
        found, self.agreed.skip = self.agreed.skip, None
        return found

    def take_save(self) -> bool:
        """Take the request for a checkpoint. Return whether there was one."""
        found, self.agreed.save = self.agreed.save, False
        return found

    def take_plan(self) -> bool:
        """Take the request for a save by a callback's own plan. Return whether there was one."""
        found, self.agreed.plan = self.agreed.plan, False
        return found

    def take_control(self) -> bool:
        """Take the request to read the requests of other processes. Return whether there was one."""
        found, self.agreed.control = self.agreed.control, False
        return found

    def require_eval(self) -> None:
        """Request an evaluation that is due on all ranks."""
        self.agreed.evaluate = True

    def drop_eval(self) -> None:
        """Drop the request for an evaluation, which is made or not needed any more."""
        self.agreed.evaluate = False

    def drop_stop_after(self, step: int, by: str) -> None:
        """Drop a stop that was asked for in a step that is undone, also if it still waits for a vote.

        Args:
            step: The last step that is not undone.
            by: The key of the callback that rolls back. Its own stop stays, as does an interrupt.
        """
        for wanted in (self.asked, self.agreed):
            stop = wanted.stop
            if stop is not None and stop.step > step and stop.asker != by and not stop.interrupt:
                wanted.stop = None

    def drop_stop(self) -> None:
        """Drop all requests to stop, because the stopped run trains longer."""
        self.agreed.stop = self.asked.stop = None

    def set_signal_as_reason(self, stop: StopRequest | None) -> None:
        """Set a signal as the stop reason, or restore the earlier stop."""
        self.agreed.stop = stop

    def forget_signal(self) -> None:
        """Drop the signals of an earlier run."""
        self.asked.preempt = self.agreed.preempt = None


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGTERM``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal has no name.
        return f"signal {number}"
