"""What hooks have asked the loop for. The loop looks at ``attention`` once a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hookline.errors import ScopeError, SetupError

logger = logging.getLogger("hookline")

BREAK = "break"
"""The reason of a run whose own loop was left by ``break`` or ``return``."""


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
        """Whether it ends this process's part only: a resume goes on, as after Ctrl-C or a ``break``."""
        return self.interrupt or self.left_body


class Requests:
    """Stop, evaluate, save, skip: votes that are settled at the end of the step."""

    __slots__ = (
        "attention",
        "can_evaluate",
        "can_save",
        "can_skip",
        "evaluate",
        "is_trained",
        "leave_evaluation",
        "may_save",
        "observer",
        "plan",
        "preempt",
        "rollback",
        "save",
        "skip",
        "skip_phase",
        "stop",
        "voted",
        "waiting",
        "whole",
        "wished_eval",
        "wished_plan",
        "wished_preempt",
        "wished_save",
        "wished_skip",
        "wished_stop",
    )

    def __init__(self) -> None:
        self.can_evaluate = True
        self.can_save = False
        self.voted = False
        """There are other processes: what is asked for waits until all of them know."""
        self.preempt: int | None = None
        """The signal that asks the run to leave; not forgotten by ``clear``, because it may come at any moment."""
        self.observer: Callable[[str, StopRequest | None], None] | None = None
        """Called with "stop", "eval", "save" or "skip" after each such request of a callback."""
        self.clear()

    def clear(self) -> None:
        """Nothing is asked for: a run begins."""
        self.attention = self.evaluate = self.save = self.can_skip = False
        self.leave_evaluation = False
        self.is_trained = False  # training has come to its end: there is nothing left to stop
        self.may_save = True  # not after a second signal: what it interrupted may be half done
        self.waiting = False  # for data: the only moment that a signal leaves at once
        self.whole = False  # what is waited for belongs to an evaluation that only Ctrl-C may cut short
        self.skip: str | None = None
        self.rollback: tuple[Any, Any] | None = None  # the moment, and who wants to go back to it
        self.stop: StopRequest | None = None
        self.wished_stop: StopRequest | None = None  # on this rank, until the vote
        self.wished_eval = self.wished_save = self.wished_plan = False
        self.plan = False  # a callback has asked for its own plan to be saved, on some rank
        self.wished_preempt: int | None = None
        self.wished_skip: str | None = None
        self.skip_phase: Literal["alone", "before vote", "no vote", "after vote"] = "alone"
        """Where in a step of several processes a wish to skip it comes."""

    def vote_from_now_on(self) -> None:
        """There are other processes. What was asked for before they were there waits for the first vote, too."""
        self.voted = True
        self.wished_preempt, self.preempt = self.wished_preempt or self.preempt, None
        self.wished_stop, self.stop = self.wished_stop or self.stop, None

    def vote_no_more(self) -> None:
        """The others have left. A signal that came after the last vote is for this process alone."""
        self.voted = False
        self.skip_phase = "alone"
        self.preempt, self.wished_preempt = self.preempt or self.wished_preempt, None

    def ask_stop(self, request: StopRequest, *, agreed: bool = False) -> None:
        """The first request wins; its reason is the run's stop reason. After training only Ctrl-C is one."""
        if not agreed:
            self._observe("stop", request)
        if self.is_trained and not request.interrupt:
            logger.warning("%s asked to stop (%s) when training was over", request.by, request.reason)
            return
        if self.voted and not agreed:
            self.wished_stop = self.wished_stop or request
            return
        self.stop = self.stop or request
        self.attention = True

    def grant_stop(self) -> None:
        """What was asked for by all ranks alike needs no vote."""
        if self.wished_stop is not None:
            self.ask_stop(self.wished_stop, agreed=True)
            self.wished_stop = None

    def ask_preempt(self, number: int) -> None:
        """A signal asks the run to leave."""
        if self.voted:
            self.wished_preempt = self.wished_preempt or number
            return
        self.preempt = number if self.preempt is None else self.preempt
        self.attention = True

    def ask_eval(self) -> None:
        if not self.can_evaluate:
            raise SetupError("run.request_eval(): there is nothing to evaluate on; pass a validation loader to fit")
        if self.voted:
            self.wished_eval = True
        else:
            self.evaluate = self.attention = True
        self._observe("eval")

    def ask_save(self) -> None:
        if not self.can_save:
            raise SetupError("run.request_save(): this run has no folder to save in; pass folder='runs/mine'")
        if self.voted:
            self.wished_save = True
        else:
            self.save = self.attention = True
        self._observe("save")

    def ask_rollback(self, moment: Any, member: Any) -> None:
        """An update that is not made yet is left out: it would be taken back."""
        if self.can_skip:
            self.skip = member.name
        self.rollback = (moment, member)
        self.attention = True

    def ask_skip(self, by: str, *, agreed: bool = False) -> None:
        """``agreed``: all ranks have found together that they skip this step."""
        if not self.can_skip:
            raise ScopeError(
                "run.skip_step(): no update is being prepared; call it from on_train_step_start to on_gradients_ready, "
                "or to on_train_batch_start where an optimizer with a closure (LBFGS) computes the batch itself"
            )
        if self.skip_phase == "before vote":
            self.wished_skip = self.wished_skip or by
        elif self.skip_phase == "after vote" and not agreed:
            raise ScopeError(
                "run.skip_step(): the ranks have voted on this step already, and the others would not skip it; call "
                "it before the backward, in on_loss_ready at the latest"
            )
        elif self.skip_phase == "no vote" and not agreed:
            raise ScopeError(
                "run.skip_step(): steps are so short that there is no vote of the ranks in this one, so that the "
                "others would not skip it; leave a batch out by returning its loss with 'weight': 0, or return the "
                "weight of each batch from the first on: then there is a vote in every step"
            )
        else:
            self.skip = by
        self._observe("skip")

    def _observe(self, what: str, stop: StopRequest | None = None) -> None:
        if self.observer is not None:
            self.observer(what, stop)
