"""Handlers of ignite, attached to an engine, do in Hookline what they do in ignite, with bitwise the same weights."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import RegistrationError, SetupError
from hookline.interop.ignite.support import FIRED, NEVER_FIRED
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

pytest.importorskip("ignite.engine", reason="pytorch-ignite is not installed: `make interop` runs these tests")

from ignite.engine import Engine, Events, EventsList, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, TerminateOnNan, Timer
from ignite.metrics import Accuracy, Loss, RunningAverage

pytestmark = pytest.mark.filterwarnings("ignore")


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Parts:
    """What a script of ignite has: a model, a trainer and an evaluator."""

    def __init__(self) -> None:
        self.model = net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        self.trainer = create_supervised_trainer(self.model, self.optimizer, self.loss)
        self.evaluator = create_supervised_evaluator(self.model, {"nll": Loss(self.loss), "accuracy": Accuracy()})
        self.rows: list[Any] = []

    def weights(self) -> list[Any]:
        return [value.tolist() for value in self.model.state_dict().values()]


def in_ignite(parts: Parts, epochs: int = 3) -> None:
    parts.trainer.run(data(), max_epochs=epochs)


def in_hookline(parts: Parts, *callbacks: Any, **options: Any) -> Any:
    options = {"max_duration": "3ep", "folder": False, "device": "cpu", **options}
    trainer = Trainer(callbacks=[*(callbacks or [parts.trainer])], **options)
    return trainer.fit(parts.model, data(), loss=parts.loss, optimizer=parts.optimizer)


def record(parts: Parts) -> None:
    """Note every event: the state of the engine, the batch, the output and the mode."""

    def note(name: str, engine: Engine, *values: Any) -> None:
        state = engine.state
        batch = None if state.batch is None else round(state.batch[0].sum().item(), 6)
        output = None if state.output is None else float(state.output)
        limits = state.epoch_length, state.max_epochs, state.max_iters
        parts.rows.append((name, state.epoch, state.iteration, *limits, batch, output, [type(its) for its in values]))

    for name in FIRED:
        parts.trainer.add_event_handler(Events[name], lambda engine, *values, name=name: note(name, engine, *values))


# -- events ------------------------------------------------------------------------------------------


def test_all_events_are_fired_as_in_ignite() -> None:
    there, here = Parts(), Parts()
    record(there)
    record(here)
    in_ignite(there)
    in_hookline(here)
    assert here.rows == there.rows
    assert len([row for row in here.rows if "ITERATION" in row[0]]) == 24
    assert here.weights() == there.weights()


def test_filtered_events_are_fired_as_in_ignite() -> None:
    def listen(parts: Parts) -> None:
        for name, event in {
            "every": Events.ITERATION_COMPLETED(every=3),
            "once": Events.ITERATION_STARTED(once=5),
            "filter": Events.EPOCH_COMPLETED(event_filter=lambda engine, epoch: epoch != 2),
            "second": Events.EPOCH_COMPLETED(every=2),
            "before": Events.ITERATION_COMPLETED(before=2),
        }.items():
            parts.trainer.add_event_handler(
                event, lambda engine, name=name: parts.rows.append((name, engine.state.epoch, engine.state.iteration))
            )
        both: EventsList = Events.STARTED | Events.COMPLETED
        parts.trainer.add_event_handler(both, lambda engine: parts.rows.append(engine.last_event_name))

    there, here = Parts(), Parts()
    listen(there)
    listen(here)
    in_ignite(there)
    in_hookline(here)
    assert here.rows == there.rows
    assert [row[2] for row in here.rows if isinstance(row, tuple) and row[0] == "every"] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("event", "steps"), [(Events.ITERATION_COMPLETED(once=6), 6), (Events.EPOCH_COMPLETED(once=2), 8)]
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_handler_that_terminates_ends_the_run_with_the_events_of_ignite(event: Any, steps: int, skip: bool) -> None:
    there, here = Parts(), Parts()
    for parts in (there, here):
        record(parts)
        parts.trainer.add_event_handler(event, lambda engine: engine.terminate(skip_completed=skip))
    in_ignite(there)
    result = in_hookline(here)
    assert (result.clock.step, result.stop_reason) == (steps, "Engine called engine.terminate()")
    assert [row[:3] for row in here.rows] == [row[:3] for row in there.rows]
    assert here.weights() == there.weights()


def test_a_number_of_iterations_ends_with_the_events_of_ignite() -> None:
    there, here = Parts(), Parts()
    record(there)
    record(here)
    there.trainer.run(data(), max_iters=6)
    result = in_hookline(here, max_duration="6st")
    assert result.stop_reason == "max_duration (6st) reached"
    assert [row[:3] for row in here.rows] == [row[:3] for row in there.rows]


def test_with_accumulation_an_iteration_is_a_batch() -> None:
    here = Parts()
    record(here)
    in_hookline(here, accumulate=2, max_duration="2st")
    rows = [row[:3] for row in here.rows if row[0] == "ITERATION_COMPLETED"]
    assert rows == [("ITERATION_COMPLETED", 1, number) for number in (1, 2, 3, 4)]


def test_an_error_fires_its_event() -> None:
    def fail(engine: Engine) -> None:
        raise ZeroDivisionError("on purpose")

    here = Parts()
    record(here)
    here.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), fail)
    with pytest.raises(ZeroDivisionError):
        in_hookline(here)
    assert (here.rows[-1][0], here.rows[-1][-1]) == ("EXCEPTION_RAISED", [ZeroDivisionError])


def test_ctrl_c_fires_the_event_for_exceptions() -> None:
    here = Parts()
    record(here)
    here.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: signal.raise_signal(signal.SIGINT))
    assert in_hookline(here).clock.step == 2
    assert (here.rows[-1][0], here.rows[-1][-1]) == ("EXCEPTION_RAISED", [KeyboardInterrupt])


# -- handlers ----------------------------------------------------------------------------------------


def stop_early(parts: Parts, *, attach: bool = True) -> EarlyStopping:
    """Validate after each epoch with an evaluator of ignite, and stop when the loss stops improving."""

    def validate(engine: Engine) -> None:
        parts.evaluator.run(data(2, seed=2))
        parts.rows.append((engine.state.epoch, parts.evaluator.state.metrics["nll"], parts.model.training))

    parts.trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
    early = EarlyStopping(2, lambda engine: -engine.state.metrics["nll"], parts.trainer, min_delta=0.1)
    if attach:
        early.attach(parts.evaluator, reset_engine=parts.trainer)
    else:
        parts.evaluator.add_event_handler(Events.COMPLETED, early)
    return early


def test_early_stopping_with_an_evaluator_ends_as_in_ignite() -> None:
    there, here = Parts(), Parts()
    first, second = stop_early(there), stop_early(here)
    in_ignite(there, 20)
    result = in_hookline(here, max_duration="20ep")
    assert result.clock.epoch == there.trainer.state.epoch < 20
    assert result.stop_reason == "Engine called engine.terminate()"
    assert (second.counter, second.best_score) == (first.counter, first.best_score)
    assert here.rows == there.rows
    assert here.weights() == there.weights()
    assert here.model.training


def test_handlers_see_metrics_of_hookline() -> None:
    parts, seen = Parts(), []
    early = EarlyStopping(1, lambda engine: -engine.state.metrics["nll"], parts.trainer, min_delta=9.0)
    parts.trainer.add_event_handler(Events.EPOCH_COMPLETED, early)
    parts.trainer.add_event_handler(
        Events.EPOCH_COMPLETED, lambda engine: seen.append(engine.state.metrics["train/loss_epoch"])
    )
    engine = hl.interop.adapt(parts.trainer, names={"nll": "val/loss"}, name="early")
    trainer = Trainer(callbacks=[engine], max_duration="9ep", folder=False, device="cpu")
    result = trainer.fit(parts.model, data(), data(2, seed=2), loss=parts.loss, optimizer=parts.optimizer)
    assert (result.clock.epoch, result.stop_reason) == (2, "early called engine.terminate()")
    assert seen == result.history["train/loss_epoch"]
    assert early.best_score == -min(result.history["val/loss"])


def saver(parts: Parts, folder: Path) -> Checkpoint:
    to_save = {"model": parts.model, "optimizer": parts.optimizer, "trainer": parts.trainer}
    handler = Checkpoint(to_save, DiskSaver(str(folder), create_dir=True, require_empty=False), n_saved=2)
    parts.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3) | Events.EPOCH_COMPLETED, handler)
    return handler


def test_checkpoints_are_those_of_ignite(tmp_path: Path) -> None:
    there, here = Parts(), Parts()
    saver(there, tmp_path / "there")
    saver(here, tmp_path / "here")
    in_ignite(there)
    in_hookline(here)
    names = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == names != []
    for name in names:
        one, other = (torch.load(tmp_path / folder / name) for folder in ("there", "here"))
        assert other["trainer"] == one["trainer"]
        assert str(other["model"]) == str(one["model"])
        assert str(other["optimizer"]) == str(one["optimizer"])


def test_a_loss_that_is_not_finite_terminates() -> None:
    parts = Parts()
    parts.trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    parts.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=3), lambda: parts.model[0].weight.data.fill_(math.nan)
    )
    assert in_hookline(parts).clock.step == 4


def test_metrics_and_timers_of_ignite_work() -> None:
    there, here = Parts(), Parts()
    for parts in (there, here):
        RunningAverage(output_transform=lambda output: output).attach(parts.trainer, "average")
        parts.timer = Timer(average=True)
        parts.timer.attach(parts.trainer, step=Events.ITERATION_COMPLETED)
        parts.trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine, rows=parts.rows: rows.append(engine.state.metrics["average"])
        )
    in_ignite(there)
    in_hookline(here)
    assert here.rows == pytest.approx(there.rows)
    assert here.timer.step_count == there.timer.step_count == 12
    assert here.trainer.state.times["COMPLETED"] >= here.trainer.state.times["EPOCH_COMPLETED"] > 0


# -- with the other features of a run ----------------------------------------------------------------


@pytest.mark.parametrize("attach", [True, False])
@pytest.mark.parametrize("step", [2, 8, 11])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, attach: bool, tmp_path: Path) -> None:
    def parts_of(folder: str) -> tuple[Parts, EarlyStopping, Any]:
        parts = Parts()
        early = stop_early(parts, attach=attach)
        saver(parts, tmp_path / folder)
        return parts, early, parts.trainer if attach else hl.interop.adapt(parts.trainer, args={"early": early})

    whole, expected, engine = parts_of("whole")
    result = in_hookline(whole, engine, max_duration="20ep")
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    cut, _, engine = parts_of("cut")
    options: dict[str, Any] = {"max_duration": "20ep", "folder": tmp_path / "run"}
    in_hookline(cut, engine, pause, hl.Checkpointer(), **options)
    rest, early, engine = parts_of("cut")
    resumed = in_hookline(rest, engine, hl.Checkpointer(), resume="auto", **options)
    assert resumed.clock.step == result.clock.step
    assert rest.weights() == whole.weights()
    assert (early.counter, early.best_score) == (expected.counter, expected.best_score)
    assert cut.rows + rest.rows == whole.rows
    names = [sorted(path.name for path in (tmp_path / its).iterdir()) for its in ("whole", "cut")]
    assert names[0] == names[1]


def test_a_custom_loop_runs_them() -> None:
    there, here = Parts(), Parts()
    stop_early(there)
    stop_early(here)
    in_ignite(there, 20)
    options: dict[str, Any] = {"max_duration": "20ep", "folder": False, "device": "cpu"}
    with Loop(here.model, here.optimizer, callbacks=[here.trainer], **options) as loop:
        for x, y in loop.batches(data()):
            loop.backward(here.loss(here.model(x), y))
            loop.step()
    assert loop.run.clock.epoch == there.trainer.state.epoch
    assert here.rows == there.rows
    assert here.weights() == there.weights()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_write_one_set_of_files(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("ignite_ranks.py:train", 2, folder=str(tmp_path))
    assert found[0] == found[1]
    assert found[0]["step"] < 40
    assert len(list((tmp_path / "files").iterdir())) == 2


def test_explain_names_the_events() -> None:
    parts = Parts()
    stop_early(parts)
    text = Trainer(callbacks=[parts.trainer], max_duration="1ep", folder=False).explain(parts.model)
    assert "ignite: the epoch and the modes that its callbacks see" in text
    assert "Engine.EPOCH_COMPLETED" in text


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEVER_FIRED)
def test_a_handler_that_would_never_be_called_is_refused(name: str) -> None:
    parts = Parts()
    parts.trainer.add_event_handler(Events[name], lambda engine, **options: None)
    with pytest.raises(RegistrationError, match=rf"Engine of ignite has a handler for Events\.{name}, which Hookline"):
        Trainer(callbacks=[parts.trainer])


def test_a_handler_that_comes_too_late_is_refused() -> None:
    parts = Parts()
    adapted = hl.interop.adapt(parts.trainer)
    parts.trainer.add_event_handler(Events.ITERATION_STARTED, lambda: None)
    with pytest.raises(RegistrationError, match=r"its first handler for Events\.ITERATION_STARTED too late\. Attach"):
        in_hookline(parts, adapted)


@pytest.mark.parametrize("call", ["terminate_epoch", "interrupt"])
def test_an_epoch_cannot_be_left(call: str) -> None:
    parts = Parts()
    parts.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda engine: getattr(engine, call)())
    with pytest.raises(SetupError, match=rf"a handler called engine\.{call}\(\), and Hookline cannot leave an epoch"):
        in_hookline(parts)


def test_events_of_ignite_are_known() -> None:
    """A new version of ignite may bring others."""
    assert {event.name for event in Events} == {*FIRED, *NEVER_FIRED}


def test_a_class_is_no_engine() -> None:
    with pytest.raises(RegistrationError, match=r"Engine is a class, not a callback; write Engine\(…\)"):
        Trainer(callbacks=[Engine])
