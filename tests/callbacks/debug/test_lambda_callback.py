"""``LambdaCallback``: hooks given as functions, with the same checks as those of a class."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.callbacks import LambdaCallback
from hookline.errors import ArgumentError, RegistrationError
from hookline.events import EVENTS, SCOPES
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit

fit_two_steps = partial(fit, train=tiny_data(2), val=tiny_data(1), max_duration="1ep")


def test_each_function_is_called_with_run_at_its_event() -> None:
    seen: list[tuple[str, int]] = []
    fit_two_steps(
        LambdaCallback(
            on_train_start=lambda run: seen.append(("start", run.clock.step)),
            on_train_step_end=lambda run: seen.append(("step", run.clock.step)),
            on_eval_end=lambda run: seen.append(("eval", run.clock.step)),
        )
    )
    assert seen == [("start", 0), ("step", 1), ("step", 2), ("eval", 2)]


def test_a_function_with_hl_on_is_called_at_its_event_as_often_as_it_says() -> None:
    seen: list[tuple[str, int]] = []

    @hl.on("train_step_end", every="2st")
    def often(run: hl.Run) -> None:
        seen.append(("every", run.clock.step))

    @hl.on("train_step_end", at="3st")
    def late(run: hl.Run) -> None:
        seen.append(("at", run.clock.step))

    @hl.on("train_step_end", once=True)
    def first(run: hl.Run) -> None:
        seen.append(("once", run.clock.step))

    @hl.on("eval_end", stage="test")
    def tested(run: hl.Run) -> None:
        seen.append((run.stage, run.clock.step))

    fit(often, late, first, tested, train=tiny_data(4), val=tiny_data(1), test=tiny_data(1), max_duration="1ep")
    assert seen == [("once", 1), ("every", 2), ("at", 3), ("every", 4), ("test", 4)]


def test_every_event_and_every_scope_can_be_given() -> None:
    def around(run: Any) -> Iterator[None]:
        yield

    hooks: dict[str, Any] = {event.hook: lambda run: None for event in EVENTS}
    hooks |= {scope.hook: around for scope in SCOPES}
    assert fit_two_steps(LambdaCallback(**hooks)).clock.step == 2


def test_on_event_hears_every_event() -> None:
    seen: list[str] = []
    fit_two_steps(LambdaCallback(on_event=lambda event, run: seen.append(event)))
    assert (seen[0], seen[-1]) == ("setup", "teardown")


def test_a_scope_is_a_generator() -> None:
    seen: list[str] = []

    def around(run: Any) -> Iterator[None]:
        seen.append("before")
        yield
        seen.append("after")

    fit_two_steps(LambdaCallback(around_eval=around, on_eval_start=lambda run: seen.append("start")))
    assert seen == ["before", "start", "after"]


def test_a_custom_event_of_a_task_can_be_given() -> None:
    class Emitting(hl.SupervisedTask):
        events = (hl.Event("verify", gives=("size",)),)

        def train_batch(self, run: Any, batch: Any) -> Any:
            run.emit("verify", size=len(batch[0]))
            return super().train_batch(run, batch)

    sizes: list[int] = []
    callback = LambdaCallback(on_verify=lambda run, size: sizes.append(size))
    fit_two_steps(callback, model=Emitting(TinyModel(), CE, torch.optim.SGD), val=None)
    assert sizes == [8, 8]


def test_it_may_stop_the_run_and_is_named_as_the_one_who_did() -> None:
    result = fit_two_steps(LambdaCallback(name="guard", on_train_step_end=lambda run: run.stop("enough")))
    assert (result.stop_reason, result.stopped_by, result.clock.step) == ("enough", "guard", 1)


def test_an_error_in_a_function_is_required_and_named() -> None:
    def boom(run: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        fit_two_steps(LambdaCallback(name="fragile", on_train_step_end=boom))
    assert caught.value.__notes__ == ["in fragile.on_train_step_end at step 1, epoch 0 (train)"]


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("on_train_stepend", r"on_train_stepend: no such event; did you mean on_train_step_end\?"),
        ("on_validation_end", r"Lightning's on_validation_end is on_eval_end here"),
        ("around_evaluation", r"around_evaluation: no such scope; did you mean around_eval\?"),
        ("on_nothing_at_all_like_it", r"no such event; `hookline events` lists them"),
    ],
)
def test_a_misspelt_hook_is_an_error_when_it_is_registered(hook: str, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        fit_two_steps(LambdaCallback(**{hook: lambda run: None}))


@pytest.mark.parametrize("hook", ["train_start", "fit", "before_train", "_on_train_start"])
def test_a_name_without_the_prefix_is_an_error_at_once(hook: str) -> None:
    with pytest.raises(ArgumentError, match=rf"LambdaCallback\({hook}=…\): is not a hook"):
        LambdaCallback(**{hook: lambda run: None})


@pytest.mark.parametrize("value", [None, 3, "print", [print]])
def test_what_cannot_be_called_is_an_error_at_once(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"LambdaCallback\(on_train_start.*\): must be"):
        LambdaCallback(on_train_start=value)


@pytest.mark.parametrize("function", [lambda: None, lambda run, batch: None, lambda *, run: None])
def test_a_function_of_another_arity_is_an_error_when_it_is_registered(function: Any) -> None:
    with pytest.raises(RegistrationError, match=r"on_train_start takes .* and is called with \(run\)"):
        fit_two_steps(LambdaCallback(on_train_start=function))


def test_a_scope_that_is_no_generator_is_an_error_when_it_is_registered() -> None:
    with pytest.raises(RegistrationError, match="must be a generator with one yield"):
        fit_two_steps(LambdaCallback(around_eval=lambda run: None))


def test_two_of_them_need_no_names() -> None:
    first, second = (LambdaCallback(on_train_start=lambda run: None) for _ in range(2))
    assert fit_two_steps(first, second).clock.step == 2
    one, two = (LambdaCallback(name=name, on_train_start=lambda run: None) for name in ("one", "two"))
    assert fit_two_steps(one, two).clock.step == 2


def test_any_callable_will_do() -> None:
    class Counter:
        count = 0

        def __call__(self, run: Any) -> None:
            self.count += 1

        def method(self, run: Any) -> None:
            self.count += 10

    counter = Counter()
    fit_two_steps(LambdaCallback(on_train_step_end=counter, on_epoch_end=counter.method))
    assert counter.count == 12


def test_the_positional_call_of_a_function_is_refused() -> None:
    with pytest.raises(TypeError):
        LambdaCallback(lambda run: None)  # type: ignore[misc]
