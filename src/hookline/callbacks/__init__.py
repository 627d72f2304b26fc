"""The callbacks that come with Hookline: one file per class, one folder per family.

Every callback is in this module; the everyday ones are listed in ``hookline`` as well. ``make docs`` writes both lists
from the files of the families. A family is imported when one of its names is first used. ``from_plugins`` returns the
callbacks of other packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The callbacks of the families:
    from hookline.callbacks import plugins as plugins
    from hookline.callbacks.debug import (
        DryRun,
        GarbageCollector,
        LambdaCallback,
        LimitBatches,
        MemorySnapshot,
        OOMReport,
        OverfitBatches,
        TorchProfiler,
    )
    from hookline.callbacks.evaluation import (
        DerivedMetric,
        HistoryPlot,
        ImageSamples,
        Metrics,
        PrintMetrics,
        RenameMetric,
    )
    from hookline.callbacks.gradients import GradientClip, GradientMonitor, GradientPlot
    from hookline.callbacks.plugins import from_plugins as from_plugins
    from hookline.callbacks.regularization import SAM, CutMix, LabelSmoothing, MixUp
    from hookline.callbacks.saving import (
        Checkpointer,
        ExportModel,
        LoadWeights,
        PredictionWriter,
        SaveAtEnd,
        SaveBest,
        Upload,
    )
    from hookline.callbacks.schedule import (
        AccumulationSchedule,
        BackboneFinetuning,
        BatchSizeFinder,
        Finetuning,
        Freeze,
        LRFinder,
        LRSchedule,
        MicroBatches,
    )
    from hookline.callbacks.stopping import (
        EarlyStopping,
        SpikeGuard,
        StopAtThreshold,
        StopOnConstantPredictions,
        StopOnNaN,
        StopOnSignal,
        TimeLimit,
    )
    from hookline.callbacks.watch import (
        ActivationMonitor,
        Bar,
        DeviceMonitor,
        LogFile,
        LRMonitor,
        MemoryMonitor,
        MLPerfLog,
        ModelSummary,
        Notify,
        ParameterMonitor,
        Progress,
        ProgressBar,
        ProgressDisplay,
        SlowRankMonitor,
        SpeedMonitor,
        TimeRemaining,
    )
    from hookline.callbacks.weights import EMA, SWA, Pruning, QuantizationAwareTraining

# All callbacks:
__all__ = [
    "EMA",
    "SAM",
    "SWA",
    "AccumulationSchedule",
    "ActivationMonitor",
    "BackboneFinetuning",
    "Bar",
    "BatchSizeFinder",
    "Checkpointer",
    "CutMix",
    "DerivedMetric",
    "DeviceMonitor",
    "DryRun",
    "EarlyStopping",
    "ExportModel",
    "Finetuning",
    "Freeze",
    "GarbageCollector",
    "GradientClip",
    "GradientMonitor",
    "GradientPlot",
    "HistoryPlot",
    "ImageSamples",
    "LRFinder",
    "LRMonitor",
    "LRSchedule",
    "LabelSmoothing",
    "LambdaCallback",
    "LimitBatches",
    "LoadWeights",
    "LogFile",
    "MLPerfLog",
    "MemoryMonitor",
    "MemorySnapshot",
    "Metrics",
    "MicroBatches",
    "MixUp",
    "ModelSummary",
    "Notify",
    "OOMReport",
    "OverfitBatches",
    "ParameterMonitor",
    "PredictionWriter",
    "PrintMetrics",
    "Progress",
    "ProgressBar",
    "ProgressDisplay",
    "Pruning",
    "QuantizationAwareTraining",
    "RenameMetric",
    "SaveAtEnd",
    "SaveBest",
    "SlowRankMonitor",
    "SpeedMonitor",
    "SpikeGuard",
    "StopAtThreshold",
    "StopOnConstantPredictions",
    "StopOnNaN",
    "StopOnSignal",
    "TimeLimit",
    "TimeRemaining",
    "TorchProfiler",
    "Upload",
]

FAMILIES = (
    "stopping",
    "saving",
    "schedule",
    "weights",
    "gradients",
    "regularization",
    "evaluation",
    "watch",
    "debug",
)


if not TYPE_CHECKING:  # With this function, a type checker would accept every misspelled name.

    def __getattr__(name: str) -> Any:
        if name in ("plugins", "from_plugins"):
            plugins = import_module("hookline.callbacks.plugins")
            return plugins if name == "plugins" else plugins.from_plugins
        if name in __all__:
            for family in FAMILIES:
                module = import_module(f"hookline.callbacks.{family}")
                if name in module.__all__:
                    return getattr(module, name)
        raise AttributeError(f"module 'hookline.callbacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "from_plugins", "plugins"]
