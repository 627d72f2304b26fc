"""Callbacks and models of AIToolbox have the same effect in Hookline as there, with bitwise the same weights."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import LossError, RegistrationError, SetupError
from hookline.interop.aitoolbox.support import LIMITED, REFUSED, RUNS
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

pytest.importorskip("aitoolbox", reason="aitoolbox is not installed: `make interop` runs these tests")

from aitoolbox.experiment.result_package.basic_packages import ClassificationResultPackage
from aitoolbox.torchtrain import callbacks as shipped
from aitoolbox.torchtrain.callbacks import (
    basic,
    ddp,
    gradient,
    model_load,
    model_save,
    performance_eval,
    tensorboard,
    wandb,
)
from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback
from aitoolbox.torchtrain.model import TTModel
from aitoolbox.torchtrain.multi_loss_optim import MultiLoss
from aitoolbox.torchtrain.schedulers import basic as schedulers
from aitoolbox.torchtrain.schedulers import warmup
from aitoolbox.torchtrain.train_loop import TrainLoop
from aitoolbox.torchtrain.train_loop.components.message_passing import MessageHandling

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about torch.cuda.amp, seaborn about distplot.


# -- the same run in both trainers -------------------------------------------------------------------


def data(batches: int = 4, seed: int = 1, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, **options)


class Net(TTModel):  # type: ignore[misc]
    """A model of a user."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)

    def get_loss(self, batch_data: Any, criterion: Any, device: Any) -> Any:
        x, y = batch_data
        return criterion(self(x.to(device)), y.to(device))

    def get_predictions(self, batch_data: Any, device: Any) -> Any:
        x, y = batch_data
        return self(x.to(device)).argmax(1), y, {"norm": x.norm(dim=1), "rows": x[:, 0].tolist()}


class Plain(nn.Module):
    """The same model, without any method of AIToolbox."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Net().layers

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def in_aitoolbox(callbacks: list[Any], epochs: int = 3, accumulate: int = 1, **loaders: Any) -> Any:
    """Train in AIToolbox's own loop: the loop."""
    model = Net()
    given = {"train": data(), "val": data(2, seed=2), "test": data(2, seed=3), **loaders}
    loop = TrainLoop(
        model,
        given["train"],
        given["val"],
        given["test"],
        optimizer_of(model),
        loaders.get("loss", nn.CrossEntropyLoss()),
    )
    loop.fit(num_epochs=epochs, callbacks=callbacks, grad_accumulation=accumulate)
    return loop


def in_hookline(
    callbacks: list[Any],
    folder: Path | None = None,
    *,
    model: nn.Module | None = None,
    loss: Any = None,
    **options: Any,
) -> tuple[nn.Module, Any]:
    """Train the same model in Hookline: the model and the result."""
    model = model or Net()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder or False, "device": "cpu", **options}
    result = Trainer(callbacks=callbacks, **options).fit(
        model,
        data(),
        data(2, seed=2),
        test=data(2, seed=3),
        loss=loss or nn.CrossEntropyLoss(),
        optimizer=lambda parameters: optimizer_of(model),
    )
    return model, result


def same(one: nn.Module, other: nn.Module) -> bool:
    """True if the weights are bitwise the same."""
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, torch.Tensor):
        return rounded(value.tolist())
    return round(value, 4) if isinstance(value, float) else value


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights and the printed lines."""

    make: Callable[[Path], Any]
    effect: Callable[[Any], Any] = lambda callback: None
    epochs: int = 3
    also: Callable[[], list[Any]] = list
    """Callbacks that come with it."""
    hookline: dict[str, Any] = field(default_factory=dict)


def package() -> Any:
    return ClassificationResultPackage()


def evaluation(**options: Any) -> Any:
    return performance_eval.ModelPerformanceEvaluation(package(), {}, **options)


def history(callback: Any) -> Any:
    """The training history, without the second pass over the training data."""
    return rounded({name: its for name, its in callback.train_loop_obj.train_history.items() if name != "loss"})


def stopped(callback: Any) -> Any:
    names = ("patience_count", "best_performance", "best_epoch")
    return [rounded(getattr(callback, name, None)) for name in names], callback.train_loop_obj.epoch


def project(folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {
        "project_name": "project",
        "experiment_name": "experiment",
        "local_model_result_folder_path": str(folder),
        "cloud_dir_prefix": "",
    }


def local(folder: Path) -> dict[str, Any]:
    return {**project(folder), "hyperparams": {"lr": 0.1}, "cloud_save_mode": None}


def files(folder: Path) -> list[str]:
    """The files that a callback wrote, without times in their names."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d|tfevents.*", "…", name) for name in found)


def written(callback: Any) -> Any:
    return files(Path(callback.local_model_result_folder_path))


def history_file(callback: Any) -> Any:
    (path,) = Path(callback.local_model_result_folder_path).rglob("results.txt")
    blocks = re.findall(r"Epoch: (\d+)|(\w+):\t([\d.]+)", path.read_text())
    return [(epoch, name, round(float(value or 0), 4)) for epoch, name, value in blocks if name != "loss"]


def checkpoints(callback: Any) -> Any:
    paths = sorted(Path(callback.local_model_result_folder_path).rglob("*.pth"))
    return [written(callback), rounded([torch.load(path, weights_only=False) for path in paths])]


def scalars(callback: Any) -> Any:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(callback.log_dir).Reload()
    return {
        name: [(its.step, round(its.value, 4)) for its in found.Scalars(name)]
        for name in found.Tags()["scalars"]
        if name != "loss/loss"
    }


def saved_experiment(callback: Any) -> Any:
    (path,) = Path(callback.local_model_result_folder_path).rglob("results_hyperParams_hist_*.p")
    found = pickle.loads(path.read_bytes())
    keys = ("y_true", "y_predicted", "results", "hyperparameters")
    found["training_history"].pop("loss")
    return [written(callback), str([rounded(found[name]) for name in keys]), rounded(found["training_history"])]


def rates(callback: Any) -> Any:
    return rounded(callback.scheduler.state_dict().get("_last_lr")), callback.scheduler.last_epoch


def layers(model: Any) -> list[Any]:
    return [model.layers[0], model.layers[3]]


def noting() -> Any:
    seen: list[Any] = []

    def note(loop: Any) -> None:
        seen.append((loop.epoch, loop.total_iteration_idx, len(loop.loss_batch_accum), rounded(loop.loss_batch_accum)))

    hooks = ("tl_registration", "epoch_begin", "epoch_end", "train_begin", "train_end", "batch_begin", "batch_end")
    more = ("after_gradient_update", "after_optimizer_step")
    callback = basic.FunctionOnTrainLoop(note, **dict.fromkeys((*hooks, *more), True))
    callback.seen = seen
    return callback


def with_project(kind: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: kind(**project(folder), **options)


CASES: dict[str, Case] = {
    "EarlyStopping": Case(lambda folder: basic.EarlyStopping(min_delta=0.15, patience=1), stopped, epochs=9),
    "EarlyStopping on a metric": Case(
        lambda folder: basic.EarlyStopping("val_Accuracy", patience=1), stopped, epochs=9, also=lambda: [evaluation()]
    ),
    "ThresholdEarlyStopping": Case(
        lambda folder: basic.ThresholdEarlyStopping("val_loss", 0.2, patience=1), stopped, epochs=9
    ),
    "TerminateOnNaN": Case(lambda folder: basic.TerminateOnNaN()),
    "AllPredictionsSame": Case(lambda folder: basic.AllPredictionsSame(value=5.0, stop_training=True)),
    "ListRegisteredCallbacks": Case(lambda folder: basic.ListRegisteredCallbacks(), also=lambda: [evaluation()]),
    "FunctionOnTrainLoop": Case(lambda folder: noting(), lambda its: its.seen),
    "GradNormClip": Case(lambda folder: gradient.GradNormClip(0.1)),
    "GradValueClip": Case(lambda folder: gradient.GradValueClip(0.01)),
    "GradientStatsPrint": Case(lambda folder: gradient.GradientStatsPrint(layers, on_every_grad_update=True)),
    "ModelPerformanceEvaluation": Case(lambda folder: evaluation(on_train_data=True), history),
    "ModelPerformanceEvaluation at times": Case(lambda folder: evaluation(eval_frequency=2), history),
    "ModelPerformancePrintReport": Case(
        lambda folder: performance_eval.ModelPerformancePrintReport(["val_Accuracy"]), also=lambda: [evaluation()]
    ),
    "TrainHistoryFormatter": Case(
        lambda folder: performance_eval.TrainHistoryFormatter(
            lambda its: its["val_loss"], lambda its: ("half", its[-1] / 2)
        ),
        history,
    ),
    "MetricHistoryRename": Case(lambda folder: performance_eval.MetricHistoryRename("val_loss", "other"), history),
    "ModelTrainHistoryPlot": Case(with_project(performance_eval.ModelTrainHistoryPlot), written),
    "ModelTrainHistoryFileWriter": Case(
        with_project(performance_eval.ModelTrainHistoryFileWriter), lambda its: (written(its), history_file(its))
    ),
    "TensorboardTrainBatchLoss": Case(with_project(tensorboard.TensorboardTrainBatchLoss), scalars),
    "TensorboardTrainHistoryMetric": Case(with_project(tensorboard.TensorboardTrainHistoryMetric), scalars),
    "TensorboardFullTracking": Case(with_project(tensorboard.TensorboardFullTracking, batch_log_frequency=2), scalars),
    "ModelCheckpoint": Case(
        lambda folder: model_save.ModelCheckpoint(**local(folder)),
        checkpoints,
        also=lambda: [schedulers.StepLRScheduler(1, gamma=0.5)],
    ),
    "ModelCheckpoint of the best": Case(
        lambda folder: model_save.ModelCheckpoint(
            **local(folder), rm_subopt_local_models="val_loss", num_best_checkpoints_kept=1
        ),
        written,
    ),
    "ModelIterationCheckpoint": Case(
        lambda folder: model_save.ModelIterationCheckpoint(3, **local(folder)), checkpoints
    ),
    "ModelTrainEndSave": Case(
        lambda folder: model_save.ModelTrainEndSave(
            **local(folder), val_result_package=package(), test_result_package=package()
        ),
        saved_experiment,
    ),
    "GeneralLRSchedulerCallback": Case(
        lambda folder: schedulers.GeneralLRSchedulerCallback(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5), rates
    ),
    "ReduceLROnPlateauScheduler": Case(
        lambda folder: schedulers.ReduceLROnPlateauScheduler(patience=0, threshold=0.5, factor=0.5), rates, epochs=5
    ),
    "ReduceLROnPlateauMetricScheduler": Case(
        lambda folder: schedulers.ReduceLROnPlateauMetricScheduler("val_Accuracy", patience=0, mode="max"),
        rates,
        epochs=5,
        also=lambda: [evaluation()],
    ),
    "LambdaLRScheduler": Case(
        lambda folder: schedulers.LambdaLRScheduler(
            lambda step: 0.9**step, execute_epoch_end=False, execute_batch_end=True
        ),
        rates,
    ),
    "StepLRScheduler": Case(lambda folder: schedulers.StepLRScheduler(2, gamma=0.5), rates),
    "MultiStepLRScheduler": Case(lambda folder: schedulers.MultiStepLRScheduler([1, 2], gamma=0.5), rates),
    "ConstantWithWarmupScheduler": Case(lambda folder: warmup.ConstantWithWarmupScheduler(4), rates),
    "CosineWithWarmupScheduler": Case(lambda folder: warmup.CosineWithWarmupScheduler(4, 12), rates),
    "HardRestartsCosineWithWarmupScheduler": Case(
        lambda folder: warmup.HardRestartsCosineWithWarmupScheduler(4, 12, 2), rates
    ),
    "LinearWithWarmupScheduler": Case(lambda folder: warmup.LinearWithWarmupScheduler(4, 12), rates),
}

OTHER = {
    "GradDistributionPlot": "test_there_are_no_gradients_at_the_end_of_an_epoch",
    "WandBTracking": "test_runs_are_tracked_in_wandb",
    "EmailNotification": "it needs an account of AWS",
}

PROGRESS = re.compile(r"^(=+|Epoch: \d+|.* LOSS: .*|Getting .* from store|.* prediction store at .*|)$")
"""Lines that the train loop of AIToolbox prints itself."""


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that callbacks print, with rounded numbers, and without paths."""
    text = re.sub(r"\d+\.\d+(e-\d+)?", lambda found: f"{float(found[0]):.4f}", capsys.readouterr().out)
    lines = [line for line in text.splitlines() if not PROGRESS.match(line)]
    return [re.sub(r"/\S*(there|here)\S*", "…", line) for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_callback_has_the_same_effect(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    there, here = case.make(tmp_path / "there"), case.make(tmp_path / "here")
    loop = in_aitoolbox([*case.also(), there], case.epochs)
    expected = printed(capsys)
    model, result = in_hookline([*case.also(), here], max_duration=f"{case.epochs}ep", **case.hookline)
    assert printed(capsys) == expected
    assert result.clock.batch == loop.total_iteration_idx + 1
    assert same(model, loop.model)
    assert case.effect(here) == case.effect(there)


def test_every_shipped_callback_is_listed() -> None:
    """A new version may bring others."""
    modules = (basic, ddp, gradient, model_load, model_save, performance_eval, tensorboard, wandb, schedulers, warmup)
    found = {
        name
        for module in modules
        for name, its in vars(module).items()
        if isinstance(its, type) and issubclass(its, AbstractCallback) and its.__module__ == module.__name__
    }
    bases = {"GradientCallbackBase", "ModelTrainHistoryBaseCB", "TensorboardReporterBaseCB"}
    assert found - bases == {*RUNS, *LIMITED, *REFUSED}
    assert {name.split(" ")[0] for name in CASES} | set(OTHER) == {*RUNS, *LIMITED}
    assert shipped


def test_there_are_no_gradients_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """AIToolbox clears them after each update, so that its plot fails in the same way in both."""
    there, here = (gradient.GradDistributionPlot(layers, **project(tmp_path / name)) for name in ("there", "here"))
    outcomes = []
    for callback, train in ((there, in_aitoolbox), (here, in_hookline)):
        try:
            train([callback])
            outcomes.append(str(files(Path(callback.local_model_result_folder_path))))
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    assert outcomes[0] == outcomes[1]


def test_runs_are_tracked_in_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    seen = []
    for name, train in (("there", in_aitoolbox), ("here", in_hookline)):
        folder = tmp_path / name
        names = {key: its for key, its in project(folder).items() if key != "cloud_dir_prefix"}
        tracking = wandb.WandBTracking(
            hyperparams={"lr": 0.1}, is_project=False, log_dir=str(folder), batch_log_frequency=2, **names
        )
        train([tracking])
        run = wandb.wandb.run
        seen.append({key: its for key, its in run.summary._as_dict().items() if not key.startswith("_")})
        run.finish()
    for metrics in seen:
        metrics.pop("loss_at_epoch_end/loss")
    assert rounded(seen[1]) == rounded(seen[0])
    assert "loss_at_epoch_end/val_loss" in seen[0]


# -- the hooks ---------------------------------------------------------------------------------------

HOOKS = [name for name in vars(AbstractCallback) if name.startswith("on_")]
NOT_CALLED = {"on_multiprocess_start", "on_after_batch_prediction"}


def recorder(order: int = 0, log: list[Any] | None = None) -> Any:
    """A callback that notes every call of a hook: its name, where the loop is, and the metrics so far."""

    class Recorder(AbstractCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(f"recorder {order}", execution_order=order)
            self.rows: list[Any] = [] if log is None else log

    def hook(name: str) -> Any:
        def note(self: Any, *given: Any) -> None:
            loop = self.train_loop_obj
            loop.grad_cb_used = True
            is_step = name in ("on_batch_begin", "on_batch_end", "on_after_gradient_update", "on_after_optimizer_step")
            where = loop.epoch, loop.total_iteration_idx, (loop.iteration if is_step else 0)
            update = loop.should_execute_optimizer_update() if is_step else None
            history = {key: len(values) for key, values in loop.train_history.items()}
            losses = rounded(loop.loss_batch_accum) if name != "on_train_end" else []
            kind = loop.optimizer.param_groups[0]["lr"], loop.is_main_process(), loop.early_stop
            self.rows.append((order, name, *given, where, update, history, losses, kind))

        return note

    for name in HOOKS:
        setattr(Recorder, name, hook(name))
    return Recorder()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_hooks_are_called_as_in_aitoolbox(accumulate: int) -> None:
    there, here = recorder(), recorder()
    loop = in_aitoolbox([there], accumulate=accumulate)
    model, _ = in_hookline([here], accumulate=accumulate)
    assert here.rows == there.rows
    assert {row[1] for row in there.rows} == set(HOOKS) - NOT_CALLED
    assert same(model, loop.model)


@pytest.mark.parametrize("hook", ["on_batch_end", "on_epoch_end"])
def test_a_stop_calls_the_same_hooks(hook: str) -> None:
    """A stop in the middle of an epoch takes effect at its end."""

    def stopping() -> Any:
        class Stop(AbstractCallback):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__("stop")

        def stop(self: Any) -> None:
            if self.train_loop_obj.total_iteration_idx >= 5:
                self.train_loop_obj.early_stop = True

        setattr(Stop, hook, stop)
        return Stop()

    there, here = recorder(), recorder()
    loop = in_aitoolbox([there, stopping()], epochs=5)
    model, result = in_hookline([here, stopping()], max_duration="5ep")
    assert here.rows == there.rows
    assert same(model, loop.model)
    assert (result.clock.epoch, result.stop_reason) == (2, "Stop set train_loop_obj.early_stop")


def test_callbacks_run_in_their_execution_order() -> None:
    """In AIToolbox the registration is in list order, and all other hooks are by ``execution_order``."""
    seen: list[list[Any]] = [[], []]
    in_aitoolbox([recorder(order, seen[0]) for order in (5, -1, 0)])
    in_hookline([hl.interop.adapt(recorder(order, seen[1]), name=f"of order {order}") for order in (5, -1, 0)])
    rows = [[row for row in its if row[1] != "on_train_loop_registration"] for its in seen]
    assert rows[0] == rows[1]
    assert [row[0] for row in rows[0][:3]] == [-1, 0, 5]


def test_a_hook_of_gradients_needs_no_argument() -> None:
    """In early versions of AIToolbox it had none."""

    class Early(gradient.GradientCallbackBase):  # type: ignore[misc]
        calls = 0

        def on_after_gradient_update(self) -> None:
            self.calls += 1

    early = Early("early")
    in_hookline([early])
    assert early.calls == 12


def test_messages_last_until_the_end_of_the_epoch() -> None:
    class Talk(AbstractCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("talk")
            self.heard: list[Any] = []

        def on_epoch_begin(self) -> None:
            self.message_service.write_message("epoch", self.train_loop_obj.epoch)
            self.message_service.write_message("all", 1, MessageHandling.KEEP_FOREVER)

        def on_epoch_end(self) -> None:
            self.heard.append([self.message_service.read_messages(key) for key in ("epoch", "all")])

        def on_train_end(self) -> None:
            self.on_epoch_end()

    there, here = Talk(), Talk()
    in_aitoolbox([there])
    in_hookline([here])
    assert here.heard == there.heard
    assert here.heard[-1] == [None, [1, 1, 1]]


# -- models ------------------------------------------------------------------------------------------


def test_a_model_ends_as_in_aitoolbox() -> None:
    """Also with a last batch that is smaller: AIToolbox takes means over batches."""
    short = DataLoader(data().dataset, batch_size=10)
    model = Net()
    loop = TrainLoop(model, short, short, None, optimizer_of(model), nn.CrossEntropyLoss())
    loop.fit(num_epochs=3, grad_accumulation=2)
    ours = Net()
    result = Trainer(max_duration="3ep", accumulate=2, folder=False, device="cpu").fit(
        ours, short, short, loss=nn.CrossEntropyLoss(), optimizer=optimizer_of(ours)
    )
    assert same(ours, model)
    assert rounded(result.history["val/loss"]) == rounded(loop.train_history["val_loss"])
    assert rounded(result.history["train/loss_epoch"]) == rounded(loop.train_history["accumulated_loss"])


def test_a_model_evaluates_and_predicts() -> None:
    trainer = Trainer(folder=False, device="cpu")
    found = trainer.evaluate(Net(), data(), loss=nn.CrossEntropyLoss())
    loop = TrainLoop(Net(), data(), data(), None, None, nn.CrossEntropyLoss())
    assert rounded(found["val/loss"]) == rounded(loop.evaluate_loss_on_validation_set(float_dict_format=True))
    predictions, targets, metadata = trainer.predict(Net(), data())
    expected = loop.predict_on_validation_set()
    assert torch.equal(predictions, expected[0])
    assert torch.equal(targets, expected[1])
    assert torch.equal(metadata["norm"], expected[2]["norm"])


def test_callbacks_see_the_same_predictions_of_any_model() -> None:
    """Those of a plain model are its outputs, with the targets of the loader, also if the loader shuffles."""
    seen: dict[str, Any] = {}

    def look(name: str) -> Any:
        def note(loop: Any) -> None:
            parts = (loop.predict_on_train_set(), loop.predict_on_validation_set(), loop.predict_on_test_set())
            losses = (loop.evaluate_loss_on_validation_set(), loop.evaluate_loss_on_test_set(float_dict_format=True))
            seen[name] = [rounded([*its[:2], its[2]]) for its in parts], rounded(list(losses))

        return basic.FunctionOnTrainLoop(note, epoch_end=True)

    in_aitoolbox([look("there")])
    in_hookline([look("here")])
    assert seen["here"] == seen["there"]
    plain = Plain()
    trainer = Trainer(callbacks=[look("plain")], max_duration="3ep", log_every="1st", folder=False, device="cpu")
    shuffled = data(shuffle=True, generator=torch.Generator().manual_seed(5))
    trainer.fit(
        plain,
        shuffled,
        data(2, seed=2),
        test=data(2, seed=3),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer_of(plain),
    )
    assert [its[1] for its in seen["plain"][0]] == [its[1] for its in seen["there"][0]]
    x = data().dataset.tensors[0]  # type: ignore[attr-defined]
    assert seen["plain"][0][0][0] == rounded(plain.eval()(x))


def test_several_losses_are_refused() -> None:
    class Several(Net):
        def get_loss(self, batch_data: Any, criterion: Any, device: Any) -> Any:
            return MultiLoss({"one": super().get_loss(batch_data, criterion, device)})

    with pytest.raises(LossError, match=r"Several\.get_loss(_eval)? returned MultiLoss: Hookline needs one loss"):
        in_hookline([], model=Several())


# -- with the other features of a run ----------------------------------------------------------------


def stateful(folder: Path) -> list[Any]:
    return [
        basic.EarlyStopping(min_delta=0.12, patience=1),
        evaluation(),
        warmup.CosineWithWarmupScheduler(4, 40),
        schedulers.ReduceLROnPlateauScheduler(patience=0, threshold=0.3, factor=0.5),
        performance_eval.MetricHistoryRename("val_Accuracy", "val_renamed"),
    ]


@pytest.mark.parametrize("step", [2, 4, 6, 7])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    whole, rest = stateful(tmp_path), stateful(tmp_path)
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="9ep")
    in_hookline([*stateful(tmp_path), pause, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep")
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep", resume="auto")
    assert resumed.clock.step == result.clock.step < 36
    assert same(model, expected)
    assert history(rest[0]) == history(whole[0])
    assert rates(rest[2]) == rates(whole[2])
    assert stopped(rest[0]) == stopped(whole[0])


def test_a_custom_loop_runs_them() -> None:
    callbacks = [[basic.EarlyStopping(min_delta=0.15), schedulers.StepLRScheduler(1, gamma=0.5)] for _ in range(2)]
    expected, result = in_hookline(callbacks[0], max_duration="9ep")
    model = Plain()
    optimizer = optimizer_of(model)
    options: dict[str, Any] = {"max_duration": "9ep", "log_every": "1st", "folder": False, "device": "cpu"}
    with Loop(model, optimizer, callbacks=callbacks[1], **options) as loop:
        for x, y in loop.batches(data()):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(data(2, seed=2)):
                    loop.run.log({"loss": cross_entropy(model(x_val), y_val)}, weight=len(x_val))
    assert loop.run.clock.step == result.clock.step < 36
    assert same(model, expected)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_one_of_them_writes(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("aitoolbox_ranks.py:train", 2, folder=str(tmp_path))
    assert found[0]["step"] == found[1]["step"] < 18
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["history"] == found[1]["history"]
    assert [its["ranks"] for its in found] == [[0, "everywhere", "first"], [1, "everywhere"]]
    assert [name for name in files(tmp_path) if name.endswith(".pth")] == [
        f"project/experiment_…/checkpoint_model/model_experiment_…_E{epoch}.pth" for epoch in range(found[0]["epochs"])
    ]


def test_an_experiment_is_in_the_folder_of_the_run(tmp_path: Path) -> None:
    plot = performance_eval.ModelTrainHistoryFileWriter()
    in_hookline([plot], tmp_path / "run", name="digits/first")
    (path,) = (tmp_path / "run" / "aitoolbox").rglob("results.txt")
    assert path.relative_to(tmp_path / "run").parts[:2] == ("aitoolbox", "digits")
    assert path.relative_to(tmp_path / "run").parts[2].startswith("first_")
    with pytest.raises(AttributeError, match="does not support automatic project folder structure"):
        in_hookline([performance_eval.ModelTrainHistoryFileWriter()])


def test_metrics_of_a_callback_are_metrics_of_the_run() -> None:
    _, result = in_hookline([evaluation(), performance_eval.MetricHistoryRename("val_Accuracy", "other")])
    assert result.history["val/Accuracy"] == result.history["train/other"]
    assert len(result.history["val/Accuracy"]) == 3
    assert len(result.history["train_end/val_Accuracy"]) == 1


def test_a_metric_can_be_named() -> None:
    threshold = basic.ThresholdEarlyStopping("nll", 9.0)
    adapted = hl.interop.adapt(threshold, names={"nll": "val/loss"}, name="nll")
    _, result = in_hookline([adapted])
    assert (result.clock.epoch, result.stop_reason) == (1, "nll set train_loop_obj.early_stop")


def test_patience_counts_evaluations() -> None:
    early = basic.EarlyStopping(min_delta=9.0, patience=1)
    _, result = in_hookline([early], max_duration="9ep", eval_every="2ep")
    assert (result.clock.epoch, early.best_epoch) == (6, 1)


def test_explain_names_their_hooks() -> None:
    trainer = Trainer(callbacks=[basic.EarlyStopping()], max_duration="1ep", folder=False)
    text = trainer.explain(Plain())
    assert "AIToolbox: the train loop that its callbacks see [required]" in text
    assert "EarlyStopping.on_epoch_end: after AIToolboxHost" in text


def test_a_loss_that_nobody_computes_is_found_before_the_first_step() -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStopping monitors 'val/loss', but"):
        Trainer(callbacks=[basic.EarlyStopping()], max_duration="1ep", folder=False, device="cpu").fit(
            Net(), data(), loss=nn.CrossEntropyLoss(), optimizer=lambda its: torch.optim.SGD(its, lr=0.1)
        )


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(name: str) -> None:
    modules = (basic, ddp, model_load)
    kind = next(vars(module)[name] for module in modules if name in vars(module))
    made = kind.__new__(kind)
    with pytest.raises(RegistrationError, match=rf"{name} of AIToolbox: .* [Uu]se (hl\.)?\w+"):
        Trainer(callbacks=[made])


def test_a_class_is_no_callback() -> None:
    with pytest.raises(RegistrationError, match=r"EarlyStopping is a class, not a callback; write EarlyStopping"):
        Trainer(callbacks=[basic.EarlyStopping])


def doing(act: Callable[[Any], Any]) -> Any:
    return basic.FunctionOnTrainLoop(act, epoch_end=True)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"TrainLoop\.prediction_store: Hookline does not offer .*AIToolbox's"):
        in_hookline([doing(lambda loop: loop.prediction_store)])
    with pytest.raises(AttributeError, match=r"TrainLoop\.train_loader = …: Hookline does not offer"):
        in_hookline([doing(lambda loop: setattr(loop, "train_loader", []))])
    with pytest.raises(AttributeError, match=r"TrainLoop\.project_name: Hookline does not offer"):
        in_hookline([doing(lambda loop: loop.project_name)])


def test_a_hook_of_predictions_is_not_called() -> None:
    with pytest.raises(SetupError, match=r"predicts with execute_callbacks=True: Hookline does not call"):
        in_hookline([doing(lambda loop: loop.predict_on_test_set(execute_callbacks=True))])


def test_two_alike_need_names() -> None:
    two = [basic.EarlyStopping() for _ in range(2)]
    with pytest.raises(RegistrationError, match="give one of them a name"):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
