"""Which callbacks of TorchTNT run in Hookline, and which methods of units. ``docs/interop/torchtnt.md`` shows both."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "0.2.4"
"""The versions that the tests run."""

MODELS: Final = ("AutoUnit",)
"""Classes that run because their base classes do."""

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

_FETCH: Final = "Hookline reads the loader itself. Do it in the data set, or in the step."
NOT_CALLED: Final = {
    **dict.fromkeys(("get_next_train_batch", "get_next_eval_batch", "get_next_predict_batch"), _FETCH),
    "move_data_to_device": "Hookline moves batches itself. Do it in the data set, or in the step.",
}
"""Methods of a unit that Hookline does not call, and what to do instead."""
