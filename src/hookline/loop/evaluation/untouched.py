"""Keep gradients, module modes and plain attributes as they were before an evaluation or a trial."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from torch import nn

OF_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: its parameters, buffers, parts and hooks. The snapshot of a run holds them."""
MAX_ITEMS = 10_000
"""Largest collection that is copied."""
PLAIN = (str, int, float, bool, complex, bytes, tuple, frozenset, type(None))


@contextmanager
def same_modes(module: nn.Module) -> Iterator[None]:
    """Restore the train or eval mode of every submodule after the block.

    Each submodule has its own mode: a frozen batch norm stays frozen.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def same_gradients(module: nn.Module) -> Iterator[None]:
    """Remove the gradients inside the block, and restore them after it.

    A hook may enable gradients and call backward in an evaluation.
    """
    held = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, gradient in held:
        if gradient is not None:
            parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


@contextmanager
def same_attributes(objects: Iterable[object]) -> Iterator[None]:
    """Restore plain attributes, small collections and random generators that objects hold, after the block.

    A model may count its calls in a Python integer, and a data set may draw from its own generator.

    Args:
        objects: The objects.
    """
    held = [(vars(each), _attributes(each)) for each in objects if hasattr(each, "__dict__")]
    try:
        yield
    finally:
        for attributes, (names, restored) in held:
            for name in [name for name in attributes if name not in names and name not in OF_MODULE]:
                if isinstance(attributes[name], (*PLAIN, list, dict, set, deque)):
                    del attributes[name]  # The block has added it.
            for restore in restored:
                restore()


def _attributes(owner: object) -> tuple[set[str], list[Any]]:
    """Return the names of the attributes of an object, and functions that restore them."""
    attributes = vars(owner)
    skipped = OF_MODULE if isinstance(owner, nn.Module) else frozenset()
    restored = [
        _restoring(attributes, name, value)
        for name, value in attributes.items()
        if name not in skipped and name != "training"
    ]
    return set(attributes), [restore for restore in restored if restore is not None]


def _restoring(attributes: dict[str, Any], name: str, value: Any) -> Any:
    """Return a function that restores one attribute, or ``None`` if it is of another kind."""
    if isinstance(value, PLAIN):
        return lambda: attributes.__setitem__(name, value)
    if type(value) in (list, deque, dict, set):
        return _refilling(attributes, name, value) if len(value) <= MAX_ITEMS else None
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, Random):
        python = value.getstate()
        return lambda: value.setstate(python)
    if hasattr(value, "bit_generator") and hasattr(value.bit_generator, "state"):  # A generator of NumPy.
        bits = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", bits)
    return None


def _refilling(attributes: dict[str, Any], name: str, value: Any) -> Any:
    """Return a function that restores a collection, in place."""
    held = value.copy()

    def refill() -> None:
        attributes[name] = value
        now, then = (tuple(each.items()) if type(each) is dict else tuple(each) for each in (value, held))
        if len(now) == len(then) and all(map(_is_same, now, then)):
            return
        value.clear()
        if type(value) in (list, deque):
            value.extend(held)
        else:
            value.update(held)

    return refill


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is tuple and len(one) == 2 and one[0] is other[0] and one[1] is other[1])
