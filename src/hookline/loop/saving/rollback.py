"""A moment of a run, kept in memory: to go back to it after a spike, or after a trial."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hookline.errors import ScopeError
from hookline.loop.data.random_states import set_random_states
from hookline.loop.model.buffers import load_buffers, other_buffers
from hookline.loop.saving.resume import rewind_rows
from hookline.loop.saving.tree import (
    capture_state,
    capture_weights,
    load_callback_states,
    metrics_by_path,
    restore_training,
)

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.engine.engine import Engine
    from hookline.run import Run

Moment = dict[str, Any]
"""Plain values and tensors, so that whoever took it can save it with a checkpoint."""


def take_moment(loop: Engine, by: Member[Run] | None = None) -> Moment:
    """A copy of all that the next step depends on, but the state of the callback that asks."""
    between_steps = loop.state.stage == "train" and loop.state.is_training
    if loop.window.count or (by is not None and not between_steps):  # in an evaluation the model is in eval mode
        raise ScopeError(
            "run.snapshot(): inside a step or an evaluation there is no whole state; call it in on_train_start, "
            "on_train_step_start, on_train_step_end or on_step_settled"
        )
    state = capture_state(loop, in_memory=True)
    if by is not None:
        state["callbacks"].pop(by.key, None)
    weights, buffers = capture_weights(loop), other_buffers(loop.state.module)
    return deepcopy({"weights": weights, "buffers": buffers, "state": state})


def put_back(loop: Engine, moment: Moment) -> None:
    """What training has changed since: the model, optimizers, schedulers, the scaler, random states.

    It is copied: whoever gets it may keep it and change it, and the moment may be gone back to again.
    """
    saved = deepcopy(moment["state"])
    load_buffers(loop.state.module, moment["buffers"], loop.state.device)
    restore_training(loop, moment["weights"], saved)
    set_random_states(saved["random"])


def roll_back(loop: Engine, moment: Moment, by: Member[Run]) -> None:
    """At the edge of a step: as if the steps since had not been made, but their data is used up."""
    saved, clock, session = deepcopy(moment["state"]), loop.clock, loop
    then = saved["clock"]
    lost, same_epoch = clock.step - then["step"], clock.epoch == then["epoch"]
    load_callback_states(loop, saved["callbacks"], structural=True, but=by)
    put_back(loop, moment)
    clock.go_back(then["step"], then["updates"])
    loop.state.messages.load_state_dict(saved["messages"])
    loop.steps.accumulate = saved["accumulate"] or loop.settings.accumulate
    load_callback_states(loop, saved["callbacks"], structural=False, but=by)
    session.book.go_back(saved["metrics"], metrics_by_path(loop), same_epoch=same_epoch)  # it resets what they hold
    loop.edge.went_back(then["epoch"], saved["course"])
    _forget_votes(loop, then["step"], by)
    loop.saving.generation += 1
    rewind_rows(loop, saved["history"]["bytes"])
    session.records.note("rollback", f"by {by.name}: {lost} step{'' if lost == 1 else 's'} taken back")
    loop.line.emit(loop.line.hooks.rollback)


def _forget_votes(loop: Engine, step: int, by: Member[Run]) -> None:
    """Whoever wanted to stop because of a step that is taken back has not seen it."""
    stop = loop.requests.agreed.stop
    if stop is not None and stop.step > step and stop.by != by.name and not stop.interrupt:
        loop.requests.drop_agreed_stop()
