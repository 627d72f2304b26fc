"""Hookline trains PyTorch models, and its heart is its callbacks: hooks on a line, and sinks for what they say.

The names below are imported when they are first used, so ``import hookline.events`` never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline import sinks
    from hookline.callbacks import (
        Checkpointer,
        DerivedMetric,
        DeviceMonitor,
        EarlyStopping,
        HistoryPlot,
        ImageSamples,
        LambdaCallback,
        LoadWeights,
        LogFile,
        LRMonitor,
        MemoryMonitor,
        Metrics,
        ModelSummary,
        PrintMetrics,
        ProgressBar,
        ProgressDisplay,
        RenameMetric,
        SpeedMonitor,
        StopOnSignal,
        TimeRemaining,
    )
    from hookline.checkpoint.request import Resume
    from hookline.errors import HooklineError, HooklineWarning, Preempted, StopTraining
    from hookline.events import Callback, Event, on
    from hookline.loop import Loop, Result, Scheduler, SupervisedTask, Task
    from hookline.presets import Trainer, evaluate, fit, predict, test, train
    from hookline.progress import Clock, Duration
    from hookline.run import History, Run

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Checkpointer",
    "Clock",
    "DerivedMetric",
    "DeviceMonitor",
    "Duration",
    "EarlyStopping",
    "Event",
    "History",
    "HistoryPlot",
    "HooklineError",
    "HooklineWarning",
    "ImageSamples",
    "LRMonitor",
    "LambdaCallback",
    "LoadWeights",
    "LogFile",
    "Loop",
    "MemoryMonitor",
    "Metrics",
    "ModelSummary",
    "Preempted",
    "PrintMetrics",
    "ProgressBar",
    "ProgressDisplay",
    "RenameMetric",
    "Result",
    "Resume",
    "Run",
    "Scheduler",
    "SpeedMonitor",
    "StopOnSignal",
    "StopTraining",
    "SupervisedTask",
    "Task",
    "TimeRemaining",
    "Trainer",
    "evaluate",
    "fit",
    "on",
    "predict",
    "sinks",
    "test",
    "train",
]

_HOMES = {
    "hookline.callbacks": (
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
        "ProgressBar",
        "ProgressDisplay",
        "RenameMetric",
        "SpeedMonitor",
        "StopOnSignal",
        "TimeRemaining",
    ),
    "hookline.checkpoint.request": ("Resume",),
    "hookline.errors": ("HooklineError", "HooklineWarning", "Preempted", "StopTraining"),
    "hookline.events": ("Callback", "Event", "on"),
    "hookline.loop": ("Loop", "Result", "Scheduler", "SupervisedTask", "Task"),
    "hookline.presets": ("Trainer", "evaluate", "fit", "predict", "test", "train"),
    "hookline.progress": ("Clock", "Duration"),
    "hookline.run": ("History", "Run"),
}


def __getattr__(name: str) -> Any:
    if name == "sinks":
        return import_module("hookline.sinks")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'hookline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
