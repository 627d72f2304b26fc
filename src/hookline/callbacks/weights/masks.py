"""Which weights are pruned, computed with the methods of ``torch.nn.utils.prune``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import prune

from hookline.errors import HooklineWarning, SetupError

METHODS: dict[str, type[prune.BasePruningMethod]] = {
    "l1_unstructured": prune.L1Unstructured,
    "random_unstructured": prune.RandomUnstructured,
    "ln_structured": prune.LnStructured,
    "random_structured": prune.RandomStructured,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What is pruned: by which method, over all parameters together or in each, and what an amount is a share of."""

    method: type[prune.BasePruningMethod]
    together: bool
    of_all: bool
    options: Mapping[str, Any]
    """What the method of torch is given besides its amount."""

    def mask(self, weight: Tensor, before: Tensor, amount: float, where: str) -> Tensor:
        """The mask of one tensor after one more pruning; the one before, if less is left than is to go."""
        left = self.units(before)
        now = self._now(left, amount)
        if isinstance(now, int) and now > int(left.sum()):
            _say_used_up(where, now, int(left.sum()))
            return before
        make: Any = self.method
        method = make(amount=now, **self.options)
        method._tensor_name = "weight"  # torch's container asks for one
        container: Any = prune.PruningContainer(method)
        try:
            mask: Tensor = container.compute_mask(weight.detach() * before, before.to(weight.dtype))
        except (ValueError, TypeError, IndexError) as error:
            raise SetupError(f"Pruning(amount={amount!r}): {where} cannot be pruned: {error}") from error
        return mask.bool()

    def units(self, mask: Tensor) -> Tensor:
        """What is pruned as a whole, weights or channels: True for each that is left, even in part."""
        dim = self.options.get("dim")
        if dim is None:
            return mask.reshape(-1)
        if not -mask.ndim <= dim < mask.ndim or mask.ndim < 2:
            raise SetupError(f"Pruning(pruning_dim={dim}): a tensor of shape {tuple(mask.shape)} has no such channels")
        return mask.transpose(0, dim).flatten(1).any(1)

    def _now(self, left: Tensor, amount: float) -> float:
        """How much is pruned now, if the amount is meant of all weights, with those that are pruned already."""
        if not self.of_all:
            return amount
        wanted = amount if isinstance(amount, int) else round(amount * left.numel())
        return max(0, wanted - int((~left).sum()))


@torch.no_grad()
def next_masks(
    rule: Rule, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor], amount: float
) -> dict[str, Tensor]:
    """The masks after one more pruning: True for what stays. What was pruned before stays pruned."""
    before = {name: masks.get(name, torch.ones_like(weight, dtype=torch.bool)) for name, weight in weights.items()}
    if not rule.together:
        return {name: rule.mask(weight, before[name], amount, name) for name, weight in weights.items()}
    flat = torch.cat([weight.detach().reshape(-1) for weight in weights.values()])
    mask = rule.mask(flat, torch.cat([mask.reshape(-1) for mask in before.values()]), amount, "the model")
    parts = torch.split(mask, [weight.numel() for weight in weights.values()])
    return {
        name: part.reshape(weight.shape).clone() for part, (name, weight) in zip(parts, weights.items(), strict=True)
    }


def _say_used_up(where: str, wanted: int, left: int) -> None:
    warnings.warn(
        f"Pruning leaves {where} as it is: {wanted} are to be pruned, and {left} are left",
        HooklineWarning,
        stacklevel=2,
    )


def pruned_share(masks: Mapping[str, Tensor]) -> float:
    """The share of these weights that is pruned."""
    total = sum(mask.numel() for mask in masks.values())
    return 1 - sum(int(mask.sum()) for mask in masks.values()) / total if total else 0.0
