"""Names from other libraries, and the Hookline name or advice for each.

The tables list classes, constructor arguments, keywords and attributes. ``foreign.py`` lists the hooks. In the advice,
``advice_for`` replaces ``[[3]]`` by the value that the user gave, and 3 is an example.
``tests/events/test_foreign_names.py`` checks that every Hookline name exists.
"""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Final

_SINK: Final = "give any object with log(dict, step): sinks=[…]"
_SEED: Final = "write hl.Trainer(seed=1)"

CLASSES: Final[dict[str, dict[str, str]]] = {
    "TorchTNT": {
        "AutoUnit": "Task",
        "BaseCSVWriter": "PredictionWriter",
        "BaseCheckpointer": "Checkpointer",
        "CSVLogger": "sinks.CSV",
        "DistributedCheckpointSaver": "Checkpointer",
        "EmptyCudaCache": "call torch.cuda.empty_cache() in a hook: @hl.on('train_step_end', every='100st')",
        "EmptyDataloaderDetectorCallback": "leave it out: Hookline raises an error for a loader without batches",
        "EnableTensorFloat32": "call torch.set_float32_matmul_precision('high') before fit",
        "EvalUnit": "Task",
        "InMemoryLogger": "sinks.Memory",
        "IterationTimeLogger": "SpeedMonitor",
        "JSONLogger": "sinks.JSONL",
        "Lambda": "LambdaCallback",
        "LearningRateMonitor": "LRMonitor",
        "ModuleSummary": "ModelSummary",
        "PeriodicDistributedSync": "leave it out: Hookline keeps the ranks together in evaluations",
        "PredictUnit": "Task",
        "ProgressReporter": "ProgressBar",
        "PyTorchProfiler": "TorchProfiler",
        "SlowRankDetector": "SlowRankMonitor",
        "StdoutLogger": "sinks.Console",
        "SystemResourcesMonitor": "DeviceMonitor",
        "TQDMProgressBar": "ProgressBar",
        "TensorBoardLogger": "sinks.TensorBoard",
        "TensorBoardParameterMonitor": "ParameterMonitor",
        "ThroughputLogger": "SpeedMonitor",
        "TimeLimitInterrupter": "TimeLimit",
        "TimeWaitForBatchLogger": "SpeedMonitor",
        "TorchCompile": "write hl.Trainer(compile=True)",
        "TorchSnapshotSaver": "Checkpointer",
        "TrainProgressMonitor": "ProgressBar",
        "TrainUnit": "Task",
    },
    "pytorch-accelerated": {
        "ConvertSyncBatchNormCallback": "call torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before fit",
        "EarlyStoppingCallback": "EarlyStopping",
        "LimitBatchesCallback": "LimitBatches",
        "LimitEvalStepsCallback": "LimitBatches",
        "LogMetricsCallback": "PrintMetrics",
        "ModelEma": "EMA",
        "ModelEmaCallback": "EMA",
        "MoveModulesToDeviceCallback": "leave it out: Hookline moves the modules of a callback to the device",
        "PrintMetricsCallback": "PrintMetrics",
        "PrintProgressCallback": "ProgressBar",
        "ProgressBarCallback": "ProgressBar",
        "SaveBestModelCallback": "SaveBest",
        "SaveTrainingStateCallback": "Checkpointer",
        "StepBasedEvaluationCallback": "write hl.Trainer(eval_every='500st')",
        "TerminateOnNaNCallback": "StopOnNaN",
        "TrainerCallback": "Callback",
        "WSDCheckpointCallback": "Checkpointer",
    },
    "Lightning": {
        "AsyncCheckpointIO": "write hl.Checkpointer(background=True)",
        "BaseFinetuning": "Finetuning",
        "BasePredictionWriter": "PredictionWriter",
        "CSVLogger": "sinks.CSV",
        "Checkpoint": "Checkpointer",
        "CometLogger": _SINK,
        "DeviceStatsMonitor": "DeviceMonitor",
        "EMAWeightAveraging": "EMA",
        "Fabric": "Loop",
        "GPUStatsMonitor": "DeviceMonitor",
        "GradientAccumulationScheduler": "AccumulationSchedule",
        "LearningRateFinder": "LRFinder",
        "LearningRateMonitor": "LRMonitor",
        "LightningDataModule": "pass the loaders: trainer.fit(model, train, val)",
        "LightningModule": "Task",
        "MLFlowLogger": "sinks.MLflow",
        "ModelCheckpoint": "Checkpointer",
        "ModelPruning": "Pruning",
        "NeptuneLogger": _SINK,
        "OnExceptionCheckpoint": "write hl.Checkpointer(on_exception=True)",
        "ProgressBarBase": "ProgressBar",
        "RichModelSummary": "ModelSummary",
        "RichProgressBar": "ProgressBar",
        "SaveConfigCallback": "write hl.Trainer(config={…}): run.json in the run's folder has it",
        "ServableModuleValidator": "ExportModel",
        "SpikeDetection": "SpikeGuard",
        "StochasticWeightAveraging": "SWA",
        "TQDMProgressBar": "ProgressBar",
        "TensorBoardLogger": "sinks.TensorBoard",
        "ThroughputMonitor": "SpeedMonitor",
        "Timer": "TimeLimit",
        "Tuner": "LRFinder",
        "WandbLogger": "sinks.WandB",
        "WeightAveraging": "EMA",
        "XLAStatsMonitor": "DeviceMonitor",
        "seed_everything": _SEED,
    },
    "Composer": {
        "CheckpointSaver": "Checkpointer",
        "CometMLLogger": _SINK,
        "ComposerModel": "Task",
        "ConsoleLogger": "sinks.Console",
        "EarlyStopper": "EarlyStopping",
        "EvalOutputLogging": "PredictionWriter",
        "ExportForInferenceCallback": "ExportModel",
        "FileLogger": "LogFile",
        "FreeOutputs": "leave it out: Hookline drops the outputs of a batch before the next one",
        "Generate": "call run.log_text(name, text) in a hook: @hl.on('eval_end')",
        "GradMonitor": "GradientMonitor",
        "GradientClipping": "GradientClip",
        "HealthChecker": "SlowRankMonitor",
        "HuggingFaceCheckpointer": "Checkpointer",
        "ImageVisualizer": "ImageSamples",
        "InMemoryLogger": "sinks.Memory",
        "LayerFreezing": "Freeze",
        "LoadCheckpoint": "LoadWeights",
        "MLFlowLogger": "sinks.MLflow",
        "MLPerfCallback": "MLPerfLog",
        "MosaicMLLogger": _SINK,
        "NaNMonitor": "StopOnNaN",
        "NeptuneLogger": _SINK,
        "OOMObserver": "OOMReport",
        "OptimizerMonitor": "GradientMonitor",
        "Profiler": "TorchProfiler",
        "ProgressBarLogger": "ProgressBar",
        "RemoteUploaderDownloader": "Upload",
        "RuntimeEstimator": "TimeRemaining",
        "SlackLogger": "Notify",
        "State": "Run",
        "SystemMetricsMonitor": "DeviceMonitor",
        "SystemProfiler": "DeviceMonitor",
        "TensorboardLogger": "sinks.TensorBoard",
        "ThresholdStopper": "StopAtThreshold",
        "Time": "Duration",
        "Timestamp": "Clock",
        "WandBLogger": "sinks.WandB",
    },
    "AIToolbox": {
        "AbstractCallback": "Callback",
        "AbstractExperimentCallback": "Callback",
        "AllPredictionsSame": "StopOnConstantPredictions",
        "ConstantWithWarmupScheduler": "LRSchedule",
        "CosineWithWarmupScheduler": "LRSchedule",
        "DataSubsetTestRun": "LimitBatches",
        "DistributedSamplerSetEpoch": "leave it out: Hookline calls set_epoch of every sampler",
        "EmailNotification": "Notify",
        "FunctionOnTrainLoop": "LambdaCallback",
        "GeneralLRScheduler": "LRSchedule",
        "GeneralLRSchedulerCallback": "LRSchedule",
        "GradDistributionPlot": "GradientPlot",
        "GradNormClip": "GradientClip",
        "GradValueClip": "GradientClip",
        "GradientStatsPrint": "GradientMonitor",
        "HardRestartsCosineWithWarmupScheduler": "LRSchedule",
        "InMultiProcessDataLoad": "make the loaders in the script: torchrun runs it once per process",
        "LambdaLRScheduler": "LRSchedule",
        "LinearWithWarmupScheduler": "LRSchedule",
        "ListRegisteredCallbacks": "write print(trainer.explain())",
        "LogUpload": "Upload",
        "MetricHistoryRename": "RenameMetric",
        "ModelCheckpoint": "Checkpointer",
        "ModelIterationCheckpoint": "Checkpointer",
        "ModelLoadContinueTraining": "write hl.Trainer(folder='…', resume='auto')",
        "ModelPerformanceEvaluation": "Metrics",
        "ModelPerformancePrintReport": "PrintMetrics",
        "ModelTrainEndSave": "SaveAtEnd",
        "ModelTrainHistoryFileWriter": "sinks.CSV",
        "ModelTrainHistoryPlot": "HistoryPlot",
        "MultiStepLRScheduler": "LRSchedule",
        "ReduceLROnPlateauMetricScheduler": "LRSchedule",
        "ReduceLROnPlateauScheduler": "LRSchedule",
        "StepLRScheduler": "LRSchedule",
        "TTModel": "Task",
        "TensorboardFullTracking": "sinks.TensorBoard",
        "TensorboardReporterBaseCB": "sinks.TensorBoard",
        "TensorboardTrainBatchLoss": "sinks.TensorBoard",
        "TensorboardTrainHistoryMetric": "sinks.TensorBoard",
        "TerminateOnNaN": "StopOnNaN",
        "ThresholdEarlyStopping": "StopAtThreshold",
        "TrainHistoryFormatter": "DerivedMetric",
        "TrainLoop": "Trainer",
        "TrainLoopCheckpoint": "Checkpointer",
        "TrainLoopCheckpointEndSave": "SaveAtEnd",
        "TrainLoopEndSave": "SaveAtEnd",
        "WandBTracking": "sinks.WandB",
    },
    "Hugging Face": {
        "Accelerator": "Loop",
        "CometCallback": _SINK,
        "DefaultFlowCallback": "leave it out: eval_every, log_every and hl.Checkpointer(every=…) say when",
        "EarlyStoppingCallback": "EarlyStopping",
        "MLflowCallback": "sinks.MLflow",
        "PrinterCallback": "PrintMetrics",
        "ProgressCallback": "ProgressBar",
        "Seq2SeqTrainer": "Trainer",
        "TensorBoardCallback": "sinks.TensorBoard",
        "TrainerCallback": "Callback",
        "TrainingArguments": "write the options as arguments: hl.Trainer(max_duration='3ep', …)",
        "WandbCallback": "sinks.WandB",
        "set_seed": _SEED,
    },
    "Keras": {
        "BackupAndRestore": "Checkpointer",
        "CSVLogger": "sinks.CSV",
        "LearningRateScheduler": "LRSchedule",
        "ModelCheckpoint": "Checkpointer",
        "ProgbarLogger": "ProgressBar",
        "ReduceLROnPlateau": "LRSchedule",
        "RemoteMonitor": "Notify",
        "SwapEMAWeights": "EMA",
        "TensorBoard": "sinks.TensorBoard",
        "TerminateOnNaN": "StopOnNaN",
        "set_random_seed": _SEED,
    },
    "others": {
        "BatchSizeScaler": "BatchSizeFinder",
        **{name: f"sinks.{name}" for name in ("CSV", "JSONL", "MLflow", "WandB", "Console", "Memory")},
        "EarlyStoppingChecker": "EarlyStopping",
        "ExponentialMovingAverage": "EMA",
        "GarbageCollectorCallback": "GarbageCollector",
        "GradClip": "GradientClip",
        "LRFind": "LRFinder",
        "LRSchedulerMonitor": "LRMonitor",
        "MLflowLogger": "sinks.MLflow",
        "MetricsPrinter": "PrintMetrics",
        "ModelCheckpointCallback": "Checkpointer",
        "BasePredictionWriterCallback": "PredictionWriter",
        **dict.fromkeys(("OneCycleLR", "CosineAnnealingLR", "StepLR"), "LRSchedule"),
        **dict.fromkeys(("StopOnNan", "TerminateOnNan"), "StopOnNaN"),
        "SummaryWriter": "sinks.TensorBoard",
        "Throughput": "SpeedMonitor",
        "TimeLimitInterrupt": "TimeLimit",
        "TorchProfilerCallback": "TorchProfiler",
        "WeightsAndBiasesLogger": "sinks.WandB",
    },
}
"""Classes and functions by library, with the name below ``hl`` or advice.

Names that exist in both libraries are left out.
"""

NAMES: Final = {name: ours for system in reversed(CLASSES.values()) for name, ours in system.items()}
"""All entries of ``CLASSES``. If several libraries have a name, the first library counts."""

_EVERY: Final = "every='1ep', '500st' or '30m'"
_MODE: Final = "mode='min' or mode='max'"
_BEST: Final = {
    **dict.fromkeys(("watch_metric", "metric_for_best_model", "monitored_attr", "metric"), "monitor='val/loss'"),
    **dict.fromkeys(("greater_is_better", "comp", "objective"), _MODE),
    "dataloader_label": "monitor='val/<loader>/loss'",
}
_SILENT: Final = dict.fromkeys(("verbose", "log_rank_zero_only"), "leave it out")

ARGUMENTS: Final[dict[str, dict[str, str]]] = {
    "EarlyStopping": {
        **_BEST,
        **_SILENT,
        **dict.fromkeys(("restore_best_weights", "load_best_model_at_end"), "restore_best=True"),
        "early_stopping_patience": "patience=[[3]]",
        "early_stopping_threshold": "min_delta=[[0.01]]",
        "baseline": "stopping_threshold=…, or use hl.StopAtThreshold",
        **dict.fromkeys(("start_from_epoch", "burn_in"), "start='[[3]]ep'"),
        "check_on_train_epoch_end": "monitor='train/loss', which is decided at the end of an epoch",
        "strict": "leave it out. A metric that is never logged is always an error",
    },
    "Checkpointer": {
        **_BEST,
        **_SILENT,
        **dict.fromkeys(("save_top_k", "rm_subopt_local_models"), "keep_best=[[2]] with monitor='val/loss'"),
        "save_best_only": "hl.SaveBest('val/loss') instead",
        "load_best_model_at_end": "hl.SaveBest('val/loss', load_best=True) instead",
        "save_last": "keep_last=1",
        **dict.fromkeys(("save_total_limit", "num_checkpoints_to_keep", "keep_last_n_checkpoints"), "keep_last=[[3]]"),
        **dict.fromkeys(("every_n_epochs", "save_every_n_epochs"), "every='[[1]]ep'"),
        **dict.fromkeys(("every_n_train_steps", "save_steps", "save_every_n_train_steps"), "every='[[500]]st'"),
        **dict.fromkeys(
            ("train_time_interval", "save_freq", "save_interval", "save_strategy", "save_frequency"), _EVERY
        ),
        **dict.fromkeys(("save_on_train_epoch_end", "save_at_end"), "every='1ep' or at_end=True"),
        "save_on_exception": "on_exception=True",
        **dict.fromkeys(("save_weights_only", "save_only_model"), "weights_only=True"),
        **dict.fromkeys(("async_checkpoint", "async_save"), "background=True"),
        **dict.fromkeys(("filename", "filepath"), "name='{step:06d}-{val/loss:.3f}', with folder='…'"),
        **dict.fromkeys(("remote_file_name", "cloud_save_mode"), "hl.Upload('s3://…') next to it"),
        **dict.fromkeys(("auto_insert_metric_name", "enable_version_counter", "overwrite"), "leave it out"),
    },
    "SaveBest": {
        **_BEST,
        **_SILENT,
        **dict.fromkeys(("save_path", "filepath", "filename"), "path='best.safetensors'"),
        **dict.fromkeys(("restore_best_weights", "load_best_model_at_end", "load_saved_checkpoint"), "load_best=True"),
        "save_best_only": "leave it out. It always keeps the best alone",
        "save_top_k": "hl.Checkpointer(monitor='val/loss', keep_best=2) instead",
    },
    "StopAtThreshold": {**_BEST, **dict.fromkeys(("baseline", "threshold_value"), "threshold=[[0.9]]")},
    "StopOnNaN": dict.fromkeys(("check_finite",), "leave it out. NaN and infinities both count"),
    "TimeLimit": dict.fromkeys(("interval", "interrupt_on_epoch"), "leave it out. The run stops after a step"),
    "LRMonitor": {
        "logging_interval": "leave it out. hl.Trainer(log_every='50st') says how often",
        "log_momentum": "momentum=True",
        "log_weight_decay": "weight_decay=True",
        "loggers": "hl.Trainer(sinks=[…])",
    },
    "GradientClip": {
        **dict.fromkeys(("max_norm", "max_grad_norm", "clip_norm", "gradient_clip_val"), "norm=[[1.0]]"),
        **dict.fromkeys(("max_grad_value", "clip_value", "clipvalue"), "value=[[0.5]]"),
        **dict.fromkeys(("clipping_type", "gradient_clip_algorithm"), "norm=1.0 or value=0.5"),
        "clipping_threshold": "norm=1.0 or value=0.5",
    },
    "EMA": {
        "half_life": "decay=0.999",
        **dict.fromkeys(("smoothing", "momentum"), "decay=[[0.999]]"),
        **dict.fromkeys(("update_every_n_steps", "update_interval", "ema_overwrite_frequency"), "every='[[1]]st'"),
        **dict.fromkeys(("update_starting_at_step", "ema_start"), "start='[[100]]st'"),
        "evaluate_during_training": "evaluate=True",
    },
    "SWA": {
        **dict.fromkeys(("swa_epoch_start", "swa_start"), "start='0.8dur'"),
        **dict.fromkeys(("annealing_epochs", "anneal_epochs"), "annealing='[[10]]ep'"),
        "update_interval": "every='1ep'",
        "swa_lr": "swa_lrs=[[0.05]]",
        "anneal_strategy": "annealing_strategy='cos'",
    },
    "BackboneFinetuning": {"unfreeze_backbone_at_epoch": "unfreeze='[[10]]ep'"},
    "ProgressBar": {
        **dict.fromkeys(("refresh_rate", "mininterval"), "every=…"),
        **dict.fromkeys(("leave", "process_position", "file"), "leave it out, or style='plain'"),
    },
    "ModelSummary": {"max_depth": "depth=[[2]]", "process_fn": "print=True"},
    "DeviceMonitor": {"cpu_stats": "cpu=True", "log_all_data": "leave it out"},
    "SpeedMonitor": {
        **dict.fromkeys(("window_size", "moving_avg_window"), "window=[[100]]"),
        **dict.fromkeys(("gpu_flops_available", "available_flops"), "peak=…"),
        **dict.fromkeys(("log_every_n_steps", "time_unit"), "leave it out"),
    },
    "PredictionWriter": {
        "write_interval": "interval='batch' or 'epoch'",
    },
    "LimitBatches": {
        **dict.fromkeys(("num_batches", "num_train_batches", "limit_train_batches"), "train=[[0.1]]"),
        **dict.fromkeys(("num_eval_steps", "num_val_batches", "limit_val_batches"), "val=[[0.1]]"),
        **dict.fromkeys(("num_test_batches", "limit_test_batches"), "test=[[0.1]]"),
        "limit_predict_batches": "predict=[[0.1]]",
    },
    "DryRun": dict.fromkeys(("fast_dev_run", "num_batches", "num_train_batches"), "batches=[[1]]"),
    "LRFinder": {
        "start_lr": "min_lr=[[1e-8]]",
        "end_lr": "max_lr=[[1.0]]",
        **dict.fromkeys(("num_training", "num_iter"), "num_training_steps=[[100]]"),
    },
    "GarbageCollector": {"step_interval": "every=[[100]]"},
    "MemorySnapshot": {
        **dict.fromkeys(("skip_batches", "start_step"), "start=1"),
        **dict.fromkeys(("interval", "stop_step"), "steps=3"),
    },
    "Notify": {
        **dict.fromkeys(("slack_webhook_url", "webhook_url"), "webhook='https://…'"),
        "recipient_email": "to='me@example.org'",
        "sender_email": "sender='run@example.org'",
        "alerts": "when=[['val/loss > 2']], and add hl.StopOnNaN() for a loss that is not finite",
        "payload": "apprise='discord://…', which knows the messages of many services",
    },
    "ExportModel": {"rehearse": "leave it out: the export is tried when training ends"},
    "Upload": dict.fromkeys(("bucket", "remote_folder", "bucket_uri", "cloud_dir_prefix"), "to='s3://bucket/runs'"),
    "LoadWeights": {
        **dict.fromkeys(("load_path", "checkpoint_path", "ckpt_path"), "path='…'"),
        "strict_model_weights": "strict=True",
    },
}  # fmt: skip
"""By Hookline class: arguments of similar classes in other libraries, with advice."""

RENAMED: Final = {
    **dict.fromkeys(
        ("dirpath", "dir_path", "dir", "save_dir", "save_folder", "output_dir", "log_dir", "dirpath_name"), "folder"
    ),
    "on_save_error": "on_error",
}
"""Old and foreign names of arguments, for every callback and sink that takes the new name."""

KEYWORDS: Final = {
    "logger": "write sinks=[hl.sinks.TensorBoard()]; metrics.jsonl in the run's folder is always written",
    "loggers": "write sinks=[hl.sinks.TensorBoard()]; metrics.jsonl in the run's folder is always written",
    "report_to": "write sinks=[hl.sinks.TensorBoard()]; metrics.jsonl in the run's folder is always written",
    **dict.fromkeys(
        ("max_epochs", "num_epochs", "n_epochs", "epochs", "num_train_epochs"), "write max_duration='[[10]]ep'"
    ),
    **dict.fromkeys(("max_steps", "num_steps", "steps", "max_iters", "total_steps"), "write max_duration='[[500]]st'"),
    "max_time": "write max_duration='2h'",
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum"), "write accumulate=[[4]]"),
    **dict.fromkeys(("log_every_n_steps", "logging_steps"), "write log_every='[[50]]st'"),
    **dict.fromkeys(
        ("check_val_every_n_epoch", "evaluate_every_n_epochs", "validation_freq"), "write eval_every='[[1]]ep'"
    ),
    **dict.fromkeys(("eval_steps", "evaluate_every_n_steps"), "write eval_every='[[500]]st'"),
    **dict.fromkeys(
        ("val_check_interval", "eval_interval", "eval_strategy", "evaluation_strategy"),
        "write eval_every='500st' or '1ep'",
    ),
    "accelerator": "write device='cuda'",
    **dict.fromkeys(("default_root_dir", "save_folder", "output_dir", "logging_dir"), "write folder='…'"),
    "run_name": "write name='…'",
    **dict.fromkeys(
        ("ckpt_path", "resume_from_checkpoint", "load_path", "autoresume", "initial_epoch"), "write resume='auto'"
    ),
    **dict.fromkeys(("random_seed", "seed_everything"), "write seed=[[1]]"),
    **dict.fromkeys(("compile_config", "torch_compile", "compile_model"), "write compile=True"),
    "bf16": "write precision='bf16'",
    **dict.fromkeys(("fp16", "amp", "use_amp"), "write precision='fp16'"),
}  # fmt: skip
"""Keywords of other libraries that are options of ``Trainer``, ``Loop`` and the functions."""

PLACES: Final = {
    **dict.fromkeys(("train_loader", "train_dataloader", "train_dataloaders", "train_data", "train_dl"), "train"),
    **dict.fromkeys(("train_dataset", "train_ds"), "train"),
    **dict.fromkeys(("val_loader", "val_dataloader", "val_dataloaders", "val_data", "val_dl"), "val"),
    **dict.fromkeys(("valid_loader", "validation_loader", "validation_data", "valid", "validation"), "val"),
    **dict.fromkeys(("eval_loader", "eval_dataloader", "eval_data", "eval_dataset"), "val"),
    **dict.fromkeys(("test_loader", "test_dataloader", "test_dataloaders", "test_data", "test_dl"), "test"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_func", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim", "optimizers"), "optimizer"),
    **dict.fromkeys(("lr_scheduler", "schedulers", "lr_schedulers"), "scheduler"),
}
"""Keywords of other libraries that are arguments of ``fit`` and similar functions."""

DATASETS: Final = frozenset({"train_dataset", "train_ds", "eval_dataset"})
"""Keywords of ``PLACES`` that are datasets in other libraries."""

_TORCHRUN: Final = "start one process per device: torchrun --nproc-per-node=[[2]] script.py"
_LOADER: Final = "it is the loader's: write DataLoader(data, batch_size=[[32]])"

ELSEWHERE: Final = {
    **dict.fromkeys(
        ("lr", "learning_rate"),
        "it is the optimizer's: write optimizer=torch.optim.AdamW(model.parameters(), lr=[[3e-4]])",
    ),
    "weight_decay": (
        "it is the optimizer's: write optimizer=torch.optim.AdamW(model.parameters(), weight_decay=[[0.01]])"
    ),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "per_device_eval_batch_size"), _LOADER),
    "shuffle": "it is the loader's: write DataLoader(data, batch_size=32, shuffle=[[True]])",
    **dict.fromkeys(
        ("num_workers", "dataloader_num_workers"),
        "it is the loader's: write DataLoader(data, batch_size=32, num_workers=[[4]])",
    ),
    "collate_fn": "it is the loader's: write DataLoader(data, batch_size=32, collate_fn=…)",
    "datamodule": "write train=datamodule.train_dataloader() and val=datamodule.val_dataloader()",
    "validation_split": "split the dataset with torch.utils.data.random_split, and pass a loader of each part",
    "min_epochs": "write callbacks=[hl.EarlyStopping('val/loss', start='[[3]]ep')]",
    "min_steps": "write callbacks=[hl.EarlyStopping('val/loss', start='[[500]]st')]",
    **dict.fromkeys(
        ("gradient_clip_val", "gradient_clip_algorithm", "max_grad_norm", "grad_clip"),
        "write callbacks=[hl.GradientClip(norm=[[1.0]])]",
    ),
    **dict.fromkeys(
        ("verbose", "enable_progress_bar", "progress_bar", "disable_tqdm"),
        "write hl.Trainer(progress=False) for no bar",
    ),
    **dict.fromkeys(("devices", "num_processes", "gpus", "nproc_per_node"), _TORCHRUN),
    "num_nodes": "start torchrun on each node: torchrun --nnodes=[[2]] --nproc-per-node=2 script.py",
    "fast_dev_run": "write callbacks=[hl.DryRun()]",
    "overfit_batches": "write callbacks=[hl.OverfitBatches([[10]])]",
    **dict.fromkeys(
        ("limit_train_batches", "train_subset_num_batches", "steps_per_epoch"),
        "write callbacks=[hl.LimitBatches(train=[[0.1]])]",
    ),
    **dict.fromkeys(
        ("limit_val_batches", "eval_subset_num_batches", "validation_steps"),
        "write callbacks=[hl.LimitBatches(val=[[0.1]])]",
    ),
    "limit_test_batches": "write callbacks=[hl.LimitBatches(test=[[0.1]])]",
    "limit_predict_batches": "write callbacks=[hl.LimitBatches(predict=[[0.1]])]",
    **dict.fromkeys(("patience", "early_stopping_patience"), "write callbacks=[hl.EarlyStopping(patience=[[3]])]"),
    "early_stopping": "write callbacks=[hl.EarlyStopping('val/loss')]",
    **dict.fromkeys(
        ("enable_checkpointing", "save_strategy", "save_interval"), "write callbacks=[hl.Checkpointer(every='1ep')]"
    ),
    "save_steps": "write callbacks=[hl.Checkpointer(every='[[500]]st')]",
    **dict.fromkeys(
        ("save_top_k", "metric_for_best_model"),
        "write callbacks=[hl.Checkpointer(monitor='val/loss', keep_best=[[2]])]",
    ),
    "save_total_limit": "write callbacks=[hl.Checkpointer(keep_last=[[3]])]",
    **dict.fromkeys(
        ("load_best_model_at_end", "restore_best_weights"), "write callbacks=[hl.SaveBest('val/loss', load_best=True)]"
    ),
    "enable_model_summary": "write callbacks=[hl.ModelSummary()]",
    "profiler": "write callbacks=[hl.TorchProfiler()]",
    "detect_anomaly": "call torch.autograd.set_detect_anomaly(True)",
    **dict.fromkeys(("deterministic", "deterministic_mode"), "call torch.use_deterministic_algorithms(True)"),
    "benchmark": "set torch.backends.cudnn.benchmark = True",
    "num_sanity_val_steps": "leave it out: two batches of val are tried before the first step",
    "sync_batchnorm": "call torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    **dict.fromkeys(("compute_metrics", "metrics"), "write callbacks=[hl.Metrics({'acc': function})]"),
    "warmup_steps": "write callbacks=[hl.LRSchedule('cosine', warmup='[[500]]st')]",
    "warmup_ratio": "write callbacks=[hl.LRSchedule('cosine', warmup=[[0.1]])]",
    "lr_scheduler_type": "write callbacks=[hl.LRSchedule('cosine')]",
    "args": "write the options as arguments: hl.Trainer(max_duration='3ep', …)",
    **dict.fromkeys(("algorithms", "plugins"), "write callbacks=[…]"),
}
"""Keywords of other libraries that are not arguments in Hookline, with advice."""

PRECISIONS: Final[dict[str | int, str]] = {
    **dict.fromkeys(("bf16-mixed", "bf16-true", "amp_bf16", "bfloat16", "mixed_bfloat16"), "bf16"),
    **dict.fromkeys(("16-mixed", "16-true", "16", 16, "amp_fp16", "float16", "mixed_float16", "amp"), "fp16"),
    **dict.fromkeys(("32-true", "32", 32, "float32", "no", "amp_fp32"), "fp32"),
}
"""Values of ``precision`` in other libraries."""

ATTRIBUTES: Final = {
    **dict.fromkeys(("log", "log_dict", "log_metrics"), "run.log({'name': value})"),
    **dict.fromkeys(("logger", "loggers"), "run.log({'name': value}); Trainer(sinks=[…]) sets where it goes"),
    **dict.fromkeys(("current_epoch", "epoch"), "run.clock.epoch"),
    **dict.fromkeys(("global_step", "step"), "run.clock.step"),
    **dict.fromkeys(("trainer", "train_loop_obj"), "run, with the engine at run.loop"),
    **dict.fromkeys(("hparams", "save_hyperparameters"), "run.config, given by Trainer(config={…})"),
    "manual_backward": "run.loop.backward(loss, optimizer)",
    "optimizers": "run.optimizers",
    "lr_schedulers": "run.schedulers",
    **dict.fromkeys(("should_stop", "stop_training"), "run.stop('why')"),
    **dict.fromkeys(("global_rank", "local_rank"), "run.rank"),
    "device": "run.device",
    "params": "run.config",
}
"""Attributes of a task or callback in other libraries, such as ``self.log(…)``."""

PARAMETERS: Final = ("state", "logger", "trainer", "pl_module", "stage", "unit", "train_loop_obj", "args", "control")
"""Parameter names of hooks in other libraries.

A method with several parameters, all of them in this tuple, is a hook of another library.
"""
UNMISTAKABLE: Final = frozenset({"trainer", "pl_module", "train_loop_obj"})
"""Parameter names of which one is enough, because no other method has them."""


def advice_for(advice: str, value: object) -> str:
    """Return the advice with the user's value, if that value has the type of the example.

    Args:
        advice: Advice with examples such as ``[[3]]``.
        value: Value that the user gave.

    Returns:
        The advice with the user's value or the example in place of each ``[[…]]``.

    Example:
        >>> advice_for("every='[[1]]ep'", 2), advice_for("every='[[1]]ep'", None), advice_for("norm=[[1.0]]", 5)
        ("every='2ep'", "every='1ep'", 'norm=5')
    """

    def fill(found: re.Match[str]) -> str:
        example = literal_eval(found[1])
        if isinstance(example, bool) or isinstance(value, bool):
            fits = isinstance(example, bool) and isinstance(value, bool)
        else:
            fits = isinstance(value, int | float if isinstance(example, float) else int) and value > 0
        return repr(value) if fits else found[1]

    return re.sub(r"\[\[(.*?)\]\]", fill, advice)
