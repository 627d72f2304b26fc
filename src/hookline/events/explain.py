"""Description of a run: for each event, which callbacks run, in which order and why."""

from __future__ import annotations

from typing import Any

from hookline.events.line import Line
from hookline.events.spec import SCOPES
from hookline.events.validate import overridden


def explain(line: Line[Any]) -> str:
    """Describe the order of the callbacks, and the hooks of each scope and event.

    Args:
        line: The callbacks of the run.

    Returns:
        A string with one block per scope and event that has hooks, in the order of the event table.
    """
    blocks = ["Order of the callbacks (list position decides only where nothing else does):"]
    for number, callback in enumerate(line.order.callbacks, 1):
        role = "optional" if callback.optional else "required"
        blocks.append(f"  {number}. {callback!r} [{role}]: {line.order.why(callback)}")
    if not line.order.callbacks:
        blocks.append("  (none)")
    for scope in SCOPES:
        heard = getattr(line.fast, scope.hook)
        if heard:
            names = " > ".join(run.member.name for _, run in heard)
            blocks.append(f"\n{scope.hook}: {scope.when}\n  outermost first: {names}")
    any_event = [member.name for member in line.ordered(line.order) if overridden(member.callback, "on_event")]
    if any_event:
        blocks.append(f"\non_event (every event, before the named hook of the same callback): {', '.join(any_event)}")
    for event in line.known.values():
        order = line.gradient_order if event.name == "gradients_ready" else line.order
        named = [member for member in line.ordered(order) if member.hears(event)]
        lines = [
            f"  {number}. {member.name}{_foreign_hooks(member.callback, event.name)}: "
            f"{'the task runs first' if member.is_task else order.why(member.callback)}"
            for number, member in enumerate(named, 1)
        ]
        if lines:
            blocks.append("\n".join([f"\non_{event.name}: {event.when}", *lines]))
    return "\n".join(blocks)


def _foreign_hooks(callback: object, event: str) -> str:
    """Return the hooks of a callback of another library that run at an event, such as ``.on_train_epoch_end``."""
    hooks: dict[str, list[str]] = getattr(callback, "foreign_hooks", {})
    return "".join(f".{hook}" for hook in hooks.get(event, ()))
