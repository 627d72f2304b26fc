"""Callbacks that save and load."""

from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.load_weights import LoadWeights

__all__ = ["Checkpointer", "LoadWeights"]
