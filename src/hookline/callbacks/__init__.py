"""The callbacks that come with Hookline: one class, one file; families are folders."""

from hookline.callbacks.debug import LambdaCallback
from hookline.callbacks.evaluation import DerivedMetric, Metrics, PrintMetrics, RenameMetric
from hookline.callbacks.saving import Checkpointer, LoadWeights
from hookline.callbacks.stopping import EarlyStopping, StopOnSignal
from hookline.callbacks.watch.device_monitor import DeviceMonitor
from hookline.callbacks.watch.display import Bar, Progress, ProgressDisplay
from hookline.callbacks.watch.log_file import LogFile
from hookline.callbacks.watch.lr_monitor import LRMonitor
from hookline.callbacks.watch.memory_monitor import MemoryMonitor
from hookline.callbacks.watch.model_summary import ModelSummary
from hookline.callbacks.watch.progress_bar import ProgressBar
from hookline.callbacks.watch.speed_monitor import SpeedMonitor
from hookline.callbacks.watch.time_remaining import TimeRemaining

__all__ = [
    "Bar",
    "Checkpointer",
    "DerivedMetric",
    "DeviceMonitor",
    "EarlyStopping",
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
