"""The names that other systems give to what Hookline has, and ours: for the error about a name that is not there."""

from __future__ import annotations

from typing import Final

FOREIGN_NAMES: Final = {
    **dict.fromkeys(("ModelCheckpoint", "CheckpointSaver", "ModelCheckpointCallback"), "Checkpointer"),
    **dict.fromkeys(("TorchSnapshotSaver", "DistributedCheckpointSaver", "TrainLoopCheckpoint"), "Checkpointer"),
    **dict.fromkeys(("SaveBestModelCallback", "ModelTrainEndSave"), "SaveBest"),
    **dict.fromkeys(("EarlyStopper", "EarlyStoppingCallback", "EarlyStoppingChecker"), "EarlyStopping"),
    **dict.fromkeys(("ThresholdStopper", "ThresholdEarlyStopping"), "StopAtThreshold"),
    **dict.fromkeys(("TerminateOnNaN", "TerminateOnNan", "NaNMonitor", "StopOnNan"), "StopOnNaN"),
    **dict.fromkeys(("Timer", "TimeLimitInterrupt"), "TimeLimit"),
    **dict.fromkeys(("LearningRateMonitor", "LRSchedulerMonitor"), "LRMonitor"),
    **dict.fromkeys(("LearningRateFinder", "LRFind"), "LRFinder"),
    **dict.fromkeys(("LearningRateScheduler", "ReduceLROnPlateau", "OneCycleLR"), "LRSchedule"),
    "GradientAccumulationScheduler": "AccumulationSchedule",
    "StochasticWeightAveraging": "SWA",
    **dict.fromkeys(("ExponentialMovingAverage", "ModelEma", "ModelEmaCallback", "WeightAveraging"), "EMA"),
    **dict.fromkeys(("GradientClipping", "GradClip", "GradNormClip"), "GradientClip"),
    "ModelPruning": "Pruning",
    **dict.fromkeys(("TQDMProgressBar", "RichProgressBar", "ProgressBarLogger", "ProgressBarCallback"), "ProgressBar"),
    **dict.fromkeys(("RichModelSummary", "ModuleSummary"), "ModelSummary"),
    **dict.fromkeys(("DeviceStatsMonitor", "SystemMetricsMonitor"), "DeviceMonitor"),
    **dict.fromkeys(("OptimizerMonitor", "GradientStatsPrint"), "GradientMonitor"),
    **dict.fromkeys(("ThroughputMonitor", "Throughput"), "SpeedMonitor"),
    "RuntimeEstimator": "TimeRemaining",
    "BatchSizeScaler": "BatchSizeFinder",
    **dict.fromkeys(("BasePredictionWriter", "BasePredictionWriterCallback"), "PredictionWriter"),
    **dict.fromkeys(("PrintMetricsCallback", "MetricsPrinter"), "PrintMetrics"),
    **dict.fromkeys(("PyTorchProfiler", "Profiler", "TorchProfilerCallback"), "TorchProfiler"),
    "GarbageCollectorCallback": "GarbageCollector",
    "Lambda": "LambdaCallback",
    **dict.fromkeys(("LightningModule", "TTModel", "ComposerModel", "AutoUnit", "TrainUnit", "EvalUnit"), "Task"),
    **dict.fromkeys(("AbstractCallback", "TrainerCallback"), "Callback"),
    **dict.fromkeys(("TrainLoop", "Accelerator", "Fabric"), "Loop"),
    **dict.fromkeys(("Time", "Timestamp"), "Duration"),
    **dict.fromkeys(("TensorBoardLogger", "TensorboardLogger", "SummaryWriter", "TensorBoard"), "sinks.TensorBoard"),
    **dict.fromkeys(("WandbLogger", "WandBLogger", "WeightsAndBiasesLogger", "WandB"), "sinks.WandB"),
    **dict.fromkeys(("MLFlowLogger", "MLflowLogger", "MLflow"), "sinks.MLflow"),
    **dict.fromkeys(("CSVLogger", "CSV"), "sinks.CSV"),
}
"""By their name: ours, below ``hl``."""
