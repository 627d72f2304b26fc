"""Scopes in real runs: what an ``around_*`` generator has changed is put back on every way out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import ScopeError, StopTraining
from hookline.loop import Loop, Task, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import literal, press_ctrl_c, weights_of

Action = Callable[[Any], object]


class BoomError(Exception):
    """The user's own."""


class TinyTask(Task[Any]):
    """A task whose methods can be made to fail."""

    def __init__(self, in_train: Action | None = None, in_eval: Action | None = None) -> None:
        super().__init__()
        self.net = TinyModel()
        self.in_train, self.in_eval = in_train, in_eval

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        if self.in_train:
            self.in_train(run)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        if self.in_eval:
            self.in_eval(run)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def predict_batch(self, run: Any, batch: Any) -> Any:
        return self.net(batch[0])


class At(hl.Callback):
    """Does something at some events."""

    def __init__(self, **actions: Action) -> None:
        self.actions = actions

    def on_event(self, event: str, run: Any) -> None:
        if event in self.actions:
            self.actions[event](run)


SCOPES = ("fit", "train", "epoch", "step", "batch", "eval", "predict")


def _around(name: str) -> Callable[[Any, Any], Iterator[None]]:
    def around(self: Any, run: Any) -> Iterator[None]:
        self.note(f"+{self.tag}{name}")
        if name in self.fails_before:
            raise BoomError(f"entering {name}")
        yield
        self.note(f"-{self.tag}{name}")
        if name in self.fails_after:
            raise BoomError(f"leaving {name}")

    return around


class Wrapper(hl.Callback):
    """Every scope there is, or some, noted in a log that may be shared; some fail."""

    def __init__(
        self,
        log: list[str],
        tag: str = "",
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        scopes: tuple[str, ...] = SCOPES,
    ) -> None:
        self.log, self.tag, self.fails_before, self.fails_after = log, tag, before, after
        for name in scopes:
            setattr(self, f"around_{name}", MethodType(_around(name), self))

    def note(self, text: str) -> None:
        self.log.append(text)


class Events(hl.Callback):
    """Notes every event in a log that may be shared."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_event(self, event: str, run: Any) -> None:
        self.log.append(event)


class Zeros(hl.Callback):
    """Evaluates with weights of zeros; what it swaps must come back."""

    writes = ("weights",)

    def __init__(self, scope: str = "eval") -> None:
        self.entered = self.left = 0
        setattr(self, f"around_{scope}", self._swap)

    def _swap(self, run: Any) -> Iterator[None]:
        zeros = {name: torch.zeros_like(parameter) for name, parameter in run.model.named_parameters()}
        with run.swap_weights(zeros):
            self.entered += 1
            yield
            self.left += 1


class Weights(hl.Callback):
    """The weights after the last update."""

    def __init__(self) -> None:
        self.last: list[torch.Tensor] = []

    def on_setup(self, run: Any) -> None:
        self.last = weights_of(run.model)

    on_optimizer_step_end = on_setup


def fail(error: BaseException) -> Action:
    def action(run: Any) -> None:
        raise error

    return action


def once_at(step: int, action: Action) -> Action:
    return lambda run: action(run) if run.clock.step == step else None


def press_twice(run: Any) -> None:
    press_ctrl_c()
    press_ctrl_c()


@pytest.fixture
def fresh_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# -- pairs and nesting -------------------------------------------------------------------------------


def test_scopes_are_entered_before_the_start_hooks_and_left_after_the_end_hooks() -> None:
    log: list[str] = []
    trainer = Trainer(callbacks=[Wrapper(log), Events(log)], folder=False, max_duration="1ep", accumulate=2)
    task = TinyTask()
    trainer.fit(task, tiny_data(3), tiny_data(1), tiny_data(1))
    batch = """
        +batch train_batch_start loss_ready backward_start backward_end train_batch_end -batch
    """
    update = "gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end -step"
    fetch = "batch_fetch_start batch_fetch_end"
    evaluation = f"""
        +eval eval_start eval_loader_start {fetch} eval_batch_start eval_batch_end eval_loader_end eval_end -eval
    """
    assert log == literal(f"""
        setup model_ready +fit fit_start sanity_check_start sanity_check_end
        +train train_start
        +epoch train_epoch_start
        {fetch} +step train_step_start {batch} {fetch} {batch} {update} step_settled
        {fetch} +step train_step_start {batch} {update}
        metrics_ready train_epoch_end
        {evaluation}
        epoch_end -epoch
        step_settled train_end -train
        {evaluation}
        fit_end -fit teardown
    """)


def test_scopes_of_evaluate_and_predict() -> None:
    log: list[str] = []
    trainer = Trainer(callbacks=[Wrapper(log), Events(log)], folder=False)
    task = TinyTask()
    trainer.evaluate(task, tiny_data(1))
    trainer.predict(task, tiny_data(1))
    fetch = "batch_fetch_start batch_fetch_end"
    assert log == literal(f"""
        setup model_ready
        +eval eval_start eval_loader_start {fetch} eval_batch_start eval_batch_end eval_loader_end eval_end -eval
        teardown
        setup model_ready
        +predict predict_start {fetch} predict_batch_start predict_batch_end predict_end -predict
        teardown
    """)


def test_scopes_of_several_callbacks_are_left_last_in_first_out() -> None:
    log: list[str] = []
    first, second = Wrapper(log, "1-"), Wrapper(log, "2-")
    second.name = "second"
    Trainer(callbacks=[first, second], folder=False, max_duration="1st").fit(TinyTask(), tiny_data(2))
    assert log == literal("""
        +1-fit +2-fit +1-train +2-train +1-epoch +2-epoch
        +1-step +2-step +1-batch +2-batch -2-batch -1-batch -2-step -1-step
        -2-epoch -1-epoch -2-train -1-train -2-fit -1-fit
    """)


def test_a_scope_that_swaps_weights_is_outermost_so_that_others_see_the_swapped_ones() -> None:
    seen: list[bool] = []

    class Look(hl.Callback):
        def around_eval(self, run: Any) -> Iterator[None]:
            seen.append(not any(parameter.any() for parameter in run.model.parameters()))
            yield
            seen.append(not any(parameter.any() for parameter in run.model.parameters()))

    Trainer(callbacks=[Look(), Zeros()], folder=False, max_duration="1ep").fit(TinyTask(), tiny_data(1), tiny_data(1))
    assert seen == [True, True]


def test_the_evaluation_uses_the_swapped_weights_and_training_the_raw_ones() -> None:
    plain, swapped = TinyTask(), TinyTask()
    Trainer(folder=False, max_duration="2ep").fit(plain, tiny_data(2), tiny_data(1))
    zeros = Zeros()
    result = Trainer(callbacks=[zeros], folder=False, max_duration="2ep").fit(swapped, tiny_data(2), tiny_data(1))
    assert result.history["val/loss"] == pytest.approx([torch.tensor(3.0).log().item()] * 2)
    assert (zeros.entered, zeros.left) == (2, 2)
    for mine, theirs in zip(plain.parameters(), swapped.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_sanity_check_enters_no_scope() -> None:
    log: list[str] = []
    trainer = Trainer(callbacks=[Wrapper(log)], folder=False, max_duration="1st", eval_every=None)
    trainer.fit(TinyTask(), tiny_data(2), tiny_data(2))
    assert "+eval" not in log


def test_a_metric_logged_after_the_yield_is_there_for_the_end_hooks_around_it() -> None:
    found: list[Any] = []

    class Timer(hl.Callback):
        writes = ("val/seconds", "train/epoch_seconds")

        def around_eval(self, run: Any) -> Iterator[None]:
            yield
            run.log({"val/seconds": 1.5})

        def around_epoch(self, run: Any) -> Iterator[None]:
            yield
            run.log({"train/epoch_seconds": 2.5})

    reader = At(
        epoch_end=lambda run: found.append(run.metrics["val/seconds"]),
        train_end=lambda run: found.append(run.metrics["train/epoch_seconds"]),
    )
    trainer = Trainer(callbacks=[reader, Timer()], folder=False, max_duration="1ep")
    result = trainer.fit(TinyTask(), tiny_data(2), tiny_data(1))
    assert found == [1.5, 2.5]
    assert result.history["val/seconds"] == [1.5]
    assert result.history["train/epoch_seconds"] == [2.5]


def test_a_callback_that_is_removed_inside_its_scope_still_leaves_it() -> None:
    log: list[str] = []
    wrapper = Wrapper(log)
    at = At(eval_start=lambda run: run.callbacks.remove(wrapper))
    trainer = Trainer(callbacks=[at, wrapper], folder=False, max_duration="1ep")
    trainer.fit(TinyTask(), tiny_data(1), tiny_data(1))
    assert log[-5:] == ["+eval", "-eval", "-epoch", "-train", "-fit"]


def test_a_generator_that_yields_twice_or_never_is_an_error_with_its_name() -> None:
    class Twice(hl.Callback):
        def around_eval(self, run: Any) -> Iterator[None]:
            yield
            yield

    class Never(hl.Callback):
        def around_eval(self, run: Any) -> Iterator[None]:
            if run is None:
                yield

    for callback, message in ((Twice(), r"Twice\.around_eval yielded twice"), (Never(), r"Never.*did not yield")):
        with pytest.raises(ScopeError, match=message):
            Trainer(callbacks=[callback], folder=False, max_duration="1ep").fit(TinyTask(), tiny_data(1), tiny_data(1))


# -- the ways out ------------------------------------------------------------------------------------


def wrapper(before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Wrapper:
    return Wrapper([], before=before, after=after)


def ways() -> dict[str, Callable[[], dict[str, Any]]]:
    """Each way out of a run that evaluates at steps 2 and 4: a task and a callback that cause it."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "the end": dict,
        "stop in the step": lambda: {"callback": At(train_step_end=lambda run: run.stop("enough"))},
        "stop in the evaluation": lambda: {"callback": At(eval_batch_end=lambda run: run.stop("enough"))},
        "stop at its end": lambda: {"callback": At(eval_end=lambda run: run.stop("enough"))},
        "StopTraining in train_batch": lambda: {"task": TinyTask(in_train=once_at(3, fail(StopTraining())))},
        "StopTraining in eval_batch": lambda: {"task": TinyTask(in_eval=once_at(2, fail(StopTraining())))},
        "StopTraining in a hook": lambda: {"callback": At(eval_batch_end=fail(StopTraining()))},
        "error in train_batch": lambda: {"task": TinyTask(in_train=once_at(3, fail(BoomError())))},
        "error in eval_batch": lambda: {"task": TinyTask(in_eval=once_at(2, fail(BoomError())))},
        "interrupt in the step": lambda: {"callback": At(train_step_end=once_at(3, press_ctrl_c))},
        "interrupt in the evaluation": lambda: {"callback": At(eval_start=once_at(2, press_ctrl_c))},
        "two interrupts in the evaluation": lambda: {"callback": At(eval_batch_end=press_twice)},
        "SystemExit in the evaluation": lambda: {"callback": At(eval_batch_end=fail(SystemExit(1)))},
    }
    for event in (
        "train_step_end", "eval_start", "eval_loader_start", "batch_fetch_end", "eval_batch_start", "eval_batch_end",
        "eval_loader_end", "eval_end", "epoch_end", "step_settled", "train_end", "fit_end", "teardown",
    ):  # fmt: skip
        found[f"error in on_{event}"] = lambda event=event: {"callback": At(**{event: once_at(2, fail(BoomError()))})}
    for scope in ("eval", "step", "epoch", "train", "fit"):
        found[f"error when entering another {scope}"] = lambda scope=scope: {"callback": wrapper(before=(scope,))}
        found[f"error when leaving another {scope}"] = lambda scope=scope: {"callback": wrapper(after=(scope,))}
    return found


WAYS = ways()


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", WAYS)
def test_swapped_weights_come_back_on_every_way_out(way: str) -> None:
    arguments = {"task": TinyTask(), "callback": At(), **WAYS[way]()}
    zeros, weights = Zeros(), Weights()
    task = arguments["task"]
    options: dict[str, Any] = {"max_duration": "4st", "eval_every": "2st", "folder": False}
    trainer = Trainer(callbacks=[arguments["callback"], zeros, weights], **options)
    held = [parameter.data_ptr() for parameter in task.parameters()]
    caught: BaseException | None = None
    try:
        trainer.fit(task, tiny_data(3), tiny_data(2))
    except BaseException as error:
        caught = error  # keeps the frames of the run alive, as a debugger does
    assert zeros.entered == zeros.left
    assert [parameter.data_ptr() for parameter in task.parameters()] == held
    for parameter, last in zip(task.parameters(), weights.last, strict=True):
        assert torch.equal(parameter, last)
    del caught


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", WAYS)
def test_every_scope_that_was_entered_is_left_once_in_reverse_order(way: str) -> None:
    log: list[str] = []
    arguments = {"task": TinyTask(), "callback": At(), **WAYS[way]()}
    watcher = Wrapper(log)
    watcher.name = "watcher"
    trainer = Trainer(callbacks=[watcher, arguments["callback"]], max_duration="4st", eval_every="2st", folder=False)
    with suppress(BoomError, SystemExit, KeyboardInterrupt):
        trainer.fit(arguments["task"], tiny_data(3), tiny_data(2))
    open_: list[str] = []
    for entry in log:
        if entry.startswith("+"):
            open_.append(entry[1:])
        else:
            assert open_.pop() == entry[1:]
    assert open_ == []


def test_stop_training_in_train_batch_leaves_the_scopes_of_the_batch_and_the_step_at_once() -> None:
    """An autocast, a timer or swapped weights around the batch must not reach into the last evaluation."""
    for parts in (("step", "batch"), ("batch",), ("step",)):
        log: list[str] = []
        wrapper = Wrapper(log, scopes=parts)
        task = TinyTask(in_train=once_at(1, fail(StopTraining())))
        trainer = Trainer(callbacks=[wrapper, Events(log)], folder=False, max_duration="1ep")
        trainer.fit(task, tiny_data(2), tiny_data(1))
        after = log[log.index("step_settled") + 1 :]
        left = [entry for entry in after[: after.index("eval_start")] if entry.startswith("-")]
        assert left == [f"-{name}" for name in ("batch", "step") if name in parts]


def test_the_scopes_of_a_failed_fit_do_not_reach_into_the_next() -> None:
    """A stale mark would leave the scopes of the next run in its first step."""
    task = TinyTask(in_train=fail(BoomError()))
    trainer = Trainer(folder=False, max_duration="1ep")
    for _ in range(2):
        with pytest.raises(BoomError):
            trainer.fit(task, tiny_data(2), callbacks=[Wrapper([])])
    task.in_train = None
    log: list[str] = []
    wrapper = Wrapper(log, scopes=("fit", "train", "epoch"))
    trainer.fit(task, tiny_data(2), callbacks=[wrapper, Events(log)])
    assert log[-6:] == literal("step_settled train_end -train fit_end -fit teardown")


def test_all_scopes_are_left_even_if_some_fail_and_the_first_error_is_raised() -> None:
    log: list[str] = []
    wrapper = Wrapper(log, after=("eval", "epoch", "fit"))
    with pytest.raises(BoomError, match="leaving eval") as caught:
        Trainer(callbacks=[wrapper], folder=False, max_duration="1ep").fit(TinyTask(), tiny_data(1), tiny_data(1))
    assert log[-4:] == ["-eval", "-epoch", "-train", "-fit"]
    first, *later = caught.value.__notes__
    assert first.startswith("in Wrapper.around_eval at step 1")
    for note, scope in zip(later, ("epoch", "fit"), strict=True):
        assert f"Wrapper.around_{scope}" in note
        assert f"BoomError: leaving {scope}" in note


def test_an_error_in_leaving_a_scope_is_a_note_on_the_error_that_came_first() -> None:
    error = BoomError("mine")
    at, wrapper = At(eval_batch_end=fail(error)), Wrapper([], after=("eval",))
    with pytest.raises(BoomError) as caught:
        Trainer(callbacks=[at, wrapper], folder=False, max_duration="1ep").fit(TinyTask(), tiny_data(1), tiny_data(1))
    assert caught.value is error
    assert any("Wrapper.around_eval" in note and "leaving eval" in note for note in error.__notes__)


def test_an_error_in_leaving_a_scope_names_its_callback_also_when_train_batch_failed() -> None:
    error = BoomError("mine")
    task = TinyTask(in_train=fail(error))
    with pytest.raises(BoomError):
        Trainer(callbacks=[Wrapper([], after=("train",))], folder=False, max_duration="1ep").fit(task, tiny_data(1))
    assert any("Wrapper.around_train" in note and "leaving train" in note for note in error.__notes__)


# -- swapping ----------------------------------------------------------------------------------------


def test_break_and_exceptions_in_an_own_evaluation_put_the_weights_back() -> None:
    for way in ("break", "error", "stop"):
        model, zeros, weights = TinyModel(), Zeros(), Weights()
        loop = Loop(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            callbacks=[zeros, weights],
            max_duration="1ep",
            folder=False,
        )
        try:
            with loop:
                for x, y in loop.batches(tiny_data(1)):
                    loop.backward(nn.functional.cross_entropy(model(x), y))
                    loop.step()
                    for _ in loop.eval_batches(tiny_data(2)):
                        assert not any(parameter.any() for parameter in model.parameters())
                        if way == "break":
                            break
                        raise BoomError if way == "error" else StopTraining
                    assert torch.equal(model.out.weight, weights.last[2])
        except BoomError:
            assert way == "error"
        assert (zeros.entered, zeros.left) == (1, 1)
        for parameter, last in zip(model.parameters(), weights.last, strict=True):
            assert torch.equal(parameter, last)


@pytest.mark.parametrize("scope", ["step", "batch", "epoch", "train", "fit"])
def test_an_update_while_weights_are_swapped_is_an_error_and_they_come_back(scope: str) -> None:
    zeros, weights, task = Zeros(scope), Weights(), TinyTask()
    trainer = Trainer(callbacks=[zeros, weights], folder=False, max_duration="1ep")
    if scope == "batch":  # forward and backward with other weights, the update with the raw ones
        trainer.fit(task, tiny_data(2))
        assert (zeros.entered, zeros.left) == (2, 2)
    else:
        with pytest.raises(ScopeError, match="swap_weights is open"):
            trainer.fit(task, tiny_data(2))
        assert (zeros.entered, zeros.left) == (1, 1)
    for parameter, last in zip(task.parameters(), weights.last, strict=True):
        assert torch.equal(parameter, last)


def test_a_swap_in_predict() -> None:
    zeros, task = Zeros("predict"), TinyTask()
    found = Trainer(callbacks=[zeros], folder=False).predict(task, tiny_data(2))
    assert not found.any()
    assert (zeros.entered, zeros.left) == (1, 1)
    assert any(parameter.any() for parameter in task.parameters())


@pytest.mark.parametrize("entry", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("way", ["error between", "never closed", "closed too late"])
def test_a_swap_that_is_left_open_is_put_back_when_the_run_ends_and_said(
    way: str, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hooks in place of one generator: the run would return the swapped weights, and the raw ones are lost."""

    class Pair(hl.Callback):
        writes = ("weights",)

        def on_eval_start(self, run: Any) -> None:
            zeros = {name: torch.zeros_like(parameter) for name, parameter in run.model.named_parameters()}
            self.swap = run.swap_weights(zeros)
            self.swap.__enter__()

        def on_eval_end(self, run: Any) -> None:
            if way == "error between":
                self.swap.__exit__(None, None, None)

        on_predict_start, on_predict_end = on_eval_start, on_eval_end

        def on_forward_end(self, run: Any) -> None:
            if way == "error between" and run.stage != "train":
                raise BoomError

    model, weights, pair = TinyModel(), Weights(), Pair()
    trainer = Trainer(callbacks=[pair, weights], folder=False, max_duration="1ep")
    rest = {"loss": nn.CrossEntropyLoss()} if entry != "predict" else {}
    rest |= {"optimizer": torch.optim.SGD} if entry == "fit" else {}
    loaders = [tiny_data(2), tiny_data(1)][-2 if entry == "fit" else -1 :]
    with pytest.raises(BoomError) if way == "error between" else nullcontext():
        getattr(trainer, entry)(model, *loaders, **rest)
    if way == "closed too late":
        pair.swap.__exit__(None, None, None)
    assert caplog.text.count("run.swap_weights was left open, and the run has ended") == 1
    assert any(parameter.any() for parameter in model.parameters())
    for parameter, last in zip(model.parameters(), weights.last, strict=True):
        assert torch.equal(parameter, last)


def test_answers_inside_and_outside_of_a_swap_are_not_mixed_up() -> None:
    found: list[bool] = []

    def ask(run: Any) -> None:
        found.append(bool(run.predict("val").any()))

    at = At(train_step_end=ask, eval_end=ask, epoch_end=ask)
    trainer = Trainer(callbacks=[at, Zeros()], folder=False, max_duration="1ep")
    trainer.fit(TinyTask(), tiny_data(1), tiny_data(1))
    assert found == [True, False, True]


def test_swaps_nest_and_come_back_in_reverse_order() -> None:
    task = TinyTask()
    seen: list[float] = []

    def nest(run: Any) -> None:
        weight = next(iter(dict(run.model.named_parameters())))
        parameter = dict(run.model.named_parameters())[weight]
        raw = parameter.detach().clone()
        with run.swap_weights({weight: torch.full_like(parameter, 1.0)}):
            with run.swap_weights({weight: torch.full_like(parameter, 2.0)}):
                seen.append(parameter.mean().item())
            seen.append(parameter.mean().item())
        seen.append(float(torch.equal(parameter, raw)))

    Trainer(callbacks=[At(train_step_end=nest)], folder=False, max_duration="1st").fit(task, tiny_data(2))
    assert seen == [2.0, 1.0, 1.0]
