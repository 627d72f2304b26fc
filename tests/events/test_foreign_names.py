"""Names that users of other systems write: each has an answer, and every answer exists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.events.foreign_names import (
    ARGUMENTS,
    ATTRIBUTES,
    CLASSES,
    DATASETS,
    ELSEWHERE,
    KEYWORDS,
    NAMES,
    PLACES,
    PRECISIONS,
    RENAMED,
    advice_for,
)
from hookline.testing import TinyModel, tiny_data
from tests.support import fit

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


def error_of(call: Callable[[], object]) -> str:
    """The message of the error that the call raises."""
    try:
        call()
    except hl.HooklineError as error:
        return str(error)
    return "no error"


def test_every_callback_of_another_system_has_an_answer() -> None:
    names = [(system, name) for system, listed in CALLBACKS.items() for name in listed.split()]
    assert [row for row in names if row[1] not in CLASSES[row[0]] and row[1] not in hl.__all__] == []


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
OPTIONS = set(inspect.signature(hl.Trainer).parameters)


def test_an_advice_writes_what_there_is() -> None:
    wrong = []
    for advice in sorted({advice for table in TABLES for advice in table.values()}):
        for kind, keywords in written_in(advice):
            takes = inspect.signature(kind.__init__ if inspect.isclass(kind) else kind).parameters
            if not set(keywords) <= (OPTIONS if kind is hl.Trainer else set(takes)):
                wrong.append(advice)
    assert wrong == []


def test_a_keyword_of_another_trainer_is_one_of_our_options() -> None:
    assert [
        advice for advice in KEYWORDS.values() if advice.removeprefix("write ").partition("=")[0] not in OPTIONS
    ] == []


USUAL: dict[str, tuple[Any, str]] = {
    "fast_dev_run": (True, "callbacks=[hl.DryRun()]"),
    "limit_train_batches": (0.1, "callbacks=[hl.LimitBatches(train=0.1)]"),
    "limit_val_batches": (5, "callbacks=[hl.LimitBatches(val=5)]"),
    "overfit_batches": (2, "callbacks=[hl.OverfitBatches("),
    "max_epochs": (3, "max_duration='3ep'"),
    "max_steps": (70, "max_duration='70st'"),
    "accumulate_grad_batches": (4, "accumulate=4"),
    "gradient_clip_val": (0.5, "callbacks=[hl.GradientClip(norm=0.5)]"),
    "check_val_every_n_epoch": (2, "eval_every='2ep'"),
    "log_every_n_steps": (7, "log_every='7st'"),
    "devices": (2, "torchrun --nproc-per-node=2"),
    "accelerator": ("gpu", "device='cuda'"),
    "default_root_dir": ("runs", "folder="),
    "num_sanity_val_steps": (2, "sanity"),
    "num_train_epochs": (3, "max_duration='3ep'"),
    "gradient_accumulation_steps": (4, "accumulate=4"),
    "per_device_train_batch_size": (8, "DataLoader(data, batch_size=8)"),
    "learning_rate": (0.1, "lr=0.1"),
    "max_grad_norm": (1.5, "callbacks=[hl.GradientClip(norm=1.5)]"),
    "eval_steps": (30, "eval_every='30st'"),
    "save_steps": (30, "callbacks=[hl.Checkpointer(every='30st')]"),
    "logging_steps": (5, "log_every='5st'"),
    "warmup_steps": (9, "callbacks=[hl.LRSchedule('cosine', warmup='9st')]"),
    "report_to": ("wandb", "sinks=["),
    "epochs": (3, "max_duration='3ep'"),
    "batch_size": (8, "DataLoader(data, batch_size=8)"),
    "steps_per_epoch": (7, "callbacks=[hl.LimitBatches(train=7)]"),
    "validation_split": (0.1, "random_split"),
}
"""Usual arguments of Lightning, Hugging Face and Keras, with a value and what the error must tell the user to write."""


def test_the_usual_arguments_of_lightning_hugging_face_and_keras_say_ours() -> None:
    """The names are listed here, so that a row that the table loses is noticed."""
    said = {key: error_of(lambda key=key, value=value: hl.Trainer(**{key: value})) for key, (value, _) in USUAL.items()}
    assert {key: said[key] for key, (_, answer) in USUAL.items() if answer not in said[key]} == {}
    trainer = hl.Trainer(max_duration="1ep", folder=False)
    for key, ours in {"train_dataloaders": "train", "val_dataloaders": "val", "ckpt_path": "resume"}.items():
        message = error_of(lambda key=key: trainer.fit(TinyModel(), **{key: []}))
        assert f"fit({key}=…): no such argument." in message
        assert re.search(rf"rite {ours}=", message), message
    assert error_of(lambda: hl.Trainer(precision="bf16-mixed")).endswith("Write precision='bf16'.")  # type: ignore[arg-type]
    assert error_of(lambda: hl.EarlyStopping(restore_best_weights=True)).endswith("Write restore_best=True.")  # type: ignore[call-arg]
    assert "keep_best=2" in error_of(lambda: hl.Checkpointer(save_top_k=2))  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"has no attribute 'seed_everything'; write hl\.Trainer\(seed=1\)"):
        hl.seed_everything(1)  # type: ignore[attr-defined]


def test_a_keyword_of_another_trainer_is_refused_with_ours_or_with_what_it_is_here() -> None:
    wrong = []
    for key, advice in (*KEYWORDS.items(), *ELSEWHERE.items()):
        said, write = error_of(lambda key=key: hl.Trainer(**{key: 1})), advice_for(advice, 1)
        if said != f"Trainer({key}=1): no such argument. {write[0].upper()}{write[1:]}.":
            wrong.append(said)
    assert wrong == []


def test_a_keyword_of_another_fit_is_an_argument_of_ours() -> None:
    assert set(PLACES.values()) <= {*inspect.signature(hl.Trainer.fit).parameters, "test"}
    trainer = hl.Trainer(max_duration="1ep", folder=False)
    said = {key: error_of(lambda key=key: trainer.fit(TinyModel(), tiny_data(), **{key: 1})) for key in PLACES}
    writes = {key: "DataLoader(dataset, batch_size=32)" if key in DATASETS else "…" for key in PLACES}
    wrong = [
        key
        for key, ours in PLACES.items()
        if f"fit({key}=1): no such argument. Write {ours}={writes[key]}." not in said[key]
    ]
    assert wrong == [], said


def test_a_precision_of_another_system_says_ours() -> None:
    said = {theirs: error_of(lambda theirs=theirs: hl.Trainer(precision=theirs)) for theirs in PRECISIONS}
    wrong = [
        row
        for row in PRECISIONS.items()
        if f"Trainer(precision={row[0]!r}): no such precision. Write precision='{row[1]}'." != said[row[0]]
    ]
    assert wrong == [], said


def test_an_argument_of_another_callback_says_ours() -> None:
    wrong = []
    for kind, theirs, template in BY_CONSTRUCTOR:
        advice = advice_for(template, True)
        takes = list(inspect.signature(getattr(hl, kind).__init__).parameters)
        names_ours = advice.startswith(("leave it out", "hl.")) or advice.partition("=")[0] in takes
        said = error_of(lambda kind=kind, theirs=theirs: getattr(hl, kind)(**{theirs: True}))
        answers = said.startswith(f"{kind}({theirs}=True): no such argument. ") and advice[1:] in said
        if theirs in takes or not names_ours or not answers:
            wrong.append((kind, theirs, advice, said))
    assert wrong == []


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_of_an_argument_says_the_new_one_wherever_that_is_taken(old: str) -> None:
    kinds = [getattr(hl.callbacks, name) for name in hl.callbacks.__all__] + [hl.sinks.TensorBoard, hl.sinks.WandB]
    new = RENAMED[old]
    takers = [kind for kind in kinds if new in inspect.signature(kind).parameters]
    said = {kind.__name__: error_of(lambda kind=kind: kind(**{old: "there"})) for kind in takers}
    assert takers
    assert said == {name: f"{name}({old}='there'): no such argument. Write {new}='there'." for name in said}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda: hl.Checkpointer(every_n_epochs=2), "Write every='2ep'."),
        (lambda: hl.Checkpointer(every_n_train_steps=20), "Write every='20st'."),
        (lambda: hl.Checkpointer(save_last=True), "Write keep_last=1."),
        (lambda: hl.Checkpointer(save_top_k=-1), "Write keep_best=2 with monitor='val/loss'."),
        (lambda: hl.EMA(momentum=0.9), "Write decay=0.9."),
        (lambda: hl.Trainer(max_epochs=3), "Write max_duration='3ep'"),
        (lambda: hl.Trainer(min_epochs=5), "Write callbacks=[hl.EarlyStopping('val/loss', start='5ep')]"),
        (lambda: hl.Trainer(steps_per_epoch=7), "Write callbacks=[hl.LimitBatches(train=7)]"),
        (lambda: hl.Trainer(limit_val_batches=0.5), "Write callbacks=[hl.LimitBatches(val=0.5)]"),
        (lambda: hl.Trainer(learning_rate=0.1), "AdamW(model.parameters(), lr=0.1)"),
        (lambda: hl.Trainer(verbose=False), "Write hl.Trainer(progress=False) for no bar"),
        (lambda: fit_with(initial_epoch=3), "write resume='auto' in Trainer(…), before .fit(…)"),
        (lambda: fit_with(validation_split=0.1), "torch.utils.data.random_split"),
        (lambda: fit_with(datamodule=object()), "Write train=datamodule.train_dataloader() and val="),
        (lambda: fit_with(shuffle=False), "write DataLoader(data, batch_size=32, shuffle=False)"),
        (lambda: fit_with(batch_size=8), "write DataLoader(data, batch_size=8)"),
        (lambda: fit_with(epochs=4), "write max_duration='4ep' in Trainer(…), before .fit(…)"),
        (lambda: fit_with(train_dataset=[1]), "Write train=DataLoader(dataset, batch_size=32)"),
    ],
)  # fmt: skip
def test_an_answer_has_the_value_that_was_given(call: Callable[[], object], answer: str) -> None:
    assert answer in error_of(call)


def fit_with(**keywords: Any) -> object:
    return hl.Trainer(max_duration="1ep", folder=False).fit(TinyModel(), tiny_data(), **keywords)


def test_the_control_of_another_system_is_three_methods_here() -> None:
    def stop(run: Any) -> None:
        run.control.should_training_stop = True

    with pytest.raises(AttributeError, match=r"run has no 'control'; did you mean run\.stop\('why'\), "):
        fit(hl.on("epoch_end")(stop))


def test_an_argument_of_a_callback_of_ones_own_is_checked_as_well() -> None:
    class Mine(hl.EarlyStopping):
        pass

    class Own(hl.Callback):
        def __init__(self, factor: float = 1.0) -> None: ...

    with pytest.raises(hl.HooklineError, match=r"^Mine\(restore_best_weights=True\): .* Write restore_best=True\.$"):
        Mine(restore_best_weights=True)  # type: ignore[call-arg]
    with pytest.raises(hl.HooklineError, match=r"^Own\(facter=2\): no such argument. Did you mean factor\?$"):
        Own(facter=2)  # type: ignore[call-arg]


class Lit(hl.Task[Any]):
    """Uses an attribute that a module of Lightning has."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.name = name

    def configure_optimizers(self, run: hl.Run) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        return getattr(self, self.name)("loss", 1)


def test_an_attribute_that_a_module_of_lightning_has_says_where_it_is() -> None:
    notes = {}
    for name in ATTRIBUTES:
        with pytest.raises(AttributeError) as caught:
            fit(model=Lit(name), max_duration="1st")
        notes[name] = caught.value.__notes__
    wrong = [
        row for row in ATTRIBUTES.items() if f"self.{row[0]} of other systems is {row[1]} here" not in notes[row[0]]
    ]
    assert wrong == [], notes
