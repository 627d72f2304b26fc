"""Check that a rank has the full model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def check_whole(run: Run, who: str) -> None:
    """Raise in ``on_setup`` if the strategy shards the model."""
    if run.is_sharded:
        raise SetupError(
            f"{who} needs the whole model on one rank, and the strategy of this run gives each rank a part of it: "
            f"save with Checkpointer, and take the weights out with 'hookline checkpoints consolidate'"
        )
