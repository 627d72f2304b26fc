"""Which callbacks of AIToolbox run in Hookline, and which cannot. ``docs/interop/aitoolbox.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "1.8.0"
"""The versions that the tests run."""

_FOLDER: Final = "give it a project, or the run a folder"

RUNS: Final = {
    "EarlyStopping": "",
    "ThresholdEarlyStopping": "",
    "TerminateOnNaN": "",
    "AllPredictionsSame": "",
    "ListRegisteredCallbacks": "lists the callbacks of AIToolbox",
    "FunctionOnTrainLoop": "",
    "GradNormClip": "",
    "GradValueClip": "",
    "GradientStatsPrint": "",
    "GradDistributionPlot": f"there are no gradients at the end of an epoch, as there; {_FOLDER}",
    "ModelPerformanceEvaluation": "its metrics are also logged in Hookline: `val_Accuracy` is `val/Accuracy`",
    "ModelPerformancePrintReport": "",
    "TrainHistoryFormatter": "",
    "MetricHistoryRename": "",
    "ModelTrainHistoryPlot": _FOLDER,
    "ModelTrainHistoryFileWriter": _FOLDER,
    "TensorboardTrainBatchLoss": _FOLDER,
    "TensorboardTrainHistoryMetric": _FOLDER,
    "TensorboardFullTracking": _FOLDER,
    "ModelCheckpoint": "writes the same files as in AIToolbox; a run resumes from its own checkpoints",
    "ModelIterationCheckpoint": "as `ModelCheckpoint`",
    "GeneralLRSchedulerCallback": "steps its scheduler itself; it is not in `run.schedulers`",
    "ReduceLROnPlateauScheduler": "as `GeneralLRSchedulerCallback`",
    "ReduceLROnPlateauMetricScheduler": "as `GeneralLRSchedulerCallback`",
    "LambdaLRScheduler": "as `GeneralLRSchedulerCallback`",
    "StepLRScheduler": "as `GeneralLRSchedulerCallback`",
    "MultiStepLRScheduler": "as `GeneralLRSchedulerCallback`",
    "ConstantWithWarmupScheduler": "as `GeneralLRSchedulerCallback`",
    "CosineWithWarmupScheduler": "as `GeneralLRSchedulerCallback`",
    "HardRestartsCosineWithWarmupScheduler": "as `GeneralLRSchedulerCallback`",
    "LinearWithWarmupScheduler": "as `GeneralLRSchedulerCallback`",
}
"""Callbacks that have the same effect as in AIToolbox, with a note."""

LIMITED: Final = {
    "ModelTrainEndSave": "predicts with the model or task of the run; a run resumes from its own checkpoints",
    "WandBTracking": "needs `is_project=False`, or a run with a folder in a script",
    "EmailNotification": f"needs an account of AWS, so it is not tested; {_FOLDER}, or use `hl.Notify`",
}
"""Callbacks that run with a limit."""

REFUSED: Final = {
    "DataSubsetTestRun": "it replaces the loaders of a run that has begun. Use hl.LimitBatches.",
    "DistributedSamplerSetEpoch": "Hookline gives each rank its shard of the data. Leave it out, and use hl.DDP.",
    "InMultiProcessDataLoad": "it replaces the loaders of a run that has begun. Use loaders that each process makes.",
    "LogUpload": "it needs the cloud folder of another trainer. Use hl.Upload.",
    "ModelLoadContinueTraining": "it loads the state of another trainer. Use hl.Checkpointer and resume='auto'.",
}
"""Callbacks that cannot work, with the reason and what to use."""
