"""The callbacks that come with Hookline: one class, one file; families are folders."""

from hookline.callbacks.debug import LambdaCallback
from hookline.callbacks.evaluation import DerivedMetric, HistoryPlot, ImageSamples, Metrics, PrintMetrics, RenameMetric
from hookline.callbacks.saving import Checkpointer, LoadWeights
from hookline.callbacks.stopping import EarlyStopping, StopOnSignal
from hookline.callbacks.watch import (
    Bar,
    DeviceMonitor,
    LogFile,
    LRMonitor,
    MemoryMonitor,
    ModelSummary,
    Progress,
    ProgressBar,
    ProgressDisplay,
    SpeedMonitor,
    TimeRemaining,
)

__all__ = [
    "Bar",
    "Checkpointer",
    "DerivedMetric",
    "DeviceMonitor",
    "EarlyStopping",
    "HistoryPlot",
    "ImageSamples",
    "LRMonitor",
    "LambdaCallback",
    "LoadWeights",
    "LogFile",
    "MemoryMonitor",
    "Metrics",
    "ModelSummary",
    "PrintMetrics",
    "Progress",
    "ProgressBar",
    "ProgressDisplay",
    "RenameMetric",
    "SpeedMonitor",
    "StopOnSignal",
    "TimeRemaining",
]
