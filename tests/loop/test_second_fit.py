"""A second ``fit`` goes on from the first; one with other pieces starts a new run; evaluations come between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.records import from_json
from hookline.testing import TinyModel, tiny_data
from tests.support import same_tensors, weights_of

CE = nn.CrossEntropyLoss()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)


class NoLength:
    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Seen(hl.Callback):
    """The events, and the first number of each batch that was trained on."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.batches: list[float] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        self.heard.append(event)
        if event == "train_batch_start":
            self.batches.append(run.batch[0][0, 0].item())


def marks(batches: list[Any]) -> list[float]:
    return [x[0, 0].item() for x, _ in batches]


def uninterrupted(duration: str, data: Any, accumulate: int = 1) -> list[Tensor]:
    model = TinyModel()
    Trainer(max_duration=duration, accumulate=accumulate, folder=False).fit(
        model, data, loss=CE, optimizer=momentum, scheduler=decay
    )
    return weights_of(model)


class Interrupts(hl.Callback):
    """Presses Ctrl-C, or votes to stop, at a step; once."""

    def __init__(self, step: int, how: str = "stop") -> None:
        self.step, self.how, self.done = step, how, False

    def on_train_step_end(self, run: hl.Run) -> None:
        if run.clock.step == self.step and not self.done:
            self.done = True
            if self.how == "stop":
                run.stop("enough for now")
            elif self.how == "raise":
                raise hl.StopTraining("enough for now")
            elif self.how == "error":
                raise ZeroDivisionError
            else:
                import signal

                signal.raise_signal(signal.SIGINT)


# -- going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "raise", "interrupt", "error"])
@pytest.mark.parametrize("step", [1, 3, 5, 8, 10])
@pytest.mark.parametrize("kind", [list, NoLength], ids=lambda kind: kind.__name__)
def test_it_goes_on_as_if_nothing_had_been(how: str, step: int, kind: Any) -> None:
    model, seen, data = TinyModel(), Seen(), tiny_data(5)
    trainer = Trainer(max_duration="3ep", callbacks=[seen, Interrupts(step, how)], folder=False)

    def train() -> hl.Result:
        return trainer.fit(model, kind(data), loss=CE, optimizer=momentum, scheduler=decay)

    if how == "error":
        with pytest.raises(ZeroDivisionError):
            train()
    else:
        result = train()
        assert result.clock.step == step
        assert result.interrupted == (how == "interrupt")
        assert result.stop_reason == ("keyboard interrupt" if how == "interrupt" else "enough for now")
    result = train()
    assert (result.clock.step, result.clock.epoch, result.clock.batch, result.clock.sample) == (15, 3, 15, 120)
    assert result.clock.updates == {"SGD": 15}
    assert (result.stop_reason, result.interrupted) == ("max_duration (3ep) reached", False)
    assert seen.batches == marks(data) * 3
    assert seen.heard.count("train_epoch_start") == seen.heard.count("setup") + 1 == 3
    assert same_tensors(weights_of(model), uninterrupted("3ep", data))


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_it_goes_on_with_accumulation(accumulate: int, step: int) -> None:
    model, seen, data = TinyModel(), Seen(), tiny_data(7)
    trainer = Trainer(max_duration="2ep", accumulate=accumulate, callbacks=[seen, Interrupts(step)], folder=False)
    for _ in range(2):
        result = trainer.fit(model, data, loss=CE, optimizer=momentum, scheduler=decay)
    assert (result.clock.epoch, result.clock.batch) == (2, 14)
    assert seen.batches == marks(data) * 2
    assert same_tensors(weights_of(model), uninterrupted("2ep", data, accumulate))


def test_many_short_fits_are_one_long_one() -> None:
    model, seen, data = TinyModel(), Seen(), tiny_data(5)
    trainer = Trainer(max_duration="1st", callbacks=[seen], folder=False)
    for number in range(11):
        extend = None if number == 0 else "1st"
        result = trainer.fit(model, data, loss=CE, optimizer=momentum, scheduler=decay, extend=extend)
    assert (result.clock.step, result.clock.epoch) == (11, 2)
    assert seen.batches == (marks(data) * 3)[:11]
    assert seen.heard.count("train_epoch_start") == 3
    assert same_tensors(weights_of(model), uninterrupted("11st", data))


@pytest.mark.parametrize(
    ("first", "extend", "steps"), [("1ep", "2ep", 15), ("3st", "4st", 7), ("1ep", "3st", 8), ("2st", "20sp", 5)]
)
def test_extend_adds_to_what_is_done(first: str, extend: str, steps: int) -> None:
    model, trainer = TinyModel(), Trainer(max_duration=first, folder=False)
    trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum)
    result = trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum, extend=extend)
    assert result.clock.step == steps


def test_extend_by_time() -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    first = trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum).clock.seconds
    result = trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum, extend="0.05s")
    assert result.clock.seconds >= first + 0.05
    assert result.clock.step > 5


def test_the_history_goes_on(tmp_path: Path) -> None:
    model = TinyModel()
    trainer = Trainer(max_duration="1ep", folder=tmp_path / "run")
    first = trainer.fit(model, tiny_data(5), tiny_data(1), loss=CE, optimizer=momentum)
    assert first.history.steps("val/loss") == [5]
    second = trainer.fit(model, tiny_data(5), tiny_data(1), loss=CE, optimizer=momentum, extend="2ep")
    assert second.history.steps("val/loss") == [5, 10, 15]
    assert second.history.steps("train/loss_epoch") == [5, 10, 15]
    rows = [from_json(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row.step for row in rows if row.name == "val/loss"] == [5, 10, 15]
    assert second.folder == first.folder


def test_the_mean_of_an_epoch_in_two_parts_is_over_the_whole_epoch() -> None:
    model, still = TinyModel(), lambda p: torch.optim.SGD(p, lr=0.0)
    data = tiny_data(5, last=2)
    trainer = Trainer(max_duration="2st", folder=False)
    trainer.fit(model, data, loss=CE, optimizer=still)
    result = trainer.fit(model, data, loss=CE, optimizer=still, extend="3st")
    x, y = (torch.cat(part) for part in zip(*data, strict=True))
    assert result.history["train/loss_epoch"] == pytest.approx([cross_entropy(model(x), y).item()], rel=1e-6)


def test_the_sanity_check_is_made_once() -> None:
    model, seen = TinyModel(), Seen()
    trainer = Trainer(max_duration="1ep", callbacks=[seen], folder=False)
    trainer.fit(model, tiny_data(5), tiny_data(1), loss=CE, optimizer=momentum)
    trainer.fit(model, tiny_data(5), tiny_data(1), loss=CE, optimizer=momentum, extend="1ep")
    assert seen.heard.count("sanity_check_start") == 1


def test_other_loaders_and_callbacks_are_the_same_run() -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum)
    seen = Seen()
    result = trainer.fit(
        model, tiny_data(3, seed=4), tiny_data(1), loss=CE, optimizer=momentum, extend="1ep", callbacks=[seen]
    )
    assert (result.clock.step, result.clock.epoch) == (8, 2)
    assert result.history.steps("val/loss") == [8]
    again = trainer.fit(model, tiny_data(3), loss=CE, optimizer=momentum, extend="1ep")
    assert again.clock.step == 11
    assert seen.heard.count("setup") == 1  # it was there for one call only


def test_the_optimizer_keeps_its_state() -> None:
    model, optimizers = TinyModel(), []
    note = hl.on("fit_start")(lambda run: optimizers.append(run.optimizers["SGD"]))
    trainer = Trainer(max_duration="1ep", callbacks=[note], folder=False)
    trainer.fit(model, tiny_data(2), loss=CE, optimizer=momentum)
    trainer.fit(model, tiny_data(2), loss=CE, optimizer=momentum, extend="1ep")
    assert optimizers[0] is optimizers[1]


def test_a_generator_goes_on_where_it_is() -> None:
    """What was taken from it is gone: nothing must be skipped a second time."""
    model, seen, data = TinyModel(), Seen(), tiny_data(8)
    generator = (batch for batch in data)
    trainer = Trainer(max_duration="3st", callbacks=[seen], folder=False)
    trainer.fit(model, generator, loss=CE, optimizer=momentum)
    trainer.fit(model, generator, loss=CE, optimizer=momentum, extend="3st")
    assert seen.batches == marks(data)[:6]


def test_a_shorter_loader_in_the_middle_of_an_epoch() -> None:
    """The second fit is given fewer batches than the first has seen of this epoch: the epoch is over, or an error."""
    model, trainer = TinyModel(), Trainer(max_duration="4st", folder=False)
    trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum)
    try:
        result = trainer.fit(model, tiny_data(2), loss=CE, optimizer=momentum, extend="3st")
    except hl.HooklineError:
        return
    assert result.clock.step == 7


def test_max_duration_can_be_changed_by_a_hook() -> None:
    """``run.max_duration`` can be set; the loop must then follow it."""

    @hl.on("train_epoch_end")
    def shorter(run: hl.Run) -> None:
        run.max_duration = "2ep"

    trainer = Trainer(max_duration="5ep", callbacks=[shorter], folder=False)
    result = trainer.fit(TinyModel(), tiny_data(2), loss=CE, optimizer=momentum)
    assert result.clock.epoch == 2
    assert result.stop_reason == "max_duration (2ep) reached"


@pytest.mark.parametrize("event", ["train_step_start", "gradients_ready", "train_step_end", "step_settled"])
def test_max_duration_can_be_changed_in_the_middle_of_an_epoch(event: str) -> None:
    @hl.on(event)
    def shorter(run: hl.Run) -> None:
        if run.clock.step == 3:
            run.max_duration = "5st"

    trainer = Trainer(max_duration="5ep", callbacks=[shorter], folder=False)
    result = trainer.fit(TinyModel(), tiny_data(20), loss=CE, optimizer=momentum)
    assert result.clock.step == 5


# -- after an error -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["train_batch", "eval_batch", "on_gradients_ready", "on_epoch_end", "loader"])
def test_after_an_error_the_next_fit_goes_on(place: str) -> None:
    class Fails(hl.SupervisedTask):
        broken = True

        def _maybe(self, here: str, run: Any) -> None:
            if self.broken and here == place and run.clock.step >= 3:
                self.broken = False
                raise ZeroDivisionError(place)

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            self._maybe("train_batch", run)
            return super().train_batch(run, batch)

        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            self._maybe("eval_batch", run)
            return super().eval_batch(run, batch)

        def on_gradients_ready(self, run: hl.Run) -> None:
            self._maybe("on_gradients_ready", run)

        def on_epoch_end(self, run: hl.Run) -> None:
            self._maybe("on_epoch_end", run)

        def on_setup(self, run: hl.Run) -> None:
            self.run = run

    task = Fails(TinyModel(), CE, momentum)

    class Loader(NoLength):
        def __iter__(self) -> Iterator[Any]:
            for batch in self._batches:
                if hasattr(task, "run"):
                    task._maybe("loader", task.run)
                yield batch

    trainer = Trainer(max_duration="3ep", folder=False)
    with pytest.raises(ZeroDivisionError, match=place):
        trainer.fit(task, Loader(tiny_data(4)), tiny_data(2))
    result = trainer.fit(task, Loader(tiny_data(4)), tiny_data(2))
    assert result.clock.epoch == 3
    assert result.clock.step == 12
    assert result.history.steps("val/loss")[-1] == 12
    assert task.training


def test_scopes_that_were_open_in_a_failed_fit_do_not_confuse_the_next() -> None:
    entered: list[str] = []

    class AroundStep(hl.Callback):
        def around_step(self, run: hl.Run) -> Iterator[None]:
            yield

        def around_batch(self, run: hl.Run) -> Iterator[None]:
            yield

    class AroundAll(hl.Callback):
        def around_train(self, run: hl.Run) -> Iterator[None]:
            entered.append("train")
            yield
            entered.append("train left")

        def around_epoch(self, run: hl.Run) -> Iterator[None]:
            entered.append("epoch")
            yield
            entered.append("epoch left")

        def on_train_end(self, run: hl.Run) -> None:
            entered.append("train end")

    class Fails(hl.SupervisedTask):
        broken = True

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            if self.broken:
                self.broken = False
                raise ZeroDivisionError
            return super().train_batch(run, batch)

    task, trainer = Fails(TinyModel(), CE, momentum), Trainer(max_duration="1ep", folder=False)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(task, tiny_data(3), callbacks=[AroundStep()])
    trainer.fit(task, tiny_data(3), callbacks=[AroundAll()])
    assert entered == ["train", "epoch", "epoch left", "train end", "train left"]


# -- a new run ------------------------------------------------------------------------------------------


def test_a_loss_that_is_written_anew_is_the_same_loss() -> None:
    """``loss=nn.CrossEntropyLoss()`` in each call is what people write; a silent new run would lose the first."""
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    result = trainer.fit(model, tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=momentum, extend="1ep")
    assert (result.clock.epoch, result.clock.step) == (2, 8)
    with pytest.raises(hl.HooklineError, match="extend"):
        trainer.fit(model, tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, extend="1ep")


@pytest.mark.parametrize("other", ["model", "loss", "optimizer", "scheduler", "task"])
def test_something_else_starts_a_new_run(other: str) -> None:
    pieces: dict[str, Any] = {"model": TinyModel(), "loss": CE, "optimizer": momentum, "scheduler": decay}
    trainer = Trainer(max_duration="1ep", folder=False)

    def train() -> hl.Result:
        model = pieces["model"]
        rest = {} if isinstance(model, hl.Task) else {k: v for k, v in pieces.items() if k != "model"}
        return trainer.fit(model, tiny_data(4), **rest)

    first = train()
    pieces |= {
        "model": {"model": TinyModel()},
        "loss": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        "optimizer": {"optimizer": torch.optim.SGD},
        "scheduler": {"scheduler": None},
        "task": {"model": hl.SupervisedTask(TinyModel(), CE, momentum)},
    }[other]
    second = train()
    assert second.clock.step == first.clock.step == 4
    assert second.clock is not first.clock
    assert second.history is not first.history


@pytest.mark.parametrize("stopped", [False, True])
def test_a_new_run_of_the_same_model_says_what_is_another(stopped: bool, caplog: pytest.LogCaptureFixture) -> None:
    """``optimizer=lambda …`` in each call is another function each time: the state of the first would go in silence."""
    model, data = TinyModel(), tiny_data(4)
    stop = hl.on("train_step_end", at="2st")(lambda run: run.stop("enough") if stopped else None)
    trainer = Trainer(max_duration="1ep", callbacks=[stop], folder=False)
    for step in (0, 2 if stopped else 4):
        trainer.fit(model, data, loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        said = [record.getMessage() for record in caplog.records]
        assert said == ([NEW_RUN.format(step)] if step else [])


NEW_RUN = (
    "this fit begins a new run at step 0, and does not continue at step {} of the last one: optimizer= is another "
    "object; pass the same one again to continue, or use a new Trainer"
)


def test_a_new_run_of_another_model_or_after_an_evaluation_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trainer, model = Trainer(max_duration="1ep", folder=False), TinyModel()
    trainer.evaluate(model, tiny_data(1), loss=CE)
    trainer.fit(model, tiny_data(2), loss=CE, optimizer=momentum)
    trainer.fit(TinyModel(), tiny_data(2), loss=CE, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert caplog.messages == []


def test_a_new_run_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(max_duration="1ep")
    folders = {trainer.fit(TinyModel(), tiny_data(2), loss=CE, optimizer=momentum).folder for _ in range(3)}
    assert len(folders) == 3
    assert all(folder is not None and (folder / "metrics.jsonl").exists() for folder in folders)


# -- evaluations between ----------------------------------------------------------------------------------


def test_evaluate_and_predict_after_fit_use_the_trained_model() -> None:
    model, data = TinyModel(), tiny_data(3, seed=2)
    trainer = Trainer(max_duration="3ep", folder=False)
    result = trainer.fit(model, tiny_data(5), data, loss=CE, optimizer=momentum)
    assert trainer.evaluate(model, data)["val/loss"] == result.history["val/loss"][-1]
    assert trainer.test(model, data)["test/loss"] == result.history["val/loss"][-1]
    assert torch.equal(trainer.predict(model, data), torch.cat([model(x) for x, _ in data]))


@pytest.mark.parametrize("between", ["evaluate", "test", "predict", "explain", "other loss", "other model"])
def test_a_fit_goes_on_after_an_evaluation(between: str) -> None:
    model, data = TinyModel(), tiny_data(5)
    trainer = Trainer(max_duration="7st", folder=False)
    trainer.fit(model, data, loss=CE, optimizer=momentum, scheduler=decay)
    before = weights_of(model)
    if between in ("evaluate", "test"):
        getattr(trainer, between)(model, tiny_data(2))
    elif between == "predict":
        trainer.predict(model, tiny_data(2))
    elif between == "explain":
        trainer.explain()
    elif between == "other loss":
        trainer.evaluate(model, tiny_data(2), loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    else:
        trainer.evaluate(TinyModel(seed=5), tiny_data(2), loss=CE)
    assert same_tensors(weights_of(model), before)
    result = trainer.fit(model, data, loss=CE, optimizer=momentum, scheduler=decay, extend="6st")
    assert (result.clock.step, result.clock.epoch) == (13, 2)
    assert same_tensors(weights_of(model), uninterrupted("13st", data))


@pytest.mark.parametrize("entry", ["evaluate", "test", "predict", "fit"])
def test_a_hook_that_calls_its_own_trainer_is_told_so_and_changes_nothing(entry: str) -> None:
    """The fit took itself for an evaluation then: no ``fit_end``, no last checkpoint, and nobody said so."""

    class Asks(hl.Callback):
        optional = True

        def on_train_epoch_end(self, run: hl.Run) -> None:
            rest = {"loss": CE, "optimizer": momentum} if entry == "fit" else {}
            getattr(trainer, entry)(model, tiny_data(1), **rest)

    ends: list[str] = []
    note = hl.on("fit_end")(lambda run: ends.append(run.entry_point))
    model, trainer = TinyModel(), Trainer(max_duration="2ep", callbacks=[Asks(), note], folder=False)
    result = trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum)
    (failure,) = result.failures
    assert str(failure.error).startswith(f"{entry}(): this trainer is at work on this model already")
    assert (ends, result.clock.epoch) == (["fit"], 2)
    assert result.history.steps("train/loss") == [5, 10]


def test_fit_after_evaluate_is_a_fit_from_the_start() -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    before = trainer.evaluate(model, tiny_data(2), loss=CE)
    result = trainer.fit(model, tiny_data(5), tiny_data(2), loss=CE, optimizer=momentum)
    assert result.clock.step == 5
    assert result.history["val/loss"][-1] < before["val/loss"]


def test_evaluations_do_not_move_the_clock_of_training() -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    clock = trainer.fit(model, tiny_data(5), loss=CE, optimizer=momentum).clock
    counted = (clock.step, clock.epoch, clock.batch, clock.sample)
    trainer.evaluate(model, tiny_data(2))
    trainer.predict(model, tiny_data(2))
    assert (clock.step, clock.epoch, clock.batch, clock.sample) == counted


# -- modes and settings --------------------------------------------------------------------------------------


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.frozen = TinyModel(dropout=0.5), nn.BatchNorm1d(4)
        self.frozen.eval()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.net.training, self.frozen.training))
        return self.net(self.frozen(x))


@pytest.mark.parametrize("as_task", [False, True])
def test_a_model_in_train_mode_keeps_its_frozen_parts(as_task: bool) -> None:
    model = Modes()
    given: Any = hl.SupervisedTask(model, CE, momentum) if as_task else model
    kwargs: Any = {} if as_task else {"loss": CE, "optimizer": momentum}
    Trainer(max_duration="1ep", folder=False).fit(given, tiny_data(2), tiny_data(1), **kwargs)
    assert model.seen == [(False, False), (True, False), (True, False), (False, False)]
    assert (model.training, model.net.training, model.frozen.training) == (True, True, False)


@pytest.mark.parametrize("way", ["model", "task", "own loop"])
def test_a_model_in_eval_mode_is_put_into_train_mode_and_back(way: str) -> None:
    model = Modes()
    model.eval()
    if way == "own loop":
        with Loop(model, momentum, max_duration="1ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(cross_entropy(model(x), y))
                loop.step()
    elif way == "task":
        task = hl.SupervisedTask(model, CE, momentum)
        Trainer(max_duration="1ep", folder=False).fit(task, tiny_data(2))
    else:
        Trainer(max_duration="1ep", folder=False).fit(model, tiny_data(2), loss=CE, optimizer=momentum)
    assert [net for net, _ in model.seen] == [True, True]
    assert not any(part.training for part in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("verb", ["fit", "crash", "stop", "evaluate", "predict"])
def test_modes_and_grad_mode_are_put_back_on_every_way_out(training: bool, verb: str) -> None:
    model = Modes()
    model.train(training)
    model.frozen.eval()
    modes = [part.training for part in model.modules()]
    trainer = Trainer(
        max_duration="2ep", callbacks=[Interrupts(2, "error" if verb == "crash" else "stop")], folder=False
    )
    if verb == "crash":
        with pytest.raises(ZeroDivisionError):
            trainer.fit(model, tiny_data(3), tiny_data(1), loss=CE, optimizer=momentum)
    elif verb in ("fit", "stop"):
        trainer.fit(model, tiny_data(3), tiny_data(1), loss=CE, optimizer=momentum)
    elif verb == "evaluate":
        trainer.evaluate(model, tiny_data(1), loss=CE)
    else:
        trainer.predict(model, tiny_data(1))
    assert [part.training for part in model.modules()] == modes
    assert torch.is_grad_enabled()
