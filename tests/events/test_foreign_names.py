"""Names that users of other systems write: each has an answer, and every answer exists."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.events.foreign_names import ARGUMENTS, ATTRIBUTES, CLASSES, ELSEWHERE, KEYWORDS, NAMES, PLACES, PRECISIONS
from hookline.loop.settings import Settings
from hookline.testing import TinyModel, tiny_data

CALLBACKS = {
    "TorchTNT": """BaseCSVWriter BaseCheckpointer DistributedCheckpointSaver EarlyStopping EmptyCudaCache
        EmptyDataloaderDetectorCallback EnableTensorFloat32 GarbageCollector IterationTimeLogger Lambda
        LearningRateMonitor MemorySnapshot ModuleSummary PeriodicDistributedSync ProgressReporter PyTorchProfiler
        SlowRankDetector SystemResourcesMonitor TensorBoardParameterMonitor ThroughputLogger TimeLimitInterrupter
        TimeWaitForBatchLogger TorchCompile TorchSnapshotSaver TQDMProgressBar TrainProgressMonitor""",
    "pytorch-accelerated": """TerminateOnNaNCallback LogMetricsCallback PrintMetricsCallback PrintProgressCallback
        ProgressBarCallback SaveBestModelCallback EarlyStoppingCallback MoveModulesToDeviceCallback
        LimitBatchesCallback ModelEmaCallback ConvertSyncBatchNormCallback StepBasedEvaluationCallback
        LimitEvalStepsCallback SaveTrainingStateCallback WSDCheckpointCallback TrainerCallback""",
    "Lightning": """Callback Checkpoint ModelCheckpoint OnExceptionCheckpoint EarlyStopping BaseFinetuning
        BackboneFinetuning BasePredictionWriter DeviceStatsMonitor GPUStatsMonitor XLAStatsMonitor
        GradientAccumulationScheduler LambdaCallback LearningRateMonitor ModelPruning ModelSummary RichModelSummary
        ProgressBarBase ProgressBar TQDMProgressBar RichProgressBar QuantizationAwareTraining
        StochasticWeightAveraging Timer BatchSizeFinder LearningRateFinder SpikeDetection ThroughputMonitor
        WeightAveraging EMAWeightAveraging SaveConfigCallback ServableModuleValidator AsyncCheckpointIO""",
    "Composer": """CheckpointSaver SpeedMonitor LRMonitor GradMonitor OptimizerMonitor MemoryMonitor ImageVisualizer
        MLPerfCallback ThresholdStopper EarlyStopper ExportForInferenceCallback RuntimeEstimator SystemMetricsMonitor
        ActivationMonitor NaNMonitor FreeOutputs Generate MemorySnapshot OOMObserver LoadCheckpoint HealthChecker
        EvalOutputLogging Profiler SystemProfiler TorchProfiler""",
    "AIToolbox": """ListRegisteredCallbacks EarlyStopping ThresholdEarlyStopping TerminateOnNaN AllPredictionsSame
        EmailNotification LogUpload DataSubsetTestRun FunctionOnTrainLoop ModelPerformanceEvaluation
        ModelPerformancePrintReport TrainHistoryFormatter MetricHistoryRename ModelTrainHistoryPlot
        ModelTrainHistoryFileWriter ModelCheckpoint ModelIterationCheckpoint ModelTrainEndSave
        GeneralLRSchedulerCallback ReduceLROnPlateauScheduler LambdaLRScheduler ConstantWithWarmupScheduler
        CosineWithWarmupScheduler HardRestartsCosineWithWarmupScheduler LinearWithWarmupScheduler GradValueClip
        GradNormClip GradientStatsPrint GradDistributionPlot ModelLoadContinueTraining TensorboardTrainBatchLoss
        TensorboardTrainHistoryMetric TensorboardFullTracking WandBTracking DistributedSamplerSetEpoch
        InMultiProcessDataLoad""",
    "Hugging Face": """TrainerCallback EarlyStoppingCallback ProgressCallback PrinterCallback DefaultFlowCallback
        TensorBoardCallback WandbCallback MLflowCallback""",
    "Keras": """BackupAndRestore CSVLogger EarlyStopping LambdaCallback LearningRateScheduler ModelCheckpoint
        ProgbarLogger ReduceLROnPlateau RemoteMonitor SwapEMAWeights TensorBoard TerminateOnNaN""",
}
"""The callbacks of each system, from its documentation."""

BY_CONSTRUCTOR = [(kind, theirs, advice) for kind, rows in ARGUMENTS.items() for theirs, advice in rows.items()]


@pytest.mark.parametrize("system", CALLBACKS)
def test_every_callback_of_another_system_has_an_answer(system: str) -> None:
    names = CALLBACKS[system].split()
    assert [name for name in names if name not in CLASSES[system] and name not in hl.__all__] == []


def test_no_name_that_is_ours_too_is_called_foreign() -> None:
    assert set(NAMES) & set(hl.__all__) == set()


def written_in(advice: str) -> list[tuple[Any, list[str]]]:
    """What an advice writes: each ``hl.Name(…)`` in it with its keywords."""
    found = re.findall(r"hl\.((?:sinks\.)?[A-Za-z]+)\(([^()]*)", advice)
    return [
        (getattr(hl.sinks, name[6:]) if name.startswith("sinks.") else getattr(hl, name), re.findall(r"(\w+)=", inside))
        for name, inside in found
    ]


TABLES = (NAMES, KEYWORDS, ELSEWHERE, ATTRIBUTES, *ARGUMENTS.values())
OPTIONS = {*inspect.signature(hl.Trainer.__init__).parameters, *Settings.__dataclass_fields__}


@pytest.mark.parametrize("advice", sorted({advice for table in TABLES for advice in table.values()}))
def test_an_advice_writes_what_there_is(advice: str) -> None:
    for kind, keywords in written_in(advice):
        takes = inspect.signature(kind.__init__ if inspect.isclass(kind) else kind).parameters
        assert set(keywords) <= (OPTIONS if kind is hl.Trainer else set(takes))


@pytest.mark.parametrize(("key", "advice"), KEYWORDS.items())
def test_a_keyword_of_another_trainer_is_one_of_our_options(key: str, advice: str) -> None:
    assert advice.removeprefix("write ").partition("=")[0] in OPTIONS
    with pytest.raises(hl.HooklineError, match=rf"{key}=….*{re.escape(advice)}"):
        hl.Trainer(**{key: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "advice"), ELSEWHERE.items())
def test_a_keyword_that_is_something_else_here_says_what(key: str, advice: str) -> None:
    with pytest.raises(hl.HooklineError, match=rf"{key}=….*{re.escape(advice)}"):
        hl.Trainer(**{key: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "ours"), PLACES.items())
def test_a_keyword_of_another_fit_is_an_argument_of_ours(key: str, ours: str) -> None:
    assert ours in {*inspect.signature(hl.Trainer.fit).parameters, "test"}
    with pytest.raises(hl.HooklineError, match=rf"fit\({key}=…\): no such argument; write {ours}=…"):
        hl.Trainer(max_duration="1ep", folder=False).fit(TinyModel(), tiny_data(), **{key: 1})


@pytest.mark.parametrize(("theirs", "ours"), PRECISIONS.items())
def test_a_precision_of_another_system_says_ours(theirs: Any, ours: str) -> None:
    with pytest.raises(hl.HooklineError, match=rf"precision={theirs!r}: write precision='{ours}'"):
        hl.Trainer(precision=theirs)


@pytest.mark.parametrize(("kind", "theirs", "advice"), BY_CONSTRUCTOR, ids=lambda part: str(part)[:30])
def test_an_argument_of_another_callback_says_ours(kind: str, theirs: str, advice: str) -> None:
    takes = list(inspect.signature(getattr(hl, kind).__init__).parameters)
    assert theirs not in takes
    first = advice.partition("=")[0]
    if not advice.startswith(("leave it out", "hl.")):
        assert first in takes
    with pytest.raises(hl.HooklineError) as caught:
        getattr(hl, kind)(**{theirs: True})
    said = str(caught.value)
    assert said.startswith(f"{kind}({theirs}=True): no such argument. ")
    assert advice[1:] in said


def test_an_argument_of_a_callback_of_ones_own_is_checked_as_well() -> None:
    class Mine(hl.EarlyStopping):
        pass

    class Own(hl.Callback):
        def __init__(self, factor: float = 1.0) -> None: ...

    with pytest.raises(hl.HooklineError, match=r"^Mine\(restore_best_weights=True\): .* Write restore_best=True\.$"):
        Mine(restore_best_weights=True)  # type: ignore[call-arg]
    with pytest.raises(hl.HooklineError, match=r"^Own\(facter=2\): no such argument. Did you mean factor\?$"):
        Own(facter=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_a_module_of_lightning_has_says_where_it_is(name: str) -> None:
    class Lit(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def configure_optimizers(self, run: hl.Run) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            return getattr(self, name)("loss", 1)

    with pytest.raises(AttributeError) as caught:
        hl.Trainer(max_duration="1ep", folder=False).fit(Lit(), tiny_data())
    assert f"self.{name} of other systems is {ATTRIBUTES[name]} here" in caught.value.__notes__
