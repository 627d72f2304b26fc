"""Callbacks that stop a run, or keep bad batches from harming it."""

from hookline.callbacks.stopping.early_stopping import EarlyStopping
from hookline.callbacks.stopping.spike_guard import SpikeGuard
from hookline.callbacks.stopping.stop_at_threshold import StopAtThreshold
from hookline.callbacks.stopping.stop_on_constant_predictions import StopOnConstantPredictions
from hookline.callbacks.stopping.stop_on_nan import StopOnNaN
from hookline.callbacks.stopping.stop_on_signal import StopOnSignal
from hookline.callbacks.stopping.time_limit import TimeLimit

__all__ = [
    "EarlyStopping",
    "SpikeGuard",
    "StopAtThreshold",
    "StopOnConstantPredictions",
    "StopOnNaN",
    "StopOnSignal",
    "TimeLimit",
]
