"""Callbacks of Lightning have the same effect in Hookline as in Lightning, with bitwise the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import RegistrationError
from hookline.interop.lightning.support import LIMITED, REFUSED, RUNS
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
for package in PACKAGES:
    pytest.importorskip(package, reason=f"{package} is not installed: `make interop` runs these tests")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns about loaders, checkpoints and small data.


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


# -- the same run in both trainers -------------------------------------------------------------------


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)


def fill(module: Any) -> None:
    """Give a model the parts that callbacks look for, with the same weights each time."""
    torch.manual_seed(0)
    module.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    module.head = nn.Linear(8, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        fill(self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.backbone(x))


def trained(module: Any) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def optimizer_of(module: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(module), lr=0.1, momentum=0.9)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def module_for(pl: Any) -> Any:
    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            fill(self)

        forward = Net.forward

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", cross_entropy(self(batch[0]), batch[1]))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self(batch[0])

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(self)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler_of(optimizer), "interval": "step"},
            }

    return Module()


def recording_logger(pl: Any) -> Any:
    class Recording(pl.loggers.logger.DummyLogger):  # type: ignore[misc]
        save_dir = None

        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()

        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            self.names |= set(metrics)

    return Recording()


def in_lightning(pl: Any, callbacks: list[Any], folder: Path, **options: Any) -> tuple[Any, Any]:
    """Train in Lightning's own trainer: the module and the trainer."""
    module = module_for(pl)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=any(isinstance(its, pl.callbacks.Checkpoint) for its in callbacks),
        enable_model_summary=any(isinstance(its, pl.callbacks.ModelSummary) for its in callbacks),
        enable_progress_bar=any(isinstance(its, pl.callbacks.ProgressBar) for its in callbacks),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **{"max_epochs": 3, "logger": recording_logger(pl), **options},
    )
    trainer.fit(module, data(), data(2, seed=2))
    return module, trainer


def in_hookline(callbacks: list[Any], folder: Path, *, evaluates: bool = True, **options: Any) -> tuple[Any, Any]:
    """Train a plain model in Hookline: the model and the result."""
    model = Net()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder, "device": "cpu", **options}
    trainer = Trainer(callbacks=callbacks, **options)
    result = trainer.fit(
        model,
        data(),
        data(2, seed=2) if evaluates else None,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: optimizer_of(model),
        scheduler=scheduler_of,
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

    make: Callable[..., Any]
    effect: Callable[[Any, Path], Any] = lambda callback, folder: None
    lightning: dict[str, Any] = field(default_factory=dict)
    hookline: dict[str, Any] = field(default_factory=dict)


def files(callback: Any, folder: Path) -> Any:
    """The names of the files of a checkpoint callback, and the weights and the progress in the best one."""
    best = torch.load(callback.best_model_path, weights_only=True)
    found = {key: best[key] for key in ("state_dict", "epoch", "global_step", "optimizer_states", "lr_schedulers")}
    return sorted(path.name for path in Path(callback.dirpath).iterdir()), Path(callback.best_model_path).name, found


def finetuning(callbacks: Any) -> Any:
    class Finetuning(callbacks.BaseFinetuning):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone[0])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone[0], optimizer, lr=0.01)

    return Finetuning()


def averaging(callbacks: Any) -> Any:
    class EveryEpoch(callbacks.WeightAveraging):  # type: ignore[misc]
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return epoch_idx is not None

    return EveryEpoch()


def lambda_callback(callbacks: Any) -> Any:
    seen: list[Any] = []
    made = callbacks.LambdaCallback(
        on_train_epoch_end=lambda trainer, module: seen.append((trainer.current_epoch, trainer.global_step)),
        on_validation_end=lambda trainer, module: seen.append(float(trainer.callback_metrics["val_loss"])),
    )
    made.seen = seen
    return made


def bar_count(callback: Any, folder: Path) -> Any:
    return callback.train_progress_bar.n, callback.train_progress_bar.total


def rich_count(callback: Any, folder: Path) -> Any:
    return [(task.completed, task.total) for task in callback.progress.tasks] if callback.progress else None


CASES: dict[str, Case] = {
    "EarlyStopping": Case(
        lambda of, folder: of.EarlyStopping("val_loss", min_delta=0.2, patience=1),
        lambda its, folder: (its.stopped_epoch, its.wait_count, its.best_score),
        {"max_epochs": 9},
        {"max_duration": "9ep"},
    ),
    "EarlyStopping in the epoch": Case(
        lambda of, folder: of.EarlyStopping("val_loss", stopping_threshold=0.65, check_on_train_epoch_end=False),
        lambda its, folder: (its.stopped_epoch, its.wait_count, its.best_score),
        {"val_check_interval": 2},
        {"eval_every": "2st"},
    ),
    "ModelCheckpoint": Case(
        lambda of, folder: of.ModelCheckpoint(folder / "files", monitor="val_loss", save_top_k=2, save_last=True),
        files,
    ),
    "ModelCheckpoint in the epoch": Case(
        lambda of, folder: of.ModelCheckpoint(folder / "files", every_n_train_steps=2, save_top_k=-1),
        files,
    ),
    "LearningRateMonitor": Case(
        lambda of, folder: of.LearningRateMonitor(log_momentum=True, log_weight_decay=True),
        lambda its, folder: (its.lrs, its.last_momentum_values),
    ),
    "Timer": Case(
        lambda of, folder: of.Timer(timedelta(microseconds=1)),
        lambda its, folder: its.time_elapsed("train") > 0,
    ),
    "WeightAveraging": Case(lambda of, folder: averaging(of)),
    "EMAWeightAveraging": Case(lambda of, folder: of.EMAWeightAveraging(decay=0.7)),
    "GradientAccumulationScheduler": Case(lambda of, folder: of.GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})),
    "LambdaCallback": Case(lambda of, folder: lambda_callback(of), lambda its, folder: its.seen),
    "DeviceStatsMonitor": Case(lambda of, folder: of.DeviceStatsMonitor(cpu_stats=True)),
    "ThroughputMonitor": Case(
        lambda of, folder: of.ThroughputMonitor(lambda batch: len(batch[0]), window_size=2),
        lambda its, folder: dict(its._samples),
    ),
    "ModelSummary": Case(lambda of, folder: of.ModelSummary(max_depth=2)),
    "RichModelSummary": Case(lambda of, folder: of.RichModelSummary(max_depth=2)),
    "TQDMProgressBar": Case(lambda of, folder: of.TQDMProgressBar(), bar_count),
    "RichProgressBar": Case(lambda of, folder: of.RichProgressBar(leave=True), rich_count),
    "BaseFinetuning": Case(lambda of, folder: finetuning(of)),
    "BackboneFinetuning": Case(
        lambda of, folder: of.BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False),
    ),
    "ModelPruning": Case(lambda of, folder: of.ModelPruning("l1_unstructured", amount=0.3)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_callback_has_the_same_effect(
    name: str, pl: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def printed() -> list[str]:
        text = capsys.readouterr().out + caplog.text
        caplog.clear()
        return [line.split("backbone")[-1] for line in text.splitlines() if "backbone" in line]

    caplog.set_level("INFO")
    case = CASES[name]
    there, here = case.make(pl.callbacks, tmp_path / "there"), case.make(pl.callbacks, tmp_path / "here")
    module, trainer = in_lightning(pl, [there], tmp_path / "there", **case.lightning)
    summary = printed()
    model, result = in_hookline([here], tmp_path / "here", **case.hookline)
    assert (result.clock.step, printed()) == (trainer.global_step, summary)
    assert same(weights(model), weights(module))
    assert same(case.effect(here, tmp_path / "here"), case.effect(there, tmp_path / "there"))
    logged = {name.replace("val_", "val/") for name in trainer.logger.names} - {"epoch"}
    assert {name for name in logged if name not in result.metrics and f"train/{name}" not in result.metrics} == set()


def test_every_shipped_callback_is_listed(pl: Any) -> None:
    """A new version of Lightning may bring others."""
    bases = {"Callback", "Checkpoint", "ProgressBar"}
    shipped = {name for name in pl.callbacks.__all__ if isinstance(getattr(pl.callbacks, name), type)} - bases
    assert shipped - {*RUNS, *LIMITED, *REFUSED} == set()
    tested = {name.split(" ")[0] for name in CASES} | {
        "OnExceptionCheckpoint",
        "BasePredictionWriter",
        "SpikeDetection",
    }
    assert {*RUNS, *LIMITED} - tested == set()


def test_a_shipped_saver_writes_a_file_when_a_run_fails(pl: Any, tmp_path: Path) -> None:
    fail = pl.callbacks.LambdaCallback(on_train_batch_end=lambda *_: 1 / 0)
    for folder, run in (("there", lambda *its: in_lightning(pl, *its)), ("here", in_hookline)):
        saver = pl.callbacks.OnExceptionCheckpoint(tmp_path / folder)
        with pytest.raises(ZeroDivisionError):
            run([saver, fail], tmp_path / folder)
    found = [torch.load(tmp_path / folder / "on_exception.ckpt") for folder in ("there", "here")]
    assert same(found[0]["state_dict"], found[1]["state_dict"])


def test_a_shipped_detector_of_spikes_ends_the_run(pl: Any, tmp_path: Path) -> None:
    spike = import_module(f"{pl.__name__}.callbacks.spike")
    for folder, run in (("there", lambda *its: in_lightning(pl, *its)), ("here", in_hookline)):
        (tmp_path / folder).mkdir()
        detector = spike.SpikeDetection(
            mode="min", window=2, warmup=1, rtol=0.0, exclude_batches_path=str(tmp_path / folder / "batches.json")
        )
        with pytest.raises(Exception, match="Training spike"):
            run([detector], tmp_path / folder / "run")
    assert (tmp_path / "here/batches.json").read_text() == (tmp_path / "there/batches.json").read_text()


def test_a_shipped_writer_gets_predictions_batch_by_batch(pl: Any, tmp_path: Path) -> None:
    class Writer(pl.callbacks.BasePredictionWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("batch")
            self.found: list[Any] = []

        def write_on_batch_end(
            self, trainer: Any, module: Any, prediction: Any, indices: Any, batch: Any, number: int, loader: int
        ) -> None:
            self.found.append((prediction.clone(), number, loader))

    there, here = Writer(), Writer()
    pl.Trainer(
        accelerator="cpu", callbacks=[there], logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    ).predict(module_for(pl), data())
    Trainer(callbacks=[here], folder=False, device="cpu").predict(Net(), data())
    assert len(here.found) == 4
    assert same(here.found, there.found)


# -- the hooks ---------------------------------------------------------------------------------------


def recorder(pl: Any) -> Any:
    """A callback that notes every call of a hook: its name, the epoch, the step, and the numbers that it gets."""

    class Recorder(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: list[Any] = []

    def hook(name: str) -> Any:
        def note(self: Any, trainer: Any, module: Any, *values: Any, **named: Any) -> None:
            values += tuple(named.values())
            plain = tuple(getattr(value, "value", value) for value in values if isinstance(value, int | str))
            loss = [round(float(value["loss"]), 6) for value in values if isinstance(value, dict) and "loss" in value]
            self.rows.append((name, trainer.current_epoch, trainer.global_step, *plain, *loss))

        return note

    for name in vars(pl.Callback):
        if name.startswith("on_") or name in ("setup", "teardown"):
            setattr(Recorder, name, hook(name))
    return Recorder()


DIFFERENT = {
    "on_before_zero_grad": "after the update here; at the beginning of the next batch there",
    "on_sanity_check_end": "the sanity check here sends no hooks of a validation; it is switched off there",
    "on_sanity_check_start": "as on_sanity_check_end",
    "on_save_checkpoint": "to save its state here; for each file there",
}
"""Hooks that are called at another point, with the difference."""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_hooks_are_called_as_in_lightning(pl: Any, accumulate: int, tmp_path: Path) -> None:
    there, here = recorder(pl), recorder(pl)
    in_lightning(pl, [there], tmp_path, accumulate_grad_batches=accumulate)
    in_hookline([here], tmp_path / "run", accumulate=accumulate)
    rows = [[row for row in its.rows if row[0] not in DIFFERENT] for its in (here, there)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("evaluates", [True, False])
def test_gradients_are_there_after_the_update(pl: Any, evaluates: bool, tmp_path: Path) -> None:
    """Lightning clears them only in the next batch or evaluation."""

    class Norms(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.found: list[float] = []

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.on_train_epoch_end(trainer, module)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self.found.append(float(sum(its.grad.norm() for its in module.parameters() if its.grad is not None)))

    there, here = Norms(), Norms()
    options = {"limit_val_batches": 0} if not evaluates else {}
    in_lightning(pl, [there], tmp_path, **options)
    model, _ = in_hookline([here], tmp_path / "run", evaluates=evaluates)
    assert here.found == there.found
    assert all(parameter.grad is None for parameter in model.parameters())


# -- with the other features of a run ----------------------------------------------------------------


def stopping(pl: Any) -> list[Any]:
    of = pl.callbacks
    return [
        of.EarlyStopping("val_loss", min_delta=0.2, patience=2),
        of.EMAWeightAveraging(decay=0.7),
        of.LearningRateMonitor(),
    ]


def states(callbacks: list[Any]) -> Any:
    early, average, _ = callbacks
    return early.state_dict(), average._average_model.state_dict(), early.stopped_epoch


@pytest.mark.parametrize("step", [2, 4, 6, 7, 10])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(pl: Any, step: int, tmp_path: Path) -> None:
    whole, cut, rest = stopping(pl), stopping(pl), stopping(pl)
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="9ep")
    in_hookline([*cut, pause, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep")
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep", resume="auto")
    assert resumed.clock.step == result.clock.step
    assert same(weights(model), weights(expected))
    assert same(states(rest), states(whole))


def test_a_custom_loop_runs_them(pl: Any, tmp_path: Path) -> None:
    expected, result = in_hookline(stopping(pl), tmp_path / "fit", max_duration="9ep")
    model = Net()
    optimizer = optimizer_of(model)
    options: dict[str, Any] = {"max_duration": "9ep", "log_every": "1st", "folder": tmp_path / "loop", "device": "cpu"}
    callbacks = stopping(pl)
    with Loop(model, optimizer, scheduler=scheduler_of(optimizer), callbacks=callbacks, **options) as loop:
        for x, y in loop.batches(data()):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(data(2, seed=2)):
                    loop.run.log({"loss": cross_entropy(model(x_val), y_val)}, weight=len(x_val))
    assert loop.run.clock.step == result.clock.step
    assert same(weights(model), weights(expected))


def test_callbacks_of_both_packages_run_in_one_list(tmp_path: Path) -> None:
    """Lightning itself refuses such a list."""
    one, other = (import_module(package).callbacks for package in PACKAGES)
    early, average = one.EarlyStopping("val_loss", min_delta=0.2), other.EMAWeightAveraging(decay=0.7)
    model, result = in_hookline([early, average], tmp_path / "both", max_duration="9ep")
    pair = [one.EarlyStopping("val_loss", min_delta=0.2), one.EMAWeightAveraging(decay=0.7)]
    expected, _ = in_hookline(pair, tmp_path / "one", max_duration="9ep")
    assert result.stop_reason == "EarlyStopping set trainer.should_stop"
    assert same(weights(model), weights(expected))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_write_one_file(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("lightning_ranks.py:train", 2, folder=str(tmp_path))
    assert found[0] == found[1]
    assert found[0]["step"] < 36
    assert found[0]["files"] == ["best.ckpt"]


def test_explain_names_their_hooks(pl: Any) -> None:
    trainer = Trainer(callbacks=[pl.callbacks.EarlyStopping("val_loss")], max_duration="1ep", folder=False)
    text = trainer.explain(Net())
    assert "Lightning: the trainer that its callbacks see [required]" in text
    assert "EarlyStopping.on_train_epoch_end: after LightningHost" in text


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step(pl: Any) -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStopping monitors 'val/acc', but"):
        in_hookline([pl.callbacks.EarlyStopping("val_acc")], False)  # type: ignore[arg-type]


def test_a_metric_can_be_named(pl: Any) -> None:
    early = pl.callbacks.EarlyStopping("nll", stopping_threshold=9.0)
    adapted = hl.interop.adapt(early, names={"nll": "val/loss"}, name="nll")
    _, result = in_hookline([adapted], False)  # type: ignore[arg-type]
    assert (result.clock.step, result.stop_reason) == (4, "nll set trainer.should_stop")


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(pl: Any, name: str) -> None:
    arguments = {"StochasticWeightAveraging": {"swa_lrs": 0.1}}
    callback = getattr(pl.callbacks, name)(**arguments.get(name, {}))
    with pytest.raises(RegistrationError, match=rf"{name} of Lightning: .* Use hl\.\w+\."):
        Trainer(callbacks=[callback])


def test_a_class_is_no_callback(pl: Any) -> None:
    with pytest.raises(RegistrationError, match=r"Timer is a class, not a callback; write Timer\(…\)"):
        Trainer(callbacks=[pl.callbacks.Timer])


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (lambda trainer: trainer.profiler, r"Trainer\.profiler: Hookline does not offer this attribute of Lightning"),
        (lambda trainer: setattr(trainer, "max_epochs", 9), r"Trainer\.max_epochs = …: Hookline does not offer"),
        (lambda trainer: trainer.fit_loop.replace, r"FitLoop\.replace: Hookline does not offer"),
    ],
)
def test_an_unknown_attribute_is_an_error(pl: Any, access: Callable[[Any], Any], message: str) -> None:
    callback = pl.callbacks.LambdaCallback(on_train_start=lambda trainer, module: access(trainer))
    with pytest.raises(AttributeError, match=message):
        in_hookline([callback], False)  # type: ignore[arg-type]


def test_two_alike_need_names(pl: Any) -> None:
    two = [pl.callbacks.EarlyStopping("val_loss") for _ in range(2)]
    with pytest.raises(
        RegistrationError, match=r"both Lightning:EarlyStopping.* hl\.interop\.adapt\(callback, name='second'\)"
    ):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
