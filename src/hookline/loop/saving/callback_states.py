"""Capture the states of callbacks for a checkpoint or a snapshot, and load them again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from hookline.events import Callback, Member
from hookline.events.callback import identity_of
from hookline.events.line import need_name
from hookline.events.when import Gate
from hookline.loop.metrics.object_states import load_metric_states, metric_states, metrics_in
from hookline.loop.saving.callback_matching import holds_state
from hookline.loop.saving.placing import placed_state
from hookline.run import Run, RunState

logger = logging.getLogger("hookline")


class CallbackStates:
    """The states of the callbacks of one run, by the key of each callback.

    Args:
        state: The state of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state

    def capture(self, *, in_memory: bool = False) -> dict[str, Any]:
        """Return the state of each callback. An optional callback that fails here is disabled.

        Args:
            in_memory: True for a snapshot in memory, which needs no identity of the callbacks.

        Raises:
            RegistrationError: If two callbacks with the same key both have a state.
        """
        found: dict[str, Any] = {}
        for member in self._members():
            try:
                state = self._state_of(member, in_memory)
            except Exception as error:
                if not self._state.line.tolerates(member.view, "state_dict", error):
                    raise
                continue
            if member.key not in found or not holds_state(found[member.key]):
                found[member.key] = state
            elif holds_state({**state, "state": None} if member.callback.shares_state else state):
                raise need_name(member)
        return found

    def load(self, saved: Mapping[str, Any], *, structural: bool | None = None, but: Member[Run] | None = None) -> None:
        """Load the saved state of each callback.

        Args:
            saved: The states, by the key of the callback.
            structural: True for only the structural callbacks, False for only the others, ``None`` for all.
            but: A callback that keeps its current state.
        """
        for member in self._members():
            if member is but or member.key not in saved:
                continue
            if structural is None or member.callback.structural is structural:
                try:
                    self._load_state(member, placed_state(self._state.model, saved[member.key]))
                except Exception as error:
                    if not self._state.line.tolerates(member.view, "load_state_dict", error):
                        raise

    def metrics_by_path(self) -> dict[str, nn.Module]:
        """Return the torchmetrics objects that are saved with the task or with a callback."""
        found = {f"task/{path}": metric for path, metric in metrics_in(self._state.module)}
        for member in self._members():
            for name, part in self._held(member.callback):
                inside = metrics_in(part) if isinstance(part, nn.Module) else ()
                found.update({f"{member.key}/{name}/{path}": metric for path, metric in inside})
        return found

    def _members(self) -> Iterator[Member[Run]]:
        """Iterate over the callbacks that are not disabled when their turn comes."""
        return (member for member in self._state.line.members if not member.is_task and not member.disabled)

    def _state_of(self, member: Member[Run], in_memory: bool) -> dict[str, Any]:
        callback = member.callback
        held = dict(self._held(callback))
        saved = callback.snapshot_dict() if in_memory else callback.state_dict()
        state = {key: value for key, value in saved.items() if key not in held}
        gates = {event: [gate.state_dict() for gate in found] for event, found in _gates(member)}
        found = {"state": state, "held": {name: _part_state(part) for name, part in held.items()}, "gates": gates}
        return found if in_memory else {**identity_of(callback), **found}

    def _load_state(self, member: Member[Run], saved: Mapping[str, Any]) -> None:
        callback, held = member.callback, dict(self._held(member.callback))
        named = {key: held[key] for key in saved["held"] if key in held and key in callback.state}
        if callback.state and not saved["state"] and not named:  # As if the checkpoint did not have it.
            logger.warning("%s had no state when the checkpoint was saved, and starts without one", member.key)
        else:
            callback.load_state_dict({**saved["state"], **named})
        for name, state in saved["held"].items():
            if name in held:
                _load_part(held[name], state)
        for event, gates in _gates(member):
            for gate, state in zip(gates, saved["gates"].get(event, ()), strict=False):
                gate.load_state_dict(state)

    def _held(self, callback: Callback) -> Iterator[tuple[str, Any]]:
        """Iterate over the modules, metrics, optimizers and generators that a callback holds.

        A callback that overrides ``state_dict`` saves them itself.
        """
        if type(callback).state_dict is not Callback.state_dict:
            return
        state = self._state
        ours = {id(state.module), id(state.model), id(torch.default_generator)}
        ours.update(map(id, state.optimizers.values()))
        for name, value in vars(callback).items():
            if isinstance(value, nn.Module | torch.optim.Optimizer | torch.Generator) and id(value) not in ours:
                yield name, value


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
