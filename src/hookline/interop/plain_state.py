"""``PlainState``: the state of a callback whose library saves no state of callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch

OBJECTS = "objects"
"""Key of the states of objects in a saved state. No attribute has this name in the libraries."""


class PlainState:
    """Attributes of a callback that have changed since it was made, and the states of the objects that it holds.

    Plain attributes are numbers, strings, arrays, and lists and dicts of them. Objects are those with ``state_dict``
    and ``load_state_dict``, such as averages of a model and schedulers.

    Args:
        callback: The callback.
        ignored: Names of attributes that a run sets.
    """

    def __init__(self, callback: Any, ignored: tuple[str, ...] = ()) -> None:
        self._callback, self._ignored = callback, ignored
        self._initial = deepcopy(self._plain_attributes())
        self._restored: Mapping[str, Any] = {}
        self._has_begun = False

    @property
    def has_attributes(self) -> bool:
        """True if the callback had a plain attribute when it was made. Otherwise it has no state."""
        return bool(self._initial)

    def start(self) -> None:
        """A run begins: a state that is loaded from now on is kept until ``restore``."""
        self._restored, self._has_begun = {}, False

    def restore(self) -> None:
        """Load the state again, after the first hook of training, which resets attributes and makes objects."""
        self._has_begun = True
        if self._restored:
            restored, self._restored = self._restored, {}
            self._load(restored)

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        plain = {
            name: _saved(value)
            for name, value in self._plain_attributes().items()
            if name not in self._initial or not _equal(value, self._initial[name])
        }
        objects = {name: its.state_dict() for name, its in self._objects().items()}
        return {**plain, OBJECTS: objects} if objects else plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state. Before training, it is loaded a second time after the first hook."""
        if not self._has_begun:
            self._restored = state
        self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        vars(self._callback).update({name: _loaded(value) for name, value in state.items() if name != OBJECTS})
        objects = self._objects()
        for name, its in state.get(OBJECTS, {}).items():
            if name in objects:  # It is made in the first hook of training.
                objects[name].load_state_dict(its)

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._callback).items() if name not in self._ignored}

    def _plain_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self._attributes().items() if _is_plain(value)}

    def _objects(self) -> dict[str, Any]:
        own = self._attributes()
        return {name: its for name, its in own.items() if _saves_itself(type(its)) and not isinstance(its, type)}


def _saves_itself(kind: type) -> bool:
    # The class is asked, because the callbacks of pytorch-accelerated raise no AttributeError.
    return hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return (
        bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else type(one) is type(other) and one == other
    )


def _saved(value: Any) -> Any:
    """Return a value with tensors in place of arrays."""
    if isinstance(value, list | tuple):
        return [_saved(item) for item in value]
    if isinstance(value, dict):
        return {key: _saved(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.item() if isinstance(value, np.generic) else value


def _loaded(value: Any) -> Any:
    """Return a value with arrays in place of tensors."""
    if isinstance(value, list):
        return [_loaded(item) for item in value]
    if isinstance(value, dict):
        return {key: _loaded(item) for key, item in value.items()}
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value
