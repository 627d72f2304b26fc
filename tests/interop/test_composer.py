"""Callbacks of Composer have the same effect in Hookline as in Composer, with bitwise the same weights."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
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
from hookline.errors import RegistrationError
from hookline.interop.composer.support import LIMITED, NOT_CALLBACKS, REFUSED, RUNS
from hookline.loop import Loop, Trainer
from hookline.records import FileRow, ImageRow, TableRow, TextRow
from tests.support.rank_server import RankServer

composer = pytest.importorskip("composer", reason="composer is not installed: `make interop` runs these tests")
of = pytest.importorskip("composer.callbacks")

from composer import profiler  # noqa: E402
from composer.core import Evaluator, Event  # noqa: E402
from composer.loggers import InMemoryLogger, LoggerDestination  # noqa: E402
from composer.metrics import CrossEntropy  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Composer warns about the CPU, versions and closed trainers.


# -- the same run in both trainers -------------------------------------------------------------------


def data(batches: int = 4, seed: int = 1, size: int = 8, shape: tuple[int, ...] = (4,)) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, *shape, generator=generator)
    return DataLoader(TensorDataset(x, (x.flatten(1).sum(1) > 0).long()), batch_size=size)


def fill(model: Any) -> None:
    """Give a model its parts, with the same weights each time."""
    torch.manual_seed(0)
    model.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    model.head = nn.Linear(8, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        fill(self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.backbone(x.flatten(1)))


class Model(ComposerModel):  # type: ignore[misc]
    """The same as a ``ComposerModel``."""

    def __init__(self) -> None:
        super().__init__()
        fill(self)

    def forward(self, batch: Any) -> Any:
        return self.head(self.backbone(batch[0].flatten(1)))

    def loss(self, outputs: Any, batch: Any) -> Any:
        return cross_entropy(outputs, batch[1])

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        if is_train:
            return {"accuracy": MulticlassAccuracy(2, average="micro")}
        return {"loss": CrossEntropy(), "accuracy": MulticlassAccuracy(2, average="micro")}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs, batch[1])


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def in_composer(
    callbacks: list[Any], model: Any = None, evaluates: bool = True, train: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Train in Composer's own trainer: the model and the trainer."""
    model = model or Model()
    optimizer = optimizer_of(model)
    trainer = composer.Trainer(
        model=model,
        train_dataloader=train or data(),
        optimizers=optimizer,
        schedulers=scheduler_of(optimizer),
        callbacks=callbacks,
        device="cpu",
        progress_bar=False,
        **{
            "max_duration": "3ep",
            "eval_dataloader": data(2, seed=2) if evaluates else None,
            "loggers": [InMemoryLogger()],
            "step_schedulers_every_batch": True,
            **options,
        },
    )
    trainer.fit()
    trainer.close()
    return model, trainer


def in_hookline(
    callbacks: list[Any],
    folder: Any = False,
    make: Callable[[], Any] = Net,
    evaluates: bool = True,
    train: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Train in Hookline: the model and the result."""
    model = make()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder, "device": "cpu", **options}
    loss = {} if isinstance(model, ComposerModel) else {"loss": nn.CrossEntropyLoss()}
    result = Trainer(callbacks=callbacks, **options).fit(
        model,
        train or data(),
        data(2, seed=2) if evaluates else None,
        optimizer=optimizer_of(model),
        scheduler=scheduler_of,
        **loss,
    )
    return model, result


def same(one: Any, other: Any) -> bool:
    """True if both values hold the same, tensors bitwise."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights and the number of steps."""

    make: Callable[[], Any]
    effect: Callable[[Any], Any] = lambda callback: None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of both trainers."""
    models: tuple[str, ...] = ("plain", "composer")
    values: bool = False
    """True if the logged values are the same, and not only their names and steps."""
    shift: int = 0
    """Steps by which rows are later in Hookline: what is logged inside of a step counts when the step ends."""
    only_there: str = "nothing"
    """Part of the names that are logged for a ``ComposerModel`` only."""


def best(callback: Any) -> Any:
    return round(float(callback.best), 5), callback.best_occurred.batch.value


def estimate(callback: Any) -> Any:
    counts = {label: len(times) for label, times in callback.eval_wct_per_label.items()}
    return counts, callback.eval_frequency_per_label, callback.train_dataloader_len


PICTURES = {"train": data(shape=(1, 2, 2))}
CASES: dict[str, Case] = {
    "EarlyStopper": Case(
        lambda: of.EarlyStopper("loss", "eval", min_delta=0.15, patience=1), best, {"max_duration": "9ep"}
    ),
    "EarlyStopper by batches": Case(
        lambda: of.EarlyStopper("loss", "eval", min_delta=0.2, patience="3ba"), best, {"max_duration": "9ep"}
    ),
    "EarlyStopper of training": Case(
        lambda: of.EarlyStopper("accuracy", "train", patience=1), best, {"max_duration": "9ep"}, models=("composer",)
    ),
    "ThresholdStopper": Case(lambda: of.ThresholdStopper("loss", "eval", 0.5), options={"max_duration": "9ep"}),
    "ThresholdStopper in a batch": Case(
        lambda: of.ThresholdStopper("accuracy", "train", 0.8, stop_on_batch=True), models=("composer",)
    ),
    "LRMonitor": Case(lambda: of.LRMonitor(), values=True),
    "OptimizerMonitor": Case(lambda: of.OptimizerMonitor(batch_log_interval=1), values=True),
    "SpeedMonitor": Case(
        lambda: of.SpeedMonitor(window_size=2), lambda its: (list(its.history_samples), its.total_eval_wct > 0)
    ),
    "RuntimeEstimator": Case(lambda: of.RuntimeEstimator(), estimate),
    "SystemMetricsMonitor": Case(lambda: of.SystemMetricsMonitor()),
    "ActivationMonitor": Case(lambda: of.ActivationMonitor("2ba"), values=True, shift=1, only_there="/_"),
    "ImageVisualizer": Case(lambda: of.ImageVisualizer("2ba"), lambda its: its.last_train_time_value_logged, PICTURES),
    "NaNMonitor": Case(lambda: of.NaNMonitor()),
    "FreeOutputs": Case(lambda: of.FreeOutputs(), models=("plain",)),
    "MemoryMonitor": Case(lambda: of.MemoryMonitor()),
    "MemorySnapshot": Case(lambda: of.MemorySnapshot(), lambda its: its._enabled),
    "OOMObserver": Case(lambda: of.OOMObserver(), lambda its: its._enabled),
}
MODELS: dict[str, Callable[[], Any]] = {"plain": Net, "composer": Model}


class PlainMetrics(Model):
    """It has no metrics of training, which need the outputs."""

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else super().get_metrics(is_train)


def series(trainer: Any) -> dict[str, list[Any]]:
    """What was logged in Composer, besides what it logs itself."""
    own = ("loss/", "metrics/", "trainer/", "time/batch", "time/sample", "time/epoch", "time/token")
    found = trainer.logger.destinations[0].data
    return {
        name: [(stamp.batch.value, value) for stamp, value in rows]
        for name, rows in found.items()
        if not name.startswith(own)
    }


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, case in CASES.items() for model in case.models])
def test_a_shipped_callback_has_the_same_effect(name: str, model: str, tmp_path: Path) -> None:
    case = CASES[name]
    there, here = case.make(), case.make()
    expected, trainer = in_composer([there], PlainMetrics() if name == "FreeOutputs" else None, **case.options)
    found, result = in_hookline([here], tmp_path / "run", make=MODELS[model], **case.options)
    assert result.clock.step == trainer.state.timestamp.batch.value
    assert same(weights(found), weights(expected))
    assert case.effect(here) == case.effect(there)
    for metric, rows in series(trainer).items():
        if model == "plain" and case.only_there in metric:
            continue
        ours = metric if "/" in metric else f"train/{metric}"
        expected_rows = {stamp + case.shift: value for stamp, value in rows}
        found_rows = dict(zip(result.history.steps(ours), result.history[ours], strict=True))
        if case.values:
            assert found_rows == pytest.approx(expected_rows), metric
        elif "/" in metric:
            assert found_rows.keys() == expected_rows.keys(), metric


def test_every_shipped_callback_is_listed() -> None:
    """A new version of Composer may bring others."""
    assert set(of.__all__) == {*RUNS, *LIMITED, *REFUSED}
    assert {name.split(" ")[0] for name in CASES} | {"ExportForInferenceCallback"} == {*RUNS, *LIMITED}


def test_a_shipped_monitor_of_nan_ends_the_run_in_the_same_step() -> None:
    steps = []
    for train in (in_composer, in_hookline):
        count = Recorder()
        poisoned = data()
        poisoned.dataset.tensors[0][20] = float("nan")
        with pytest.raises(RuntimeError, match="Train loss contains a NaN"):
            train([count, of.NaNMonitor()], train=poisoned)
        steps.append(count.rows[-1][2])
    assert steps[0] == steps[1]


def test_freed_outputs_are_empty_until_the_next_forward() -> None:
    found: list[Any] = []

    class Watch(composer.Callback):  # type: ignore[misc]
        def after_forward(self, state: Any, logger: Any) -> None:
            found.append(tuple(state.outputs.shape))

        def before_backward(self, state: Any, logger: Any) -> None:
            found.append(state.outputs.numel())

        batch_end = before_backward

    in_composer([Watch(), of.FreeOutputs()], PlainMetrics())
    in_hookline([Watch(), of.FreeOutputs()])
    assert found == [(8, 2), 0, 0] * 24


class Pictures(LoggerDestination):  # type: ignore[misc]
    """It notes the names and shapes of images."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_images(
        self, images: Any, name: str = "", channels_last: Any = 0, step: int = 0, masks: Any = None, *_: Any
    ) -> None:
        self.rows += [(name, step), *((f"{name}/{mask}", step) for mask in masks or ())]


class Segmenter(ComposerModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Conv2d(3, 4, 1)

    def forward(self, batch: Any) -> Any:
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return cross_entropy(outputs, batch[1])


@pytest.mark.parametrize("mode", ["input", "segmentation"])
def test_a_shipped_visualizer_logs_the_same_images(mode: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(32, 3, 5, 6, generator=generator), torch.randint(4, (32, 5, 6), generator=generator)
    loader, destination, memory = DataLoader(TensorDataset(x, y), batch_size=8), Pictures(), hl.sinks.Memory()
    options = {"train": loader}
    in_composer(
        [of.ImageVisualizer("3ba", mode)], Segmenter(), eval_dataloader=loader, loggers=[destination], **options
    )
    Trainer(callbacks=[of.ImageVisualizer("3ba", mode)], max_duration="3ep", folder=tmp_path, sinks=[memory]).fit(
        model := Segmenter(), loader, loader, optimizer=optimizer_of(model)
    )
    found = [(row.name, row.step) for row in memory.records if isinstance(row, ImageRow)]
    assert sorted(found) == sorted(destination.rows)
    assert len(found) == (7 if mode == "input" else 21)


@pytest.mark.parametrize("form", ["torchscript", "onnx"])
@pytest.mark.parametrize("model", MODELS)
def test_a_shipped_export_writes_the_same_model(form: str, model: str, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    make = Scriptable if model == "composer" else Net
    x = torch.randn(3, 4)

    def export(name: str, sample: Any) -> Any:
        return of.ExportForInferenceCallback(form, str(tmp_path / name), sample_input=sample)

    def outputs(name: str, given: Any) -> Any:
        if form == "torchscript":
            return torch.jit.load(tmp_path / name)(given).detach()
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / name)
        return torch.from_numpy(session.run(None, {its.name: x.numpy() for its in session.get_inputs()})[0])

    in_composer([export("there", [x, x])], Scriptable())
    in_hookline([export("here", [x, x] if model == "composer" else x)], make=make)
    expected, found = outputs("there", [x, x]), outputs("here", [x, x] if model == "composer" else x)
    assert torch.allclose(expected, found, atol=1e-6)


class Scriptable(Model):
    """A model whose ``forward`` can be compiled and traced."""

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.head(self.backbone(batch[0].flatten(1)))
        return found


# -- the hooks ---------------------------------------------------------------------------------------

STAMP = ("iteration", "epoch", "batch", "sample", "batch_in_epoch", "sample_in_epoch", "epoch_in_iteration")


class Recorder(composer.Callback):  # type: ignore[misc]
    """It notes every event: its name, the label of the loader, the timestamps, the sizes of batch, outputs and loss."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        stamps = (
            [state.timestamp] + [state.eval_timestamp] * event.is_eval + [state.predict_timestamp] * event.is_predict
        )
        counts = [tuple(int(getattr(stamp, name)) for name in STAMP) for stamp in stamps]
        before = None if state.previous_timestamp is None else state.previous_timestamp.batch.value
        has_loss = event in (Event.AFTER_LOSS, Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD, Event.BATCH_END)
        loss = round(float(state.loss), 6) if has_loss else None
        shape = tuple(state.outputs.shape) if event.value.endswith("after_forward") else None
        size = len(state.batch[0]) if event.value.endswith("before_forward") else None
        label = state.dataloader_label if event not in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD) else None
        limit = event == Event.BATCH_END and (state.get_elapsed_duration().value, state.dataloader_len.value)
        self.rows.append((event.value, label, *counts, before, loss, size, shape, limit))


class Hooks(composer.Callback):  # type: ignore[misc]
    """The same by methods: names only."""

    def __init__(self) -> None:
        self.rows: list[str] = []


def _note(name: str) -> Any:
    def hook(self: Any, *values: Any) -> None:
        self.rows.append(name)

    return hook


for _event in (*(event.value for event in Event), "close", "post_close"):
    setattr(Hooks, _event, _note(_event))

DIFFERENT = {
    "batch_checkpoint": "at the end of an epoch: after its evaluation here, before epoch_end there",
    "before_dataloader": "not for the fetch that finds the end of the data here",
}
"""Hooks that are called at another point, with the difference."""


def compared(rows: list[Any]) -> list[Any]:
    """The rows that must be the same: of hooks in ``DIFFERENT`` those inside of an epoch."""
    return [row for row in rows if row[0] not in DIFFERENT or row[2][4] % 4]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_hooks_are_called_as_in_composer(model: str, accumulate: int) -> None:
    there, here = Recorder(), Recorder()
    in_composer([there], device_train_microbatch_size=8 // accumulate)
    in_hookline([here], make=MODELS[model], train=data(size=8 // accumulate), accumulate=accumulate)
    assert compared(here.rows) == compared(there.rows)
    assert {row[0] for row in there.rows} == {row[0] for row in here.rows}
    assert len(there.rows) - len(here.rows) == 3  # The fetches that find the end.


def test_methods_are_called_as_in_composer() -> None:
    there, here = Hooks(), Hooks()
    in_composer([there])
    in_hookline([here])
    assert [row for row in here.rows if row not in DIFFERENT] == [row for row in there.rows if row not in DIFFERENT]
    assert here.rows[-2:] == ["close", "post_close"]


def test_evaluations_and_predictions_call_the_same_hooks() -> None:
    there, here = Recorder(), Recorder()
    trainer = composer.Trainer(
        model=Model(), callbacks=[there], device="cpu", progress_bar=False, eval_dataloader=data(2, seed=2)
    )
    trainer.eval()
    trainer.predict(data(2, seed=2))
    trainer.close()
    ours, model = Trainer(callbacks=[here], folder=False, device="cpu"), Model()
    ours.evaluate(model, data(2, seed=2))
    ours.predict(model, data(2, seed=2))
    once = ("init", "before_load", "after_load")  # For each of the two calls here.
    assert [row for row in here.rows if row[0] not in once] == [row for row in there.rows if row[0] not in once]


def test_gradients_are_there_after_the_update() -> None:
    """Composer clears them only in the next batch."""

    class Norms(composer.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.found: list[float] = []

        def batch_end(self, state: Any, logger: Any) -> None:
            self.found.append(float(sum(its.grad.norm() for its in state.model.parameters() if its.grad is not None)))

        epoch_end = batch_end

    there, here = Norms(), Norms()
    in_composer([there])
    model, _ = in_hookline([here])
    assert here.found == there.found
    assert len(here.found) == 15
    assert all(parameter.grad is None for parameter in model.parameters())


# -- with the other features of a run ----------------------------------------------------------------


def stopping() -> list[Any]:
    return [of.EarlyStopper("loss", "eval", min_delta=0.15, patience=2), of.SpeedMonitor(2), of.LRMonitor()]


@pytest.mark.parametrize("step", [2, 4, 6, 7, 10])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    whole, cut, rest = stopping(), stopping(), stopping()
    seen, before, after = Recorder(), Recorder(), Recorder()
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    options: dict[str, Any] = {"max_duration": "9ep", "make": Model}
    expected, result = in_hookline([*whole, seen], tmp_path / "whole", **options)
    in_hookline([*cut, before, pause, hl.Checkpointer()], tmp_path / "cut", **options)
    model, resumed = in_hookline([*rest, after, hl.Checkpointer()], tmp_path / "cut", resume="auto", **options)
    assert resumed.clock.step == result.clock.step < 36
    assert same(weights(model), weights(expected))
    assert best(rest[0]) == best(whole[0])
    assert rest[1].total_eval_wct > cut[1].total_eval_wct > 0 or step <= 4
    steps = {row[2] for its in (before, after) for row in its.rows if row[0] == "batch_end"}
    assert steps == {row[2] for row in seen.rows if row[0] == "batch_end"}


def test_a_state_is_loaded_after_init(tmp_path: Path) -> None:
    """As in Composer: ``init`` may make what the state is loaded into."""

    class Counting(composer.Callback):  # type: ignore[misc]
        def init(self, state: Any, logger: Any) -> None:
            self.count = 0

        def batch_end(self, state: Any, logger: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    def train(*more: Any, **options: Any) -> int:
        its = Counting()
        in_hookline([its, *more, hl.Checkpointer()], tmp_path, **options)
        return its.count

    assert train(hl.on("train_step_end", at="6st")(lambda run: run.pause("later"))) == 6
    assert train(resume="auto") == 12


def test_a_custom_loop_runs_them() -> None:
    expected, result = in_hookline(stopping(), max_duration="9ep")
    model = Net()
    optimizer = optimizer_of(model)
    options: dict[str, Any] = {"max_duration": "9ep", "log_every": "1st", "folder": False, "device": "cpu"}
    with Loop(model, optimizer, scheduler=scheduler_of(optimizer), callbacks=stopping(), **options) as loop:
        for x, y in loop.batches(data()):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(data(2, seed=2)):
                    loop.run.log({"loss": cross_entropy(model(x_val), y_val)}, weight=len(x_val))
    assert loop.run.clock.step == result.clock.step
    assert same(weights(model), weights(expected))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("composer_ranks.py:train", 2, folder=str(tmp_path))
    assert found[0] == found[1]
    assert found[0]["step"] < 36
    assert found[0]["samples"] == 16 * found[0]["step"]


def test_they_run_with_callbacks_of_hookline() -> None:
    _, result = in_hookline(
        [hl.EMA(), of.ThresholdStopper("loss", "eval", 9.0), hl.EarlyStopping("val/loss")], max_duration="9ep"
    )
    assert (result.clock.step, result.stop_reason) == (4, "ThresholdStopper called state.stop_training()")


def test_several_loaders_have_their_labels() -> None:
    seen: list[Any] = []

    class Labels(composer.Callback):  # type: ignore[misc]
        def eval_end(self, state: Any, logger: Any) -> None:
            label = state.dataloader_label
            seen.append((label, state.dataloader_len.value, float(state.eval_metrics[label]["loss"].compute())))

    loaders = {"hard": data(1, seed=3), "easy": data(2, seed=2)}
    evaluators = [Evaluator(label=label, dataloader=loader, metric_names=["loss"]) for label, loader in loaders.items()]
    in_composer([Labels(), of.ThresholdStopper("loss", "hard", 0.0)], eval_dataloader=evaluators, max_duration="1ep")
    model = Model()
    Trainer(callbacks=[Labels(), of.ThresholdStopper("loss", "hard", 0.0)], max_duration="1ep", folder=False).fit(
        model, data(), loaders, optimizer=optimizer_of(model), scheduler=scheduler_of
    )
    assert seen[2:] == seen[:2]


def test_what_a_callback_logs_is_logged_by_hookline(tmp_path: Path) -> None:
    class Logging(composer.Callback):  # type: ignore[misc]
        def init(self, state: Any, logger: Any) -> None:
            logger.log_hyperparameters({"width": 8})

        def fit_end(self, state: Any, logger: Any) -> None:
            (tmp_path / "note.txt").write_text("done")
            logger.upload_file("notes/{run_name}.txt", tmp_path / "note.txt")
            logger.log_table(["prompt", "answer"], [["a", "b"]], "answers")

        def batch_end(self, state: Any, logger: Any) -> None:
            logger.log_metrics({"own/twice": 2 * state.timestamp.batch.value, "bare": torch.tensor(1.0)})

    memory = hl.sinks.Memory()
    _, result = in_hookline([Logging()], tmp_path / "run", sinks=[memory], name="one")
    assert result.history["own/twice"] == [2.0 * step for step in range(1, 13)]
    assert result.metrics["train/bare"] == 1.0
    assert [row.rows for row in memory.records if isinstance(row, TableRow)] == [(("a", "b"),)]
    assert [row.name for row in memory.records if isinstance(row, FileRow)] == ["notes/one.txt"]
    assert [row.text for row in memory.records if isinstance(row, TextRow)] == ["width: 8"]


def test_explain_names_their_hooks() -> None:
    text = Trainer(callbacks=stopping(), max_duration="1ep", folder=False).explain(Net())
    assert "Composer: the state that its callbacks see [required]" in text
    assert "EarlyStopper.eval_end: after ComposerHost" in text


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step() -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStopper monitors 'val/acc', but"):
        in_hookline([of.EarlyStopper("acc", "eval")])


def test_a_metric_can_be_named() -> None:
    stopper = hl.interop.adapt(of.ThresholdStopper("nll", "eval", 9.0, comp="lt"), names={"nll": "val/loss"}, name="a")
    _, result = in_hookline([stopper])
    assert (result.clock.step, result.stop_reason) == (4, "a called state.stop_training()")


def test_a_signal_saves_a_checkpoint(tmp_path: Path) -> None:
    """Composer, when it is imported, installs handlers that would end the process at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / str(int(number))
        command = [sys.executable, "-m", "tests.interop.composer_ranks", folder, str(int(number))]
        found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert list((folder / "checkpoints").iterdir()), found.stderr
        assert found.returncode == 143 or number == signal.SIGINT, found.stderr


# -- mistakes ----------------------------------------------------------------------------------------


def refused(name: str, folder: Path) -> Any:
    """An instance of a class that is refused."""
    if name == "MLPerfCallback":
        return of.MLPerfCallback(folder, 0)
    if name == "Generate":
        return of.Generate.__new__(of.Generate)  # Its constructor needs transformers.
    if name == "LoggerDestination":
        return InMemoryLogger()
    if name == "TraceHandler":
        return profiler.JSONTraceHandler(str(folder))
    if name.endswith("Profiler"):
        return getattr(importlib.import_module("composer.profiler.profiler"), name)()
    return getattr(of, name)(*(["a.pt"] if name == "LoadCheckpoint" else []))


@pytest.mark.parametrize("name", [*REFUSED, *NOT_CALLBACKS])
def test_a_callback_that_cannot_work_is_refused(name: str, tmp_path: Path) -> None:
    callback = refused(name, tmp_path)
    with pytest.raises(RegistrationError, match=rf"{type(callback).__name__} of Composer: .* Use hl\.\w+"):
        Trainer(callbacks=[callback])


def test_a_class_is_no_callback() -> None:
    with pytest.raises(RegistrationError, match=r"LRMonitor is a class, not a callback; write LRMonitor\(…\)"):
        Trainer(callbacks=[of.LRMonitor])


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (lambda state: state.algorithms, r"State\.algorithms: Hookline does not offer this attribute of Composer's"),
        (lambda state: setattr(state, "max_duration", "9ep"), r"State\.max_duration = …: Hookline does not offer"),
        (lambda state: setattr(state, "batch", None), r"State\.batch = …: Hookline does not offer"),
        (lambda state: state.model.loss(None, None), r"state\.model\.loss: the model of this run is a plain model"),
    ],
)
def test_an_unknown_attribute_is_an_error(access: Callable[[Any], Any], message: str) -> None:
    class Asking(composer.Callback):  # type: ignore[misc]
        def fit_start(self, state: Any, logger: Any) -> None:
            access(state)

    with pytest.raises(AttributeError, match=message):
        in_hookline([Asking()])


def test_two_alike_need_names() -> None:
    two = [of.EarlyStopper("loss", "eval") for _ in range(2)]
    with pytest.raises(RegistrationError, match=r"both Composer:EarlyStopper.* hl\.interop\.adapt\(callback, name="):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
