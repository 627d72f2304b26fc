"""Which callbacks of Composer run in Hookline, and which cannot. ``docs/interop/composer.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "0.32"
"""The versions that the tests run."""

_NO_GPU: Final = "does nothing on the CPU; not tested on a GPU"

RUNS: Final = {
    "EarlyStopper": "its best value is in checkpoints",
    "ThresholdStopper": "",
    "LRMonitor": "",
    "OptimizerMonitor": "",
    "SpeedMonitor": "",
    "RuntimeEstimator": "",
    "SystemMetricsMonitor": "`cpu_percentage` is logged as `train/cpu_percentage`, and in evaluations as `val/…`",
    "ActivationMonitor": "",
    "ExportForInferenceCallback": "TorchScript of a model that is not a `ComposerModel` is traced with `sample_input`",
    "ImageVisualizer": "the masks of a segmentation are images of their own",
    "NaNMonitor": "",
    "MemoryMonitor": _NO_GPU,
    "MemorySnapshot": _NO_GPU,
    "OOMObserver": _NO_GPU,
}
"""Callbacks that have the same effect as in Composer, with a note."""

LIMITED: Final = {
    "FreeOutputs": "callbacks of Composer see no outputs after the loss; Hookline frees them with the next batch",
}
"""Callbacks that run with a limit."""

REFUSED: Final = {
    "CheckpointSaver": "it saves the state of Composer's trainer. Use hl.Checkpointer.",
    "LoadCheckpoint": "it loads the state of Composer's trainer. Use hl.LoadWeights.",
    "Generate": "it needs the tokenizer of a HuggingFaceModel. Use hl.on('eval_end') and run.log_text.",
    "MLPerfCallback": "it reads the options of Composer's trainer. Use hl.MLPerfLog.",
}
"""Callbacks that cannot work, with the reason and what to use."""

_PROFILES: Final = "it records what the loop of Composer marks. Use hl.TorchProfiler."

NOT_CALLBACKS: Final = {
    "LoggerDestination": "it is a logger, and not a callback. Use hl.sinks: Trainer(sinks=[…]).",
    "SystemProfiler": "it records what the loop of Composer marks. Use hl.DeviceMonitor.",
    "TorchProfiler": _PROFILES,
    "TraceHandler": _PROFILES,
}
"""Loggers and profilers of Composer, which are refused as well: their classes are subclasses of ``Callback``."""
