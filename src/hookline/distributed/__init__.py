"""Many processes: who they are, what they agree on, and how the model is spread over them."""

from hookline.distributed.env import Place, this_process
from hookline.distributed.group import Group

__all__ = ["Group", "Place", "this_process"]
