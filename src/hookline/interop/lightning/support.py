"""Which callbacks of Lightning run in Hookline, and which cannot. ``docs/interop/lightning.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "2.6"
"""The versions that the tests run."""

THIRD_PARTY: Final = {
    "lightly 1.6": ("MetricCallback",),
    "pytorch-lightning-spells 0.3": ("MixUpCallback",),
    "minerva-ml 0.3": ("SpecificCheckpointCallback",),
    "darts 0.48": ("TFMProgressBar",),
}
"""Callbacks of other packages that the tests run."""

RUNS: Final = {
    "EarlyStopping": "",
    "ModelCheckpoint": "writes files in Lightning's format into `<folder>/lightning/`; a run resumes from its own",
    "OnExceptionCheckpoint": "",
    "LearningRateMonitor": "",
    "Timer": "",
    "WeightAveraging": "",
    "EMAWeightAveraging": "",
    "GradientAccumulationScheduler": "",
    "LambdaCallback": "",
    "DeviceStatsMonitor": "",
    "ThroughputMonitor": "",
    "ModelSummary": "",
    "RichModelSummary": "",
    "TQDMProgressBar": "",
    "RichProgressBar": "",
    "BasePredictionWriter": "`batch_indices` is empty: they are not known",
}
"""Callbacks that have the same effect as in Lightning, with a note."""

LIMITED: Final = {
    "BaseFinetuning": "cannot be resumed after it has unfrozen layers: the optimizer has other parameter groups then",
    "BackboneFinetuning": "as `BaseFinetuning`",
    "ModelPruning": "cannot be resumed after the first pruning: the parameters have other names then",
    "SpikeDetection": "ends the run with its `TrainingSpikeException`; nothing restarts without the batch",
}
"""Callbacks that run with a limit."""

REFUSED: Final = {
    "BatchSizeFinder": "it calls the trainer again from inside a run. Use hl.BatchSizeFinder.",
    "LearningRateFinder": "it calls the trainer again from inside a run. Use hl.LRFinder.",
    "StochasticWeightAveraging": "it changes the loops of Lightning's trainer. Use hl.SWA.",
}
"""Callbacks that cannot work, with the reason and what to use."""
