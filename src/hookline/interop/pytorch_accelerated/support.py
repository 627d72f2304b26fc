"""Which callbacks of pytorch-accelerated run in Hookline, and which cannot.

``docs/interop/pytorch-accelerated.md`` shows the tables.
"""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "0.1.61"
"""The versions that the tests run."""

RUNS: Final = {
    "EarlyStoppingCallback": "monitors a metric: `eval_loss_epoch` is `val/loss`",
    "SaveBestModelCallback": "writes the same file, and loads the best weights when training ends",
    "TerminateOnNaNCallback": "no update is made with the loss; the run ends with its `SystemExit`",
    "LogMetricsCallback": "",
    "PrintProgressCallback": "",
    "ProgressBarCallback": "",
    "MoveModulesToDeviceCallback": "",
    "ModelEmaCallback": "evaluates the average a second time; its own `callbacks=` are refused",
    "ConvertSyncBatchNormCallback": "tested in one process, where it changes nothing",
}
"""Callbacks that have the same effect as in pytorch-accelerated, with a note."""

REFUSED: Final = {
    "LimitBatchesCallback": "it replaces the loaders of a run that has begun. Use hl.LimitBatches.",
    "LimitEvalStepsCallback": "it replaces the loader of an evaluation that has begun. Use hl.LimitBatches.",
    "SaveTrainingStateCallback": "it saves the state of another trainer. Use hl.Checkpointer and resume='auto'.",
    "StepBasedEvaluationCallback": "it evaluates between forward and backward. Use hl.Trainer(eval_every='2st').",
    "WSDCheckpointCallback": "it saves the state of another trainer. Use hl.Checkpointer and resume='auto'.",
}
"""Callbacks that cannot work, with the reason and what to use."""
