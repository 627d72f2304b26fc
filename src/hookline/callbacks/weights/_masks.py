"""Compute which weights are pruned, with the methods of ``torch.nn.utils.prune``."""

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
    """Rule of a pruning: the method, its scope and the meaning of an amount."""

    method: type[prune.BasePruningMethod]
    together: bool
    of_all: bool
    options: Mapping[str, Any]
    """Arguments of the pruning method, in addition to the amount."""

    def mask(self, weight: Tensor, before: Tensor, amount: float, where: str) -> Tensor:
        """Return the next mask of a tensor, or the old mask if too few weights are left."""
        left = self.units(before)
        now = self._now(left, amount)
        if isinstance(now, int) and now > int(left.sum()):
            _warn_used_up(where, now, int(left.sum()))
            return before
        make: Any = self.method
        method = make(amount=now, **self.options)
        # PruningContainer requires a name.
        method._tensor_name = "weight"
        container: Any = prune.PruningContainer(method)
        try:
            mask: Tensor = container.compute_mask(weight.detach() * before, before.to(weight.dtype))
        except (ValueError, TypeError, IndexError) as error:
            raise SetupError(f"Pruning(amount={amount!r}): {where} cannot be pruned: {error}") from error
        return mask.bool()

    def units(self, mask: Tensor) -> Tensor:
        """Return True for each prunable unit (a weight or a channel) that is left, even in part."""
        dim = self.options.get("dim")
        if dim is None:
            return mask.reshape(-1)
        if not -mask.ndim <= dim < mask.ndim or mask.ndim < 2:
            raise SetupError(f"Pruning(pruning_dim={dim}): a tensor of shape {tuple(mask.shape)} has no such channels")
        return mask.transpose(0, dim).flatten(1).any(1)

    def _now(self, left: Tensor, amount: float) -> float:
        """Return how much to prune now. An amount of all weights includes the pruned weights."""
        if not self.of_all:
            return amount
        wanted = amount if isinstance(amount, int) else round(amount * left.numel())
        return max(0, wanted - int((~left).sum()))


@torch.no_grad()
def next_masks(
    rule: Rule, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor], amount: float
) -> dict[str, Tensor]:
    """Return the next masks: True for weights to keep. Pruned weights stay pruned."""
    before = {name: masks.get(name, torch.ones_like(weight, dtype=torch.bool)) for name, weight in weights.items()}
    if not rule.together:
        return {name: rule.mask(weight, before[name], amount, name) for name, weight in weights.items()}
    flat = torch.cat([weight.detach().reshape(-1) for weight in weights.values()])
    mask = rule.mask(flat, torch.cat([mask.reshape(-1) for mask in before.values()]), amount, "the model")
    parts = torch.split(mask, [weight.numel() for weight in weights.values()])
    return {
        name: part.reshape(weight.shape).clone() for part, (name, weight) in zip(parts, weights.items(), strict=True)
    }


def _warn_used_up(where: str, wanted: int, left: int) -> None:
    """Warn that fewer weights are left than requested."""
    warnings.warn(
        f"Pruning leaves {where} as it is: {wanted} are to be pruned, and {left} are left",
        HooklineWarning,
        stacklevel=2,
    )


def pruned_share(masks: Mapping[str, Tensor]) -> float:
    """Return the fraction of these weights that is pruned."""
    total = sum(mask.numel() for mask in masks.values())
    return 1 - sum(int(mask.sum()) for mask in masks.values()) / total if total else 0.0
