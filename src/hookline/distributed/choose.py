"""Which strategy a run has."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookline.distributed.strategy import Strategy, is_fsdp


def as_strategy(given: Any, module: nn.Module) -> Strategy:
    """What was asked for; with ``"auto"`` DDP, or FSDP for a model that is sharded already."""
    from hookline.distributed.ddp import DDP  # only a run in several processes needs them

    if not isinstance(given, str):
        return given  # type: ignore[no-any-return]  # checked when the options were read
    if given == "ddp" or (given == "auto" and not is_fsdp(module)):
        return DDP()
    from hookline.distributed.fsdp import FSDP

    return FSDP()
