"""Many processes."""

from hookline.distributed.env import Place, this_process

__all__ = ["Place", "this_process"]
