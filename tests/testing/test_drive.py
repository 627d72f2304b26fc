from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import ArgumentError, NotAvailableError, RegistrationError, RoleError, SetupError
from hookline.events.spec import EVENTS
from hookline.loop import SupervisedTask, Trainer
from hookline.testing import Driven, Recorder, TinyModel, drive, tiny_data


class Does(hl.Callback):
    """Calls a function in ``on_train_step_end``."""

    def __init__(self, act: Any, *, optional: bool = False) -> None:
        self.act, self.optional = act, optional

    def on_train_step_end(self, run: hl.Run) -> None:
        self.act(run)


def see(event: str, field: Any, fields: dict[str, Any] | None = None, **options: Any) -> Any:
    """What a callback reads at an event."""
    found = []
    read = field if callable(field) else (lambda run: getattr(run, field))
    callback = hl.on(event)(lambda run: found.append(read(run)))
    drive(callback, [(event, fields or {})], **options)
    assert len(found) == 1
    return found[0]


# -- what it did -----------------------------------------------------------------------------------


def test_the_example_of_the_design() -> None:
    driven = drive(
        hl.EarlyStopping("val/loss", patience=1),
        [
            "setup",
            "fit_start",
            "train_start",
            ("train_step_end", {"step": 1, "loss": 0.5}),
            ("eval_end", {"metrics": {"val/loss": 0.4}}),
            ("train_step_end", {"step": 2, "loss": 0.5}),
            ("eval_end", {"metrics": {"val/loss": 0.4}}),
            "train_end",
            "teardown",
        ],
    )
    assert driven.stop_reason == "val/loss has not improved on 0.4 (step 1) for 1 evaluation"
    assert [(stop.by, stop.step) for stop in driven.stops] == [("EarlyStopping", 2)]
    assert driven.run.history["val/loss"] == [0.4, 0.4]
    assert driven.sent == [
        "setup",
        "fit_start",
        "train_start",
        "train_step_end",
        "eval_end",
        "train_step_end",
        "eval_end",
        "train_end",
        "teardown",
    ]


def test_nothing_is_done_by_a_callback_that_does_nothing() -> None:
    driven = drive(hl.Callback(), ["train_start", "train_step_end"])
    assert driven.stop_reason is None
    assert (driven.stops, driven.requests, driven.logged, driven.messages, driven.emitted) == ([], [], {}, {}, [])
    assert driven.failures == ()
    assert isinstance(driven, Driven)


def test_stop_training_is_the_same_vote() -> None:
    def act(run: hl.Run) -> None:
        raise hl.StopTraining("enough")

    driven = drive(Does(act), ["train_step_end"])
    assert [(stop.reason, stop.by, stop.step) for stop in driven.stops] == [("enough", "Does", 1)]


def test_all_votes_are_noted_and_the_first_counts() -> None:
    driven = drive(Does(lambda run: run.stop(f"at {run.clock.step}")), ["train_step_end", "train_step_end"])
    assert [stop.reason for stop in driven.stops] == ["at 1", "at 2"]
    assert driven.stop_reason == driven.run.stop_reason == "at 1"


def test_requests_are_noted_with_their_event() -> None:
    class Asks(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.request_eval()
            run.request_save()

        def on_gradients_ready(self, run: hl.Run) -> None:
            run.skip_step()

    driven = drive(Asks(), ["gradients_ready", "train_step_end", "train_step_end"])
    assert driven.requests == [
        ("gradients_ready", "skip"),
        ("train_step_end", "eval"),
        ("train_step_end", "save"),
        ("train_step_end", "eval"),
        ("train_step_end", "save"),
    ]


def test_a_step_allow_skip_only_while_it_is_prepared() -> None:
    with pytest.raises(hl.HooklineError, match="no update is being prepared"):
        drive(Does(lambda run: run.skip_step()), ["train_step_end"])


def test_logged_values_have_their_full_names_and_stay_as_given() -> None:
    class Logs(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"rate": torch.tensor(0.5), "other/x": run.clock.step})

        def on_eval_batch_end(self, run: hl.Run) -> None:
            run.log({"errors": torch.tensor([1.0, 0.0])})

    events = ["train_step_end", "train_step_end", "eval_start", "eval_batch_end", "eval_end"]
    driven = drive(Logs(), events)
    assert driven.logged == {"train/rate": [0.5, 0.5], "other/x": [1, 2], "val/errors": [[1.0, 0.0]]}
    assert driven.run.history["val/errors"] == [0.5]


def test_metrics_that_the_test_sets_are_not_those_that_the_callback_logged() -> None:
    driven = drive(hl.Callback(), [("eval_end", {"metrics": {"val/loss": 0.4}})])
    assert driven.logged == {}
    assert driven.run.metrics["val/loss"] == 0.4


def test_text_cannot_be_logged_as_in_a_run() -> None:
    with pytest.raises(hl.HooklineError, match="not a number"):
        drive(Does(lambda run: run.log({"x": "text"})), ["train_step_end"])


def test_messages_are_noted_also_when_they_are_gone() -> None:
    class Sends(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.messages.send("plots", f"{run.clock.step}.png", keep="epoch")

    driven = drive(Sends(), ["train_step_end", "train_step_end", "epoch_end"])
    assert driven.messages == {"plots": ["1.png", "2.png"]}
    assert driven.run.messages.read("plots") == []


def test_emitted_events_are_noted_and_heard() -> None:
    class Emits(hl.Callback):
        events = (hl.Event("verify", gives=("xb",)), hl.Event("ping"))

        def __init__(self) -> None:
            self.heard: list[Any] = []

        def on_train_start(self, run: hl.Run) -> None:
            run.emit("verify", xb=1)

        def on_verify(self, run: hl.Run, xb: int) -> None:
            self.heard.append(xb)

        def on_ping(self, run: hl.Run) -> None:
            self.heard.append("ping")

    callback = Emits()
    driven = drive(callback, ["train_start", ("verify", {"xb": 2}), "ping"])
    assert driven.emitted == [("verify", {"xb": 1})]
    assert callback.heard == [1, 2, "ping"]
    with pytest.raises(RegistrationError, match="gives \\(\\)"):
        drive(Emits(), ["verify"])


# -- what it sees ----------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_the_table_of_events_holds(event: Any) -> None:
    """At each event the fields that the table promises have a value, the others have none; so has the stage."""
    fields = ("batch", "outputs", "loss", "optimizer", "loader_name", "exception", "checkpoint", "stop_reason")
    seen = {}

    class Reads(hl.Callback):
        def on_event(self, name: str, run: hl.Run) -> None:
            seen["stage"] = run.stage
            for field in fields:
                with suppress(NotAvailableError):
                    seen[field] = getattr(run, field)

    drive(Reads(), [event.name])
    assert seen.pop("stage") in event.stages
    assert set(seen) == set(event.valid)


def test_what_is_not_set_is_a_tiny_run() -> None:
    x, y = tiny_data()[0]
    model = TinyModel()
    outputs = model(x)
    loss = torch.nn.functional.cross_entropy(outputs, y)
    loss.backward()
    assert torch.equal(see("train_step_end", "batch")[0], x)
    assert torch.equal(see("train_step_end", "outputs"), outputs)
    assert torch.equal(see("loss_ready", "loss"), loss)
    gradient = see("gradients_ready", lambda run: run.model.out.weight.grad.clone())
    assert torch.equal(gradient, model.out.weight.grad)
    assert see("zero_grad", lambda run: run.model.out.weight.grad) is None
    assert see("loss_ready", "loss").requires_grad


def test_fields_can_be_set() -> None:
    assert see("train_step_end", "loss", {"loss": 0.5}) == torch.tensor(0.5)
    assert see("eval_loader_start", "loader_name", {"loader_name": "clean"}) == "clean"
    assert see("eval_end", "stage", {"stage": "test"}) == "test"
    assert see("train_batch_start", "batch", {"batch": "anything"}) == "anything"
    assert see("train_step_end", "loss", {"batch": "anything"}).ndim == 0
    assert see("setup", "entry_point", {"entry_point": "predict"}) == "predict"
    error = ValueError("mine")
    assert see("exception", "exception", {"exception": error}) is error
    assert see("stop", "stop_reason", {"stop_reason": "why"}) == "why"
    assert see("checkpoint_saved", "checkpoint", {"checkpoint": Path("x")}) == Path("x")
    assert str(see("train_start", "max_duration", {"max_duration": "3ep"})) == "3ep"
    assert see("train_start", lambda run: (run.rank, run.world_size), {"rank": 1, "world_size": 2}) == (1, 2)


def test_the_clock_can_be_set() -> None:
    fields = {"step": 7, "epoch": 2, "sample": 70, "token": 700, "seconds": 3600.0, "clock.batch": 14}
    clock = see("train_step_end", lambda run: run.clock.state_dict(), fields)
    assert {name: clock[name] for name in ("step", "epoch", "sample", "token", "seconds", "batch")} == {
        "step": 7,
        "epoch": 2,
        "sample": 70,
        "token": 700,
        "seconds": 3600.0,
        "batch": 14,
    }
    assert see("eval_batch_end", lambda run: run.clock.eval.batch, {"clock.eval.batch": 9}) == 9


def test_the_clock_counts_as_in_a_run() -> None:
    recorder = Recorder(
        fields=("clock.step", "clock.epoch", "clock.step_in_epoch"), only=("train_step_end", "epoch_end")
    )
    epoch = ["train_epoch_start", "train_step_end", "train_step_end", "train_epoch_end", "epoch_end"]
    drive(recorder, epoch * 2)
    rows = [tuple(row.values()) for row in recorder.rows]
    assert rows == [
        ("train_step_end", 1, 0, 1),
        ("train_step_end", 2, 0, 2),
        ("epoch_end", 2, 1, 2),
        ("train_step_end", 3, 1, 1),
        ("train_step_end", 4, 1, 2),
        ("epoch_end", 4, 2, 2),
    ]


def test_time_stands_still() -> None:
    assert see("train_step_end", lambda run: run.clock.seconds) == 0


def test_a_drive_agrees_with_a_real_run() -> None:
    """The same callback, driven through the events of a real run, sees what it saw there."""
    fields = ("stage", "clock.step", "clock.epoch", "clock.batch", "clock.eval.batch", "model.training", "loader_name")
    real = Recorder(fields=fields)
    trainer = Trainer(max_duration="2ep", callbacks=[real], folder=False, device="cpu")
    loss = torch.nn.CrossEntropyLoss()
    trainer.fit(TinyModel(), tiny_data(2), tiny_data(2), loss=loss, optimizer=torch.optim.SGD)
    driven = Recorder(fields=fields)
    drive(driven, real.names)
    assert [row["event"] for row in driven.rows] == [row["event"] for row in real.rows]
    for mine, theirs in zip(driven.rows, real.rows, strict=True):
        if mine["event"] == "metrics_ready":  # at an epoch's end it comes when the epoch is counted already
            theirs["clock.epoch"] = mine["clock.epoch"]
        assert mine == theirs


def test_metrics_of_an_evaluation_are_pending_until_it_ends() -> None:
    seen = []

    class Reads(hl.Callback):
        def on_eval_end(self, run: hl.Run) -> None:
            seen.append((run.metrics["val/loss"], "val/loss" in run.history))

    events = [("eval_loader_end", {"metrics": {"loss": 0.9}}), ("eval_end", {"metrics": {"loss": 0.3}}), "epoch_end"]
    driven = drive(Reads(), events)
    assert seen == [(0.3, False)]
    assert driven.run.history["val/loss"] == [0.3]


def test_metrics_of_training_are_an_interval() -> None:
    driven = drive(
        hl.Callback(),
        [("train_step_end", {"metrics": {"loss": 0.9}}), ("train_step_end", {"metrics": {"loss": math.nan}})],
    )
    assert driven.run.history["train/loss"][0] == 0.9
    assert math.isnan(driven.run.metrics["train/loss"])
    assert driven.run.history.steps("train/loss") == [1, 2]


def test_an_evaluation_has_the_modes_of_one_and_leaves_them() -> None:
    assert see("eval_start", lambda run: (run.model.training, torch.is_grad_enabled())) == (False, False)
    assert see("train_start", lambda run: (run.model.training, torch.is_grad_enabled())) == (True, True)
    driven = drive(hl.Callback(), ["eval_start"])
    assert torch.is_grad_enabled()
    assert driven.run.model.training


def test_optimizers_are_there_after_setup() -> None:
    assert see("setup", lambda run: list(run.optimizers)) == []
    assert see("model_ready", lambda run: list(run.optimizers)) == ["SGD"]


def test_answers_are_real() -> None:
    metrics = see("train_step_end", lambda run: run.evaluate("val"))
    assert metrics["val/loss"] == pytest.approx(2.0, abs=2.0)
    assert see("train_step_end", lambda run: run.predict("val")).shape == (32, 3)


def test_replaced_fields_stay_replaced() -> None:
    class Doubles(hl.Callback):
        def on_loss_ready(self, run: hl.Run) -> None:
            run.loss = run.loss * 2

    driven = drive(Doubles(), [("loss_ready", {"loss": 1.5}), "backward_start"])
    assert driven.run.loss == 3.0


def test_own_model_loss_and_data() -> None:
    model = torch.nn.Linear(2, 1)
    data = [(torch.ones(3, 2), torch.zeros(3, 1))]
    loss = see("train_step_end", "loss", model=model, loss=torch.nn.functional.mse_loss, data=data)
    assert torch.equal(loss, model(data[0][0]).square().mean())
    with pytest.raises(NotAvailableError, match=r"run\.batch has no value"):
        see("train_step_end", "batch", model=model)
    task = SupervisedTask(model, torch.nn.functional.mse_loss, torch.optim.SGD)
    assert see("train_start", "task", model=task) is task


def test_ranks() -> None:
    class OnZero(hl.Callback):
        ranks = "zero"

        def on_train_start(self, run: hl.Run) -> None:
            run.log({"x": run.rank})

    assert drive(OnZero(), ["train_start"], world_size=2).logged == {"train/x": [0]}
    assert drive(OnZero(), ["train_start"], rank=1, world_size=2).logged == {}


def test_a_callback_that_is_added_is_set_up_and_hears_the_next_event() -> None:
    recorder = Recorder()
    drive(hl.on("train_start")(lambda run: run.callbacks.add(recorder)), ["train_start", "train_end"])
    assert recorder.names == ["setup", "train_end"]


def test_options_are_those_of_a_trainer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    driven = drive(
        hl.Callback(),
        [("eval_end", {"metrics": {"loss": 0.5}})],
        folder=folder,
        max_duration="3ep",
        config={"lr": 1.0},
        name="project/run",
    )
    assert (driven.run.folder, driven.run.project, driven.run.config["lr"]) == (folder, "project", 1.0)
    assert str(driven.run.max_duration) == "3ep"
    assert folder.is_dir()
    with pytest.raises(ArgumentError, match="no such argument"):
        drive(hl.Callback(), [], max_epochs=3)  # type: ignore[call-arg]


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drive(hl.Callback(), ["setup", ("eval_end", {"metrics": {"loss": 0.5}}), "teardown"])
    assert list(tmp_path.iterdir()) == []


# -- sequences -------------------------------------------------------------------------------------


class Scoped(hl.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def around_eval(self, run: hl.Run) -> Iterator[None]:
        self.seen.append(("in", run.stage, run.model.training))
        yield
        run.log({"seconds": 1.5})
        self.seen.append(("out", run.stage))

    def around_train(self, run: hl.Run) -> Iterator[None]:
        self.seen.append("train in")
        yield
        self.seen.append("train out")

    def on_eval_end(self, run: hl.Run) -> None:
        self.seen.append("eval_end")

    def on_train_end(self, run: hl.Run) -> None:
        self.seen.append(("train_end", run.metrics["val/seconds"]))


def test_scopes_are_entered_and_left() -> None:
    callback = Scoped()
    drive(callback, [("around_train", ["train_start", ("around_eval", ["eval_start", "eval_end"]), "train_end"])])
    assert callback.seen == [
        "train in",
        ("in", "val", False),
        "eval_end",
        ("out", "val"),
        ("train_end", 1.5),
        "train out",
    ]


def test_a_scope_can_be_alone_and_have_fields() -> None:
    callback = Scoped()
    drive(callback, ["around_eval", ("around_eval", {"stage": "test"}, ["eval_start"])])
    assert callback.seen == [("in", "val", False), ("out", "val"), ("in", "test", False), ("out", "test")]


def test_a_scope_is_left_when_what_is_inside_fails() -> None:
    callback = Scoped()

    def fail(run: hl.Run) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        drive(callback, [("around_eval", ["eval_start", fail])])
    assert callback.seen == [("in", "val", False), ("out", "val")]
    assert torch.is_grad_enabled()


def test_a_function_is_called_with_run() -> None:
    seen = []
    driven = drive(hl.Callback(), [("train_step_end", {"step": 4}), lambda run: seen.append(run.clock.step)])
    assert seen == [4]
    assert driven.sent == ["train_step_end"]


def test_then_goes_on() -> None:
    driven = drive(hl.EarlyStopping("val/loss", patience=1), [("eval_end", {"metrics": {"loss": 0.4}})])
    assert driven.stop_reason is None
    assert driven.then([("eval_end", {"metrics": {"loss": 0.5}})]).stop_reason is not None
    assert driven.sent == ["eval_end", "eval_end"]


def test_exception_and_teardown_of_a_callback_that_fails_there() -> None:
    class Fails(hl.Callback):
        def on_teardown(self, run: hl.Run) -> None:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        drive(Fails(), ["teardown"])


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("train_stepend", "no event 'train_stepend'; did you mean train_step_end?"),
        (
            "on_train_step_end",
            "no event 'on_train_step_end'; the hook is on_train_step_end, the event is 'train_step_end'",
        ),
        ("on_validation_epoch_end", "is (on_)?eval_end here"),
        ("around_evla", "did you mean 'around_eval'"),
        ("eval", "did you mean 'around_eval'"),
        (("train_start", ["train_end"]), "'train_start' is not a scope"),
        (3, "3 is not an event"),
        (("train_start", {}, {}), "Give \\(event, \\{field: value\\}\\) or \\(scope, \\[events\\]\\)"),
        (("train_start", 3), "Give \\(event"),
        ((3, {}), "Give \\(event"),
    ],
)
def test_a_wrong_item_is_an_error_with_a_suggestion(item: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        drive(hl.Callback(), [item])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("stpe", "run has no field 'stpe' to set. Did you mean 'step'?"),
        ("clock.stpe", "run has no field 'clock.stpe'"),
        ("line", "run has no field 'line'"),
        ("xyzzy", "The fields are step, epoch"),
    ],
)
def test_a_wrong_field_is_an_error_with_a_suggestion(field: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        drive(hl.Callback(), [("train_step_end", {field: 1})])


def test_a_wrong_callback_is_an_error_at_registration() -> None:
    class Misspelt(hl.Callback):
        def on_train_stepend(self, run: hl.Run) -> None: ...

    with pytest.raises(RegistrationError, match="did you mean on_train_step_end"):
        drive(Misspelt(), [])


def test_an_error_is_raised_with_the_place_where_it_rose() -> None:
    def act(run: hl.Run) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted") as caught:
        drive(Does(act), [("train_step_end", {"step": 3})])
    assert "in Does.on_train_step_end at step 3" in caught.value.__notes__[0]


def test_an_optional_callback_that_fails_is_not_silent() -> None:
    def act(run: hl.Run) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted") as caught:
        drive(Does(act, optional=True), ["train_step_end"])
    assert "tolerant=True" in caught.value.__notes__[-1]
    driven = drive(Does(act, optional=True), ["train_step_end", "train_step_end"], tolerant=True)
    assert [str(failure.error) for failure in driven.failures] == ["planted"]


def test_an_optional_callback_may_not_ask() -> None:
    with pytest.raises(RoleError, match="Does is optional"):
        drive(Does(lambda run: run.stop("why"), optional=True), ["train_step_end"])


def test_what_it_did_is_shown() -> None:
    driven = drive(hl.EarlyStopping("val/loss"), [("eval_end", {"metrics": {"val/loss": math.nan}})])
    assert repr(driven) == "<Driven EarlyStopping(monitor='val/loss'), 1 events, stops=['val/loss is nan']>"


def test_a_stop_reaches_every_part_of_the_loop() -> None:
    """Parts of the loop had the requests of another run: after a stop no last evaluation was due."""
    found = []

    class Asks(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.stop("enough")

        def on_train_end(self, run: hl.Run) -> None:
            found.append((run.loop.engine.stop_reason(), run.loop.eval_due))

    drive(Asks(), ["setup", "train_start", ("train_step_end", {"clock.updates": {"SGD": 1}}), "train_end"])
    assert found == [("enough", True)]
