"""Test whether a loss is a mean over samples: compare a batch with its two halves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy, deepcopy
from inspect import getclosurevars
from math import isfinite
from types import CellType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hookline.distributed.random_states import same_random_state

TOLERANCE: Final = 1e-3
"""Tolerance of the comparison, relative to the largest loss."""
SMALL_FLOATS: Final = (torch.float16, torch.bfloat16)


class Halves(NamedTuple):
    """The losses of a batch and of its halves."""

    whole: float
    first: float
    second: float
    fraction: float
    """Fraction of the samples that are in the first half."""

    @property
    def mean(self) -> float:
        """Mean over the halves, weighted by their samples."""
        return self.fraction * self.first + (1 - self.fraction) * self.second

    @property
    def is_mean(self) -> bool:
        """True if the loss is a mean over samples."""
        return self.equals(self.mean)

    @property
    def is_sum(self) -> bool:
        """True if the loss is a sum over samples."""
        return not self.is_mean and self.equals(self.first + self.second)

    def equals(self, other: float) -> bool:
        """True if the loss of the batch is ``other``.

        NaN, as of a half without targets, is not equal.
        """
        largest = max(abs(value) for value in (self.whole, self.first, self.second) if isfinite(value))
        return abs(self.whole - other) <= TOLERANCE * largest


def compare_halves(loss: Any, outputs: Any, targets: Any) -> Halves | None:
    """Compute the loss of a batch and of its halves.

    Hookline calls a copy of the loss and restores the random states, so the state of the loss does not change.

    Args:
        loss: The loss module or function.
        outputs: The outputs of the model.
        targets: The targets of the batch.

    Returns:
        The losses. ``None`` if the batch cannot be split, or if the loss is not finite, differs from call to call or
        cannot be copied.
    """
    with suppress(Exception), torch.no_grad(), same_random_state():  # This test must never end a run.
        n = _length(targets)
        # A compiled loss would compile again for the smaller batches.
        plain = getattr(loss, "_orig_mod", getattr(loss, "_torchdynamo_orig_callable", loss))
        compute = _copied(plain)
        parts = [slice(0, n), slice(0, n), slice(0, n // 2), slice(n // 2, n)]
        whole, again, first, second = (
            float(compute(_rows(outputs, part, n), _rows(targets, part, n))) for part in parts
        )
        found = Halves(whole, first, second, n // 2 / n)
        return found if n > 1 and isfinite(whole) and found.equals(again) else None
    return None


def _length(value: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor."""
    if isinstance(value, Tensor):
        return len(value)
    return _length(next(iter(value.values() if isinstance(value, Mapping) else value)))


def _rows(value: Any, part: slice, length: int) -> Any:
    """Return the samples ``part`` of outputs or targets, in float32: autocast is off here."""
    if isinstance(value, Tensor):
        if len(value) != length:
            raise ValueError("not one row for each sample")
        return value[part].float() if value.dtype in SMALL_FLOATS else value[part]
    if isinstance(value, Mapping):
        rows: Any = copy(value)  # Keep the class: outputs of Hugging Face have attributes.
        for key, its in value.items():
            rows[key] = _rows(its, part, length)
        return rows
    if type(value) in (tuple, list):
        return type(value)(_rows(its, part, length) for its in value)
    raise TypeError("not split into samples")


def _copied(loss: Any) -> Any:
    """Return a copy of a loss: its state or, for a function, the variables that it uses.

    Parameters are shared.
    """
    if not isinstance(loss, FunctionType):
        return deepcopy(loss, _parameters_of([loss, getattr(loss, "__self__", None)]))
    found = getclosurevars(loss)
    used = {k: v for k, v in {**found.globals, **found.nonlocals}.items() if not isinstance(v, ModuleType)}
    own = deepcopy(used, _parameters_of(used.values()))
    cells = tuple(CellType(own.get(name, found.nonlocals[name])) for name in loss.__code__.co_freevars)
    made = FunctionType(loss.__code__, {**loss.__globals__, **own}, loss.__name__, loss.__defaults__, cells)
    made.__kwdefaults__ = loss.__kwdefaults__
    return made


def _parameters_of(values: Any) -> dict[int, Any]:
    """Return the parameters by id: a ``memo`` with which ``deepcopy`` does not copy them."""
    return {id(p): p for value in values if isinstance(value, nn.Module) for p in value.parameters()}
