"""The choice of the strategy of a run."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookline.distributed.strategy import Strategy, is_fsdp


def as_strategy(given: Any, module: nn.Module) -> Strategy:
    """Return the strategy for the ``strategy`` argument of a run.

    Args:
        given: ``"auto"``, ``"ddp"``, ``"fsdp"``, or a strategy, which is returned as it is.
        module: The model. With ``"auto"``, a model that is sharded already gets FSDP, any other model DDP.
    """
    from hookline.distributed.ddp import DDP  # Only a run in several processes needs the strategies.

    if not isinstance(given, str):
        return given  # type: ignore[no-any-return]  # The type was checked with the other options.
    if given == "ddp" or (given == "auto" and not is_fsdp(module)):
        return DDP()
    from hookline.distributed.fsdp import FSDP

    return FSDP()
