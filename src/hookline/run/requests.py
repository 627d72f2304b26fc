"""What hooks and signals ask the loop for, and what all ranks have agreed on.

Hooks and signal handlers write ``asked``. Only the world moves requests from ``asked`` to ``agreed``, and only the end
of a step takes them from ``agreed``. In one process both names are the same object.
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
"""The reason of a run whose custom loop was left by ``break`` or ``return``."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Who asked for the run to stop, when and why."""

    reason: str
    by: str
    step: int
    interrupt: bool = False
    left_body: bool = False
    """The body of a custom loop was left by ``break`` or ``return``."""
    by_user: bool = False
    """Ctrl-C on some rank; ``by`` is a display string, which names the rank on the other ranks."""

    @property
    def goes_on(self) -> bool:
        """True if it ends only this process: a resume continues the run, as after Ctrl-C or a ``break``."""
        return self.interrupt or self.left_body


@dataclass(slots=True)
class Wanted:
    """Requests that the end of a step has yet to meet."""

    stop: StopRequest | None = None
    preempt: int | None = None
    """The signal that asks the run to end this process."""
    evaluate: bool = False
    save: bool = False
    plan: bool = False
    """A callback wants its own save plan."""
    skip: str | None = None
    """The callback that wants the update of this step left out."""


class Requests:
    """Requests to stop, evaluate, save or skip, which the end of a step meets."""

    __slots__ = (
        "agreed",
        "asked",
        "attention",
        "can_evaluate",
        "can_save",
        "can_skip",
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
        """Called with "stop", "eval", "save" or "skip" after each such request of a callback."""
        self.asked = self.agreed = Wanted()
        self.clear()

    def clear(self) -> None:
        """A run begins: nothing is asked for but what a signal asks, which may come at any time."""
        self.asked = self.agreed = Wanted(preempt=self.agreed.preempt)
        self.attention = self.can_skip = False
        self.leave_evaluation = False
        self.is_leaving = False  # because of a signal: hooks hear of it, and the last checkpoint is saved
        self.is_trained = False  # training has come to its end: there is nothing left to stop
        self.may_save = True  # not after a second signal: what it interrupted may be half done
        self.waiting = False  # for data: the only time at which a signal leaves at once
        self.whole = False  # what is waited for belongs to an evaluation that only Ctrl-C may cut short
        self.rollback: tuple[Any, Any] | None = None  # the snapshot, and the callback that wants to return to it
        self.unheard_stop: StopRequest | None = None  # asked for on this rank after the last vote
        self.skip_phase: Literal["alone", "before vote", "no vote", "after vote"] = "alone"
        """Where in a step of several processes a request to skip it comes."""

    # -- the world ---------------------------------------------------------------------------------

    @property
    def voted(self) -> bool:
        """True if there are other processes: a request counts when all of them know it."""
        return self.asked is not self.agreed

    @property
    def is_interrupted(self) -> bool:
        """True after Ctrl-C, or if a callback such as ``TimeLimit`` ends training in that way."""
        return self.agreed.stop is not None and self.agreed.stop.interrupt

    def join(self) -> None:
        """There are other processes from now on. What was asked for before waits for the first vote."""
        self.agreed = Wanted()

    def leave(self) -> None:
        """The other processes are gone. A signal after the last vote is for this process alone."""
        self.agreed.preempt = self.agreed.preempt or self.asked.preempt
        self.unheard_stop = self.asked.stop
        self.asked, self.skip_phase = self.agreed, "alone"

    def agree(self, *, evaluate: bool = False, save: bool = False, plan: bool = False) -> None:
        """All ranks know that one of them has asked for this."""
        asked, agreed = self.asked, self.agreed
        if evaluate:
            asked.evaluate, agreed.evaluate = False, True
        if save:
            asked.save, agreed.save = False, True
        if plan:
            asked.plan, agreed.plan = False, True
        self.attention |= evaluate or save or plan

    def agree_on_stop(self, request: StopRequest) -> None:
        """All ranks know of it. The first request wins; its reason is the run's stop reason."""
        if self._is_too_late(request):
            return
        self.agreed.stop = self.agreed.stop or request
        self.attention = True

    def agree_on_signal(self, number: int) -> None:
        """All ranks know of the signal."""
        self.agreed.preempt = self.agreed.preempt or number
        self.attention = True

    def grant_skip(self, by: str) -> None:
        """All ranks know that one of them has asked to leave out the update of this step."""
        self.agreed.skip = by

    def forget_asked(self, stop: StopRequest | None, *, skip: bool) -> None:
        """All ranks know of this stop; ``skip``: and of the request to skip the step."""
        if self.asked.stop is stop:  # else Ctrl-C came during the exchange, and no other rank knows of it
            self.asked.stop = None
        if skip:
            self.asked.skip = None

    def set_leave_evaluation(self, leave: bool) -> None:
        """Leave the evaluation under way at its next batch, or do not."""
        self.leave_evaluation = leave

    def allow_evaluation(self, can_evaluate: bool) -> None:
        """Allow ``run.request_eval()``, or refuse it in a run without validation data."""
        self.can_evaluate = can_evaluate

    def end_training(self) -> None:
        """Training has ended: there is nothing left to stop."""
        self.is_trained = True

    def forbid_saving(self) -> None:
        """A second signal came: what it has interrupted may be half done."""
        self.may_save = False

    def set_skip_phase(self, phase: Literal["before vote", "no vote", "after vote"]) -> None:
        """Set where in a step of several processes a request to skip it comes."""
        self.skip_phase = phase

    def can_be_skipped(self, can_skip: bool) -> None:
        """Allow ``run.skip_step()``, or refuse it outside of a step."""
        self.can_skip = can_skip

    def look_for_rest(self, *, evaluates: bool) -> None:
        """A step is decided on. Keep the attention of the next step for what is left to do.

        Args:
            evaluates: True if a requested evaluation is left to do.
        """
        self.attention = self.agreed.preempt is not None or self.rollback is not None or evaluates

    def leave_if_interrupted(self) -> bool:
        """Leave the evaluation under way if the run is interrupted. Return whether the evaluation is left."""
        self.leave_evaluation |= self.is_interrupted
        return self.leave_evaluation

    def wait(self, *, leave: bool, whole: bool = False) -> None:
        """The run waits for data, or does not any more.

        Args:
            leave: True if a signal may leave the wait.
            whole: True if only Ctrl-C may leave it.
        """
        self.waiting, self.whole = leave, whole

    # -- hooks and signals -------------------------------------------------------------------------

    def ask_stop(self, request: StopRequest) -> None:
        """Ask to stop. After training, only Ctrl-C does."""
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
        """The run leaves because of a signal: hooks hear of it, and the last checkpoint is saved."""
        self.is_leaving = True

    def ask_preempt(self, number: int) -> None:
        """A signal asks the run to end this process."""
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
        """A callback asks for its own save plan at the end of this step."""
        self.asked.plan = True
        self.attention |= not self.voted

    def take_rollback(self) -> tuple[Any, Any] | None:
        """Return the snapshot to return to and the callback that asked for it, once."""
        asked, self.rollback = self.rollback, None
        return asked

    def ask_rollback(self, snapshot: Any, member: Any) -> None:
        """An update that is not made yet is left out: it would be taken back."""
        if self.can_skip:
            self.agreed.skip = member.name
        self.rollback = (snapshot, member)
        self.attention = True

    def ask_skip(self, by: str) -> None:
        """Ask to leave out the update of this step."""
        self._check_can_skip()
        if self.skip_phase == "after vote":
            raise ScopeError(
                "run.skip_step(): the ranks have voted on this step already, and the others would not skip it; call "
                "it before the backward, in on_loss_ready at the latest"
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
        """All ranks have found together that they leave out the update of this step."""
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
        """Let the end of the next step look at what is due, also from another thread."""
        self.attention = True

    def _observe(self, what: str, stop: StopRequest | None = None) -> None:
        if self.observer is not None:
            self.observer(what, stop)

    # -- the end of a step -------------------------------------------------------------------------

    def take_skip(self) -> str | None:
        """Return who wanted the update left out; the next step begins without such a request."""
        found, self.agreed.skip = self.agreed.skip, None
        return found

    def take_save(self) -> bool:
        """Return whether a checkpoint was asked for, once."""
        found, self.agreed.save = self.agreed.save, False
        return found

    def take_plan(self) -> bool:
        """Return whether a callback has asked for its own plan, once."""
        found, self.agreed.plan = self.agreed.plan, False
        return found

    def require_eval(self) -> None:
        """An evaluation is due on all ranks."""
        self.agreed.evaluate = True

    def drop_eval(self) -> None:
        """The evaluation that was asked for is made, or no longer wanted."""
        self.agreed.evaluate = False

    def drop_agreed_stop(self) -> None:
        """The step at which a stop was asked for is taken back."""
        self.agreed.stop = None

    def drop_stop(self) -> None:
        """The run was stopped, and is asked for more."""
        self.agreed.stop = self.asked.stop = None

    def set_signal_as_reason(self, stop: StopRequest | None) -> None:
        """Show a signal as the reason of a stop, or the stop that there was before."""
        self.agreed.stop = stop

    def forget_signal(self) -> None:
        """A run begins to listen to signals."""
        self.asked.preempt = self.agreed.preempt = None


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGTERM``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal has no name.
        return f"signal {number}"
