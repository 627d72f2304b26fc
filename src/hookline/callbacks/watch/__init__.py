"""Callbacks that show what a run does."""

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
    "DeviceMonitor",
    "LRMonitor",
    "LogFile",
    "MemoryMonitor",
    "ModelSummary",
    "Progress",
    "ProgressBar",
    "ProgressDisplay",
    "SpeedMonitor",
    "TimeRemaining",
]
