"""Callbacks of pytorch-accelerated have the same effect in Hookline as there, with bitwise the same weights."""

from __future__ import annotations

import math
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
from hookline.errors import RegistrationError
from hookline.interop.pytorch_accelerated.support import REFUSED, RUNS
from hookline.loop import Loop
from hookline.loop import Trainer as HooklineTrainer
from tests.support.rank_server import RankServer

pytest.importorskip(
    "pytorch_accelerated.callbacks", reason="pytorch-accelerated is not installed: `make interop` runs these tests"
)

from pytorch_accelerated import callbacks as of
from pytorch_accelerated.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")


# -- the same run in both trainers -------------------------------------------------------------------


def dataset(batches: int = 4, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    return DataLoader(dataset(batches, seed), batch_size=8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


LOADER = {"shuffle": False, "num_workers": 0, "worker_init_fn": None}


def in_pytorch_accelerated(
    callbacks: list[Any], epochs: int = 3, accumulate: int = 1, loss: Any = None, model: nn.Module | None = None
) -> Any:
    """Train in its own trainer: the trainer."""
    model = model or net()
    trainer = Trainer(model, loss or nn.CrossEntropyLoss(), optimizer_of(model), callbacks=callbacks)
    trainer.train(
        dataset(),
        epochs,
        dataset(2, seed=2),
        per_device_batch_size=8,
        gradient_accumulation_steps=accumulate,
        create_scheduler_fn=scheduler_of,
        train_dataloader_kwargs=LOADER,
        eval_dataloader_kwargs=LOADER,
    )
    return trainer


def in_hookline(
    callbacks: list[Any],
    folder: Path | None = None,
    *,
    loss: Any = None,
    model: nn.Module | None = None,
    **options: Any,
) -> tuple[nn.Module, Any]:
    """Train the same model in Hookline: the model and the result."""
    model = model or net()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder or False, "device": "cpu", **options}
    result = HooklineTrainer(callbacks=callbacks, **options).fit(
        model,
        data(),
        data(2, seed=2),
        loss=loss or nn.CrossEntropyLoss(),
        optimizer=lambda parameters: optimizer_of(model),
        scheduler=scheduler_of,
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
    return round(value, 5) if isinstance(value, float) else value


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights and the printed lines."""

    make: Callable[[Path], Any]
    effect: Callable[[Any], Any] = lambda callback: None
    epochs: int = 3
    hookline: dict[str, Any] = field(default_factory=dict)


def best(callback: Any) -> Any:
    """What the callback has written and remembers, without the names that differ between its first and later files."""
    file = torch.load(callback.save_path)
    return rounded([sorted(file), file, callback.best_metric, callback.best_metric_epoch])


CASES: dict[str, Case] = {
    "EarlyStoppingCallback": Case(
        lambda folder: of.EarlyStoppingCallback(2, 0.15),
        lambda its: (its.early_stopping_patience_counter, rounded(its.best_metric)),
        epochs=9,
    ),
    "EarlyStoppingCallback on the training loss": Case(
        lambda folder: of.EarlyStoppingCallback(1, 0.1, watch_metric="train_loss_epoch"),
        lambda its: (its.early_stopping_patience_counter, rounded(its.best_metric)),
        epochs=9,
    ),
    "SaveBestModelCallback": Case(lambda folder: of.SaveBestModelCallback(str(folder)), best, epochs=6),
    "SaveBestModelCallback of the worst": Case(
        lambda folder: of.SaveBestModelCallback(str(folder), greater_is_better=True, save_optimizer=False), best
    ),
    "TerminateOnNaNCallback": Case(lambda folder: of.TerminateOnNaNCallback(), lambda its: its.triggered),
    "LogMetricsCallback": Case(lambda folder: of.LogMetricsCallback()),
    "PrintProgressCallback": Case(lambda folder: of.PrintProgressCallback()),
    "ProgressBarCallback": Case(
        lambda folder: of.ProgressBarCallback(), lambda its: [(bar.n, bar.total) for bar in (its.pbar, its.eval_pbar)]
    ),
    "MoveModulesToDeviceCallback": Case(lambda folder: of.MoveModulesToDeviceCallback()),
    "ModelEmaCallback": Case(lambda folder: of.ModelEmaCallback(0.6, save_path=str(folder)), best, epochs=4),
    "ModelEmaCallback without evaluation": Case(
        lambda folder: of.ModelEmaCallback(0.6, evaluate_during_training=False, save_path=str(folder)),
        lambda its: rounded(torch.load(its.save_path)),
    ),
    "ConvertSyncBatchNormCallback": Case(lambda folder: of.ConvertSyncBatchNormCallback()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_callback_has_the_same_effect(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    there, here = case.make(tmp_path / "there"), case.make(tmp_path / "here")
    trainer = in_pytorch_accelerated([there], case.epochs)
    expected = printed(capsys)
    model, result = in_hookline([here], max_duration=f"{case.epochs}ep", **case.hookline)
    assert printed(capsys) == expected
    assert result.clock.epoch == len(trainer.run_history.get_metric_values("train_loss_epoch"))
    assert same(model, trainer.model)
    assert case.effect(here) == case.effect(there)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The printed lines, with rounded numbers."""
    text = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.5f}", capsys.readouterr().out)
    return sorted(text.splitlines())  # The names of metrics are a set there.


def test_every_shipped_callback_is_listed() -> None:
    """A new version may bring others."""
    shipped = {
        name
        for name, its in vars(of).items()
        if isinstance(its, type) and issubclass(its, of.TrainerCallback) and its is not of.TrainerCallback
    }
    assert shipped == {*RUNS, *REFUSED}
    assert {name.split(" ")[0] for name in CASES} == set(RUNS)


class NaNFrom(nn.Module):
    """A loss that is not finite from a call on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call, self.seen = call, 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.seen += outputs.requires_grad  # Hookline evaluates two batches before the first step.
        return cross_entropy(outputs, targets) * (math.nan if self.seen >= self.call else 1.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_not_finite_changes_no_weight(accumulate: int) -> None:
    there, here = of.TerminateOnNaNCallback(), of.TerminateOnNaNCallback()
    models = net(), net()
    with pytest.raises(SystemExit, match="Exiting due to NaN loss"):
        in_pytorch_accelerated([there], accumulate=accumulate, loss=NaNFrom(7), model=models[0])
    with pytest.raises(SystemExit, match="Exiting due to NaN loss"):
        in_hookline([here], accumulate=accumulate, loss=NaNFrom(7), model=models[1])
    weights = [dict(its.named_parameters()) for its in models]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert there.triggered
    assert here.triggered


# -- the hooks ---------------------------------------------------------------------------------------


HOOKS = [name for name in vars(of.TrainerCallback) if name.startswith("on_")]


def recorder(*, losses: bool = True) -> Any:
    """A callback that notes every call of a hook: its name, the epoch, its arguments, and the metrics so far."""

    class Recorder(of.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: list[Any] = []

    def hook(name: str) -> Any:
        def note(self: Any, trainer: Any, **given: Any) -> None:
            output = dict(given.pop("batch_output", {}))
            batch = [tuple(its.shape) for its in given.pop("batch", ())]
            output["model_outputs"] = rounded(output.get("model_outputs", []))
            output["loss"] = rounded(output.get("loss", 0.0)) if losses else 0
            history = trainer.run_history
            values = {its: len(history.get_metric_values(its)) for its in sorted(history.get_metric_names())}
            self.rows.append((name, history.current_epoch, given, batch, output, values, trainer.model.training))

        return note

    for name in HOOKS:
        setattr(Recorder, name, hook(name))
    return Recorder()


OTHER_MODE = ("on_training_run_epoch_end", "on_training_run_end", "on_stop_training_error", "on_evaluation_run_start")
"""Hooks after an evaluation, after which Hookline restores the mode of the model, or before it sets the mode."""


def trace(callback: Any) -> list[Any]:
    """The rows, without the mode of the model where it differs."""
    return [(*row[:6], row[6] if row[0] not in OTHER_MODE else None) for row in callback.rows]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_hooks_are_called_as_in_pytorch_accelerated(accumulate: int) -> None:
    # With accumulation, pytorch-accelerated shows the loss of a batch as a part of the step.
    there, here = (recorder(losses=accumulate == 1) for _ in range(2))
    trainer = in_pytorch_accelerated([there], accumulate=accumulate)
    model, _ = in_hookline([here], accumulate=accumulate)
    assert trace(here) == trace(there)
    assert {row[0] for row in there.rows} == set(HOOKS) - {
        "on_evaluation_run_start",
        "on_evaluation_run_end",
        "on_stop_training_error",
    }
    assert same(model, trainer.model)


def test_an_evaluation_calls_its_hooks() -> None:
    there, here = recorder(), recorder()
    model = net()
    Trainer(model, nn.CrossEntropyLoss(), optimizer_of(model), callbacks=[there]).evaluate(
        dataset(), per_device_batch_size=8, dataloader_kwargs=LOADER
    )
    HooklineTrainer(callbacks=[here], folder=False, device="cpu").evaluate(net(), data(), loss=nn.CrossEntropyLoss())
    assert trace(here) == trace(there)
    assert there.rows[-1][0] == "on_evaluation_run_end"


STOPS = ["on_train_step_start", "on_train_step_end", "on_train_epoch_end", "on_eval_step_end", "on_eval_epoch_end"]


@pytest.mark.parametrize("hook", [*STOPS, "on_train_epoch_start", "on_training_run_epoch_end"])
def test_a_stop_calls_the_same_hooks(hook: str) -> None:
    """The callback that stops is the second of three: the third one does not get the hook."""

    def stopping() -> Any:
        class Stop(of.TrainerCallback):  # type: ignore[misc]
            calls = 0

        def stop(self: Any, trainer: Any, **given: Any) -> None:
            self.calls += 1
            if trainer.run_history.current_epoch == 2 and self.calls % 2 == 0:
                raise of.StopTrainingError("enough")

        setattr(Stop, hook, stop)
        return Stop()

    there, here = ([recorder(), stopping(), recorder()] for _ in range(2))
    in_pytorch_accelerated(there)
    _, result = in_hookline([*here[:2], hl.interop.adapt(here[2], name="third")])
    assert trace(here[0]) == trace(there[0])
    assert trace(here[2]) == trace(there[2])
    assert result.stop_reason == "Stop raised StopTrainingError: enough"


def test_a_stop_before_the_update_leaves_the_update_out() -> None:
    class Stop(of.TrainerCallback):  # type: ignore[misc]
        def on_train_step_end(self, trainer: Any, step: int, **given: Any) -> None:
            if step == 2:
                raise of.StopTrainingError("enough")

    there = in_pytorch_accelerated([Stop()])
    model, result = in_hookline([Stop()])
    assert result.clock.step == 2
    own = dict(there.model.named_parameters())
    assert all(torch.equal(value, own[name]) for name, value in model.named_parameters())


# -- with the other features of a run ----------------------------------------------------------------


def stateful(folder: Path) -> list[Any]:
    return [
        of.EarlyStoppingCallback(2, 0.12),
        of.SaveBestModelCallback(str(folder / "best.pt")),
        of.ModelEmaCallback(0.6, save_path=str(folder / "ema.pt")),
        of.ProgressBarCallback(),
    ]


@pytest.mark.parametrize("step", [2, 4, 6, 7])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("files", "files of the rest")]
    for folder in folders:
        folder.mkdir()
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    whole = stateful(folders[0])
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="9ep")
    in_hookline([*stateful(folders[1]), pause, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep")
    rest = stateful(folders[1])
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep", resume="auto")
    assert resumed.clock.step == result.clock.step < 36
    assert same(model, expected)
    assert same(rest[2].ema_model, whole[2].ema_model)
    for name in ("best.pt", "ema.pt"):
        files = [torch.load(folder / name) for folder in folders]
        assert rounded(files[0]) == rounded(files[1])


def test_a_custom_loop_runs_them() -> None:
    expected, result = in_hookline([of.EarlyStoppingCallback(2, 0.12), of.ProgressBarCallback()], max_duration="9ep")
    model = net()
    optimizer = optimizer_of(model)
    options: dict[str, Any] = {"max_duration": "9ep", "log_every": "1st", "folder": False, "device": "cpu"}
    callbacks = [of.EarlyStoppingCallback(2, 0.12), of.ProgressBarCallback()]
    with Loop(model, optimizer, scheduler=scheduler_of(optimizer), callbacks=callbacks, **options) as loop:
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


def test_two_ranks_stop_together_and_write_one_file(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("pytorch_accelerated_ranks.py:train", 2, folder=str(tmp_path))
    assert found[0]["step"] == found[1]["step"] < 18
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["gathered"] == found[1]["gathered"] == [0, 1, 1]
    assert [found[0]["printed"], found[1]["printed"]] == [True, False]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["best.pt", "ema.pt"]


def test_metrics_of_a_callback_are_metrics_of_the_run() -> None:
    class Accuracy(of.TrainerCallback):  # type: ignore[misc]
        def on_eval_epoch_end(self, trainer: Any, **given: Any) -> None:
            trainer.run_history.update_metric("accuracy", 0.25 * trainer.run_history.current_epoch)

    saved = of.EarlyStoppingCallback(2, 0.1, watch_metric="accuracy", greater_is_better=True)
    _, result = in_hookline([Accuracy(), saved])
    assert result.history["val/accuracy"] == [0.25, 0.5, 0.75]
    assert saved.best_metric == 0.75


@pytest.mark.parametrize("eval_every", ["1ep", "2st"])
def test_a_metric_can_be_named(eval_every: str) -> None:
    adapted = hl.interop.adapt(of.EarlyStoppingCallback(0, watch_metric="nll"), names={"nll": "val/loss"}, name="nll")
    _, result = in_hookline([adapted], eval_every=eval_every)
    assert result.clock.epoch == 1
    assert (result.stop_reason or "").startswith(
        "nll raised StopTrainingError: Stopping training due to no improvement"
    )


def test_patience_counts_evaluations() -> None:
    early = of.EarlyStoppingCallback(2, 9.0)
    _, result = in_hookline([early], max_duration="9ep", eval_every="2ep")
    assert (result.clock.epoch, early.early_stopping_patience_counter) == (6, 2)


def test_the_trainer_has_these_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    """As in pytorch-accelerated, with ``run_config["name"]`` in addition."""

    class Look(of.TrainerCallback):  # type: ignore[misc]
        def on_training_run_start(self, trainer: Any, **given: Any) -> None:
            config = trainer.run_config
            self.seen = [
                (config.num_epochs, config.train_per_device_batch_size, config.num_update_steps_per_epoch),
                (config.gradient_accumulation_steps, config.is_distributed, config.mixed_precision),
                (len(trainer._train_dataloader), len(trainer._eval_dataloader), trainer._eval_dataloader.device),
                (len(trainer.train_dataset), len(trainer.eval_dataset), type(trainer.loss_func).__name__),
                (trainer.optimizer.param_groups[0]["lr"], trainer.scheduler.step_size, trainer.device),
                (trainer._accelerator.is_local_main_process, trainer.gather(torch.ones(2)).tolist()),
                trainer.callback_handler.callback_list,
                trainer._accelerator.unwrap_model(trainer.model) is trainer.model,
            ]
            trainer.print("from", "trainer")

    there, here = Look(), Look()
    in_pytorch_accelerated([there])
    in_hookline([here])
    assert here.seen == there.seen
    assert capsys.readouterr().out.count("from trainer") == 2


def test_explain_names_their_hooks() -> None:
    trainer = HooklineTrainer(callbacks=[of.EarlyStoppingCallback], max_duration="1ep", folder=False)
    text = trainer.explain(net())
    assert "pytorch-accelerated: the trainer that its callbacks see [required]" in text
    assert "EarlyStoppingCallback.on_training_run_epoch_end: after PytorchAcceleratedHost" in text


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step() -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStoppingCallback monitors 'val/acc', but"):
        in_hookline([of.EarlyStoppingCallback(watch_metric="eval_acc")])


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(name: str) -> None:
    kind = getattr(of, name)
    with pytest.raises(RegistrationError, match=rf"{name} of pytorch-accelerated: .* Use hl\.\w+"):
        HooklineTrainer(callbacks=[kind.__new__(kind)])


def test_callbacks_of_the_average_are_refused() -> None:
    with pytest.raises(RegistrationError, match=r"ModelEmaCallback\(callbacks=…\) of pytorch-accelerated: .*Leave"):
        HooklineTrainer(callbacks=[of.ModelEmaCallback(callbacks=[of.LogMetricsCallback])])


def doing(act: Callable[..., Any], hook: str = "on_training_run_start") -> Any:
    return type("Doing", (of.TrainerCallback,), {hook: lambda self, trainer, **given: act(trainer, **given)})()


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(
        AttributeError, match=r"Trainer\._loss_tracker: Hookline does not offer .*pytorch-accelerated's"
    ):
        in_hookline([doing(lambda trainer: trainer._loss_tracker)])
    with pytest.raises(AttributeError, match=r"Trainer\.run_config = …: Hookline does not offer"):
        in_hookline([doing(lambda trainer: setattr(trainer, "run_config", 1))])


def test_a_missing_attribute_of_the_callback_is_an_error() -> None:
    """There, the rest of the hook is left out without a word."""

    class Misspelt(of.TrainerCallback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, **given: Any) -> None:
            self.count += 1  # type: ignore[has-type]

    with pytest.raises(AttributeError, match=r"Misspelt\.on_train_epoch_end reads an attribute that the callback"):
        in_hookline([Misspelt()])


def test_a_model_cannot_be_replaced() -> None:
    with pytest.raises(hl.HooklineError, match=r"Doing replaced trainer\.model: Hookline keeps it"):
        in_hookline([doing(lambda trainer: setattr(trainer, "model", net()))])


def test_a_loss_cannot_be_replaced() -> None:
    def double(trainer: Any, batch_output: Any, **given: Any) -> None:
        batch_output["loss"] = batch_output["loss"] * 2

    with pytest.raises(hl.HooklineError, match=r"Doing\.on_train_step_end replaced batch_output\['loss'\]"):
        in_hookline([doing(double, "on_train_step_end")])


def test_each_batch_of_an_evaluation_without_a_loss_has_its_outputs() -> None:
    """The outputs of the batch before would be taken for them, if the loss alone told batches apart."""
    seen: list[bool] = []

    class OutputsOnly(hl.Task):
        def eval_batch(self, run: hl.Run, batch: Any) -> None:
            run.outputs = batch[0] * 2

    def note(trainer: Any, batch: Any, batch_output: Any, **given: Any) -> None:
        assert "loss" not in batch_output
        seen.append(torch.equal(batch_output["model_outputs"], batch[0] * 2))

    HooklineTrainer(callbacks=[doing(note, "on_eval_step_end")], folder=False).evaluate(OutputsOnly(), data(2))
    assert seen == [True, True]


def test_two_alike_need_names() -> None:
    two = [of.EarlyStoppingCallback() for _ in range(2)]
    with pytest.raises(RegistrationError, match="give one of them a name"):
        HooklineTrainer(callbacks=two)
    HooklineTrainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
