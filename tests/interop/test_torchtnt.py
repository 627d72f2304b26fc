"""Callbacks of TorchTNT have the same effect in Hookline as in TorchTNT, with bitwise the same weights."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import RegistrationError
from hookline.interop.torchtnt.support import REFUSED, RUNS
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

pytest.importorskip("torchtnt.framework", reason="torchtnt is not installed: `make interop` runs these tests")

from torchtnt.framework import callbacks as of
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callback import Callback
from torchtnt.framework.evaluate import evaluate
from torchtnt.framework.fit import fit
from torchtnt.framework.predict import predict
from torchtnt.utils.early_stop_checker import EarlyStopChecker
from torchtnt.utils.loggers import InMemoryLogger

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about DCP in one process, and pkg_resources.


# -- the same run in both trainers -------------------------------------------------------------------


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


class Unit(AutoUnit[Any]):  # type: ignore[misc]
    """The unit of a user: the loss of the last step is an attribute, as callbacks want it."""

    def compute_loss(self, state: Any, data: Any) -> tuple[torch.Tensor, Any]:
        outputs = self.module(data[0])
        return cross_entropy(outputs, data[1]), outputs

    def configure_optimizers_and_lr_scheduler(self, module: Any) -> Any:
        optimizer = optimizer_of(module)
        return optimizer, scheduler_of(optimizer)

    def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
        self.train_loss = results.loss.detach()

    def predict_step(self, state: Any, data: Any) -> Any:
        return self.module(data[0])


def unit_of(accumulate: int = 1) -> Unit:
    return Unit(
        module=net(),
        device=torch.device("cpu"),
        step_lr_interval="step",
        gradient_accumulation_steps=accumulate,
    )


def in_torchtnt(callbacks: list[Any], accumulate: int = 1, **options: Any) -> Unit:
    """Train in TorchTNT's own loop: the unit."""
    unit = unit_of(accumulate)
    fit(unit, data(), data(2, seed=2), callbacks=callbacks, **{"max_epochs": 3, **options})
    return unit


def in_hookline(callbacks: list[Any], folder: Path | None = None, **options: Any) -> tuple[nn.Module, Any]:
    """Train the same model in Hookline: the model and the result."""
    model = net()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder or False, "device": "cpu", **options}
    result = Trainer(callbacks=callbacks, **options).fit(
        model,
        data(),
        data(2, seed=2),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: optimizer_of(model),
        scheduler=scheduler_of,
    )
    return model, result


def same(one: nn.Module, other: nn.Module) -> bool:
    """True if the weights are bitwise the same."""
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights and the number of steps."""

    make: Callable[[Path], Any]
    effect: Callable[[Any], Any] = lambda callback: None
    torchtnt: dict[str, Any] = field(default_factory=dict)
    hookline: dict[str, Any] = field(default_factory=dict)


def checker(**options: Any) -> EarlyStopChecker:
    return EarlyStopChecker(**{"mode": "min", "patience": 2, "min_delta": 0.1, **options})


def logged(callback: Any) -> Any:
    """The rows of the callback's logger, each with its step. Times are not compared."""
    logger = getattr(callback, "_logger", None) or callback._loggers[0]
    buffer = {step: {name: row[name] for name in row if name != "time"} for step, row in logger.log_buffer.items()}
    is_measured = type(callback).__name__ not in ("LearningRateMonitor", "TrainProgressMonitor")
    return {step: sorted(row) if is_measured else row for step, row in buffer.items()}


def summary() -> Any:
    found: list[Any] = []
    callback = of.ModuleSummary(max_depth=2, process_fn=found.append)
    callback.seen = found
    return callback


def summarized(callback: Any) -> Any:
    return [[(its.module_type, its.num_parameters, its.size_bytes) for its in summaries] for summaries in callback.seen]


def noting(*hooks: str) -> Any:
    seen: list[Any] = []

    def note(state: Any, unit: Any) -> None:
        seen.append((state.active_phase.name, unit.train_progress.num_steps_completed, len(unit.app_state())))

    callback = of.Lambda(**dict.fromkeys(hooks, note))
    callback.seen = seen
    return callback


def parameter_monitor(folder: Path) -> Any:
    return of.TensorBoardParameterMonitor(pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(folder)))


def histograms(callback: Any) -> Any:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    callback._writer.flush()
    found = events.EventAccumulator(callback._writer.log_dir).Reload()
    return {
        name: [(its.step, its.histogram_value.sum) for its in found.Histograms(name)]
        for name in found.Tags()["histograms"]
    }


def bars(callback: Any) -> Any:
    found = (callback._train_progress_bar, callback._eval_progress_bar)
    return [(bar.n, bar.total, bar.desc) for bar in found if bar is not None]


def checkpoints(callback: Any) -> Any:
    """The names of the folders of checkpoints, and what TorchTNT restores from the last one."""
    path = of.DistributedCheckpointSaver
    folder = Path(callback._checkpoint_manager.dirpath)
    unit = unit_of()
    path.restore_from_latest(str(folder), unit)
    progress = (unit.train_progress.state_dict(), unit.eval_progress.state_dict())
    weights = {name: value.tolist() for name, value in unit.module.state_dict().items()}
    rates = unit.lr_scheduler.state_dict()["_last_lr"], unit.optimizer.state_dict()["param_groups"]
    return sorted(its.name for its in folder.iterdir()), progress, weights, rates


CASES: dict[str, Case] = {
    "EarlyStopping": Case(
        lambda folder: of.EarlyStopping("train_loss", checker()),
        lambda its: its._esc.state_dict(),
        {"max_epochs": 9},
        {"max_duration": "9ep"},
    ),
    "EarlyStopping in the epoch": Case(
        lambda folder: of.EarlyStopping("train_loss", checker(), interval="step", interval_freq=2),
        lambda its: its._esc.state_dict(),
    ),
    "TimeLimitInterrupter": Case(lambda folder: of.TimeLimitInterrupter(timedelta(microseconds=1), interval="step")),
    "LearningRateMonitor": Case(lambda folder: of.LearningRateMonitor(InMemoryLogger()), logged),
    "LearningRateMonitor per step": Case(
        lambda folder: of.LearningRateMonitor(InMemoryLogger(), logging_interval="step"), logged
    ),
    "IterationTimeLogger": Case(lambda folder: of.IterationTimeLogger(InMemoryLogger(), moving_avg_window=2), logged),
    "ThroughputLogger": Case(lambda folder: of.ThroughputLogger(InMemoryLogger(), {"samples": 8}), logged),
    "TimeWaitForBatchLogger": Case(lambda folder: of.TimeWaitForBatchLogger(InMemoryLogger()), logged),
    "TrainProgressMonitor": Case(lambda folder: of.TrainProgressMonitor(InMemoryLogger()), logged),
    "SystemResourcesMonitor": Case(
        lambda folder: of.SystemResourcesMonitor(InMemoryLogger(), logging_interval="step"), logged
    ),
    "ModuleSummary": Case(lambda folder: summary(), summarized),
    "TensorBoardParameterMonitor": Case(parameter_monitor, histograms),
    "TQDMProgressBar": Case(lambda folder: of.TQDMProgressBar(), bars),
    "ProgressReporter": Case(lambda folder: of.ProgressReporter()),
    "GarbageCollector": Case(lambda folder: of.GarbageCollector(2), lambda its: gc.isenabled()),
    "EmptyCudaCache": Case(lambda folder: of.EmptyCudaCache(2)),
    "TorchCompile": Case(lambda folder: of.TorchCompile(2)),
    "SlowRankDetector": Case(
        lambda folder: of.SlowRankDetector(check_every_n_steps=2, logger=InMemoryLogger()), logged
    ),
    "PyTorchProfiler": Case(
        lambda folder: of.PyTorchProfiler(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])),
        lambda its: its.profiler.step_num,
    ),
    "Lambda": Case(lambda folder: noting("on_train_step_end", "on_eval_end"), lambda its: its.seen),
    "DistributedCheckpointSaver": Case(
        lambda folder: of.DistributedCheckpointSaver(str(folder), save_every_n_epochs=1, save_every_n_train_steps=3),
        checkpoints,
    ),
}

NOT_RUN = {
    "BaseCSVWriter": "it writes predictions: test_a_shipped_writer_writes_predictions_byte_by_byte",
    "MemorySnapshot": "it needs a GPU",
}


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_callback_has_the_same_effect(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def reported() -> list[str]:
        modules = ("progress_reporter", "torch_compile", "slow_rank_detector")
        text = [its.getMessage() for its in caplog.records if its.module in modules]
        caplog.clear()
        return [re.sub(r"\d+\.\d+", "…", line) for line in text]  # Times differ.

    caplog.set_level(logging.INFO)
    case = CASES[name]
    there, here = case.make(tmp_path / "there"), case.make(tmp_path / "here")
    unit = in_torchtnt([there], **case.torchtnt)
    report = reported()
    model, result = in_hookline([here], **case.hookline)
    assert result.clock.batch == unit.train_progress.num_steps_completed
    assert same(model, unit.module)
    assert case.effect(here) == case.effect(there)
    assert reported() == report
    assert bool(report) == (name in ("ProgressReporter", "SlowRankDetector", "TorchCompile"))


def test_every_shipped_callback_is_listed() -> None:
    """A new version of TorchTNT may bring others."""
    assert set(of.__all__) - {*RUNS, *REFUSED} == set()
    assert set(RUNS) - {name.split(" ")[0] for name in CASES} - set(NOT_RUN) == set()


def test_a_shipped_writer_writes_predictions_byte_by_byte(tmp_path: Path) -> None:
    class Writer(of.BaseCSVWriter):  # type: ignore[misc]
        def get_step_output_rows(self, state: Any, unit: Any, step_output: Any) -> Any:
            number = str(unit.predict_progress.num_steps_completed)
            return [[number, *map(str, row)] for row in step_output.tolist()]

    there, here = (Writer(["step", "no", "yes"], str(tmp_path), filename=name) for name in ("there", "here"))
    predict(unit_of(), data(), callbacks=[there])
    Trainer(callbacks=[here], folder=False, device="cpu").predict(net(), data())
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    assert len((tmp_path / "here").read_text().splitlines()) == 1 + 32


# -- the hooks ---------------------------------------------------------------------------------------


def recorder() -> Any:
    """A callback that notes every call of a hook: its name, the phase, and the progress."""

    class Recorder(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: list[Any] = []

    def hook(name: str) -> Any:
        def note(self: Any, state: Any, unit: Any, *exceptions: BaseException) -> None:
            progress = [its.state_dict() for its in (unit.train_progress, unit.eval_progress, unit.predict_progress)]
            numbers = [tuple(its.values()) for its in progress]
            kinds = [type(its).__name__ for its in exceptions]
            phase = state.entry_point.name, state.active_phase.name
            output = name == "on_train_step_end" and round(float(state.train_state.step_output[0]), 6)
            self.rows.append((name, *phase, *numbers, output, *kinds))

        return note

    for name in vars(Callback):
        if name.startswith("on_"):
            setattr(Recorder, name, hook(name))
    return Recorder()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_hooks_are_called_as_in_torchtnt(accumulate: int) -> None:
    there, here = recorder(), recorder()
    in_torchtnt([there], accumulate)
    in_hookline([here], accumulate=accumulate)
    assert here.rows == there.rows


def test_evaluations_and_predictions_call_their_hooks() -> None:
    there, here = recorder(), recorder()
    evaluate(unit_of(), data(), callbacks=[there])
    predict(unit_of(), data(), callbacks=[there])
    trainer = Trainer(callbacks=[here], folder=False, device="cpu")
    trainer.evaluate(net(), data(), loss=nn.CrossEntropyLoss())
    trainer.predict(net(), data())
    assert here.rows == there.rows


def test_an_error_calls_the_hook_for_exceptions() -> None:
    there, here = recorder(), recorder()
    fail = of.Lambda(on_train_step_end=lambda state, unit: 1 / 0)
    for run in (lambda: in_torchtnt([there, fail]), lambda: in_hookline([here, fail])):
        with pytest.raises(ZeroDivisionError):
            run()
    assert here.rows == there.rows
    assert here.rows[-1][0] == "on_exception"


@pytest.mark.parametrize("step", [2, 4])
def test_a_stop_calls_the_same_hooks_of_training(step: int) -> None:
    """The evaluation that follows differs: TorchTNT calls its hooks without any batch, Hookline evaluates."""

    def stop(state: Any, unit: Any) -> None:
        if unit.train_progress.num_steps_completed == step:
            state.stop()

    there, here = recorder(), recorder()
    unit = in_torchtnt([there, of.Lambda(on_train_step_end=stop)])
    model, _ = in_hookline([here, of.Lambda(on_train_step_end=stop)])
    rows = [[(*row[:4], row[6]) for row in its.rows if not row[0].startswith("on_eval")] for its in (here, there)]
    assert rows[0] == rows[1]
    assert same(model, unit.module)


# -- with the other features of a run ----------------------------------------------------------------


def stopping() -> list[Any]:
    return [
        of.EarlyStopping("val_loss", checker(min_delta=0.15)),
        of.TrainProgressMonitor(InMemoryLogger()),
        noting("on_train_epoch_start", "on_eval_end"),
    ]


def test_a_metric_of_an_evaluation_is_looked_at_after_the_evaluation() -> None:
    callbacks = stopping()
    _, result = in_hookline(callbacks, max_duration="9ep")
    again = checker(min_delta=0.15)
    losses = result.history["val/loss"]
    assert [again.check(loss) for loss in losses] == [*[False] * (len(losses) - 1), True]
    assert result.clock.epoch == len(losses) < 9
    assert result.stop_reason == "EarlyStopping called state.stop()"


@pytest.mark.parametrize("step", [2, 4, 6, 7])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    whole, cut, rest = stopping(), stopping(), stopping()
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="9ep")
    in_hookline([*cut, pause, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep")
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="9ep", resume="auto")
    assert resumed.clock.step == result.clock.step
    assert same(model, expected)
    assert rest[0]._esc.state_dict() == whole[0]._esc.state_dict()
    assert cut[2].seen + rest[2].seen == whole[2].seen


def test_a_custom_loop_runs_them() -> None:
    expected, result = in_hookline(stopping(), max_duration="9ep")
    model = net()
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
    assert same(model, expected)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_write_one_set_of_files(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("torchtnt_ranks.py:train_with_callbacks", 2, folder=str(tmp_path))
    assert [found[0][name] for name in ("step", "weights")] == [found[1][name] for name in ("step", "weights")]
    assert found[0]["step"] < 18
    assert found[0]["patience"] == 2  # Rank 0 decides for all ranks.
    epochs = found[0]["step"] // 2
    saves = [*((epoch, epoch - 1) for epoch in range(1, epochs + 1)), (epochs, epochs)]  # The last one at the end.
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        f"epoch_{epoch}_train_step_{2 * epoch}_eval_step_{evaluated}" for epoch, evaluated in saves
    ]


def test_explain_names_their_hooks() -> None:
    trainer = Trainer(callbacks=[of.EarlyStopping("train_loss", checker())], max_duration="1ep", folder=False)
    text = trainer.explain(net())
    assert "TorchTNT: the state and the unit that its callbacks see [required]" in text
    assert "EarlyStopping.on_train_epoch_end: after TorchTNTHost" in text


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step() -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStopping monitors 'val/acc', but"):
        in_hookline([of.EarlyStopping("val_acc", checker())])


@pytest.mark.parametrize("eval_every", ["1ep", "2st"])
def test_a_metric_can_be_named(eval_every: str) -> None:
    early = of.EarlyStopping("nll", checker(stopping_threshold=9.0))
    adapted = hl.interop.adapt(early, names={"nll": "val/loss"}, name="nll")
    _, result = in_hookline([adapted], eval_every=eval_every)
    assert (result.clock.step, result.stop_reason) == (4, "nll called state.stop()")


def test_the_unit_has_attributes_of_the_model_and_takes_others() -> None:
    def use(state: Any, unit: Any) -> None:
        unit.seen = [*getattr(unit, "seen", []), type(unit.in_proj).__name__]
        assert unit.module.in_proj is unit.in_proj
        assert (unit.optimizer.param_groups[0]["lr"], unit.device) == (0.1, torch.device("cpu"))

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.in_proj(x)

    found: list[Any] = []
    callback = of.Lambda(on_train_step_start=use, on_train_end=lambda state, unit: found.extend(unit.seen))
    trainer = Trainer(callbacks=[callback], max_duration="1ep", folder=False, device="cpu")
    trainer.fit(Named(), data(), loss=nn.CrossEntropyLoss(), optimizer=lambda its: torch.optim.SGD(its, lr=0.1))
    assert found == ["Linear"] * 4


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(name: str) -> None:
    kind = getattr(of, name)
    with pytest.raises(RegistrationError, match=rf"{name} of TorchTNT: .* Use hl\.\w+\."):
        Trainer(callbacks=[kind.__new__(kind)])  # Its __init__ needs a package that does not load.


def test_a_class_is_no_callback() -> None:
    with pytest.raises(RegistrationError, match=r"TQDMProgressBar is a class, not a callback; write TQDMProgressBar"):
        Trainer(callbacks=[of.TQDMProgressBar])


def test_an_unknown_attribute_is_an_error() -> None:
    callback = of.Lambda(on_train_step_end=lambda state, unit: unit.swa_model)
    with pytest.raises(AttributeError, match=r"Unit\.swa_model: Hookline does not offer .* Metrics: .*train/loss"):
        in_hookline([callback])


def test_two_alike_need_names() -> None:
    two = [of.EarlyStopping("train_loss", checker()) for _ in range(2)]
    with pytest.raises(RegistrationError, match="give one of them a name"):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], hl.interop.adapt(two[1], name="second")])
