"""Callbacks for debugging: short runs, profiles, and memory reports."""

from hookline.callbacks.debug.dry_run import DryRun
from hookline.callbacks.debug.garbage_collector import GarbageCollector
from hookline.callbacks.debug.lambda_callback import LambdaCallback
from hookline.callbacks.debug.limit_batches import LimitBatches
from hookline.callbacks.debug.memory_snapshot import MemorySnapshot
from hookline.callbacks.debug.oom_report import OOMReport
from hookline.callbacks.debug.overfit_batches import OverfitBatches
from hookline.callbacks.debug.torch_profiler import TorchProfiler

__all__ = [
    "DryRun",
    "GarbageCollector",
    "LambdaCallback",
    "LimitBatches",
    "MemorySnapshot",
    "OOMReport",
    "OverfitBatches",
    "TorchProfiler",
]
