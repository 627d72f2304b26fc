"""Make a ``OneCycleLR`` whose maximum is the learning rate of each parameter group."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from hookline.errors import SetupError

WARMUP = 0.3
"""Fraction of the cycle in which the learning rate rises, as in PyTorch."""


def one_cycle(optimizer: Optimizer, known: dict[str, Any], who: str) -> LRScheduler:
    """Make the scheduler.

    Args:
        optimizer: The optimizer.
        known: ``total`` and ``warmup`` in scheduler steps, and options of ``OneCycleLR``.
        who: Name of the callback, for errors.
    """
    options = dict(known)
    total, warmup = options.pop("total"), options.pop("warmup", None)
    if total < 4:
        raise SetupError(f"{who}: {total} moves are too few for a climb and a fall; it needs 4 or more")
    if warmup is not None:
        options["pct_start"] = warmup / total
    share = options.get("pct_start", WARMUP)
    # OneCycleLR divides by the length of each phase minus one, so each phase needs two steps.
    options["pct_start"] = min(max(share, 2 / total), 1 - 2 / total)
    options.setdefault("max_lr", [group["lr"] for group in optimizer.param_groups])
    options.setdefault("cycle_momentum", "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum")))
    try:
        return OneCycleLR(optimizer, total_steps=total, **options)
    except (TypeError, ValueError) as error:
        raise SetupError(f"{who} could not be made with {options}: {error}") from error
