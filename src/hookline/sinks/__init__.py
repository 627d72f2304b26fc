"""Sinks: where records are sent.

Sinks that need an additional library are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookline.sinks.console import Console
from hookline.sinks.csv_file import CSV
from hookline.sinks.jsonl import JSONL
from hookline.sinks.log_object import LogObject
from hookline.sinks.memory import Memory
from hookline.sinks.pump import SinkReport
from hookline.sinks.sink import RunInfo, Sink

if TYPE_CHECKING:
    from hookline.sinks.mlflow import MLflow
    from hookline.sinks.tensorboard import TensorBoard
    from hookline.sinks.wandb import WandB

__all__ = [
    "CSV",
    "JSONL",
    "Console",
    "LogObject",
    "MLflow",
    "Memory",
    "RunInfo",
    "Sink",
    "SinkReport",
    "TensorBoard",
    "WandB",
]

_HOMES = {
    "MLflow": "hookline.sinks.mlflow",
    "TensorBoard": "hookline.sinks.tensorboard",
    "WandB": "hookline.sinks.wandb",
}


if not TYPE_CHECKING:  # With __getattr__, a type checker would accept every misspelled name.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'hookline.sinks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
