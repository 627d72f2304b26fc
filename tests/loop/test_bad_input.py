"""What is wrong is an error of Hookline's own, that says what, where and how to fix it, before any step."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.errors import (
    ArgumentError,
    DurationError,
    LossError,
    MetricError,
    NotAvailableError,
    RegistrationError,
    ScopeError,
    SetupError,
)
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd, weights_of, wrong_messages
from tests.support.inside import OPTIONS


def own_loop(model: nn.Module, body: Any) -> None:
    """An own loop whose body is a function of the loop and the batch."""
    with Loop(model, sgd, max_duration="1ep", folder=False) as loop:
        for batch in loop.batches(tiny_data()):
            body(loop, batch)


class Steps(hl.Callback):
    """Counts the steps, to see that an error comes before the first."""

    def __init__(self) -> None:
        self.number = 0

    def on_optimizer_step_start(self, run: hl.Run) -> None:
        self.number += 1


# -- options -----------------------------------------------------------------------------------


UNKNOWN = {
    "max_epochs": "max_duration='3ep'",
    "num_epochs": "max_duration='3ep'",
    "epochs": "max_duration='3ep'",
    "max_steps": "max_duration='3st'",
    "accumulate_grad_batches": "accumulate=3",
    "gradient_accumulation_steps": "accumulate=3",
    "val_check_interval": "eval_every=",
    "log_every_n_steps": "log_every=",
    "accelerator": "device=",
    "default_root_dir": "folder=",
    "max_durations": "Did you mean max_duration?",
    "precison": "Did you mean precision?",
    "eval_evry": "Did you mean eval_every?",
    "zzz": "The options are max_duration",
}


def test_an_unknown_option_has_a_hint() -> None:
    given: dict[str, Any] = {"loss": CE, "optimizer": sgd}
    calls: dict[str, Any] = {
        "Trainer": Trainer,
        "Loop": lambda **option: Loop(TinyModel(), sgd, **option),
        "fit": lambda **option: hl.fit(TinyModel(), tiny_data(), **given, **option),
        "train": lambda **option: hl.train(TinyModel(), tiny_data(), **given, **option),
    }
    rows = [
        ((way, key), partial(call, **{key: 3}), says)
        for way, call in calls.items()
        for key, hint in UNKNOWN.items()
        for says in (key, re.escape(hint))
    ]
    assert wrong_messages(ArgumentError, rows) == []


def test_an_option_that_means_nothing_without_training() -> None:
    says = {
        "max_duration": r"max_duration is an option of fit and train: leave it out",
        "epochs": r"max_duration is an option of fit and train: leave it out",
        "resume": r"resume is an option of fit and train: leave it out",
        "accelerator": r"Write device='cuda'",
        "precison": r"Did you mean precision\?",
        "zzz": r"The options are precision, device",
    }
    rows = [
        ((verb, key), partial(verb, TinyModel(), tiny_data(), **{key: "3"}), text)
        for verb in (hl.evaluate, hl.test, hl.predict)
        for key, text in says.items()
    ]
    assert wrong_messages(ArgumentError, rows) == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Trainer(10), r"^Trainer\(10\): .* by name, for example Trainer\(max_duration='10ep'\)$"),  # type: ignore[call-arg]
        (lambda: hl.fit(TinyModel(), tiny_data(), None, None, CE), r"^fit\(…, Cross.* for example fit\(…, loss="),  # type: ignore[call-arg]
        (lambda: Loop(TinyModel(), sgd, "2ep"), r"^Loop\(…, '2ep'\): Loop takes only model, optimizer by position"),  # type: ignore[call-arg]
    ],
    ids=["Trainer", "fit", "Loop"],
)
def test_an_argument_that_must_be_given_by_name(call: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        call()


def test_a_hint_names_only_options_that_exist() -> None:
    for text in OPTIONS.values():
        named = text.split("=")[0].split()[-1]
        assert named in inspect.signature(Trainer).parameters, text


def test_a_duration_that_cannot_be_read() -> None:
    values = ["10", "10epochz", "5ba", "ep", "-3ep", "0st", "1.5ep", "", 10, 2.5, True, [1], "nanst"]
    rows = [
        ((key, value), partial(Trainer, **{"max_duration": "1ep", key: value}), "ep")
        for key in ("max_duration", "eval_every", "log_every")
        for value in values
    ]
    assert wrong_messages(DurationError, rows) == []


def test_a_unit_of_another_system_has_a_hint() -> None:
    with pytest.raises(DurationError, match="st"):
        Trainer(max_duration="5ba")
    with pytest.raises(DurationError, match=r"'10ep'.*'10st'"):
        Trainer(max_duration=10)  # type: ignore[arg-type]


def test_a_share_needs_the_whole() -> None:
    with pytest.raises(hl.HooklineError, match="max_duration"):
        Trainer(max_duration="0.5dur")
    with pytest.raises(hl.HooklineError, match="max_duration"):
        Trainer(eval_every="0.5dur")


BAD: list[tuple[str, list[Any], str]] = [
    ("accumulate", [0, -2, 2.0, "4", True, None], "accumulate"),
    ("precision", ["fp8", torch.bfloat16, ["bf16"]], "bf16"),
    ("precision", [16, "16-mixed"], "Write precision='fp16'"),
    ("device", ["gpu", "cuda:x", "", 1.5, ["cpu"]], "device"),
    ("name", ["", "a/b/c", "../up", "/", 5], "project/run"),
    ("folder", [True, 5, ["a"], ""], "folder"),
    ("seed", ["abc"], "seed"),
    ("config", [5], "config"),
    ("compile", ["yes"], "compile"),
]


def test_a_bad_option_is_found_when_the_trainer_is_made() -> None:
    rows = [((key, value), partial(Trainer, **{key: value}), word) for key, values, word in BAD for value in values]
    assert wrong_messages(ArgumentError, rows) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", torch.device("cuda")])
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(ArgumentError, match=r"device.*cuda"):
        fit(device=device)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    path, steps = tmp_path / "file", Steps()
    path.write_text("mine")
    with pytest.raises(SetupError, match="folder"):
        fit(steps, folder=path)
    assert steps.number == 0
    assert path.read_text() == "mine"


def test_a_folder_inside_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SetupError, match="folder"):
        fit(folder=tmp_path / "file" / "run")


@pytest.mark.parametrize("callbacks", [Steps(), Steps, 3, None])
def test_callbacks_must_be_a_list_of_them(callbacks: Any) -> None:
    with pytest.raises(hl.HooklineError, match="callbacks"):
        fit(trainer=Trainer(callbacks=callbacks))


@pytest.mark.parametrize("callback", [Steps, "bar", 3, None, TinyModel()], ids=lambda c: type(c).__name__)
def test_what_is_no_callback(callback: Any) -> None:
    with pytest.raises(RegistrationError):
        fit(callback)


# -- how long ------------------------------------------------------------------------------------


def test_no_max_duration() -> None:
    steps = Steps()
    with pytest.raises(SetupError, match="max_duration"):
        fit(steps, max_duration=None)
    assert steps.number == 0


def test_max_duration_is_reached_already() -> None:
    model, steps = TinyModel(), Steps()
    trainer = Trainer(max_duration="1ep", callbacks=[steps], folder=False)
    trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd)
    before = steps.number
    with pytest.raises(SetupError, match=r"(?s)'1ep' is reached already.*extend="):
        trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd)
    assert steps.number == before


@pytest.mark.parametrize("extend", ["2", "0ep", "2ba", 3, "0.5dur"])
def test_extend_by_something_else(extend: Any) -> None:
    with pytest.raises(DurationError):
        Trainer(max_duration="1ep", folder=False).fit(TinyModel(), tiny_data(), loss=CE, optimizer=sgd, extend=extend)


# -- models and tasks -------------------------------------------------------------------------------


def test_what_is_no_model() -> None:
    trainer = Trainer(max_duration="1ep", folder=False)
    calls: dict[str, Any] = {
        "fit": lambda model: trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd),
        "evaluate": lambda model: trainer.evaluate(model, tiny_data(), loss=CE),
        "predict": lambda model: trainer.predict(model, tiny_data()),
        "Loop": lambda model: Loop(model, sgd, folder=False),
    }
    rows = [
        ((verb, model), partial(call, model), "model")
        for verb, call in calls.items()
        for model in (TinyModel, None, "resnet", lambda x: x)
    ]
    assert wrong_messages(SetupError, rows) == []


class Bare(hl.Task[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
        return sgd(self.parameters())


class TrainOnly(Bare):
    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        return cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("call", "method"),
    [
        (lambda: fit(model=Bare()), "train_batch"),
        (lambda: fit(model=TrainOnly(), val=tiny_data()), "eval_batch"),
        (lambda: fit(model=TrainOnly(), test=tiny_data()), "eval_batch"),
        (lambda: Trainer(folder=False).evaluate(TrainOnly(), tiny_data()), "eval_batch"),
        (lambda: Trainer(folder=False).test(TrainOnly(), tiny_data()), "eval_batch"),
        (lambda: Trainer(folder=False).predict(TrainOnly(), tiny_data()), "predict_batch"),
    ],
    ids=["fit", "val", "test", "evaluate", "test()", "predict"],
)
def test_a_method_that_the_task_does_not_have(call: Any, method: str) -> None:
    with pytest.raises(SetupError, match=rf"(Bare|TrainOnly) has no {method}\(run, batch\)"):
        call()


def test_answers_need_the_method() -> None:
    for verb, method in (("evaluate", "eval_batch"), ("predict", "predict_batch")):
        ask = hl.on("train_step_end")(lambda run, verb=verb: getattr(run, verb)(tiny_data()))
        with pytest.raises(SetupError, match=method):
            fit(ask, model=TrainOnly())


def test_an_answer_about_a_loader_that_is_not_there() -> None:
    ask = hl.on("train_step_end")(lambda run: run.evaluate("tset"))
    with pytest.raises(SetupError, match=r"no 'tset' loader.*train, val"):
        fit(ask, val=tiny_data(1))


# -- losses --------------------------------------------------------------------------------------------


class Loses(hl.SupervisedTask):
    """Spoils its loss."""

    def __init__(self, spoil: Any) -> None:
        super().__init__(TinyModel(), CE, sgd)
        self.spoil = spoil

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        return self.spoil(super().train_batch(run, batch))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda loss: loss.item(), r"is a float.*without \.item"),
        (lambda loss: loss.detach().numpy(), "is a ndarray|is a float"),
        (lambda loss: "0.5", "is a str"),
        (lambda loss: loss.expand(3), r"shape \(3,\).*loss\.mean"),
        (lambda loss: loss.expand(2, 2), r"shape \(2, 2\)"),
        (lambda loss: loss[None], r"shape \(1,\)"),
        (lambda loss: loss.detach(), "no gradient.*detached"),
        (lambda loss: torch.tensor(3), "no gradient"),
        (lambda loss: None, r"no backward.*return a loss"),
        (lambda loss: (loss, 3), "is a tuple"),
        (lambda loss: {"loss": loss.item()}, "is a float"),
        (lambda loss: {"loss": None}, "is a NoneType"),
        (lambda loss: {"los": loss}, "loss"),
        (lambda loss: {}, "loss"),
        (lambda loss: {"loss": loss, "wieght": 3}, "wieght"),
        (lambda loss: {"loss": loss, "weight": "3"}, "weight"),
        (lambda loss: {"loss": loss, "weight": torch.ones(2)}, "weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"precision": "fp16"}], ids=str)
def test_what_is_no_loss(spoil: Any, says: str, options: Any) -> None:
    steps = Steps()
    with pytest.raises(hl.HooklineError, match=says):
        fit(steps, model=Loses(spoil), **options)
    assert steps.number == 0


def test_the_error_says_where() -> None:
    class Later(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            loss = super().train_batch(run, batch)
            return loss.item() if run.clock.step == 5 else loss

    with pytest.raises(LossError, match=r"step 5, epoch 1 \(train\)"):
        fit(model=Later(TinyModel(), CE, sgd), train=tiny_data(4))


@pytest.mark.parametrize("loss", [1.5, torch.ones(3, requires_grad=True), torch.ones(()), None], ids=repr)
def test_what_is_no_loss_in_the_own_loop(loss: Any) -> None:
    with pytest.raises(LossError, match=r"loss at step 0, epoch 0 \(train\)"):
        own_loop(TinyModel(), lambda loop, batch: loop.backward(loss))


def test_the_users_own_error_in_backward_arrives_unchanged() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(model=Loses(Breaks.apply))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.MSELoss], ids=lambda loss: loss.__name__)
def test_a_class_in_place_of_a_loss(loss: Any) -> None:
    """Forgotten parentheses: the class would be made anew from outputs and targets."""
    with pytest.raises(hl.HooklineError, match=rf"{loss.__name__}\(\)"):
        fit(loss=loss)


@pytest.mark.parametrize("loss", ["cross_entropy", 3])
def test_what_is_no_loss_function(loss: Any) -> None:
    steps = Steps()
    with pytest.raises(SetupError, match="loss"):
        fit(steps, loss=loss)
    assert steps.number == 0


@pytest.mark.parametrize(
    "found", [{"acc": torch.tensor(1.0)}, {"loss": torch.tensor(1.0), "acc": 0.5}, "0.5", [1.0]], ids=str
)
def test_what_eval_batch_may_not_return(found: Any) -> None:
    """A metric that is returned and not logged would vanish in silence."""

    class Returns(hl.SupervisedTask):
        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            return found

    steps = Steps()
    with pytest.raises(hl.HooklineError, match=r"acc|loss"):
        fit(steps, model=Returns(TinyModel(), CE, sgd), val=tiny_data())
    assert steps.number == 0


def test_eval_batch_may_return_nothing() -> None:
    class Silent(hl.SupervisedTask):
        def eval_batch(self, run: hl.Run, batch: Any) -> None:
            run.log({"x": 1.0})

    result = fit(model=Silent(TinyModel(), CE, sgd), val=tiny_data())
    assert "val/loss" not in result.history
    assert result.history["val/x"] == [1.0, 1.0]


@pytest.mark.parametrize("counted", [None, 8, (8,)], ids=repr)
def test_what_count_may_not_return(counted: Any) -> None:
    class Counts(hl.SupervisedTask):
        def count(self, batch: Any) -> Any:
            return counted

    steps = Steps()
    with pytest.raises(hl.HooklineError, match="count"):
        fit(steps, model=Counts(TinyModel(), CE, sgd))
    assert steps.number == 0


# -- verbs at the wrong time -------------------------------------------------------------------------------


def at(event: str, act: Any) -> Any:
    return hl.on(event, once=True)(act)


def test_request_eval_without_a_validation_loader() -> None:
    with pytest.raises(SetupError, match=r"request_eval.*validation loader"):
        fit(at("train_step_end", lambda run: run.request_eval()))


def test_request_save_where_nothing_saves() -> None:
    with pytest.raises(SetupError, match="request_save"):
        fit(at("train_step_end", lambda run: run.request_save()))


@pytest.mark.parametrize(
    "event",
    [
        *("setup", "fit_start", "train_start", "train_epoch_start", "batch_fetch_start"),
        *("optimizer_step_start", "optimizer_step_end", "scheduler_step", "zero_grad"),
        *("train_step_end", "step_settled", "eval_start", "eval_batch_end", "epoch_end", "train_end", "fit_end"),
    ],
)
def test_skip_step_at_the_wrong_time(event: str) -> None:
    class Scheduled(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            optimizer = sgd(self.parameters())
            return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    with pytest.raises(ScopeError, match="skip_step"):
        fit(at(event, lambda run: run.skip_step()), model=Scheduled(TinyModel(), CE), val=tiny_data(1))


@pytest.mark.parametrize(
    "event",
    ["train_step_start", "train_batch_start", "forward_end", "loss_ready", "backward_end", "gradients_ready"],
)
def test_skip_step_at_the_right_time(event: str) -> None:
    model, kept = TinyModel(), []
    keep = hl.on("step_skipped")(lambda run: kept.append(run.clock.step))
    result = fit(at(event, lambda run: run.skip_step()), keep, model=model, train=tiny_data(1), max_duration="1ep")
    assert kept == [0]
    assert (result.clock.step, result.clock.batch, result.clock.updates) == (0, 1, {"SGD": 0})
    assert same_tensors(weights_of(model), weights_of(TinyModel()))


@pytest.mark.parametrize("event", ["train_step_ends", "nope", "on_train_step_end"])
def test_emit_of_an_unknown_event(event: str) -> None:
    with pytest.raises(RegistrationError, match=rf"run\.emit\('{event}'\): no such event"):
        fit(at("train_step_end", lambda run: run.emit(event)))


def test_emit_with_another_payload() -> None:
    class Emits(hl.Callback):
        events = (hl.Event("verify", gives=("x", "y")),)

        def on_train_step_end(self, run: hl.Run) -> None:
            run.emit("verify", x=1)

    with pytest.raises(RegistrationError, match=r"verify.*gives"):
        fit(Emits())


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ("fit_start", "batch"),
        ("train_step_start", "loss"),
        ("train_batch_start", "outputs"),
        ("train_step_end", "optimizer"),
        ("train_step_end", "loader_name"),
        ("train_step_end", "stop_reason"),
        ("train_step_end", "exception"),
        ("train_step_end", "checkpoint"),
        ("eval_start", "batch"),
        ("train_end", "loss"),
    ],
)
def test_a_field_that_has_no_value_now(event: str, field: str) -> None:
    with pytest.raises(NotAvailableError, match=rf"run\.{field} has no value now.*on_"):
        fit(at(event, lambda run: getattr(run, field)), val=tiny_data(1), max_duration="1ep")


def test_a_monitor_that_nobody_feeds() -> None:
    steps = Steps()
    with pytest.raises(MetricError, match=r"val/f1.*val/loss"):
        fit(hl.EarlyStopping("val/f1"), steps, val=tiny_data(1))
    assert steps.number == 0


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda loop: loop.batches(tiny_data()), "not open"),
        (lambda loop: loop.eval_batches(tiny_data()), "not open"),
        (lambda loop: loop.predict_batches(tiny_data()), "not open"),
        (lambda loop: loop.backward(torch.ones(())), "batch"),
        (lambda loop: loop.step(), "batch"),
    ],
    ids=["batches", "eval_batches", "predict_batches", "backward", "step"],
)
def test_a_loop_that_is_not_open(use: Any, says: str) -> None:
    with pytest.raises(ScopeError, match=says):
        use(Loop(TinyModel(), sgd, max_duration="1ep", folder=False))


def test_step_twice_on_one_batch() -> None:
    model = TinyModel()

    def body(loop: Loop, batch: Any) -> None:
        loop.backward(cross_entropy(model(batch[0]), batch[1]))
        loop.step()
        loop.step()

    with pytest.raises(ScopeError, match=r"loop\.step\(\)"):
        own_loop(model, body)


def test_backward_after_step() -> None:
    model = TinyModel()

    def body(loop: Loop, batch: Any) -> None:
        for _ in range(2):
            loop.backward(cross_entropy(model(batch[0]), batch[1]))
            loop.step()

    with pytest.raises(ScopeError, match=r"before loop\.step"):
        own_loop(model, body)


def test_a_batch_without_backward_in_the_own_loop() -> None:
    with pytest.raises(LossError, match=r"no backward.*loop\.backward"):
        own_loop(TinyModel(), lambda loop, batch: loop.step())


def test_a_loop_in_a_loop() -> None:
    loop = Loop(TinyModel(), sgd, max_duration="1ep", folder=False)
    with loop, pytest.raises(ScopeError, match="open already"), loop:
        pass


def test_an_error_in_the_arguments_leaves_the_trainer_usable() -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder=False)
    with pytest.raises(SetupError):
        trainer.fit(model, tiny_data(), loss=CE)
    with pytest.raises(hl.HooklineError):
        trainer.fit(model, [], loss=CE, optimizer=sgd)
    assert trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd).clock.step == 4
    assert model.training
