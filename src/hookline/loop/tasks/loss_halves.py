"""Find out by trial whether a loss is a mean over samples: compare the loss of a batch with those of its halves."""

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

from hookline.loop.data.random_states import same_random_state

TOLERANCE: Final = 1e-3
"""Relative to the largest of the losses."""
SMALL_FLOATS: Final = (torch.float16, torch.bfloat16)


class Halves(NamedTuple):
    """The loss of a batch, and those of its halves."""

    whole: float
    first: float
    second: float
    fraction: float
    """Samples of the first half, of all."""

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
        """True if the loss of the batch is ``other``. NaN, as of a half without targets, is not equal."""
        largest = max(abs(value) for value in (self.whole, self.first, self.second) if isfinite(value))
        return abs(self.whole - other) <= TOLERANCE * largest


def compare_halves(loss: Any, outputs: Any, targets: Any) -> Halves | None:
    """Compute the loss of a batch and of its halves; ``None`` where that tells nothing.

    That is so if the batch cannot be split, or the loss is not finite, differs from call to call, or cannot be copied.
    Hookline calls a copy of the loss, and restores the random states: nothing that the loss counts or keeps is changed.
    """
    with suppress(Exception), torch.no_grad(), same_random_state():  # this must never end a run
        n = _length(targets)
        plain = getattr(loss, "_orig_mod", getattr(loss, "_torchdynamo_orig_callable", loss))  # else it compiles again
        compute = _copied(plain)
        parts = [slice(0, n), slice(0, n), slice(0, n // 2), slice(n // 2, n)]
        whole, again, first, second = (
            float(compute(_rows(outputs, part, n), _rows(targets, part, n))) for part in parts
        )
        found = Halves(whole, first, second, n // 2 / n)
        return found if n > 1 and isfinite(whole) and found.equals(again) else None
    return None


def _length(value: Any) -> int:
    """The number of samples: the first dimension of the first tensor."""
    if isinstance(value, Tensor):
        return len(value)
    return _length(next(iter(value.values() if isinstance(value, Mapping) else value)))


def _rows(value: Any, part: slice, length: int) -> Any:
    """The samples ``part`` of outputs or targets. In float32, because autocast is off here."""
    if isinstance(value, Tensor):
        if len(value) != length:
            raise ValueError("not one row for each sample")
        return value[part].float() if value.dtype in SMALL_FLOATS else value[part]
    if isinstance(value, Mapping):
        rows: Any = copy(value)  # of its class: outputs of Hugging Face have attributes
        for key, its in value.items():
            rows[key] = _rows(its, part, length)
        return rows
    if type(value) in (tuple, list):
        return type(value)(_rows(its, part, length) for its in value)
    raise TypeError("not split into samples")


def _copied(loss: Any) -> Any:
    """The loss with its own state; of a function, a copy of the variables that it uses. Parameters are shared."""
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
    """For ``deepcopy``: what is not copied."""
    return {id(p): p for value in values if isinstance(value, nn.Module) for p in value.parameters()}
