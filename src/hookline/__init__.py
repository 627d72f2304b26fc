"""Train PyTorch models with callbacks.

The names below are imported at their first use, so that ``import hookline.events`` does not import torch.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline import callbacks, interop, sinks
    from hookline.callbacks import *  # noqa: F403  # For editors. At run time they are imported at their first use.
    from hookline.checkpoint.request import Resume
    from hookline.distributed.ddp import DDP
    from hookline.distributed.fsdp import FSDP
    from hookline.errors import HooklineError, HooklineWarning, Preempted, StopTraining
    from hookline.events import Callback, Event, on
    from hookline.loop import EvalLoader, Loop, Result, Scheduler, SupervisedTask, Task
    from hookline.presets import Trainer, evaluate, fit, predict, test, train
    from hookline.progress import Clock, Duration
    from hookline.records.finding import Finding
    from hookline.replaying import Replay, replay
    from hookline.run import History, Run

__version__ = "0.1.0"

__all__ = [
    "DDP",
    "FSDP",
    "Callback",
    "Clock",
    "Duration",
    "EvalLoader",
    "Event",
    "Finding",
    "History",
    "HooklineError",
    "HooklineWarning",
    "Loop",
    "Preempted",
    "Replay",
    "Result",
    "Resume",
    "Run",
    "Scheduler",
    "StopTraining",
    "SupervisedTask",
    "Task",
    "Trainer",
    "callbacks",
    "evaluate",
    "fit",
    "interop",
    "on",
    "predict",
    "replay",
    "sinks",
    "test",
    "train",
]

# The list is looked up, not imported: many modules below the callbacks import this module for its version.
_CALLBACKS: list[str] = import_module("hookline.callbacks").__all__
__all__ += _CALLBACKS

_EVERYDAY = (
    "EMA",
    "Checkpointer",
    "EarlyStopping",
    "Freeze",
    "GradientClip",
    "LRFinder",
    "LRMonitor",
    "LRSchedule",
    "Metrics",
    "ModelSummary",
    "ProgressBar",
    "SaveBest",
    "StopOnNaN",
)
"""Callbacks that ``dir(hl)`` lists."""

_HOMES: dict[str, Sequence[str]] = {
    "hookline.callbacks": _CALLBACKS,
    "hookline.checkpoint.request": ("Resume",),
    "hookline.distributed.ddp": ("DDP",),
    "hookline.distributed.fsdp": ("FSDP",),
    "hookline.errors": ("HooklineError", "HooklineWarning", "Preempted", "StopTraining"),
    "hookline.events": ("Callback", "Event", "on"),
    "hookline.loop": ("EvalLoader", "Loop", "Result", "Scheduler", "SupervisedTask", "Task"),
    "hookline.presets": ("Trainer", "evaluate", "fit", "predict", "test", "train"),
    "hookline.progress": ("Clock", "Duration"),
    "hookline.replaying": ("Replay", "replay"),
    "hookline.records.finding": ("Finding",),
    "hookline.run": ("History", "Run"),
}


if not TYPE_CHECKING:  # A type checker would accept every misspelt name.

    def __getattr__(name: str) -> Any:
        if name in ("interop", "sinks"):
            return import_module(f"hookline.{name}")
        for home, names in _HOMES.items():
            if name in names:
                return getattr(_imported(home), name)
        meant = import_module("hookline.events.foreign_names").NAMES.get(name)
        if name in ("from_plugins", "plugins"):
            meant = f"callbacks.{name}"
        close = [meant] if meant else get_close_matches(name, __all__, n=1)
        hint = f"; did you mean hl.{close[0]}?" if close and not name.startswith("_") else ""
        if meant is not None and " " in meant:
            hint = f"; {meant}"
        raise AttributeError(f"module 'hookline' has no attribute {name!r}{hint}")


def _imported(home: str) -> Any:
    """Import a module without garbage collection, which would double the time to import torch."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(home)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    """Return the everyday names. ``hl.callbacks`` has all callbacks, and ``hl.<name>`` finds each of them."""
    return [name for name in __all__ if name not in _CALLBACKS or name in _EVERYDAY]
