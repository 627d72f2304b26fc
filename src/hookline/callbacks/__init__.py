"""The callbacks that come with Hookline: one class, one file; families are folders."""

from hookline.callbacks.debug import LambdaCallback
from hookline.callbacks.saving import Checkpointer, LoadWeights
from hookline.callbacks.stopping import EarlyStopping, StopOnSignal
from hookline.callbacks.watch import ProgressBar

__all__ = ["Checkpointer", "EarlyStopping", "LambdaCallback", "LoadWeights", "ProgressBar", "StopOnSignal"]
