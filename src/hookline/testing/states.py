"""Check which state instances of a callback share, and which state a checkpoint can hold."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookline.events import Callback, Hooks
from hookline.testing.surroundings import plain


class RuleError(AssertionError):
    """A broken rule. The message says how it is broken."""


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuleError(otherwise)


def shared(callback: Callback) -> dict[str, Any]:
    """Return the containers that belong to the class of a callback."""
    classes = [cls for cls in type(callback).__mro__ if cls not in (Callback, Hooks, object)]
    return {
        f"{cls.__qualname__}.{name}": plain(value)
        for cls in classes
        for name, value in vars(cls).items()
        if isinstance(value, dict | list | set)
        or not (callable(value) or name.startswith("__") or _is_descriptor(value))
    }


def _is_descriptor(value: object) -> bool:
    return hasattr(value, "__get__")


def containers(callback: Callback) -> dict[str, Any]:
    """Return the containers of a new instance."""
    return {name: plain(value) for name, value in vars(callback).items() if isinstance(value, dict | list | set)}


def check_same_state(callback: Callback, other: Callback) -> None:
    """Check that a callback can load the state of another one, and then saves the same state."""
    saved = callback.state_dict()
    need(isinstance(saved, dict), f"state_dict() returned {saved!r}. Return a dict.")
    other.load_state_dict(_stored(saved, "state"))
    again = other.state_dict()
    changed = [key for key in saved | again if plain(saved.get(key)) != plain(again.get(key))]
    need(not changed, f"saved and loaded, its state differs in {', '.join(changed)}")


def _stored(value: Any, where: str) -> Any:
    """Return a value as a checkpoint would restore it: tuples become lists. No pickle."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value.detach(), buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)
    if isinstance(value, Mapping):
        texts = all(isinstance(key, str) for key in value)
        need(texts, f"{where} has keys that are not strings: {', '.join(repr(key) for key in value)}")
        return {key: _stored(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_stored(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()  # A NumPy scalar.
    raise RuleError(f"{where} is a {type(value).__qualname__}, which a checkpoint cannot hold: {value!r}")
