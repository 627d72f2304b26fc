"""What people write in their first hour, often out of habit from elsewhere: the error says what it is here."""

from __future__ import annotations

import argparse
import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hookline as hl
from hookline.errors import (
    ArgumentError,
    DataError,
    LossError,
    MetricError,
    RegistrationError,
    ScopeError,
    SetupError,
    StateError,
)
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd, wrong_messages
from tests.support.inside import ARGUMENTS, FOREIGN_METHODS, TAKES

VERBS = ("fit", "train", "evaluate", "test", "predict")

train_epoch = partial(fit, max_duration="1ep")


# -- the own loop ------------------------------------------------------------------------------------


def test_an_own_loop_over_epochs_around_batches() -> None:
    model = TinyModel()

    def train(loop: Loop) -> None:
        for _ in range(3):
            for x, y in loop.batches(tiny_data()):
                loop.backward(CE(model(x), y))
                loop.step()

    says = r"batches of all epochs.*max_duration \('2ep'\).*remove your own `for epoch in"
    with Loop(model, sgd, max_duration="2ep", folder=False) as loop, pytest.raises(ScopeError, match=says):
        train(loop)
    assert loop.run.clock.epoch == 2


# -- keywords ------------------------------------------------------------------------------------------


def test_a_keyword_that_a_method_does_not_have() -> None:
    hints = {
        "epochs": r"It is an option of the trainer: write max_duration='3ep' in Trainer",
        "max_duration": r"option of the trainer: write max_duration=… in Trainer",
        "lr": r"optimizer=torch\.optim\.AdamW\(model\.parameters\(\), lr=",
        "batch_size": r"DataLoader\(data, batch_size=3\)",
        "zork": r"The arguments are model",
        "callback": r"Did you mean callbacks\?",
    }
    trainer = Trainer(max_duration="1ep", folder=False)
    rows = [
        (
            (verb, key),
            partial(getattr(trainer, verb), TinyModel(), tiny_data(), **{key: 3}),
            rf"^{verb}\({key}=3\): no such argument\. .*{hint}",
        )
        for verb in VERBS
        for key, hint in hints.items()
    ]
    assert wrong_messages(ArgumentError, rows) == []


def test_a_keyword_of_fit_by_another_name() -> None:
    says: dict[Any, str] = {
        Trainer(max_duration="1ep", folder=False).fit: r"^fit\({0}=3\): no such argument\. Write {1}=",
        hl.fit: r"^fit\({0}=3\): no such argument\. Write {1}=",
    }
    rows = [
        (key, partial(call, TinyModel(), tiny_data(), **{key: 3}), text.format(key, ours))
        for call, text in says.items()
        for key, ours in ARGUMENTS.items()
    ]
    assert wrong_messages(ArgumentError, rows) == []


def test_the_names_of_arguments_are_those_of_fit() -> None:
    assert set(ARGUMENTS.values()) <= set(inspect.signature(Trainer.fit).parameters)


def test_an_argument_of_fit_that_is_given_to_the_trainer() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"^Trainer\(loss=…\): no such argument\. loss is an argument of fit: write fit\(…, loss=…\)\.$",
    ):
        Trainer(loss=CE)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"^fit\(optimzer=…\): no such argument\. Write optimizer=…\.$"):
        hl.fit(TinyModel(), tiny_data(), optimzer=sgd)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["logger", "loggers"])
def test_a_logger_is_a_sink_here(key: str) -> None:
    says = rf"{key}=True.*Write sinks=\[hl\.sinks\.TensorBoard\(\)\]; metrics\.jsonl .* is always written"
    with pytest.raises(ArgumentError, match=says):
        Trainer(**{key: True})
    with pytest.raises(ArgumentError, match=says):
        hl.fit(TinyModel(), tiny_data(), **{key: True})


def test_the_list_of_callbacks_in_the_singular() -> None:
    with pytest.raises(ArgumentError, match=r"^Trainer\(callback=…\): no such argument\. Did you mean callbacks\?$"):
        Trainer(callback=[])  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"^fit\(callback=…\): no such argument\. Did you mean callbacks\?$"):
        hl.fit(TinyModel(), tiny_data(), callback=[])  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["optimizer", "optim"])
def test_an_argument_of_training_that_is_given_to_an_evaluation(key: str) -> None:
    says = rf"^evaluate\({key}=…\): no such argument\. optimizer is an argument of fit and train: leave it out\.$"
    with pytest.raises(ArgumentError, match=says):
        hl.evaluate(TinyModel(), tiny_data(), **{key: sgd})
    with pytest.raises(ArgumentError, match=says):
        Trainer(folder=False).evaluate(TinyModel(), tiny_data(), **{key: sgd})


def test_an_argument_by_a_name_that_is_hardly_like_another_gets_no_hint() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'path'"):
        hl.ModelSummary(path="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["max_duration", "eval_every", "log_every"])
def test_a_duration_says_which_option_it_is(key: str) -> None:
    with pytest.raises(hl.HooklineError, match=rf"^Trainer\({key}=…\): 7 has no unit"):
        Trainer(**{"max_duration": "1ep", key: 7})  # type: ignore[arg-type]


# -- callbacks -----------------------------------------------------------------------------------------


class Misspelt(hl.Callback):
    def on_train_stepend(self, run: hl.Run) -> None: ...


class OfLightning(hl.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None: ...


class OfComposer(hl.Callback):
    def on_batch_checkpoint(self, run: hl.Run) -> None: ...


class WithoutRun(hl.Callback):
    def on_train_start(self) -> None: ...


class EarlierThanItself(hl.Callback):
    before = ("Later",)


class Later(hl.Callback):
    before = ("EarlierThanItself",)


class Unread(Dataset[Any]):
    """Training data that no test may read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the data was read before the callbacks were checked")


MISTAKES: dict[str, tuple[list[Any], str]] = {
    "misspelt": ([Misspelt()], r"Misspelt\.on_train_stepend: no such event; did you mean on_train_step_end\?"),
    "misspelt function": (
        [hl.on("train_step_endd")(lambda run: None)],
        r"hl\.on\('train_step_endd'\): no such event; did you mean train_step_end\?",
    ),
    "arity": ([OfLightning()], r"takes \(trainer, pl_module, batch, batch_idx\) and is called with \(run\)"),
    "no run": ([WithoutRun()], r"WithoutRun\.on_train_start takes \(nothing\) and is called with \(run\)"),
    "another system": ([OfComposer()], r"Composer's batch_checkpoint is on_\w+ here"),
    "a class": ([Misspelt], r"Misspelt is a class, not a callback"),
    "order": ([EarlierThanItself(), Later()], r"EarlierThanItself before Later"),
    "ranks": ([type("Odd", (hl.Callback,), {"ranks": "first"})()], r"ranks = 'first'; use 'all'"),
}


def test_a_mistake_in_a_callback_fails_where_the_callback_is_given() -> None:
    model, data = TinyModel(), DataLoader(Unread())
    options: dict[str, Any] = {"max_duration": "1ep", "folder": False}
    given: dict[str, Any] = {"loss": CE, "optimizer": sgd}
    ways: dict[str, Callable[[list[Any]], object]] = {
        "Trainer": lambda callbacks: hl.Trainer(callbacks=callbacks, **options),
        "Loop": lambda callbacks: hl.Loop(model, sgd, callbacks=callbacks, **options),
        "hl.fit": lambda callbacks: hl.fit(model, data, data, callbacks=callbacks, **given, **options),
        "trainer.fit": lambda callbacks: hl.Trainer(**options).fit(model, data, data, callbacks=callbacks, **given),
        "trainer.predict": lambda callbacks: hl.Trainer(**options).predict(model, data, callbacks=callbacks),
    }
    rows = [
        ((way, mistake), partial(act, callbacks), says)
        for way, act in ways.items()
        for mistake, (callbacks, says) in MISTAKES.items()
    ]
    assert wrong_messages(hl.HooklineError, rows) == []


def test_a_hook_for_an_event_of_the_task_is_checked_when_the_task_is_known() -> None:
    heard: list[str] = []

    class Hears(hl.Callback):
        def on_verify_train_batch(self, run: hl.Run, x: Any) -> None:
            heard.append("verify_train_batch")

    class Verifies(hl.SupervisedTask):
        events = (hl.Event("verify_train_batch", gives=("x",)),)

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            run.emit("verify_train_batch", x=batch[0])
            return super().train_batch(run, batch)

    trainer = Trainer(max_duration="1st", folder=False, callbacks=[Hears()])
    with pytest.raises(hl.HooklineError, match=r"Hears\.on_verify_train_batch: no such event"):
        trainer.fit(TinyModel(), tiny_data(), loss=CE, optimizer=sgd)
    trainer.fit(Verifies(TinyModel(), CE, sgd), tiny_data())
    assert heard == ["verify_train_batch"]


def test_a_hook_for_an_event_of_the_task_that_is_almost_one_of_ours() -> None:
    class Hears(hl.Callback):
        def on_train_step_ended(self, run: hl.Run) -> None: ...

    says = r"did you mean on_train_step_end\?\nIf the task declares 'train_step_ended', list it in the events"
    with pytest.raises(hl.HooklineError, match=says):
        Trainer(callbacks=[Hears()])
    Hears.events = (hl.Event("train_step_ended"),)
    Trainer(callbacks=[Hears()])


# -- tasks -----------------------------------------------------------------------------------------------


class Bare(hl.Task[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: hl.Run) -> Any:
        return sgd(self.parameters())


def test_a_method_by_the_name_of_another_system() -> None:
    verbs = {"train_batch": "fit", "eval_batch": "evaluate", "predict_batch": "predict"}
    trainer = Trainer(max_duration="1ep", folder=False)
    rows = [
        (
            theirs,
            partial(
                getattr(trainer, verbs[ours]),
                type("Theirs", (Bare,), {theirs: lambda self, batch, batch_idx: None})(),
                tiny_data(),
            ),
            rf"Theirs has no {ours}.*{theirs} is {ours} here: write def {ours}\(self, run",
        )
        for theirs, ours in FOREIGN_METHODS.items()
        if ours != "configure_optimizers"
    ]
    assert wrong_messages(SetupError, rows) == []


def test_a_supervised_task_with_a_step_that_nobody_calls() -> None:
    class Mine(hl.SupervisedTask):
        def training_step(self, batch: Any, batch_idx: int) -> Any: ...

    with pytest.raises(SetupError, match=r"Mine\.training_step is not called.*write def train_batch\(self, run, batch"):
        train_epoch(model=Mine(TinyModel(), CE, sgd))


@pytest.mark.parametrize("name", ["forward_step", "predict_step"])
def test_a_helper_of_a_supervised_task_may_have_such_a_name(name: str) -> None:
    kind = type("Mine", (hl.SupervisedTask,), {name: lambda self, x: self.model(x)})
    assert train_epoch(model=kind(TinyModel(), CE, sgd)).clock.step == 4


def test_a_step_of_ones_own_beside_train_batch_is_fine() -> None:
    class Mine(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            return self.training_step(run, batch)

        def training_step(self, run: hl.Run, batch: Any) -> Any:
            return super().train_batch(run, batch)

    assert train_epoch(model=Mine(TinyModel(), CE, sgd)).clock.step == 4


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("configure_optimizers", lambda self: None),
        ("train_batch", lambda self, batch: None),
        ("train_batch", lambda self, batch, batch_idx: None),
        ("train_batch", lambda self, run, batch, batch_idx: None),
        ("eval_batch", lambda self, batch: None),
        ("predict_batch", lambda self: None),
        ("count", lambda self: None),
    ],
)
def test_a_method_with_other_arguments(name: str, method: Any) -> None:
    task = type("Mine", (Bare,), {name: method})()
    written = rf"write def {name}\(self, {', '.join(TAKES[name])}\)"
    with pytest.raises(SetupError, match=rf"Mine\.{name} takes \(.*\) and is called with .*{written}"):
        train_epoch(model=task)


# -- loaders and optimizers ----------------------------------------------------------------------------------


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index >= 4:
            raise IndexError
        return tiny_data(1)[0]


def test_a_dataset_that_gives_batches_itself_is_a_loader() -> None:
    class Whole(Pairs):
        def __iter__(self) -> Any:
            return iter(tiny_data())

    assert train_epoch(train=Whole()).clock.step == 4


@pytest.mark.parametrize("answer", ["evaluate", "predict"])
def test_a_dataset_in_a_hook_is_refused_as_in_fit(answer: str) -> None:
    """One whose __getitem__ never ends would be read for ever."""
    asks = hl.on("train_step_end", at="1st")(lambda run: getattr(run, answer)(Pairs()))
    with pytest.raises(DataError, match="a dataset, which gives one sample at a time"):
        train_epoch(asks)


@pytest.mark.parametrize("dataset", [TensorDataset(torch.zeros(4, 2)), Pairs()], ids=lambda d: type(d).__name__)
def test_a_dataset_in_place_of_a_loader(dataset: Any) -> None:
    kind = type(dataset).__name__
    says = rf"loader is a {kind}, a dataset.*DataLoader\(dataset, batch_size=32\)"
    for call in (
        lambda: train_epoch(train=dataset),
        lambda: train_epoch(val=dataset),
        lambda: train_epoch(val={"hard": dataset}),
        lambda: Trainer(folder=False).evaluate(TinyModel(), dataset, loss=CE),
        lambda: Trainer(folder=False).predict(TinyModel(), dataset),
    ):
        with pytest.raises(DataError, match=says):
            call()
    with Loop(TinyModel(), sgd, max_duration="1ep", folder=False) as loop, pytest.raises(DataError, match=says):
        loop.batches(dataset)


def test_what_gives_batches_is_a_loader() -> None:
    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(tiny_data())

    for loader in (tiny_data(), Batches(), DataLoader(Pairs(), batch_size=None)):
        assert train_epoch(train=loader).clock.step == 4


def test_an_optimizer_by_its_name() -> None:
    with pytest.raises(SetupError, match=r"optimizer='adam' is a text; pass optimizer=torch\.optim\.Adam,"):
        train_epoch(optimizer="adam")
    with pytest.raises(SetupError, match=r"optimizer is an int.*pass optimizer=torch\.optim\.AdamW"):
        train_epoch(optimizer=3)


def test_an_optimizer_without_some_of_the_parameters() -> None:
    model = TinyModel()
    with pytest.warns(hl.HooklineWarning, match=r"2 of 4 trainable parameters.*no optimizer.*model\.hidden\.weight"):
        train_epoch(model=model, optimizer=sgd(model.out.parameters()))


def test_a_part_that_a_hook_put_into_the_model_and_no_optimizer_holds() -> None:
    """A new head in ``on_fit_start`` would stay as it was drawn, and the loss goes down all the same."""

    @hl.on("fit_start")
    def new_head(run: hl.Run) -> None:
        head: Any = run.model.out
        run.model.out = nn.Linear(head.in_features, head.out_features)

    with pytest.warns(hl.HooklineWarning, match=r"2 of 4 trainable parameters.*no optimizer.*out\.weight"):
        train_epoch(new_head)


def test_a_callback_that_gives_parameters_to_the_optimizer_later_is_no_mistake() -> None:
    class Later(hl.Callback):
        structural = True

    model = TinyModel()
    train_epoch(Later(), model=model, optimizer=sgd(model.out.parameters()))


def test_frozen_parameters_and_several_optimizers_are_no_mistake() -> None:
    model = TinyModel()
    model.hidden.requires_grad_(False)
    train_epoch(model=model, optimizer=sgd(model.out.parameters()))

    class Two(Bare):
        def configure_optimizers(self, run: hl.Run) -> Any:
            return sgd(self.net.hidden.parameters()), sgd(self.net.out.parameters())

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            for optimizer in run.optimizers.values():
                run.loop.backward(CE(self.net(batch[0]), batch[1]), optimizer)
                run.loop.step(optimizer)

    train_epoch(model=Two())


# -- callbacks and run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", [hl.EarlyStopping("val/loss"), hl.Checkpointer(monitor="val/acc")], ids=repr)
def test_a_monitor_of_the_evaluation_without_a_validation_loader(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"fit got no validation loader\. Write fit\(model, train, val.*writes = "):
        train_epoch(callback, folder=tmp_path)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda run: run.log("acc", 1.0), r"run\.log\('acc', 1\.0\): .*run\.log\(\{'acc': value\}\)"),
        (lambda run: run.log("acc"), r"run\.log\('acc'\): give a dict"),
        (lambda run: run.log([1, 2]), r"run\.log\(\[1, 2\]\): it is a list; give a dict"),
        (lambda run: run.log(None), r"it is a NoneType"),
        (lambda run: run.log(nn.Linear(1, 1)), r"it is a Linear"),
        (lambda run: run.log({"acc": 1.0}, 8), r"weight=, reduce= and step= by name"),
    ],
)
def test_what_run_log_does_not_take(act: Any, says: str) -> None:
    with pytest.raises(MetricError, match=says):
        train_epoch(hl.on("train_step_end")(act))


def test_a_state_that_cannot_be_saved_is_said_in_few_frames(tmp_path: Path) -> None:
    class Holds(hl.Callback):
        state = ("rules",)

        def __init__(self) -> None:
            self.rules = [{"deep": [[[fit]]]}]

    with pytest.raises(StateError, match="rules") as caught:
        train_epoch(Holds(), hl.Checkpointer(), folder=tmp_path)
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 15


class Forgetful(hl.Callback):
    """Lists an attribute in ``state`` that nothing sets."""

    state = ("best",)


class AddsForgetful(hl.Callback):
    def on_train_step_end(self, run: hl.Run) -> None:
        run.callbacks.add(Forgetful())


@pytest.mark.parametrize("callback", [Forgetful, AddsForgetful])
def test_a_state_without_its_attribute_is_an_error_before_the_first_checkpoint(callback: type[hl.Callback]) -> None:
    """A first run without a folder saves nothing, so the mistake would appear only in a longer one."""
    message = r"Forgetful\(\)\.state lists 'best', which it lacks: set self\.best in __init__"
    with pytest.raises(RegistrationError, match=message):
        train_epoch(callback(), folder=False)


def test_a_state_may_be_set_in_on_setup_after_another_callback_was_added_there() -> None:
    class SetsUp(Forgetful):
        def on_setup(self, run: hl.Run) -> None:
            self.best = 0.0

    class Adds(hl.Callback):
        before = (SetsUp,)

        def on_setup(self, run: hl.Run) -> None:
            run.callbacks.add(hl.LRMonitor())

    train_epoch(Adds(), SetsUp(), folder=False)


@pytest.mark.parametrize("verb", ["fit", "train", "evaluate", "test"])
def test_a_loss_beside_a_task_that_nobody_calls_is_said(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    class Own(hl.SupervisedTask):
        def configure_optimizers(self, run: Any) -> Any:
            return sgd(self.parameters())

    getattr(Trainer(max_duration="1ep", folder=False), verb)(Own(TinyModel(), CE), tiny_data(), loss=CE)
    assert "loss= is not used: Own is a task, which computes its own; leave loss= out" in caplog.messages


class Configured(hl.SupervisedTask):
    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize("made", [lambda: Configured(TinyModel(), CE), lambda: hl.SupervisedTask(TinyModel(), CE, sgd)])
def test_an_optimizer_that_takes_the_place_of_the_tasks_own_is_said_once(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task, trainer = made(), Trainer(max_duration="1ep", folder=False)
    trainer.fit(task, tiny_data(), optimizer=torch.optim.AdamW)
    trainer.fit(task, tiny_data(), optimizer=torch.optim.AdamW, extend="1ep")
    said = [message for message in caplog.messages if message.startswith("optimizer= is used")]
    assert said == [
        f"optimizer= is used, and what {type(task).__name__}.configure_optimizers returns is not, schedulers included; "
        f"leave one of the two out"
    ]


def test_an_optimizer_for_a_task_that_has_none_is_what_the_argument_is_for(caplog: pytest.LogCaptureFixture) -> None:
    Trainer(max_duration="1ep", folder=False).fit(hl.SupervisedTask(TinyModel(), CE), tiny_data(), optimizer=sgd)
    assert not any("optimizer=" in message for message in caplog.messages)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("where", ["train", "val"])
def test_a_list_of_loaders_is_not_taken_for_a_list_of_batches(where: str, kind: type) -> None:
    loaders = kind([DataLoader(TensorDataset(*tiny_data(1)[0]), batch_size=4)] * 2)
    what = "training" if where == "train" else "val"
    with pytest.raises(DataError, match=rf"the {what} loader is a {kind.__name__} of loaders.*dict of named ones"):
        train_epoch(**{"train": tiny_data(1), where: loaders})


def test_a_function_may_log_a_monitored_metric_with_and_without_saying_so() -> None:
    def log(run: Any) -> None:
        run.log({"acc": 0.5})

    def train(function: Any) -> hl.Result:
        return train_epoch(hl.EarlyStopping("val/acc"), function, val=tiny_data(1))

    assert train(hl.on("eval_end")(log)).metrics["val/acc"] == 0.5
    assert train(hl.on("eval_end", writes=("val/acc",))(log)).metrics["val/acc"] == 0.5


# -- a batch that does not fit the model -------------------------------------------------------------


X, Y = torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def forward(self, left: Any, right: Any) -> Any:
        return self.net(left, right)  # TinyModel takes one: an error of the model's own


@pytest.mark.parametrize(
    ("batch", "note"),
    [
        (
            {"image": X, "label": Y},
            "the batch is a dict, so that the model is called by its names: TinyModel(image=…), and takes "
            "(x); give the batch the names of the arguments, or write a task (hl.Task), whose "
            "train_batch(run, batch) calls the model as you like",
        ),
        (
            (X, X, Y),
            "the batch is a tuple of 3, so that the model is called with all but the last part: TinyModel(Tensor, "
            "Tensor), and takes (x); give the batch as many inputs as the model takes, and one target, or "
            "write a task (hl.Task), whose train_batch(run, batch) calls the model as you like",
        ),
    ],
)
def test_a_batch_that_does_not_fit_the_model_says_how_it_was_spread(batch: Any, note: str) -> None:
    for verb in ("fit", "evaluate", "predict"):
        options = {"loss": CE, "optimizer": sgd} if verb == "fit" else {"loss": CE} if verb == "evaluate" else {}
        with pytest.raises(TypeError, match="argument") as caught:
            getattr(Trainer(max_duration="1ep", folder=False), verb)(TinyModel(), [batch], **options)
        assert caught.value.__notes__[0] == note


@pytest.mark.parametrize("batch", [(X, Y), X])
def test_too_few_inputs_for_the_model_are_said_too(batch: Any) -> None:
    with pytest.raises(TypeError, match="right") as caught:
        train_epoch(model=Two(), train=[batch])
    assert "Two(Tensor), and takes (left, right);" in caught.value.__notes__[0]


def test_a_mistake_inside_the_model_is_not_blamed_on_the_batch() -> None:
    with pytest.raises(TypeError, match="takes 2 positional arguments") as caught:
        train_epoch(model=Two(), train=[(X, X, Y)])
    assert not any("the batch is" in note for note in caught.value.__notes__)


# -- smaller ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_model_given_as_a_class_says_what_to_write(verb: str) -> None:
    with pytest.raises(SetupError, match=r"^TinyModel is a class, not a model; write TinyModel\(…\)$"):
        getattr(Trainer(max_duration="1ep", folder=False), verb)(TinyModel, tiny_data())


def test_what_is_no_model_at_all_is_named_with_its_article() -> None:
    with pytest.raises(SetupError, match=r"^the model is an int, not a torch\.nn\.Module$"):
        train_epoch(model=3)


def test_a_config_from_argparse_says_how_to_make_a_dict_of_it() -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(config.*\): must be"):
        train_epoch(config=argparse.Namespace(lr=1))
    with pytest.raises(ArgumentError, match=r"^Trainer\(config=3\): must be a dict of hyper-parameters\.$"):
        train_epoch(config=3)


def test_one_of_something_is_told_in_the_singular() -> None:
    result = train_epoch(hl.on("fit_end")(lambda run: None), train=tiny_data(1))
    assert "; 1 step, 1 epoch; " in repr(result)
    assert "ran: 1 step, 1 epoch, 8 samples, " in result.summary()
    assert " ms in 1 call, " in result.summary()


# -- errors of the model and of the loss ---------------------------------------------------------------


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


class Heard(hl.Callback):
    """Hears something inside each step, so that the step is not a plain one."""

    def on_zero_grad(self, run: hl.Run) -> None: ...


@pytest.mark.parametrize("callbacks", [(), (Heard(),)], ids=["plain", "heard"])
@pytest.mark.parametrize("at", [0, 2])
def test_an_error_of_the_model_has_the_shapes_of_its_inputs(at: int, callbacks: tuple[Any, ...]) -> None:
    data = tiny_data(4)
    data[at] = (torch.zeros(8, 5, dtype=torch.float64), data[at][1])
    with pytest.raises(RuntimeError) as caught:
        train_epoch(*callbacks, train=data)
    assert "in TinyModel, called with a tensor of (8, 5) (float64)" in notes_of(caught.value)
    with pytest.raises(RuntimeError) as caught:
        Trainer(folder=False).evaluate(TinyModel(), data, loss=CE)
    assert "in TinyModel, called with a tensor of (8, 5) (float64)" in notes_of(caught.value)


@pytest.mark.parametrize("callbacks", [(), (Heard(),)], ids=["plain", "heard"])
@pytest.mark.parametrize("at", [0, 2])
def test_an_error_of_the_loss_has_the_shapes_of_outputs_and_targets(at: int, callbacks: tuple[Any, ...]) -> None:
    data = tiny_data(4)
    data[at] = (data[at][0], torch.zeros(7, dtype=torch.int32))
    expected = "in CrossEntropyLoss, called with a tensor of (8, 3) (float32) and a tensor of (7,) (int32)"
    with pytest.raises((RuntimeError, ValueError)) as caught:
        train_epoch(*callbacks, train=data)
    assert expected in notes_of(caught.value)
    assert "TinyModel" not in notes_of(caught.value)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        Trainer(folder=False).evaluate(TinyModel(), data, loss=CE)
    assert expected in notes_of(caught.value)


def test_the_inputs_of_a_dict_are_described_by_name() -> None:
    class Named(TinyModel):
        def forward(self, x: torch.Tensor, scale: Any = None) -> torch.Tensor:
            return super().forward(x)

    data = [{"x": torch.zeros(8, 5), "scale": [torch.zeros(2), 3], "label": Y}]
    with pytest.raises(RuntimeError) as caught:
        train_epoch(model=Named(), train=data)
    expected = "in Named, called with x: a tensor of (8, 5) (float32), scale: [a tensor of (2,) (float32), an int]"
    assert expected in notes_of(caught.value)


def test_a_dict_without_a_target_and_a_loss_of_torch_says_which_keys_are_looked_for() -> None:
    data = [{"x": x, "klass": y} for x, y in tiny_data(2)]

    class Named(TinyModel):
        def forward(self, x: torch.Tensor, klass: Any) -> torch.Tensor:
            return super().forward(x)

    with pytest.raises(TypeError) as caught:
        train_epoch(model=Named(), train=data)
    said = notes_of(caught.value)
    assert "the batch is a dict with the keys x, klass" in said
    assert "labels, label, targets, target, y, masks, mask" in said
    assert "loss=lambda outputs, batch:" in said


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("given", [torch, "numpy"])
def test_tensors_in_place_of_a_loader_are_refused(kind: Any, given: Any) -> None:
    x, y = torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)
    pair = kind([x, y] if given is torch else [x.numpy(), y.numpy()])
    told = (
        r"loader is a \w+ of 2 (tensors|arrays), not of batches.*DataLoader\(TensorDataset\(.*x.*y.*\), batch_size=32\)"
    )
    with pytest.raises(DataError, match=f"training {told}"):
        train_epoch(train=pair)
    with pytest.raises(DataError, match=f"val {told}"):
        train_epoch(val=pair)


def test_one_tensor_or_a_path_in_place_of_a_loader_is_refused() -> None:
    x = torch.zeros(64, 4)
    for wrong in (x, x.numpy()):
        with pytest.raises(
            DataError, match=r"training loader is .* of shape \(64, 4\), not of batches: write DataLoader"
        ):
            train_epoch(train=wrong)
    with pytest.raises(DataError, match=r"training loader is 'data/digits'; pass a DataLoader or a list of batches"):
        train_epoch(train="data/digits")


def test_a_list_of_batches_of_inputs_is_a_loader() -> None:
    class Auto(hl.SupervisedTask):
        def compute_loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.square().mean()

    train_epoch(model=Auto(TinyModel(), None, sgd), train=[torch.ones(8, 4), torch.zeros(8, 4)])
    train_epoch(model=Auto(TinyModel(), None, sgd), train=[torch.ones(8, 2, 4), torch.zeros(8, 3, 4)])


class CallsBackward(hl.SupervisedTask):
    """A habit from a bare loop."""

    returns = "the loss"

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        loss = super().train_batch(run, batch)
        loss.backward()
        return {"the loss": loss, "a number": loss.item(), "detached": loss.detach(), "nothing": None}[self.returns]


@pytest.mark.parametrize("returns", ["the loss", "a number", "detached", "nothing"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_backward_inside_train_batch_says_what_to_leave_out(returns: str, accumulate: int) -> None:
    task = CallsBackward(TinyModel(), CE, sgd)
    task.returns = returns
    with pytest.raises(LossError, match=r"loss\.backward\(\)"):
        train_epoch(model=task, accumulate=accumulate)


def test_a_device_that_torch_does_not_know_says_what_to_write() -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(device="):
        train_epoch(device="gpu")


@pytest.mark.parametrize("callback", [hl.Checkpointer("1st"), hl.Freeze("0"), hl.DryRun()], ids=repr)
def test_a_lazy_module_that_was_not_called_is_an_error_that_says_what_to_do(tmp_path: Path, callback: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3))
    with pytest.raises(hl.HooklineError, match=r"0\.weight has no size .* call the model once on a batch") as caught:
        train_epoch(callback, model=model, folder=tmp_path)
    assert isinstance(caught.value.__cause__, ValueError)
    model(tiny_data(1)[0][0])
    train_epoch(callback, model=model, folder=tmp_path / "again")


def test_a_lazy_module_that_nothing_needs_before_its_first_batch_trains(tmp_path: Path) -> None:
    train_epoch(model=nn.LazyLinear(3), folder=tmp_path)
