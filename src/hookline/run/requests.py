"""What hooks have asked the loop for. The loop looks at ``attention`` once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hookline.errors import ScopeError, SetupError

BREAK = "break"
"""The reason of a run whose own loop was left by ``break`` or ``return``."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Who asked for the run to stop, when and why."""

    reason: str
    by: str
    step: int
    interrupt: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it ends this process's part only: a resume goes on, as after Ctrl-C or a ``break``."""
        return self.interrupt or self.reason == BREAK


class Requests:
    """Stop, evaluate, save, skip: votes that are settled at the end of the step."""

    __slots__ = (
        "attention",
        "can_evaluate",
        "can_save",
        "can_skip",
        "evaluate",
        "leave_evaluation",
        "may_save",
        "preempt",
        "rollback",
        "save",
        "skip",
        "stop",
        "waiting",
        "whole",
    )

    def __init__(self) -> None:
        self.can_evaluate = True
        self.can_save = False
        self.preempt: int | None = None
        """The signal that asks the run to leave; not forgotten by ``clear``, because it may come at any moment."""
        self.clear()

    def clear(self) -> None:
        """Nothing is asked for: a run begins."""
        self.attention = self.evaluate = self.save = self.can_skip = False
        self.leave_evaluation = False
        self.may_save = True  # not after a second signal: what it interrupted may be half done
        self.waiting = False  # for data: the only moment that a signal leaves at once
        self.whole = False  # what is waited for belongs to an evaluation that only Ctrl-C may cut short
        self.skip: str | None = None
        self.rollback: tuple[Any, Any] | None = None  # the moment, and who wants to go back to it
        self.stop: StopRequest | None = None

    def ask_stop(self, request: StopRequest) -> None:
        """The first request wins; its reason is the run's stop reason."""
        self.stop = self.stop or request
        self.attention = True

    def ask_eval(self) -> None:
        if not self.can_evaluate:
            raise SetupError("run.request_eval(): there is nothing to evaluate on; pass a validation loader to fit")
        self.evaluate = self.attention = True

    def ask_save(self) -> None:
        if not self.can_save:
            raise SetupError("run.request_save(): this run has no folder to save in; pass folder='runs/mine'")
        self.save = self.attention = True

    def ask_rollback(self, moment: Any, member: Any) -> None:
        """An update that is not made yet is left out: it would be taken back."""
        if self.can_skip:
            self.skip = member.name
        self.rollback = (moment, member)
        self.attention = True

    def ask_skip(self, by: str) -> None:
        if not self.can_skip:
            raise ScopeError(
                "run.skip_step(): no update is being prepared; call it from on_train_step_start to on_gradients_ready"
            )
        self.skip = by
