"""The processes of a distributed run: their ranks, their collectives and their strategies."""

from hookline.distributed.env import Place, this_process
from hookline.distributed.group import Group

__all__ = ["Group", "Place", "this_process"]
