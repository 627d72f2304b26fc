"""What a hook sees of a real run, when it sees it, and what it may ask for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import NotAvailableError, RoleError, ScopeError, SetupError
from hookline.events.spec import BY_NAME, EVENTS, moments
from hookline.loop import Result, SupervisedTask, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit

evaluated_fit = partial(fit, val=tiny_data(batches=2), scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1))
CONDITIONAL = ("batch", "outputs", "loss", "optimizer", "loader_name", "exception", "checkpoint", "stop_reason")
ALWAYS = (
    "model",
    "task",
    "optimizers",
    "schedulers",
    "stage",
    "entry_point",
    "loaders",
    "clock",
    "max_duration",
    "metrics",
    "history",
    "callbacks",
    "config",
    "project",
    "name",
    "has_folder",
    "started",
    "rank",
    "world_size",
    "device",
    "loop",
    "messages",
)


class Asking(hl.Callback):
    """At every event: which fields have a value."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self.seen: list[tuple[str, str, set[str]]] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        self.seen.append((event, run.stage, {field for field in self.fields if hasattr(run, field)}))


def whole_life(asking: hl.Callback) -> None:
    """Fit with accumulation, named loaders and a stop, then evaluate, predict, interrupt and fail."""
    model, options = TinyModel(), {"folder": False, "device": "cpu"}
    trainer = Trainer(max_duration="9ep", accumulate=2, callbacks=[asking], **options)

    class Stopping(hl.Callback):
        def on_epoch_end(self, run: hl.Run) -> None:
            if run.clock.epoch == 2:
                run.stop("enough")

    trainer.fit(
        model,
        tiny_data(batches=3),
        {"easy": tiny_data(batches=2), "hard": tiny_data(batches=2)},
        tiny_data(batches=1),
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        callbacks=[Stopping()],
    )
    trainer.predict(model, tiny_data(batches=2))

    class Skipping(hl.Callback):
        def on_gradients_ready(self, run: hl.Run) -> None:
            run.skip_step()

        def on_step_skipped(self, run: hl.Run) -> None:
            raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        trainer.fit(
            TinyModel(),
            tiny_data(),
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD,
            callbacks=[Skipping()],
        )


# -- fields ------------------------------------------------------------------------------------


def test_every_field_has_a_value_at_every_event_where_the_table_promises_it() -> None:
    asking = Asking(CONDITIONAL)
    whole_life(asking)
    broken = {(event, field) for event, _, has in asking.seen for field in BY_NAME[event].valid if field not in has}
    assert broken == set()
    not_sent = set(BY_NAME) - {event for event, _, _ in asking.seen}
    saving = {event.name for event in EVENTS if event.name.startswith("checkpoint_")}
    assert not_sent == saving | {"rollback", "preempt", "interrupt", "callback_disabled"}


def test_the_stage_at_every_event_is_one_that_the_table_names() -> None:
    asking = Asking(())
    whole_life(asking)
    assert {(event, stage) for event, stage, _ in asking.seen if stage not in BY_NAME[event].stages} == set()


def test_every_other_field_has_a_value_at_every_event() -> None:
    asking = Asking(ALWAYS)
    whole_life(asking)
    assert [(event, set(ALWAYS) - has) for event, _, has in asking.seen if has != set(ALWAYS)] == []


def unpromised(asking: Asking) -> set[tuple[str, str, str]]:
    """Values that a field has without a promise, but for those that are right and do no harm."""
    found = {
        (event, stage, field)
        for event, stage, has in asking.seen
        for field in has - set(BY_NAME[event].valid)
        if event not in ("exception", "teardown")  # after a failure the moment stays as it was, to be looked at
    }
    harmless = {(event, stage, "loader_name") for event, stage, _ in asking.seen if stage in ("val", "test", "predict")}
    harmless |= {(event, stage, "stop_reason") for event, stage, _ in asking.seen}  # once asked for, it is known
    harmless |= {("scheduler_step", "train", field) for field in ("batch", "outputs", "loss", "optimizer")}
    return found - harmless


def test_no_field_has_a_value_that_belongs_to_an_earlier_moment() -> None:
    asking = Asking(CONDITIONAL)
    whole_life(asking)
    assert unpromised(asking) == set()


def test_no_training_field_has_a_value_before_training_and_after_it() -> None:
    asking = Asking(("batch", "outputs", "loss", "optimizer", "loader_name"))
    whole_life(asking)
    outside = ("setup", "model_ready", "fit_start", "train_start", "train_end", "fit_end")
    assert {event for event, _, has in asking.seen if event in outside and has} == set()


class Setup(hl.Callback):
    """Calls a function with the run in ``on_setup`` and keeps the error."""

    def __init__(self, act: Callable[[hl.Run], object]) -> None:
        self.act = act
        self.error: Exception | None = None

    def on_setup(self, run: hl.Run) -> None:
        try:
            self.act(run)
        except Exception as error:
            self.error = error


HINTS = {
    "optimizer": "all of them are in run.optimizers, by name; ",
    "outputs": "a task that returns {'loss': …, 'outputs': …} provides them; ",
    "stop_reason": "no callback has asked to stop; ",
}


def errors_in_setup(*names: str) -> dict[str, tuple[type[Exception], str]]:
    """The errors that reading these fields raises in ``on_setup``."""
    found: dict[str, tuple[type[Exception], str]] = {}

    def read(run: hl.Run) -> None:
        for name in names:
            with pytest.raises(AttributeError) as caught:
                getattr(run, name)
            found[name] = type(caught.value), str(caught.value)

    evaluated_fit(hl.LambdaCallback(on_setup=read), max_duration="1st")
    return found


def test_a_field_without_a_value_says_when_it_has_one() -> None:
    expected = {
        field: f"run.{field} has no value now; {HINTS.get(field, '')}it has one in "
        + ", ".join(f"on_{event}" for event in moments(field))
        for field in CONDITIONAL
    }
    assert errors_in_setup(*CONDITIONAL) == {field: (NotAvailableError, text) for field, text in expected.items()}


MEANT = {
    "epoch": "run.clock.epoch",
    "step": "run.clock.step",
    "current_epoch": "run.clock.epoch",
    "global_step": "run.clock.step",
    "batch_idx": "run.clock.batch_in_epoch",
    "callback_metrics": "run.metrics",
    "pl_module": "run.model",
    "save_checkpoint": "run.request_save()",
    "metric": "run.metrics",
    "request_evaluation": "run.request_eval",
}


def test_a_field_that_does_not_exist_says_what_was_probably_meant() -> None:
    found = {name: text for name, (_, text) in errors_in_setup(*MEANT).items()}
    assert found == {name: f"run has no '{name}'; did you mean {meant}?" for name, meant in MEANT.items()}


def test_hasattr_and_getattr_with_a_default_work_as_in_python() -> None:
    seen = []
    evaluated_fit(Setup(lambda run: seen.append((hasattr(run, "batch"), getattr(run, "batch", "none yet")))))
    assert seen == [(False, "none yet")]


def test_the_own_loop_has_no_task_and_says_where_there_is_one() -> None:
    model = TinyModel()
    loop = hl.Loop(model, torch.optim.SGD(model.parameters()), folder=False, device="cpu")
    with pytest.raises(NotAvailableError) as caught:
        _ = loop.run.task
    assert str(caught.value) == (
        "run.task has no value now; a custom loop has none; pass a task or a model to Trainer.fit"
    )


def test_a_misspelt_field_is_an_attribute_error_and_cannot_be_set() -> None:
    def misspell(run: hl.Run) -> None:
        assert not hasattr(run, "modle")
        run.modle = 3  # type: ignore[attr-defined]

    setup = Setup(misspell)
    evaluated_fit(setup)
    assert isinstance(setup.error, AttributeError)


def test_the_fields_are_what_the_user_gave() -> None:
    model, val, seen = TinyModel(), tiny_data(batches=2), {}

    class Looking(hl.Callback):
        def on_eval_end(self, run: hl.Run) -> None:
            seen.update({field: getattr(run, field) for field in ALWAYS})
            seen["own"] = run.callbacks["Looking"] is self

    result = evaluated_fit(Looking(), model=model, val=val, config={"lr": 1}, name="digits/first")
    assert seen["model"] is result.model is model
    assert isinstance(seen["task"], SupervisedTask)
    assert list(seen["optimizers"]) == ["SGD"]
    assert len(seen["schedulers"]) == 1
    assert (seen["stage"], seen["entry_point"], str(seen["max_duration"])) == ("val", "fit", "2ep")
    assert seen["loaders"]["val"] is val
    assert seen["clock"].step == result.clock.step
    assert seen["history"] is result.history
    assert seen["config"]["lr"] == 1
    assert (seen["project"], seen["name"], seen["has_folder"]) == ("digits", "first", False)
    assert isinstance(seen["started"], datetime)
    assert seen["started"].tzinfo is not None
    assert (seen["rank"], seen["world_size"], seen["device"]) == (0, 1, torch.device("cpu"))
    assert seen["own"]


def test_the_folder_of_a_run_that_has_none() -> None:
    """The error says what to do, and a callback can ask before."""

    class Writing(hl.Callback):
        def on_train_end(self, run: hl.Run) -> None:
            (run.folder / "notes.txt").write_text("x")

    says = r"^run\.folder: this run has no folder, because of folder=False\. Give .* test run\.has_folder"
    with pytest.raises(NotAvailableError, match=says):
        evaluated_fit(Writing())


def test_the_newest_metrics_are_a_live_mapping() -> None:
    seen: list[Any] = []

    class Looking(hl.Callback):
        def on_eval_end(self, run: hl.Run) -> None:
            metrics = run.metrics
            assert sorted(metrics) == sorted(dict(metrics))
            assert len(metrics) == len(list(metrics))
            assert "val/loss" in metrics
            assert metrics.get("val/none", 3) == 3
            assert repr(metrics) == repr(dict(metrics))
            with pytest.raises(KeyError, match=r"no metric 'val/los'; did you mean 'val/loss'\? there is "):
                _ = metrics["val/los"]
            seen.append(metrics["val/loss"])

    assert evaluated_fit(Looking()).history["val/loss"] == seen


def test_run_prints_whose_it_is_and_where_the_run_is() -> None:
    seen: list[str] = []
    evaluated_fit(Setup(lambda run: seen.append(repr(run))), name="digits/first")
    assert seen[0].startswith("<Run digits/first of Setup, train, Clock(epoch=0, step=0,")


def test_max_duration_can_be_changed_from_a_hook() -> None:
    class Shorter(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 2:
                run.max_duration = "3st"  # type: ignore[assignment]

    assert evaluated_fit(Shorter(), max_duration="9ep").clock.step == 3


def test_a_share_of_itself_is_no_max_duration() -> None:
    setup = Setup(lambda run: setattr(run, "max_duration", "0.5dur"))
    evaluated_fit(setup)
    assert isinstance(setup.error, SetupError)
    assert str(setup.error) == "run.max_duration = '0.5dur': 'dur' is a fraction of max_duration itself"


def test_a_run_that_is_over_can_be_collected() -> None:
    # A reference that stays behind in the dispatcher would keep the model of every run in memory.
    callback = Asking(())
    model = TinyModel()
    gone = weakref.ref(model)
    evaluated_fit(callback, model=model)
    del model
    gc.collect()
    assert gone() is None


# -- roles -------------------------------------------------------------------------------------

FORBIDDEN: dict[str, tuple[str, Callable[[hl.Run], object]]] = {
    "called run.stop()": ("train_step_end", lambda run: run.stop("mine")),
    "called run.request_eval()": ("train_step_end", lambda run: run.request_eval()),
    "called run.request_save()": ("train_step_end", lambda run: run.request_save()),
    "called run.skip_step()": ("train_step_start", lambda run: run.skip_step()),
    "called run.swap_weights()": ("eval_start", lambda run: run.swap_weights({})),
    "set run.batch": ("batch_fetch_end", lambda run: setattr(run, "batch", None)),
    "set run.loss": ("loss_ready", lambda run: setattr(run, "loss", None)),
    "set run.max_duration": ("train_step_end", lambda run: setattr(run, "max_duration", "1st")),
}


class Doing(hl.Callback):
    """Does something with the run at one event."""

    def __init__(self, event: str, act: Callable[[hl.Run], object], *, optional: bool = False) -> None:
        self.optional = optional
        setattr(self, f"on_{event}", act)


def final(result: Result) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in result.model.state_dict().items()}


@cache
def undisturbed() -> Any:
    return final(evaluated_fit())


@pytest.mark.parametrize("act", FORBIDDEN)
def test_an_optional_callback_that_wants_to_steer_the_run_is_switched_off_and_the_run_is_the_same(act: str) -> None:
    event, forbidden = FORBIDDEN[act]
    result = evaluated_fit(Doing(event, forbidden, optional=True))
    (failure,) = result.failures
    assert isinstance(failure.error, RoleError)
    assert (failure.callback, failure.hook) == ("Doing", f"on_{event}")
    assert str(failure.error) == (
        f"Doing is optional and {act}: an optional callback may log, emit and send messages; "
        f"set optional = False on it if the run depends on it"
    )
    assert result.clock.step == 8
    assert final(result) == undisturbed()


def test_an_optional_callback_may_log_emit_send_messages_and_ask_for_answers() -> None:
    class Harmless(hl.Callback):
        optional = True
        events = (hl.Event("seen", gives=("what",)),)

        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"train/mine": run.clock.step})
            run.emit("seen", what=run.clock.step)
            run.messages.send("steps", run.clock.step, keep="forever")
            run.evaluate()
            run.predict()

        def on_fit_end(self, run: hl.Run) -> None:
            run.log({"train/messages": len(run.messages.read("steps"))})

    heard: list[int] = []
    result = evaluated_fit(Harmless(), hl.on("seen")(lambda run, what: heard.append(what)))
    assert result.failures == ()
    assert heard == list(range(1, 9))
    assert result.metrics["train/messages"] == 8
    assert final(result) == undisturbed()


FIT_EVENTS = [
    event.name
    for event in EVENTS
    if not event.name.startswith(("checkpoint_", "predict_"))
    and event.name not in ("rollback", "preempt", "interrupt", "callback_disabled", "step_skipped", "stop", "exception")
]


@pytest.mark.parametrize("event", FIT_EVENTS)
def test_an_optional_callback_that_fails_at_any_event_changes_nothing_of_the_run(event: str) -> None:
    def fail(run: hl.Run) -> None:
        raise ValueError("no")

    result = evaluated_fit(Doing(event, fail, optional=True))
    assert [(failure.callback, failure.hook) for failure in result.failures] == [("Doing", f"on_{event}")]
    assert result.clock.step == 8
    assert final(result) == undisturbed()


@pytest.mark.parametrize("event", FIT_EVENTS)
def test_stop_iteration_from_a_hook_never_ends_an_epoch_or_a_run_quietly(event: str) -> None:
    def fail(run: hl.Run) -> None:
        raise StopIteration

    with pytest.raises((StopIteration, RuntimeError)) as caught:
        evaluated_fit(Doing(event, fail))
    error: BaseException | None = caught.value
    notes = []
    while error is not None:
        notes += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    assert any(note.startswith(f"in Doing.on_{event} at step ") for note in notes)


def test_a_required_callback_that_fails_says_who_where_and_when() -> None:
    class Broken(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 6:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        evaluated_fit(Broken())
    assert caught.value.__notes__ == [f"in {Broken.__qualname__}.on_train_step_end at step 6, epoch 1 (train)"]


# -- requests ----------------------------------------------------------------------------------


def test_a_stop_is_a_vote_that_names_its_author_and_its_reason() -> None:
    class Stopper(hl.Callback):
        name = "stopper"

        def on_train_step_start(self, run: hl.Run) -> None:
            if run.clock.step == 2:
                run.stop("enough")

        def on_stop(self, run: hl.Run) -> None:
            assert run.stop_reason == "enough"

    result = evaluated_fit(Stopper())
    assert (result.stop_reason, result.stopped_by, result.clock.step) == ("enough", "stopper", 3)


def test_the_first_of_two_stops_is_the_reason() -> None:
    class Stopper(hl.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_train_step_end(self, run: hl.Run) -> None:
            run.stop(f"because of {self.name}")

    result = evaluated_fit(Stopper("one"), Stopper("two"))
    assert (result.stop_reason, result.stopped_by) == ("because of one", "one")


def test_stop_training_from_a_hook_is_the_same_vote_and_the_step_goes_on() -> None:
    seen: list[str] = []

    class Stopper(hl.Callback):
        name = "stopper"

        def on_loss_ready(self, run: hl.Run) -> None:
            raise hl.StopTraining("enough")

        def on_train_step_end(self, run: hl.Run) -> None:
            seen.append("the step is finished")

    result = evaluated_fit(Stopper())
    assert (result.stop_reason, result.stopped_by, result.clock.step) == ("enough", "stopper", 1)
    assert seen == ["the step is finished"]


def test_a_requested_evaluation_is_made_at_the_end_of_the_step() -> None:
    class Requesting(hl.Callback):
        def on_train_step_start(self, run: hl.Run) -> None:
            if run.clock.step == 1:
                run.request_eval()

    assert evaluated_fit(Requesting()).history.steps("val/loss") == [2, 4, 8]


def test_a_request_that_cannot_be_granted_says_so_at_once() -> None:
    model = TinyModel()
    errors: list[Exception] = []

    class Requesting(hl.Callback):
        def on_train_start(self, run: hl.Run) -> None:
            for verb in (run.request_eval, run.request_save, run.skip_step):
                try:
                    verb()
                except Exception as error:
                    errors.append(error)

    Trainer(max_duration="1ep", folder=False, device="cpu", callbacks=[Requesting()]).fit(
        model, tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    assert [(type(error), str(error)) for error in errors] == [
        (SetupError, "run.request_eval(): there is nothing to evaluate on; pass a validation loader to fit"),
        (SetupError, "run.request_save(): this run has no folder to save in; pass folder='runs/mine'"),
        (
            ScopeError,
            "run.skip_step(): no update is being prepared; call it from on_train_step_start to on_gradients_ready, "
            "or to on_train_batch_start where an optimizer with a closure (LBFGS) computes the batch itself",
        ),
    ]


def test_a_required_callback_can_replace_the_batch_the_loss_and_the_outputs() -> None:
    seen: list[Any] = []

    class Replacing(hl.Callback):
        writes = ("batch", "loss")

        def on_batch_fetch_end(self, run: hl.Run) -> None:
            if run.stage == "train":
                run.batch = tuple(part[:2] for part in run.batch)

        def on_forward_end(self, run: hl.Run) -> None:
            run.outputs = run.outputs * 2

        def on_loss_ready(self, run: hl.Run) -> None:
            run.loss = run.loss * 0

        def on_train_batch_end(self, run: hl.Run) -> None:
            seen.append((len(run.batch[0]), run.loss.item(), torch.equal(run.outputs, 2 * run.model(run.batch[0]))))

    model, before = TinyModel(), TinyModel().state_dict()
    trainer = Trainer(max_duration="1ep", folder=False, device="cpu", callbacks=[Replacing()])
    result = trainer.fit(model, tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert seen == [(2, 0.0, True)] * 4
    assert result.clock.sample == 8
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_weights_that_are_swapped_around_an_evaluation_are_evaluated_and_put_back() -> None:
    seen: list[float] = []

    class Zeros(hl.Callback):
        writes = ("weights",)

        def around_eval(self, run: hl.Run) -> Iterator[None]:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in run.model.state_dict().items()}
            with run.swap_weights(zeros):
                yield

        def on_eval_end(self, run: hl.Run) -> None:
            seen.append(sum(tensor.abs().sum().item() for tensor in run.model.state_dict().values()))

    result = evaluated_fit(Zeros())
    assert seen == [0.0, 0.0]
    assert final(result) == undisturbed()


# -- events and costs in a real run ------------------------------------------------------------


def test_a_task_can_send_its_own_event_in_an_evaluation_also_in_the_sanity_check() -> None:
    heard: list[int] = []

    class Task(SupervisedTask):
        events = (hl.Event("verify_eval_batch", gives=("size",)),)

        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            run.emit("verify_eval_batch", size=len(batch[0]))
            return super().eval_batch(run, batch)

    task = Task(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    trainer = Trainer(
        max_duration="1ep",
        folder=False,
        device="cpu",
        callbacks=[hl.on("verify_eval_batch")(lambda run, size: heard.append(size))],
    )
    trainer.fit(task, tiny_data(), tiny_data(batches=3))
    assert heard == [8, 8, 8]


def test_messages_of_an_epoch_are_gone_when_the_next_one_begins() -> None:
    seen: list[list[int]] = []

    class Sending(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.messages.send("steps", run.clock.step)

        def on_epoch_end(self, run: hl.Run) -> None:
            seen.append(run.messages.read("steps"))

    evaluated_fit(Sending())
    assert seen == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_the_calls_of_a_step_hook_are_known_although_one_step_in_64_is_timed() -> None:
    class Counting(hl.Callback):
        name = "counting"

        def on_train_step_end(self, run: hl.Run) -> None: ...
        def on_epoch_end(self, run: hl.Run) -> None: ...

    result = evaluated_fit(Counting(), max_duration="192st", val=None)
    calls = {row.hook: row.calls for row in result.costs if row.callback == "counting"}
    assert calls == {"on_train_step_end": 192, "on_epoch_end": 48}


def test_in_one_process_gather_gives_the_value_of_this_one() -> None:
    found = []
    fit(hl.on("train_start")(lambda run: found.extend([run.gather(3), run.is_sharded])))
    assert found == [[3], False]
