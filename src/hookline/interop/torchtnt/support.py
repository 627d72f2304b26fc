"""Which callbacks of TorchTNT run in Hookline, and which cannot. ``docs/interop/torchtnt.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "0.2.4"
"""The versions that the tests run."""

RUNS: Final = {
    "EarlyStopping": "monitors a metric: `train_loss` is `train/loss`, `val_loss` and `eval_loss` are `val/loss`",
    "TimeLimitInterrupter": "",
    "LearningRateMonitor": "",
    "IterationTimeLogger": "",
    "ThroughputLogger": "",
    "TimeWaitForBatchLogger": "",
    "TrainProgressMonitor": "",
    "SystemResourcesMonitor": "",
    "ModuleSummary": "",
    "TensorBoardParameterMonitor": "",
    "TQDMProgressBar": "",
    "ProgressReporter": "",
    "GarbageCollector": "",
    "EmptyCudaCache": "",
    "TorchCompile": "",
    "SlowRankDetector": "",
    "PyTorchProfiler": "",
    "Lambda": "",
    "BaseCSVWriter": "",
    "DistributedCheckpointSaver": "writes the same files as in TorchTNT; a run resumes from its own checkpoints",
    "MemorySnapshot": "not tested: it needs a GPU",
}
"""Callbacks that have the same effect as in TorchTNT, with a note."""

REFUSED: Final = {
    "TorchSnapshotSaver": "torchsnapshot does not load with current versions of torch. Use hl.Checkpointer.",
}
"""Callbacks that cannot work, with the reason and what to use."""
