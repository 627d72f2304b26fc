"""Saving in a run: when it happens among the other events, what is in the file, and that training never notices."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookline as hl
from hookline.checkpoint import Snapshot, Store
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointWriteError,
    SetupError,
    StateError,
)
from hookline.loop import Loop, Task, Trainer
from hookline.testing import Recorder, TinyModel, tiny_data
from tests.support import fit, literal, same_tensors, saved_steps


def six_steps(*callbacks: object, **options: Any) -> Any:
    defaults = {"model": TinyModel(dropout=0.3), "max_duration": "6st", "optimizer": torch.optim.Adam}
    return fit(*callbacks, **{**defaults, **options})


def load(folder: Path, index: int = -1) -> Snapshot:
    store = Store(folder / "checkpoints")
    return store.load(store.checkpoints()[index])


class At(hl.Callback):
    """Does something at an event, at one step or at each."""

    def __init__(self, event: str, act: Any, step: int | None = None) -> None:
        self.event, self.act, self.step = event, act, step

    def on_event(self, event: str, run: Any) -> None:
        if event == self.event and self.step in (None, run.clock.step):
            self.act(run)


def ask(run: Any) -> None:
    run.request_save()


# -- events --------------------------------------------------------------------------------------


def test_a_step_then_an_evaluation_then_a_save_in_the_order_of_the_design(tmp_path: Path) -> None:
    recorder = Recorder()
    checkpointer = hl.Checkpointer("1st", at_end=False)
    six_steps(
        checkpointer, recorder, folder=tmp_path, val=tiny_data(1), eval_every="1st", accumulate=2, max_duration="2st"
    )
    names = recorder.names
    first = names.index("batch_fetch_start", names.index("train_epoch_start"))
    expected = literal(
        "batch_fetch_start batch_fetch_end train_step_start",
        "train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end",
        "batch_fetch_start batch_fetch_end",
        "train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end",
        "gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end",
        "eval_start eval_loader_start batch_fetch_start batch_fetch_end",
        "eval_batch_start forward_start forward_end eval_batch_end eval_loader_end eval_end",
        "step_settled checkpoint_save checkpoint_saved",
    )
    assert names[first : first + len(expected)] == expected


def test_the_last_save_comes_after_the_end_of_fit_and_before_teardown(tmp_path: Path) -> None:
    recorder = Recorder()
    six_steps(hl.Checkpointer(), recorder, folder=tmp_path)
    assert recorder.names[-4:] == ["fit_end", "checkpoint_save", "checkpoint_saved", "teardown"]


@pytest.mark.parametrize("background", [False, True])
def test_what_was_saved_is_there_when_it_is_told(tmp_path: Path, background: bool) -> None:
    told: list[tuple[str, int]] = []

    def note(run: Any) -> None:
        Store(run.checkpoint.parent).verify(run.checkpoint)
        told.append((run.checkpoint.name, Store(run.checkpoint.parent).load(run.checkpoint).about.step))

    six_steps(hl.Checkpointer("2st", background=background), At("checkpoint_saved", note), folder=tmp_path)
    assert told == [("step-00000002", 2), ("step-00000004", 4), ("step-00000006", 6)]


def test_the_path_is_there_only_while_it_is_told(tmp_path: Path) -> None:
    fields = Recorder(fields=("checkpoint",))
    six_steps(hl.Checkpointer("2st"), fields, folder=tmp_path)
    assert {row["event"] for row in fields.rows if "checkpoint" in row} == {"checkpoint_saved"}


class Around(hl.Callback):
    """A scope around saves."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def around_save(self, run: Any) -> Iterator[None]:
        self.seen.append("open")
        yield
        self.seen.append("close")

    def on_checkpoint_save(self, run: Any) -> None:
        self.seen.append("save")

    def on_checkpoint_saved(self, run: Any) -> None:
        self.seen.append("saved")

    def on_checkpoint_failed(self, run: Any) -> None:
        self.seen.append(type(run.exception).__name__)


def test_the_scope_of_a_save_is_around_it(tmp_path: Path) -> None:
    around = Around()
    six_steps(hl.Checkpointer("3st", at_end=False), around, folder=tmp_path)
    assert around.seen == ["open", "save", "saved", "close"] * 2


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_the_scope_of_a_save_that_fails_is_closed(tmp_path: Path, policy: Any) -> None:
    around, checkpointer = Around(), hl.Checkpointer("3st", at_end=False, on_error=policy)
    block = At("fit_start", lambda run: (run.folder / "checkpoints").write_text("a file in the way"))
    if policy == "raise":
        with pytest.raises(hl.HooklineError):
            six_steps(checkpointer, around, block, folder=tmp_path)
        assert around.seen == ["open", "save", "CheckpointWriteError", "close"]
    else:
        assert six_steps(checkpointer, around, block, folder=tmp_path).clock.step == 6
        assert around.seen == ["open", "save", "CheckpointWriteError", "close"] * 2


def test_the_scope_of_a_save_after_an_error_is_closed_too(tmp_path: Path) -> None:
    around, checkpointer = Around(), hl.Checkpointer("9st", on_exception=True)

    def spoil(run: Any) -> None:
        (run.folder / "checkpoints").write_text("a file in the way")
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted") as caught:
        six_steps(checkpointer, around, At("train_step_end", spoil, step=2), folder=tmp_path)
    assert around.seen == ["open", "save", "CheckpointWriteError", "close"]
    assert any("also failed: CheckpointWriteError" in note for note in caught.value.__notes__)


# -- on request ------------------------------------------------------------------------------------


def test_a_callback_asks_for_a_save_without_any_checkpointer(tmp_path: Path) -> None:
    six_steps(At("train_step_end", ask, step=2), At("train_step_end", ask, step=4), folder=tmp_path)
    assert saved_steps(tmp_path) == [2, 4]


def test_what_was_asked_for_is_not_deleted_where_no_rule_says_so(tmp_path: Path) -> None:
    six_steps(At("train_step_end", ask), folder=tmp_path)
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("event", ["train_step_start", "gradients_ready", "train_step_end", "step_settled"])
def test_a_save_that_is_asked_for_in_a_step_is_made_at_its_end(tmp_path: Path, event: str) -> None:
    before_the_update = event in ("train_step_start", "gradients_ready")
    checkpointer = hl.Checkpointer("9st", at_end=False)
    six_steps(checkpointer, At(event, ask, step=2 if before_the_update else 3), folder=tmp_path)
    assert saved_steps(tmp_path) == [3]


@pytest.mark.parametrize("event", ["epoch_end", "train_end", "fit_end"])
def test_a_save_that_is_asked_for_at_the_end_is_made(tmp_path: Path, event: str) -> None:
    six_steps(At(event, ask), folder=tmp_path, max_duration="4st")
    assert saved_steps(tmp_path) == [4]


def test_a_save_that_is_asked_for_in_an_evaluation_waits_for_the_end_of_the_step(tmp_path: Path) -> None:
    recorder = Recorder(only=("eval_batch_end", "eval_end", "step_settled", "checkpoint_save", "train_step_end"))
    six_steps(
        At("eval_batch_start", ask), recorder, folder=tmp_path, val=tiny_data(1), eval_every="3st", max_duration="3st"
    )
    assert recorder.names[-4:] == ["eval_batch_end", "eval_end", "step_settled", "checkpoint_save"]
    assert "val/loss" in load(tmp_path).about.metrics


def test_a_save_inside_of_a_window_waits_until_the_window_is_full(tmp_path: Path) -> None:
    asked: list[int] = []

    def first(run: Any) -> None:
        if not asked:
            asked.append(run.clock.batch)
            run.request_save()

    six_steps(At("train_batch_end", first), folder=tmp_path, accumulate=2, max_duration="2st")
    about = load(tmp_path).about
    assert (asked, about.step, about.batch) == ([0], 1, 2)


def test_the_body_of_an_own_loop_asks_for_a_save(tmp_path: Path) -> None:
    model = TinyModel()
    with Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_duration="4st", folder=tmp_path) as loop:
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.run.clock.step == 2:
                loop.run.request_save()
    assert saved_steps(tmp_path) == [2]


def test_a_run_without_a_folder_refuses_a_request(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no folder to save in; pass folder='runs/mine'"):
        six_steps(At("train_step_end", ask))


# -- what is in it -----------------------------------------------------------------------------------


class Swapped(hl.Callback):
    """Has other weights in the model while it is saved."""

    def around_save(self, run: Any) -> Iterator[None]:
        with run.swap_weights({name: torch.zeros_like(p) for name, p in run.model.named_parameters()}):
            yield


def test_a_checkpoint_that_is_taken_while_weights_are_swapped_holds_the_raw_ones(tmp_path: Path) -> None:
    result = six_steps(hl.Checkpointer(), Swapped(), folder=tmp_path)
    weights = load(tmp_path).weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in result.model.state_dict().items())
    assert weights["out.weight"].abs().sum() > 0


class Average(hl.Callback):
    """An average of the weights, as a module that the callback holds."""

    def on_model_ready(self, run: Any) -> None:
        if not hasattr(self, "average"):
            self.average = deepcopy(run.model)

    def on_train_step_end(self, run: Any) -> None:
        with torch.no_grad():
            for own, new in zip(self.average.parameters(), run.model.parameters(), strict=True):
                own.lerp_(new, 0.25)


def test_a_background_save_holds_the_state_of_its_step_whatever_training_does_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, waited, real = threading.Event(), [], Store.save
    at_two: dict[str, Tensor] = {}

    def save(self: Store, *args: Any) -> Any:
        waited.append(go.wait(300))
        return real(self, *args)

    monkeypatch.setattr(Store, "save", save)  # a disk that is slow until it is told not to be
    average = Average()

    def note(run: Any) -> None:
        at_two.update({name: tensor.clone() for name, tensor in run.model.state_dict().items()})
        at_two.update({f"average.{name}": t.clone() for name, t in average.average.state_dict().items()})

    checkpointer = hl.Checkpointer("2st", background=True, keep_last=None)
    let_go = At("train_step_end", lambda run: go.set(), step=3)
    six_steps(checkpointer, average, At("train_step_end", note, step=2), let_go, folder=tmp_path)
    assert all(waited)
    found = load(tmp_path, 0)
    assert found.about.step == 2
    assert found.state is not None
    held = next(state["held"]["average"] for key, state in found.state["callbacks"].items() if "Average" in key)
    assert all(torch.equal(found.weights[name], at_two[name]) for name in found.weights)
    assert all(torch.equal(held[name], at_two[f"average.{name}"]) for name in held)
    assert found.state["clock"]["step"] == 2


class Counting(hl.Callback):
    """Counts, and saves the count."""

    state = ("count",)

    def __init__(self, what: str = "") -> None:
        self.what, self.count = what, 0

    def on_train_step_end(self, run: Any) -> None:
        self.count += 1


def test_a_callback_that_joins_during_the_run_is_saved_too(tmp_path: Path) -> None:
    join = At("train_step_end", lambda run: run.callbacks.add(Counting("late")), step=2)
    six_steps(hl.Checkpointer("2st"), join, folder=tmp_path)
    state = load(tmp_path).state
    assert state is not None
    assert state["callbacks"]["Counting(what='late')"]["state"] == {"count": 4}


class Locking(hl.Callback):
    """Its state is a lock, which nobody can save."""

    state = ("lock",)

    def on_setup(self, run: Any) -> None:
        self.lock: Any = threading.Lock()


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(StateError, match=r"callbacks.*Locking\(\).*state.*lock"):
        six_steps(hl.Checkpointer(), Locking(), recorder, folder=tmp_path)
    assert "train_step_start" not in recorder.names


class Shy(hl.Callback):
    """An optional callback that cannot say its state."""

    optional = True

    def __init__(self, ready: int) -> None:
        self.ready, self.calls, self.steps = ready, 0, 0

    def state_dict(self) -> dict[str, Any]:
        self.calls += 1
        if self.calls > self.ready:
            raise RuntimeError("not now")
        return {}

    def on_train_step_end(self, run: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("ready", [0, 1])
def test_an_optional_callback_that_cannot_say_its_state_is_switched_off_and_the_run_goes_on(
    tmp_path: Path, ready: int
) -> None:
    shy = Shy(ready)
    result = six_steps(hl.Checkpointer("2st"), shy, folder=tmp_path)
    assert saved_steps(tmp_path) == [2, 4, 6]
    assert shy.steps == 2 * ready
    assert [(failure.callback, failure.hook) for failure in result.failures] == [("Shy", "state_dict")]


class TaskWithExtras(Task[Any]):
    """A task with a loss that has parameters, extra state, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.net[2].weight = self.net[0].weight  # tied
        self.scale = nn.Parameter(torch.ones(3))
        self.seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def train_batch(self, run: Any, batch: Any) -> Any:
        self.seen += len(batch[1])
        return nn.functional.cross_entropy(self.net(batch[0])[:, :3] * self.scale, batch[1])


def test_a_task_with_extra_state_tied_weights_and_a_loss_with_parameters_goes_on_exactly(tmp_path: Path) -> None:
    whole = TaskWithExtras()
    six_steps(model=whole)
    six_steps(hl.Checkpointer("3st", at_end=False), folder=tmp_path, model=TaskWithExtras(), max_duration="3st")
    task = TaskWithExtras()
    result = six_steps(hl.Checkpointer("3st"), folder=tmp_path, model=task, resume="auto")
    assert (result.clock.step, task.seen) == (6, 48)
    assert same_tensors(list(task.parameters()), list(whole.parameters()))
    assert task.net[0].weight is task.net[2].weight
    assert task.scale.std() > 0


class LossWithParameters(nn.Module):
    """A temperature that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, classes: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * self.temperature, classes)


def test_the_parameters_of_a_loss_are_saved_beside_the_model_and_not_in_it(tmp_path: Path) -> None:
    def train(folder: Any, steps: int, **options: Any) -> tuple[nn.Module, nn.Module]:
        model, loss = TinyModel(), LossWithParameters()
        callbacks = [hl.Checkpointer("3st", at_end=False)] if folder else []
        trainer = Trainer(folder=folder, max_duration=f"{steps}st", callbacks=callbacks, **options)
        optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.05)
        trainer.fit(model, tiny_data(4), loss=loss, optimizer=optimizer)
        return model, loss

    train(tmp_path, 3)
    assert sorted(load(tmp_path).weights) == sorted(TinyModel().state_dict())
    model, loss = train(tmp_path, 6, resume="auto")
    whole, whole_loss = train(False, 6)
    assert same_tensors(model.state_dict(), whole.state_dict())
    assert same_tensors(loss.state_dict(), whole_loss.state_dict())
    assert loss.temperature != 1


# -- training does not notice -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"every": "1st"},
        {"every": "1st", "background": True},
        {"every": "1st", "weights_only": True},
        {"on_eval": True, "monitor": "val/loss"},
        {"every": "2st", "keep_last": 1, "on_exception": True, "at_end": False},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_weights_and_history_are_the_same_with_and_without_a_checkpointer(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    without = six_steps(Average(), folder=tmp_path / "without", val=tiny_data(1), eval_every="2st", log_every="1st")
    options: dict[str, Any] = {"val": tiny_data(1), "eval_every": "2st", "log_every": "1st"}
    saving = six_steps(hl.Checkpointer(**arguments), Average(), folder=tmp_path / "saving", **options)
    assert saved_steps(tmp_path / "saving")
    assert same_tensors(saving.model.state_dict(), without.model.state_dict())
    assert saving.history["train/loss"] == without.history["train/loss"]
    assert saving.history["val/loss"] == without.history["val/loss"]


def test_two_fits_of_one_trainer_save_into_one_folder(tmp_path: Path) -> None:
    trainer = Trainer(folder=tmp_path, max_duration="4st", seed=0, callbacks=[hl.Checkpointer("2st", keep_last=None)])
    model, loss = TinyModel(), nn.CrossEntropyLoss()
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD)
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD, extend="4st")
    assert saved_steps(tmp_path) == [2, 4, 6, 8]


# -- what is saved on odd ways -------------------------------------------------------------------


def test_ctrl_c_in_the_final_test_keeps_the_last_step(tmp_path: Path) -> None:
    press = At("eval_start", lambda run: signal.raise_signal(signal.SIGINT) if run.stage == "test" else None)
    trainer = Trainer(folder=tmp_path, callbacks=[hl.Checkpointer("2st"), press], max_duration="6st")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = trainer.fit(
            TinyModel(), tiny_data(4), test=tiny_data(2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.Adam
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.interrupted
    assert saved_steps(tmp_path)[-1] == 6


def test_a_resume_goes_back_to_the_whole_state_where_weights_alone_are_newer(tmp_path: Path) -> None:
    six_steps(hl.Checkpointer("2st", at_end=False), folder=tmp_path, max_duration="4st")
    weights = hl.Checkpointer("1st", weights_only=True, at_end=False, keep_last=None)
    whole = six_steps(folder=tmp_path / "other", max_duration="6st")
    six_steps(weights, folder=tmp_path, max_duration="5st", resume="auto")
    assert saved_steps(tmp_path) == [2, 4, 5]
    again = six_steps(folder=tmp_path, max_duration="6st", resume="auto")
    assert same_tensors(again.model.state_dict(), whole.model.state_dict())


def test_where_there_are_only_weights_a_resume_says_so(tmp_path: Path) -> None:
    six_steps(hl.Checkpointer("2st", weights_only=True), folder=tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"weights only.*LoadWeights"):
        six_steps(folder=tmp_path, resume="auto")


def test_an_error_inside_a_step_is_never_taken_for_one_between_steps(tmp_path: Path) -> None:
    """An optional callback's answer failed in its loader before; that says nothing of the error that ends the run."""

    class Answers(hl.Callback):
        optional = True

        def on_train_step_end(self, run: hl.Run) -> None:
            run.predict(broken())

    def broken() -> Any:
        class Broken:
            def __iter__(self) -> Iterator[Any]:
                yield tiny_data(1)[0][0]
                raise OSError("gone")

        return Broken()

    def fail(run: hl.Run) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        six_steps(hl.Checkpointer(on_exception=True), Answers(), At("backward_end", fail, step=3), folder=tmp_path)
    assert [c.about.exact for c in Store(tmp_path / "checkpoints").checkpoints()] == [False]


def test_a_schedule_in_tokens_without_tokens_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="tokens"):
        six_steps(hl.Checkpointer("8tok"), folder=tmp_path)


def test_a_request_is_for_all_who_save_also_where_one_of_them_is_due(tmp_path: Path) -> None:
    callbacks = (hl.Checkpointer("2st", at_end=False), hl.Checkpointer("100st", at_end=False, folder="rare"))
    six_steps(*callbacks, At("train_step_end", ask, step=2), folder=tmp_path, max_duration="3st")
    assert (saved_steps(tmp_path), [each.about.step for each in Store(tmp_path / "rare").checkpoints()]) == ([2], [2])


def test_a_state_that_cannot_be_saved_any_more_follows_the_policy(tmp_path: Path) -> None:
    class Changes(hl.Callback):
        state = ("value",)
        value: Any = 1

        def on_train_step_end(self, run: hl.Run) -> None:
            self.value = print if run.clock.step == 2 else 1

    failed = At("checkpoint_failed", lambda run: errors.append(run.exception))
    errors: list[BaseException] = []
    result = six_steps(hl.Checkpointer("1st", on_error="warn"), Changes(), failed, folder=tmp_path, max_duration="4st")
    assert result.clock.step == 4
    assert [type(error) for error in errors] == [StateError]
    assert saved_steps(tmp_path) == [1, 3, 4]


@pytest.mark.parametrize(
    "error",
    [
        CheckpointWriteError("/a", OSError(28, "No space left on device"), needed=10, free=3),
        CheckpointCorruptError("/a", "it is empty", "remove it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_copied_and_sent_between_processes(error: Exception) -> None:
    for again in (deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert str(again) == str(error)
        assert vars(again).keys() == vars(error).keys()


@pytest.mark.parametrize("event", ["train_start", "train_epoch_start", "train_step_start"])
def test_a_save_that_is_requested_before_the_end_of_the_first_step_follows_that_step(
    event: str, tmp_path: Path
) -> None:
    saved: list[int] = []
    requested = hl.on(event)(lambda run: run.request_save() if run.clock.step == 0 else None)
    noted = hl.on("checkpoint_saved")(lambda run: saved.append(run.clock.step))
    fit(requested, noted, train=tiny_data(batches=9), folder=tmp_path, max_duration="1ep", log_every="100st")
    assert saved[0] == 1
