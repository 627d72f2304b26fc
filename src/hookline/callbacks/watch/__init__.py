"""Callbacks that monitor, display and report a run."""

from hookline.callbacks.watch.activation_monitor import ActivationMonitor
from hookline.callbacks.watch.device_monitor import DeviceMonitor
from hookline.callbacks.watch.log_file import LogFile
from hookline.callbacks.watch.lr_monitor import LRMonitor
from hookline.callbacks.watch.memory_monitor import MemoryMonitor
from hookline.callbacks.watch.mlperf_log import MLPerfLog
from hookline.callbacks.watch.model_summary import ModelSummary
from hookline.callbacks.watch.notify import Notify
from hookline.callbacks.watch.parameter_monitor import ParameterMonitor
from hookline.callbacks.watch.progress import Bar, Progress, ProgressDisplay
from hookline.callbacks.watch.progress_bar import ProgressBar
from hookline.callbacks.watch.slow_rank_monitor import SlowRankMonitor
from hookline.callbacks.watch.speed_monitor import SpeedMonitor
from hookline.callbacks.watch.time_remaining import TimeRemaining

__all__ = [
    "ActivationMonitor",
    "Bar",
    "DeviceMonitor",
    "LRMonitor",
    "LogFile",
    "MLPerfLog",
    "MemoryMonitor",
    "ModelSummary",
    "Notify",
    "ParameterMonitor",
    "Progress",
    "ProgressBar",
    "ProgressDisplay",
    "SlowRankMonitor",
    "SpeedMonitor",
    "TimeRemaining",
]
