"""Callbacks that end a run."""

from hookline.callbacks.stopping.early_stopping import EarlyStopping
from hookline.callbacks.stopping.stop_on_signal import StopOnSignal

__all__ = ["EarlyStopping", "StopOnSignal"]
