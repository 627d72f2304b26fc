"""``Averages``: averaged copies of the weights of a model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookline.distributed.dtensors import is_spread, part_of, spread_like
from hookline.errors import CheckpointMismatchError

HALVES = (torch.float16, torch.bfloat16)


class Averages:
    """One averaged tensor per weight, by name. ``bind`` sets the model to average.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> averages = Averages.of(model)
        >>> with torch.no_grad():
        ...     _ = model.weight.add_(1.0)
        >>> before = averages.tensors["weight"].clone()
        >>> averages.move(0.25)
        >>> torch.allclose(averages.tensors["weight"] - before, torch.tensor(0.25))
        True
    """

    def __init__(self, tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
        self.tensors = tensors
        self._dtype = dtype
        self._model: weakref.ref[nn.Module] | None = None
        self._bound: dict[str, Tensor] = {}
        """Weights that are averaged."""
        self._alike: list[tuple[list[Tensor], list[Tensor]]] = []
        """Averages and weights of the same dtype, grouped by device and dtype."""
        self._unlike: list[tuple[list[Tensor], list[Tensor]]] = []
        """Averages and weights of different dtypes, grouped in the same way."""

    @classmethod
    def of(cls, model: nn.Module, *, use_buffers: bool = False, dtype: torch.dtype | None = None) -> Averages:
        """Start with the current weights of a model."""
        found = dict(_averaged(model, use_buffers=use_buffers))
        averages = cls(
            {name: tensor.detach().to(_kept_in(tensor, dtype), copy=True) for name, tensor in found.items()}, dtype
        )
        averages.bind(model)
        return averages

    def follows(self, model: nn.Module) -> bool:
        """True if these are averages of this model."""
        return self._model is not None and self._model() is model

    def fits(self, model: nn.Module) -> bool:
        """True if these are averages of this model and no parameter was replaced (quantization)."""
        own = dict(model.named_parameters(remove_duplicate=False))
        return self.follows(model) and all(
            own.get(name) is bound for name, bound in self._bound.items() if isinstance(bound, nn.Parameter)
        )

    def bind(self, model: nn.Module) -> None:
        """Average the weights with the same names in this model from now on."""
        own = named_tensors(model)
        if lost := [name for name in self.tensors if name not in own]:
            raise CheckpointMismatchError(
                f"there is an average of {', '.join(lost[:5])}, which the model does not have; "
                f"go on with the model that it was made of"
            )
        groups: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for name, average in self.tensors.items():
            weight = own[name]
            if average.shape != weight.shape:
                raise CheckpointMismatchError(
                    f"the average of {name} has the shape {tuple(average.shape)}, the model's {tuple(weight.shape)}"
                )
            average = average.to(weight.device, _kept_in(weight, self._dtype))
            average = self.tensors[name] = spread_like(average, weight)
            kind = (average.device, is_spread(weight), average.dtype, weight.dtype)
            kept, live = groups.setdefault(kind, ([], []))
            kept.append(average)
            live.append(weight)
        self._alike = [group for (*_, kept, live), group in groups.items() if kept == live]
        self._unlike = [group for (*_, kept, live), group in groups.items() if kept != live]
        self._bound = {name: own[name] for name in self.tensors}
        self._model = weakref.ref(model)

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Move each average by this fraction towards its weight."""
        for kept, live in map(_held, self._alike):
            torch._foreach_lerp_(kept, live, share)
        for kept, live in map(_held, self._unlike):
            torch._foreach_lerp_(kept, [tensor.to(kept[0].dtype) for tensor in live], share)

    def take(self, tensors: Mapping[str, Tensor]) -> bool:
        """Copy saved values into the averages. Return False if they do not fit."""
        if tensors.keys() != self.tensors.keys():
            return False
        if any(
            tensors[name].shape != own.shape or tensors[name].dtype != own.dtype for name, own in self.tensors.items()
        ):
            return False
        for name, own in self.tensors.items():
            own.copy_(spread_like(tensors[name], own))
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has no model until ``bind``."""
        return {
            "tensors": self.tensors,
            "_dtype": self._dtype,
            "_model": None,
            "_bound": {},
            "_alike": [],
            "_unlike": [],
        }


def _held(group: tuple[list[Tensor], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the local shards of sharded tensors. Read them each time: FSDP may move them."""
    kept, live = group
    return ([*map(part_of, kept)], [*map(part_of, live)]) if is_spread(kept[0]) else group


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found.update(model.named_buffers(remove_duplicate=False))
    return found


def _averaged(model: nn.Module, *, use_buffers: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can be averaged, with their names.

    These are floating-point or complex parameters, and finite floating-point buffers that are saved. The average of a
    ``-inf`` mask with itself would be NaN.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            yield name, parameter
    if not use_buffers:
        return
    saved = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in model.named_modules()
        for name in part._buffers
        if name not in part._non_persistent_buffers_set
    }
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point() and bool(torch.isfinite(buffer).all()):
            yield name, buffer


def _kept_in(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of an average: float32 for half precision, too coarse for small updates."""
    if tensor.is_complex():
        return tensor.dtype
    return (torch.float32 if tensor.dtype in HALVES else tensor.dtype) if dtype is None else dtype
