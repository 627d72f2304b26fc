"""The state of a run as one tree, and back: everything that the next step depends on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.checkpoint.matching import match
from hookline.checkpoint.snapshot import Snapshot
from hookline.errors import CheckpointMismatchError
from hookline.events import Callback, Member
from hookline.events.callback import identity_of
from hookline.events.line import need_name
from hookline.events.when import Gate
from hookline.loop.data.random_states import random_states
from hookline.loop.metrics.object_states import load_metric_states, metric_states, metrics_in
from hookline.loop.model.buffers import load_buffers
from hookline.loop.saving.callback_matching import holds_state
from hookline.loop.saving.placing import placed_optimizer, placed_state, placed_weights
from hookline.records.redact import redact_text

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine
    from hookline.run import Run

logger = logging.getLogger("hookline")


# -- the whole -----------------------------------------------------------------------------------


def capture_weights(loop: Engine) -> dict[str, Tensor]:
    """The model's own state dict, raw: what a scope has swapped in is not saved as if it were the weights."""
    weights = {name: value for name, value in loop.state.model.state_dict().items() if isinstance(value, Tensor)}
    for raw in reversed(loop.weights.raw):  # the outermost swap holds the raw ones
        weights.update({name: value for name, value in raw.items() if name in weights})
    return weights


def capture_state(loop: Engine, *, in_memory: bool = False) -> dict[str, Any]:
    """All but the weights, for a checkpoint or to be kept in memory. Tensors are not copied."""
    state, session = loop.state, loop
    scaler, course, given = loop.precision.scaler, loop.edge.state_dict(), loop.settings.max_duration
    return {
        "clock": state.clock.state_dict(),
        "model": _beside_weights(loop, in_memory=in_memory),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in state.optimizers.items()},
        "schedulers": [scheduler.scheduler.state_dict() for scheduler in state.schedulers],
        "scheduler_owners": _scheduler_owners(loop),
        "scaler": None if scaler is None else scaler.state_dict(),
        "usual_weight": session.world.usual_weight,
        "random": random_states(),
        "data": loop.data.state_dict(seed=session.data.seed, mid_epoch=course["mid_epoch"]),
        "course": course,
        "accumulate": None
        if loop.steps.accumulate == loop.settings.accumulate
        else loop.steps.accumulate,  # a callback's change
        "save": loop.saving.due,
        "ended": redact_text(loop.stop_reason()) if loop.edge.is_over else None,
        "given_duration": None if given is None else str(given),  # by the script; a hook may change `run.max_duration`
        "metrics": session.book.state_dict({id(metric): path for path, metric in metrics_by_path(loop).items()}),
        "history": {"bytes": session.records.size},
        "messages": state.messages.state_dict(),
        "callbacks": callback_states(loop, in_memory=in_memory),
    }


def _scheduler_owners(loop: Engine) -> list[str | None]:
    """For each scheduler the key of the callback that has made it, if one has."""
    keys = {id(member.callback): member.key for member in loop.line.members}
    return [keys.get(id(getattr(scheduler, "by", None))) for scheduler in loop.state.schedulers]


def restore(loop: Engine, snapshot: Snapshot) -> None:
    """Put everything back but the random states, which come last, when training goes on."""
    state, session, saved = loop.state, loop, snapshot.state
    if saved is None:
        raise CheckpointMismatchError(
            "this checkpoint holds weights only, so a run cannot go on from it; start a new run with "
            "callbacks=[hl.LoadWeights(path)]"
        )
    load_callback_states(loop, saved["callbacks"], structural=True)
    restore_training(loop, snapshot.weights, saved)
    state.clock.load_state_dict(saved["clock"])
    _load_seed(loop, saved["data"]["seed"])
    loop.data.load_state_dict(saved["data"], mid_epoch=saved["course"]["mid_epoch"])
    if "seed" not in session.settings.config:  # then it is the one that was drawn when the run began
        state.config["seed"] = session.data.seed
    session.book.load_state_dict(saved["metrics"], metrics_by_path(loop))
    state.messages.load_state_dict(saved["messages"])
    loop.edge.load_state_dict(saved["course"])
    loop.steps.accumulate = saved.get("accumulate") or loop.steps.accumulate
    loop.training.resume_with(saved["random"])


def _load_seed(loop: Engine, saved: int) -> None:
    given = loop.settings.seed
    if given not in (None, saved) and not loop.state.rank:
        logger.warning("seed=%s is not used: the run goes on with its own, %s", given, saved)
    loop.data.seed = saved


def restore_training(loop: Engine, weights: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    """What an update changes: the model, optimizers, schedulers and the scaler."""
    state = loop.state
    _load_model(loop, weights, saved["model"])
    _load_named("optimizers", state.optimizers, saved["optimizers"])
    if len(saved["schedulers"]) != len(state.schedulers):
        raise CheckpointMismatchError(
            f"the checkpoint has {len(saved['schedulers'])} schedulers and this run {len(state.schedulers)}; "
            f"make the same ones as before"
        )
    for scheduler, its in zip(state.schedulers, saved["schedulers"], strict=True):
        scheduler.scheduler.load_state_dict(its)
    if loop.precision.scaler is not None and saved["scaler"] is not None:
        loop.precision.scaler.load_state_dict(saved["scaler"])
    loop.world.usual_weight = saved.get("usual_weight")


# -- the model -----------------------------------------------------------------------------------


def _beside_weights(loop: Engine, *, in_memory: bool) -> dict[str, Any]:
    """Return the model's state other than its weights: frozen and evaluating parts, parameters of the loss, extras.

    A snapshot in memory has all buffers that no state dict has: see ``take_moment``.
    """
    module, model = loop.state.module, loop.state.model
    state = model.state_dict()
    return {
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "evaluating": [name for name, part in module.named_modules() if not part.training],
        "extra": {name: value for name, value in state.items() if not isinstance(value, Tensor)},
        "task": {} if module is model else _outside(module, model),
        "metrics": metric_states(module),
        "buffers": {} if in_memory else loop.buffers.changed(module),
    }


def _outside(task: nn.Module, model: nn.Module) -> dict[str, Any]:
    """The state of a task's other parts, such as a loss with parameters."""
    own = next((f"{name}." for name, part in task.named_modules() if part is model), "")
    return {name: value for name, value in task.state_dict().items() if not own or not name.startswith(own)}


def _load_model(loop: Engine, weights: Mapping[str, Tensor], beside: Mapping[str, Any]) -> None:
    module, model = loop.state.module, loop.state.model
    wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    match(wanted, weights, strict=True)
    model.load_state_dict({**placed_weights(wanted, weights), **beside["extra"]})
    if module is not model:
        others = _outside(module, model)
        match(others, beside["task"], strict=True) if others or beside["task"] else None
        module.load_state_dict(placed_weights(others, beside["task"]), strict=False)
    load_metric_states(module, beside.get("metrics", {}))
    load_buffers(module, beside.get("buffers", {}), loop.state.device)
    if beside["frozen"] is None:
        return
    frozen, evaluating = set(beside["frozen"]), set(beside["evaluating"])
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
    for name, part in module.named_modules():
        part.training = name not in evaluating


def _load_named(what: str, here: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    if here.keys() != saved.keys():
        raise CheckpointMismatchError(
            f"the checkpoint has the {what} {', '.join(saved) or 'none'}, this run has {', '.join(here) or 'none'}; "
            f"make the same ones as before"
        )
    for name, value in here.items():
        # Before it is loaded: torch adds defaults then that not every optimizer has in its groups, such as LBFGS.
        needed = list(value.defaults)
        try:
            value.load_state_dict(placed_optimizer(value, saved[name]))
        except (ValueError, KeyError) as error:
            raise CheckpointMismatchError(f"{what}/{name} does not fit the checkpoint: {error}") from error
        # Torch takes the state of another kind of optimizer without a word, and fails at the first step.
        if lacking := [key for key in needed if any(key not in group for group in value.param_groups)]:
            raise CheckpointMismatchError(
                f"{what}/{name} does not fit the checkpoint: that of the checkpoint has no {', '.join(lacking)}, which "
                f"{type(value).__name__} needs; make one of the same kind as before"
            )


# -- callbacks -----------------------------------------------------------------------------------


def callback_states(loop: Engine, *, in_memory: bool = False) -> dict[str, Any]:
    """The state of each callback by its key; an optional one that cannot say it is switched off."""
    found: dict[str, Any] = {}
    for member in loop.line.members:
        if member.is_task or member.disabled:
            continue
        try:
            state = _state_of(loop, member, in_memory)
        except Exception as error:
            if not loop.line.tolerates(member.view, "state_dict", error):
                raise
            continue
        if member.key not in found or not holds_state(found[member.key]):
            found[member.key] = state
        elif holds_state({**state, "state": None} if member.callback.shares_state else state):
            raise need_name(member.key)
    return found


def load_callback_states(
    loop: Engine, saved: Mapping[str, Any], *, structural: bool | None = None, but: Member[Run] | None = None
) -> None:
    """Give each callback its state back; or only those that are structural, or that are not, or all but one."""
    for member in loop.line.members:
        if member.is_task or member.disabled or member is but or member.key not in saved:
            continue
        if structural is None or member.callback.structural is structural:
            try:
                _load_state(loop, member, placed_state(loop.state.model, saved[member.key]))
            except Exception as error:
                if not loop.line.tolerates(member.view, "load_state_dict", error):
                    raise


def _state_of(loop: Engine, member: Member[Run], in_memory: bool) -> dict[str, Any]:
    callback = member.callback
    held = dict(_held(loop, callback))
    saved = callback.snapshot_dict() if in_memory else callback.state_dict()
    state = {key: value for key, value in saved.items() if key not in held}
    gates = {event: [gate.state_dict() for gate in found] for event, found in _gates(member)}
    found = {"state": state, "held": {name: _part_state(part) for name, part in held.items()}, "gates": gates}
    return found if in_memory else {**identity_of(callback), **found}


def _load_state(loop: Engine, member: Member[Run], saved: Mapping[str, Any]) -> None:
    callback, held = member.callback, dict(_held(loop, member.callback))
    named = {key: held[key] for key in saved["held"] if key in held and key in callback.state}
    if callback.state and not saved["state"] and not named:  # as one that the checkpoint does not know
        logger.warning("%s had no state when the checkpoint was saved, and begins anew", member.key)
    else:
        callback.load_state_dict({**saved["state"], **named})
    for name, state in saved["held"].items():
        if name in held:
            _load_part(held[name], state)
    for event, gates in _gates(member):
        for gate, state in zip(gates, saved["gates"].get(event, ()), strict=False):
            gate.load_state_dict(state)


def _held(loop: Engine, callback: Callback) -> Iterator[tuple[str, Any]]:
    """Modules, metrics, optimizers and generators that a callback holds, unless it saves its state in its own way."""
    if type(callback).state_dict is not Callback.state_dict:
        return
    ours = {id(loop.state.module), id(loop.state.model), id(torch.default_generator)}
    ours.update(map(id, loop.state.optimizers.values()))
    for name, value in vars(callback).items():
        if isinstance(value, nn.Module | torch.optim.Optimizer | torch.Generator) and id(value) not in ours:
            yield name, value


def metrics_by_path(loop: Engine) -> dict[str, nn.Module]:
    """The torchmetrics objects that are saved with the task or with a callback."""
    found = {f"task/{path}": metric for path, metric in metrics_in(loop.state.module)}
    for member in loop.line.members:
        if not member.is_task and not member.disabled:
            for name, part in _held(loop, member.callback):
                inside = metrics_in(part) if isinstance(part, nn.Module) else ()
                found.update({f"{member.key}/{name}/{path}": metric for path, metric in inside})
    return found


def _part_state(part: Any) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, nn.Module) and (metrics := metric_states(part)):
        return {"module": part.state_dict(), "metrics": metrics}
    return part.state_dict()


def _load_part(part: Any, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
        return
    if isinstance(part, nn.Module) and isinstance(state.get("metrics"), dict):
        load_metric_states(part, state["metrics"])
        state = state["module"]
    part.load_state_dict(state)


def _gates(member: Member[Run]) -> Iterator[tuple[str, list[Gate]]]:
    for event, calls in member.calls.items():
        gates = [call for call in calls if isinstance(call, Gate) and call.when.has_state]
        if gates:
            yield event, gates
