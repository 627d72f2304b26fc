"""A moment of a run, kept in memory: to go back to it after a spike, or after a trial."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.errors import ScopeError
from hookline.loop.capture import (
    capture_state,
    capture_weights,
    load_callback_states,
    metrics_by_path,
    restore_training,
    set_random_states,
)
from hookline.loop.resume import rewind_rows

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.loop import Loop
    from hookline.run import Run

Moment = dict[str, Any]
"""Plain values and tensors, so that whoever took it can save it with a checkpoint."""


def take_moment(loop: Loop, by: Member[Run] | None = None) -> Moment:
    """A copy of all that the next step depends on, but the state of the callback that asks."""
    if loop._window:
        raise ScopeError(
            "run.snapshot(): inside a step there is no whole state; call it in on_train_start, on_train_step_start, "
            "on_train_step_end or on_step_settled"
        )
    state = capture_state(loop)
    if by is not None:
        state["callbacks"].pop(by.key, None)
    moment: Moment = deepcopy({"weights": capture_weights(loop), "buffers": _other_buffers(loop), "state": state})
    return moment


def put_back(loop: Loop, moment: Moment) -> None:
    """What training has changed since: the model, optimizers, schedulers, the scaler, random states."""
    saved = moment["state"]
    own = dict(loop.session.module.named_buffers())
    for name, value in moment["buffers"].items():
        own[name].copy_(value)
    # A copy: optimizers take the tensors that they are given, and the moment may be gone back to again.
    restore_training(loop, moment["weights"], {**saved, "optimizers": deepcopy(saved["optimizers"])})
    set_random_states(saved["random"])


def roll_back(loop: Loop, moment: Moment, by: Member[Run]) -> None:
    """At the edge of a step: as if the steps since had not been made, but their data is used up."""
    saved, clock, session = moment["state"], loop.clock, loop.session
    then = saved["clock"]
    load_callback_states(loop, saved["callbacks"], structural=True, but=by)
    put_back(loop, moment)
    lost = clock.step - then["step"]
    same_epoch = clock.epoch == then["epoch"]
    clock.go_back(then["step"], then["updates"])
    session.book.go_back(deepcopy(saved["metrics"]), metrics_by_path(loop), same_epoch=same_epoch)
    load_callback_states(loop, deepcopy(saved["callbacks"]), structural=False, but=by)
    loop.course.went_back(then["epoch"])
    loop.saving.generation += 1
    rewind_rows(loop, saved["history"]["bytes"])
    session.note("rollback", f"by {by.name}: {lost} step{'' if lost == 1 else 's'} taken back")
    loop.line.emit(loop.line.hooks.rollback)


def _other_buffers(loop: Loop) -> dict[str, Tensor]:
    """The buffers that no state dict has."""
    module = loop.session.module
    known = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name not in known}
