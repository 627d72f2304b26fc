"""Targets of a batch: the same rule for the loss and for all callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

SEQUENCES = (tuple, list)  # `tuple | list` would create a new type at every call.
TARGET_KEYS = ("labels", "label", "targets", "target", "y", "masks", "mask")
"""Keys of a target in a dict. The first key that the dict has counts."""


def target_key(batch: Mapping[Any, Any]) -> str | None:
    """Return the key of the target in a dict, or ``None``.

    Args:
        batch: The batch. A key whose value is ``None`` does not count.

    Example:
        >>> target_key({"x": 1, "y": 2, "label": 3})
        'label'
    """
    for key in TARGET_KEYS:
        if batch.get(key) is not None:
            return key
    return None


def find_target(batch: Any) -> Any:
    """Return the target of a batch, or ``None`` if the batch has none.

    Args:
        batch: A tuple or list of two or more elements, whose last element is the target, or a dict.

    Example:
        >>> find_target(("inputs", "classes")), find_target({"image": 1}), find_target([1])
        ('classes', None, None)
    """
    if isinstance(batch, SEQUENCES):
        return batch[-1] if len(batch) > 1 else None
    if isinstance(batch, Mapping):
        key = target_key(batch)
        return None if key is None else batch[key]
    return None


def argument_names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the argument names of a function.

    Args:
        function: The function.

    Returns:
        The names, or ``None`` if the function accepts any name or has no signature.
    """
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # Some callables have no signature.
        return None
    return None if any(its.kind is Parameter.VAR_KEYWORD for its in parameters.values()) else frozenset(parameters)


def model_inputs(batch: Mapping[str, Any], names: frozenset[str] | None) -> Mapping[str, Any]:
    """Return a dict without its target, unless the model takes an argument of that name.

    Args:
        batch: The batch.
        names: Argument names of the model, or ``None`` if the model accepts any name.

    Example:
        >>> model_inputs({"x": 1, "label": 2}, frozenset({"x"})), model_inputs({"x": 1, "label": 2}, None)
        ({'x': 1}, {'x': 1, 'label': 2})
    """
    key = target_key(batch)
    if key is None or names is None or key in names:
        return batch
    return {name: value for name, value in batch.items() if name != key}
