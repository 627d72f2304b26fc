"""Callbacks of transformers have the same effect in Hookline as in its trainer, with bitwise the same weights."""

from __future__ import annotations

import csv
import json
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import hookline as hl
from hookline.errors import RegistrationError, SetupError
from hookline.interop.transformers.support import LIMITED, NOT_TESTED, REFUSED, RUNS
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

hf = pytest.importorskip("transformers", reason="transformers is not installed: `make interop` runs these tests")
pytest.importorskip("accelerate", reason="accelerate is not installed: `make interop` runs these tests")

from transformers import PretrainedConfig, PreTrainedModel  # noqa: E402
from transformers.integrations import integration_utils  # noqa: E402
from transformers.modeling_outputs import SequenceClassifierOutput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Transformers warns about versions and small data.


# -- the same run in both trainers -------------------------------------------------------------------


def samples(batches: int = 4, seed: int = 1) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return [{"x": row, "labels": (row.sum() > 0).long()} for row in x]


class Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "net"


class Net(PreTrainedModel):  # type: ignore[misc]
    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.post_init()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.body(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class InOrder(hf.Trainer):  # type: ignore[misc]
    """The trainer of transformers, without shuffling."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def arguments(folder: Path, **options: Any) -> Any:
    return hf.TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "num_train_epochs": 3,
            "learning_rate": 0.1,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "metric_for_best_model": "loss",
            "greater_is_better": False,
            "max_grad_norm": 0.0,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **options,
        }
    )


def in_transformers(callbacks: list[Any], folder: Path, **options: Any) -> Any:
    """Train in the trainer of transformers, with no callbacks but those of its flow and the given ones."""
    model = Net(Config())
    optimizer = optimizer_of(model)
    trainer = InOrder(
        model,
        arguments(folder, **options),
        train_dataset=samples(),
        eval_dataset=samples(2, seed=2),
        callbacks=callbacks,
        optimizers=(optimizer, scheduler_of(optimizer)),
        data_collator=torch.utils.data.default_collate,
    )
    assert type(trainer.callback_handler.callbacks.pop()) is hf.PrinterCallback  # The trainer adds one.
    trainer.train()
    return trainer


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    return DataLoader(samples(batches, seed), batch_size=8)  # type: ignore[arg-type]


def in_hookline(callbacks: list[Any], folder: Any, **options: Any) -> tuple[Any, Any]:
    """Train in Hookline: the model and the result."""
    model = Net(Config())
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder, "device": "cpu", **options}
    trainer = Trainer(callbacks=callbacks, **options)
    result = trainer.fit(
        model, data(), data(2, seed=2), optimizer=lambda parameters: optimizer_of(model), scheduler=scheduler_of
    )
    return model, result


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights and the number of steps."""

    make: Callable[[], Any]
    effect: Callable[[Any, Path], Any] = lambda callback, folder: None
    there: dict[str, Any] = field(default_factory=dict)
    here: dict[str, Any] = field(default_factory=dict)


TIMES = ("runtime", "per_second")
"""Parts of names of values that differ between two runs."""
ONLY_THERE = {"grad_norm": "here only if a callback logs it", "total_flos": "not known here"}
"""Values that only transformers has, with the reason."""


def compared(logs: dict[str, Any]) -> dict[str, Any]:
    """The logged values that must be equal."""
    left = {name: value for name, value in logs.items() if not any(part in name for part in TIMES)}
    return {name: value for name, value in left.items() if name not in ONLY_THERE and name != "step"}


def progress() -> Any:
    class Progress(hf.ProgressCallback):  # type: ignore[misc]
        """It keeps the last counts of its bar, which it closes and drops."""

        counts: tuple[int, int] = (0, 0)

        def on_train_end(self, *values: Any, **more: Any) -> None:
            self.counts = self.training_bar.n, self.training_bar.total
            super().on_train_end(*values, **more)

    return Progress()


def scalars(callback: Any, folder: Path) -> Any:
    """The scalars in the files of TensorBoard, by name, with their steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(callback.logging_dir)
    found.Reload()
    assert "args/text_summary" in found.Tags()["tensors"]
    rows = {name: [(row.step, row.value) for row in found.Scalars(name)] for name in found.Tags()["scalars"]}
    return {
        name: values
        for name, values in rows.items()
        if not any(part in name for part in (*TIMES, *ONLY_THERE)) and "train_loss" not in name
    }


def summary(callback: Any, folder: Path) -> Any:
    import wandb

    found = {name: value for name, value in dict(wandb.run.summary).items() if not name.startswith("_")}
    config = {name: wandb.config[name] for name in ("learning_rate", "num_train_epochs", "eval_strategy")}
    wandb.finish()
    names = {name for name in found if not any(part in name for part in (*TIMES, *ONLY_THERE))}
    return config, {name: pytest.approx(found[name]) for name in names}


def carbon() -> Any:
    """Its tracker asks a server for the country. The tracker for machines without a network does not."""
    callback = integration_utils.CodeCarbonCallback()
    offline = partial(callback._codecarbon.OfflineEmissionsTracker, country_iso_code="FRA")
    callback._codecarbon = SimpleNamespace(EmissionsTracker=offline)
    return callback


def emissions(callback: Any, folder: Path) -> Any:
    path = next(folder.rglob("emissions.csv"))
    with path.open() as file:
        return [float(row["duration"]) > 0 for row in csv.DictReader(file)]


Row = tuple[str, int | None, float]


def rows(logged: Iterable[Row]) -> dict[str, list[tuple[int | None, float]]]:
    """The logged steps and rounded values by name."""
    found: dict[str, list[tuple[int | None, float]]] = {}
    for name, step, value in logged:
        if not any(part in name for part in (*TIMES, *ONLY_THERE)):
            found.setdefault(name, []).append((step, round(value, 4)))
    assert any("eval" in name for name in found)
    return {name: sorted(values) for name, values in found.items()}


def mlflow_rows(callback: Any, folder: Path) -> Any:
    import mlflow

    mlflow.flush_async_logging()  # The callback logs in the background.
    client = mlflow.MlflowClient()
    run = mlflow.last_active_run()
    history = [row for name in run.data.metrics for row in client.get_metric_history(run.info.run_id, name)]
    return rows((row.key, row.step, row.value) for row in history)


def trackio_rows(callback: Any, folder: Path) -> Any:
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("default", SQLiteStorage.get_runs("default")[-1])
    return rows(
        (name, its["step"], value)
        for its in logs
        for name, value in its.items()
        if "/" in name and isinstance(value, float | int)
    )


def swanlab_rows(callback: Any, folder: Path) -> Any:
    store = import_module("swanlab.data.porter.datastore").DataStore()
    callback._swanlab.finish()
    store.open_for_scan(str(max(Path("swanlog").glob("*/backup.swanlab"), key=lambda path: path.stat().st_mtime_ns)))
    records = [json.loads(record) for record in iter(store.scan, None)]
    scalars = [record["data"] for record in records if record["model_type"] == "Scalar"]
    return rows((its["key"], its["step"], its["metric"]["data"]) for its in scalars)


def comet_rows(callback: Any, folder: Path) -> Any:
    callback._experiment.end()
    with ZipFile(max(Path("comet").glob("*.zip"), key=lambda path: path.stat().st_mtime_ns)) as archive:
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    logged = [its["payload"]["metric"] for its in messages if its["type"] == "metric_msg"]
    return rows(
        (its["metricName"], its["step"], its["metricValue"])
        for its in logged
        if not its["metricName"].startswith("sys.")
    )


STOP = {"num_train_epochs": 9}, {"max_duration": "9ep"}

CASES: dict[str, Case] = {
    "EarlyStoppingCallback": Case(
        lambda: hf.EarlyStoppingCallback(2, 0.2), lambda its, folder: its.early_stopping_patience_counter, *STOP
    ),
    "EarlyStoppingCallback in the epoch": Case(
        lambda: hf.EarlyStoppingCallback(1, 0.05),
        lambda its, folder: its.early_stopping_patience_counter,
        {"eval_strategy": "steps", "eval_steps": 2},
        {"eval_every": "2st"},
    ),
    "PrinterCallback": Case(hf.PrinterCallback),
    "ProgressCallback": Case(progress, lambda its, folder: its.counts),
    "TensorBoardCallback": Case(integration_utils.TensorBoardCallback, scalars),
    "WandbCallback": Case(integration_utils.WandbCallback, summary),
    "CodeCarbonCallback": Case(carbon, emissions),
    "MLflowCallback": Case(integration_utils.MLflowCallback, mlflow_rows),
    "TrackioCallback": Case(lambda: integration_utils.TrackioCallback(), trackio_rows, {"project": "default"}),
    "SwanLabCallback": Case(lambda: integration_utils.SwanLabCallback(), swanlab_rows),
    "CometCallback": Case(lambda: integration_utils.CometCallback(), comet_rows),
}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers write files below the folder of the test, and nothing leaves the machine."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "CODECARBON_TRACKING_MODE": "process",
        "CODECARBON_LOG_LEVEL": "error",
        "TRACKIO_DIR": str(tmp_path),
        "SWANLAB_MODE": "offline",
        "COMET_START_ONLINE": "false",
        "COMET_OFFLINE_DIRECTORY": str(tmp_path / "comet"),
        "COMET_LOGGING_CONSOLE": "error",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_callback_has_the_same_effect(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], offline: None
) -> None:
    def printed() -> list[dict[str, Any]]:
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{'")]
        return [compared(eval(line)) for line in lines]  # The callback prints dicts.

    case, found = CASES[name], []
    for folder, run in (("there", in_transformers), ("here", in_hookline)):
        callback, place = case.make(), tmp_path / folder
        (tmp_path / folder).mkdir()
        if run is in_transformers:
            trainer = in_transformers([callback], place, **case.there)
            model, step = trainer.model, trainer.state.global_step
        else:
            model, result = in_hookline([callback], place, **case.here)
            step = result.clock.step
        found.append((step, printed(), case.effect(callback, place), weights(model)))
    assert found[1][:3] == found[0][:3]
    assert same(found[1][3], found[0][3])


def test_every_shipped_callback_is_listed() -> None:
    """A new version of transformers may bring others."""
    import transformers.trainer_jit_checkpoint as jit

    modules = (hf.trainer_callback, integration_utils, jit)
    shipped = {
        name
        for module in modules
        for name, its in vars(module).items()
        if isinstance(its, type) and issubclass(its, hf.TrainerCallback)
    } - {"TrainerCallback", "CallbackHandler"}
    assert shipped == {*RUNS, *NOT_TESTED, *LIMITED, *REFUSED}
    tested = {name.split(" ")[0] for name in CASES}
    untested = {name for name, limit in LIMITED.items() if "not tested" in limit}
    assert {*RUNS, *LIMITED} - untested == tested


# -- callbacks of other packages ---------------------------------------------------------------------


def test_a_progress_bar_of_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trl = pytest.importorskip("trl")

    class Bar(trl.RichProgressCallback):  # type: ignore[misc, name-defined]
        done: Any = None

        def on_train_end(self, *values: Any, **more: Any) -> None:
            self.done = [(task.completed, task.total) for task in self.training_bar.tasks]
            super().on_train_end(*values, **more)

    there, here = Bar(), Bar()
    trainer = in_transformers([there], tmp_path / "there")
    model, _ = in_hookline([here], tmp_path / "here")
    assert here.done == there.done == [(12, 12)]
    assert same(weights(model), weights(trainer.model))


def test_averaged_weights_of_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    there, here = (trl.BEMACallback(update_freq=2, update_after=1) for _ in range(2))
    trainer = in_transformers([there], tmp_path / "there")
    model, _ = in_hookline([here], tmp_path / "here")
    assert same(weights(model), weights(trainer.model))
    assert same(weights(here.running_model), weights(there.running_model))
    saved = [next((tmp_path / folder).rglob("bema/*.safetensors")) for folder in ("there", "here")]
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_the_log_file_of_fms_hf_tuning(tmp_path: Path) -> None:
    tracker = pytest.importorskip("tuning.trackers.filelogging_tracker")
    there, here = (tracker.FileLoggingCallback("losses.jsonl") for _ in range(2))
    trainer = in_transformers([there], tmp_path / "there")
    model, _ = in_hookline([here], tmp_path / "here")
    assert same(weights(model), weights(trainer.model))
    rows = []
    for folder in ("there", "here/transformers"):
        lines = [json.loads(line) for line in (tmp_path / folder / "losses.jsonl").read_text().splitlines()]
        rows.append([(its["name"], its["data"]["step"], its["data"]["epoch"]) for its in lines])
        rows.append([its["data"]["value"] for its in lines])
    assert rows[2] == rows[0]
    assert rows[3] == pytest.approx(rows[1], abs=1e-4)  # The trainer rounds the losses.
    assert len(rows[0]) == 15


def test_the_logs_of_autotrain(tmp_path: Path) -> None:
    common = pytest.importorskip("autotrain.trainers.common")
    loguru = pytest.importorskip("loguru")
    found = []
    for train in (in_transformers, in_hookline):
        lines: list[str] = []
        number = loguru.logger.add(lambda line, lines=lines: lines.append(line.record["message"]))
        train([common.TrainStartCallback(), common.LossLoggingCallback()], tmp_path / train.__name__)
        loguru.logger.remove(number)
        assert lines.pop(0) == "Starting to train..."
        found.append([{name: round(value, 4) for name, value in compared(literal_eval(its)).items()} for its in lines])
    assert found[1] == found[0]
    assert len(found[0]) == 16


# -- the hooks ---------------------------------------------------------------------------------------


class Recorder(hf.TrainerCallback):  # type: ignore[misc]
    """It notes every call of a hook: its name, the epoch, the step, the switches, and the values that it gets."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def note(self, name: str, state: Any, control: Any, values: dict[str, Any]) -> None:
        logged = {key: round(value, 5) for key, value in compared(values).items()}
        progress = (round(state.epoch, 6), state.global_step, len(state.log_history))
        if name != "on_init_end":  # Nothing of the run is known there.
            progress += (state.max_steps, state.num_train_epochs, control.should_training_stop)  # type: ignore[assignment]
        best = None if state.best_metric is None else round(state.best_metric, 5)
        self.rows.append((name, *progress, best, logged))


def _recording(name: str) -> Any:
    def hook(self: Recorder, args: Any, state: Any, control: Any, **values: Any) -> None:
        self.note(name, state, control, values.get("logs") or values.get("metrics") or {})

    return hook


DIFFERENT = {"on_epoch_end": "an evaluation every few steps that falls on the end of an epoch follows it here"}
"""Hooks that are called at another point, with the difference."""
HOOKS = [name for name in vars(hf.TrainerCallback) if name.startswith("on_") and name != "on_push_begin"]
for _name in HOOKS:
    setattr(Recorder, _name, _recording(_name))


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
        ({"gradient_accumulation_steps": 3}, {"accumulate": 3}),
        ({"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}, {"eval_every": "2st", "log_every": "2st"}),
        ({"max_steps": 10, "eval_strategy": "no"}, {"max_duration": "10st", "eval_every": None}),
    ],
    ids=["plain", "accumulate 2", "accumulate 3", "evaluations in the epoch", "steps"],
)
def test_all_hooks_are_called_as_in_transformers(there: Any, here: Any, tmp_path: Path) -> None:
    one, other = Recorder(), Recorder()
    in_transformers([one], tmp_path, **there)
    in_hookline([other], tmp_path / "run", **here)
    found, expected = other.rows, one.rows
    if "eval_steps" in there:
        found, expected = ([row for row in rows if row[0] not in DIFFERENT] for rows in (found, expected))
    assert found == expected


def test_predictions_call_their_hooks(tmp_path: Path) -> None:
    there, here = Recorder(), Recorder()
    trainer = InOrder(
        Net(Config()),
        arguments(tmp_path, eval_strategy="no"),
        callbacks=[there],
        data_collator=torch.utils.data.default_collate,
    )
    trainer.predict(samples(2))
    Trainer(callbacks=[here], folder=False, device="cpu").predict(Net(Config()), data(2))
    assert [row[0] for row in here.rows] == [row[0] for row in there.rows]


class Switch(hf.TrainerCallback):  # type: ignore[misc]
    """It sets a switch at a step, in a hook, and notes when it evaluates and saves."""

    def __init__(self, switch: str, hook: str, step: int = 3, *, copies: bool = False) -> None:
        self.rows: list[Any] = []
        setattr(self, hook, self.set)
        self.switch, self.step, self.copies = switch, step, copies

    def set(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        control = deepcopy(control) if self.copies else control
        if state.global_step == self.step:
            setattr(control, self.switch, True)
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.rows.append(("evaluate", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.rows.append(("save", state.global_step))


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("switch", "hook", "step"),
    [
        ("should_evaluate", "on_step_end", 3),
        ("should_evaluate", "on_epoch_end", 4),
        ("should_evaluate", "on_train_begin", 0),
        ("should_save", "on_step_end", 3),
        ("should_save", "on_evaluate", 4),
        ("should_log", "on_step_end", 3),
        ("should_training_stop", "on_step_end", 3),
        ("should_training_stop", "on_log", 4),
        ("should_training_stop", "on_epoch_end", 4),
    ],
)
def test_a_switch_has_the_same_effect(switch: str, hook: str, step: int, copies: bool, tmp_path: Path) -> None:
    there, here = Switch(switch, hook, step, copies=copies), Switch(switch, hook, step, copies=copies)
    trainer = in_transformers([there], tmp_path / "there")
    model, result = in_hookline([here], tmp_path / "here")
    assert result.clock.step == trainer.state.global_step
    assert here.rows == there.rows
    assert same(weights(model), weights(trainer.model))


# -- with the other features of a run ----------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 4, 6, 7, 10])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [hf.EarlyStoppingCallback(3, 0.2), Recorder()]

    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    whole, cut, rest = callbacks(), callbacks(), callbacks()
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="9ep")
    in_hookline([*cut, pause, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep")
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep", resume="auto")
    assert resumed.clock.step == result.clock.step < 36
    assert same(weights(model), weights(expected))
    assert rest[0].early_stopping_patience_counter == whole[0].early_stopping_patience_counter
    ends = [[row for row in its[1].rows if row[0] == "on_evaluate"][-1] for its in (rest, whole)]
    assert ends[0] == ends[1]


def test_a_custom_loop_runs_them(tmp_path: Path) -> None:
    callbacks = [hf.EarlyStoppingCallback(1, 0.2)]
    expected, result = in_hookline([hf.EarlyStoppingCallback(1, 0.2)], tmp_path / "fit", max_duration="9ep")
    model = Net(Config())
    optimizer = optimizer_of(model)
    options: dict[str, Any] = {"max_duration": "9ep", "log_every": "1st", "folder": tmp_path / "loop", "device": "cpu"}
    with Loop(model, optimizer, scheduler=scheduler_of(optimizer), callbacks=callbacks, **options) as loop:
        for batch in loop.batches(data()):
            loop.backward(model(**batch).loss)
            loop.step()
            if loop.eval_due:
                for batch in loop.eval_batches(data(2, seed=2)):
                    loop.run.log({"loss": model(**batch).loss}, weight=len(batch["x"]))
    assert loop.run.clock.step == result.clock.step < 36
    assert same(weights(model), weights(expected))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_one_of_them_prints_and_writes(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("transformers_ranks.py:train", 2, folder=str(tmp_path))
    for name in ("step", "counter", "rows", "weights"):
        assert found[0][name] == found[1][name]
    assert found[0]["step"] < 18
    assert [its["printed"] for its in found] == [found[0]["step"] // 2, 0]
    assert len(list((tmp_path / "run/transformers").rglob("events.out.tfevents*"))) == 1


def test_a_class_is_taken_in_place_of_an_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_hookline([hf.PrinterCallback], tmp_path)
    assert "{'loss': " in capsys.readouterr().out


def test_the_arguments_of_the_user_are_shown(tmp_path: Path) -> None:
    args = arguments(tmp_path, metric_for_best_model="error", greater_is_better=True)
    early = hl.interop.adapt(hf.EarlyStoppingCallback(1), args=args, names={"eval_error": "val/loss"})
    _, result = in_hookline([early], False)
    assert result.clock.step == 8  # The loss falls, which is worse now.
    assert result.stop_reason == "EarlyStoppingCallback set control.should_training_stop"


def test_callbacks_share_their_arguments(tmp_path: Path) -> None:
    one, other = (hl.interop.adapt(its, args=arguments(tmp_path)) for its in (Recorder(), hf.PrinterCallback()))
    with pytest.raises(RegistrationError, match=r"PrinterCallback has other TrainingArguments than a callback before"):
        in_hookline([one, other], False)


def test_the_arguments_tell_about_the_run(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    class Reader(hf.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            found.update(args.to_sanitized_dict(), device=args.device, world=args.world_size)
            assert isinstance(args, hf.TrainingArguments)
            assert isinstance(state, hf.TrainerState)
            assert more["optimizer"].param_groups[0]["lr"] == 0.1
            assert len(more["train_dataloader"]) == 4
            assert str(args).startswith("TrainingArguments(")
            assert copied(state).max_steps == 12

    def copied(state: Any) -> Any:
        state.save_to_json(str(tmp_path / "state.json"))
        return hf.TrainerState.load_from_json(str(tmp_path / "state.json"))

    in_hookline([Reader()], False, accumulate=1)
    expected = {"learning_rate": 0.1, "num_train_epochs": 3.0, "optim": "SGD", "lr_scheduler_type": "StepLR"}
    expected |= {"train_batch_size": 8, "eval_strategy": "epoch", "device": torch.device("cpu"), "world": 1}
    assert {name: found[name] for name in expected} == expected


def test_explain_names_their_hooks() -> None:
    trainer = Trainer(callbacks=[hf.EarlyStoppingCallback()], max_duration="1ep", folder=False)
    text = trainer.explain(Net(Config()))
    assert "Hugging Face: the arguments, state and control that its callbacks see [required]" in text
    assert "EarlyStoppingCallback.on_evaluate: after TransformersHost" in text


# -- mistakes ----------------------------------------------------------------------------------------


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step(tmp_path: Path) -> None:
    args = arguments(tmp_path, metric_for_best_model="accuracy")
    early = hl.interop.adapt(hf.EarlyStoppingCallback(), args=args)
    with pytest.raises(hl.HooklineError, match=r"EarlyStoppingCallback monitors 'val/accuracy', but"):
        in_hookline([early], False)


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(name: str) -> None:
    kind = getattr(hf, name, None) or getattr(__import__("transformers.trainer_jit_checkpoint", fromlist=[""]), name)
    with pytest.raises(RegistrationError, match=rf"{name} of Hugging Face: .* Use .*hl\.Checkpointer"):
        Trainer(callbacks=[kind()])


@pytest.mark.parametrize(
    ("access", "error", "message"),
    [
        (lambda args, state, control: args.flow, AttributeError, r"TrainingArguments\.flow: Hookline does not offer"),
        (lambda args, state, control: state.trainer, AttributeError, r"TrainerState\.trainer: Hookline does not offer"),
        (
            lambda args, state, control: setattr(state, "global_step", 9),
            AttributeError,
            r"TrainerState\.global_step = …: Hookline does not offer",
        ),
        (
            lambda args, state, control: setattr(args, "num_train_epochs", 9),
            AttributeError,
            r"TrainingArguments\.num_train_epochs = …: Hookline does not offer",
        ),
        (
            lambda args, state, control: setattr(control, "should_epoch_stop", True),
            AttributeError,
            r"Callback set control\.should_epoch_stop: Hookline cannot leave an epoch",
        ),
        (lambda args, state, control: args.output_dir, SetupError, r"Callback reads args\.output_dir to write files"),
    ],
)
def test_what_is_not_there_is_an_error(access: Callable[..., Any], error: type[Exception], message: str) -> None:
    class Callback(hf.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            access(args, state, control)

    with pytest.raises(error, match=message):
        in_hookline([Callback()], False)


def test_a_request_to_stop_cannot_be_taken_back() -> None:
    class Callback(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop = True
            control.should_training_stop = False

    with pytest.raises(AttributeError, match="cannot take back a request to stop"):
        in_hookline([Callback()], False)


def test_two_alike_need_names() -> None:
    two = [hf.EarlyStoppingCallback() for _ in range(2)]
    with pytest.raises(RegistrationError, match="give one of them a name"):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
