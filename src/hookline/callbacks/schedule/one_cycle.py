"""Torch's one-cycle, up to the rate that each group has."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from hookline.errors import SetupError

WARMUP = 0.3
"""The share of a one-cycle that climbs, as in torch."""


def one_cycle(optimizer: Optimizer, known: dict[str, Any], who: str) -> LRScheduler:
    """``known`` are ``total`` and ``warmup`` in moves, and torch's own options."""
    options = dict(known)
    total, warmup = options.pop("total"), options.pop("warmup", None)
    if total < 4:
        raise SetupError(f"{who}: {total} moves are too few for a climb and a fall; it needs 4 or more")
    if warmup is not None:
        options["pct_start"] = warmup / total
    share = options.get("pct_start", WARMUP)
    options["pct_start"] = min(max(share, 2 / total), 1 - 2 / total)  # torch divides by both parts' moves but one
    options.setdefault("max_lr", [group["lr"] for group in optimizer.param_groups])
    options.setdefault("cycle_momentum", "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum")))
    try:
        return OneCycleLR(optimizer, total_steps=total, **options)
    except (TypeError, ValueError) as error:
        raise SetupError(f"{who} could not be made with {options}: {error}") from error
