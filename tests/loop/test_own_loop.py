"""The own loop: the same events as the trainer's, and nothing lost when the body is left in the middle."""

# ruff: noqa: PT012 (it is the body of a loop that raises, and leaves the loop, here)

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import HooklineWarning, LossError, ScopeError, SetupError, StopTraining
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import literal

cross_entropy = nn.functional.cross_entropy


class Recorder(hl.Callback):
    """Notes every event, and does something at some of them."""

    def __init__(self, **actions: Callable[[Any], object]) -> None:
        self.seen: list[str] = []
        self.actions = actions

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)
        if event in self.actions:
            self.actions[event](run)


class Scopes(hl.Callback):
    """Notes when its scopes are entered and left, among the events; some may fail when they are left."""

    def __init__(self, *fragile: str) -> None:
        self.seen: list[str] = []
        self.fragile = fragile

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)

    def _around(self, name: str) -> Iterator[None]:
        self.seen.append(f"+{name}")
        yield
        self.seen.append(f"-{name}")
        if name in self.fragile:
            raise BoomError(f"leaving {name}")

    def around_fit(self, run: Any) -> Iterator[None]:
        yield from self._around("fit")

    def around_train(self, run: Any) -> Iterator[None]:
        yield from self._around("train")

    def around_epoch(self, run: Any) -> Iterator[None]:
        yield from self._around("epoch")

    def around_step(self, run: Any) -> Iterator[None]:
        yield from self._around("step")

    def around_batch(self, run: Any) -> Iterator[None]:
        yield from self._around("batch")

    def around_eval(self, run: Any) -> Iterator[None]:
        yield from self._around("eval")

    def around_predict(self, run: Any) -> Iterator[None]:
        yield from self._around("predict")


class BoomError(Exception):
    """The user's own."""


@pytest.fixture(autouse=True)
def nothing_unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An error that Python can only print is an error that is lost."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_value))
    yield
    assert lost == []
    assert torch.is_grad_enabled()


def make(*callbacks: hl.Callback, **options: Any) -> tuple[TinyModel, Loop]:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = options.pop("scheduler", None)
    options = {"max_duration": "1ep", "folder": False, **options}
    return model, Loop(model, optimizer, scheduler=scheduler, callbacks=callbacks, **options)


def train(model: TinyModel, loop: Loop, data: Any, val: Any = None) -> None:
    """The loop of the documentation."""
    with loop:
        for x, y in loop.batches(data):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if val is not None and loop.eval_due:
                for vx, vy in loop.eval_batches(val):
                    loop.run.log({"val/loss": cross_entropy(model(vx), vy)}, weight=len(vy))


FETCH = "batch_fetch_start batch_fetch_end"
BATCH = "train_batch_start loss_ready backward_start backward_end train_batch_end"
UPDATE = "gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end"
STEP = f"{FETCH} train_step_start {BATCH} {UPDATE}"
EVAL_BATCH = f"{FETCH} eval_batch_start eval_batch_end"
START = "setup model_ready fit_start train_start train_epoch_start"
END = "train_end fit_end teardown"


# -- equal to the trainer's --------------------------------------------------------------------------


def test_the_own_loop_in_full() -> None:
    recorder = Recorder()
    train(*make(recorder), tiny_data(2), tiny_data(1))
    assert recorder.seen == literal("""
        setup model_ready fit_start train_start train_epoch_start
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end step_settled
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end
        metrics_ready train_epoch_end
        eval_start eval_loader_start batch_fetch_start batch_fetch_end eval_batch_start eval_batch_end
        eval_loader_end eval_end
        epoch_end step_settled train_end fit_end teardown
    """)


def stop_at(step: int) -> Callable[[Any], None]:
    return lambda run: run.stop("enough") if run.clock.step == step else None


CASES: dict[str, dict[str, Any]] = {
    "plain": {"max_duration": "2ep"},
    "evaluation every epoch": {"max_duration": "2ep", "val": True},
    "evaluation every two steps": {"max_duration": "2ep", "val": True, "eval_every": "2st"},
    "intervals": {"max_duration": "2ep", "log_every": "2st"},
    "accumulation": {"max_duration": "2ep", "accumulate": 2},
    "accumulation and evaluation": {"max_duration": "2ep", "accumulate": 2, "val": True, "eval_every": "1st"},
    "max_duration inside an epoch": {"max_duration": "5st", "val": True},
    "samples": {"max_duration": "20sp", "val": True},
    "stop in train_batch_start": {"at": "train_batch_start", "val": True, "max_duration": "2ep"},
    "stop in gradients_ready": {"at": "gradients_ready", "val": True, "max_duration": "2ep"},
    "stop in train_step_end": {"at": "train_step_end", "val": True, "max_duration": "2ep"},
    "stop in eval_end": {"at": "eval_end", "val": True, "max_duration": "2ep", "eval_every": "1st"},
    "stop at the edge": {"at": "epoch_end", "val": True, "max_duration": "2ep", "step": 3},
    "stop in step_settled": {"at": "step_settled", "max_duration": "2ep"},
    "stop in train_start": {"at": "train_start", "max_duration": "2ep", "step": 0},
    "stop with accumulation": {"at": "train_batch_start", "max_duration": "2ep", "accumulate": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_the_own_loop_sends_what_the_trainer_sends_and_moves_the_weights_alike(name: str) -> None:
    case = dict(CASES[name])
    val = tiny_data(2) if case.pop("val", False) else None
    actions = {case.pop("at"): stop_at(case.pop("step", 1))} if "at" in case else {}
    own, trainers = Recorder(**actions), Recorder(**actions)
    model, loop = make(own, **case)
    train(model, loop, tiny_data(3), val)
    theirs = TinyModel()
    trainer = Trainer(callbacks=[trainers], folder=False, **case)
    result = trainer.fit(
        theirs, tiny_data(3), val, loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    )
    only_the_trainer = ("sanity_check_start", "sanity_check_end", "forward_start", "forward_end")
    assert own.seen == [event for event in trainers.seen if event not in only_the_trainer]
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert loop.result().stop_reason == result.stop_reason
    assert loop.run.clock.state_dict()["epoch_start"]["step"] == result.clock.state_dict()["epoch_start"]["step"]
    assert {n: result.history.steps(n) for n in result.history} == {
        n: loop.run.history.steps(n) for n in loop.run.history
    }


def test_a_second_with_goes_on_from_the_first() -> None:
    recorder = Recorder(train_step_end=stop_at(2))
    model, loop = make(recorder, max_duration="2ep")
    train(model, loop, tiny_data(3))
    assert (loop.run.clock.epoch, loop.run.clock.step) == (0, 2)
    recorder.seen.clear()
    train(model, loop, tiny_data(3))
    assert (loop.run.clock.epoch, loop.run.clock.step) == (2, 6)
    assert recorder.seen[:6] == literal("setup model_ready fit_start train_start batch_fetch_start batch_fetch_end")


# -- break and return --------------------------------------------------------------------------------

BROKEN = f"{START} {STEP} step_settled {STEP} stop metrics_ready train_epoch_end epoch_end {END}"


def test_break_ends_training_with_that_reason() -> None:
    recorder = Recorder()
    model, loop = make(recorder, max_duration="2ep")
    with loop:
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.run.clock.step == 2:
                break
        assert recorder.seen[-1] == "train_step_end"
    assert recorder.seen == literal(BROKEN)
    result = loop.result()
    assert (result.stop_reason, result.stopped_by, result.interrupted) == ("break", "the body of the loop", False)
    assert (loop.run.clock.epoch, loop.run.clock.step) == (0, 2)


def test_return_from_a_function_ends_training_alike() -> None:
    recorder = Recorder()
    model, loop = make(recorder, max_duration="2ep")

    def run_it() -> str:
        with loop:
            for x, y in loop.batches(tiny_data(4)):
                loop.backward(cross_entropy(model(x), y))
                loop.step()
                if loop.run.clock.step == 2:
                    return "found it"
        return "not found"

    assert run_it() == "found it"
    assert recorder.seen == literal(BROKEN)
    assert loop.result().stop_reason == "break"


def test_break_closes_the_scopes_at_once_and_sends_the_end_hooks_at_exit() -> None:
    scopes = Scopes()
    model, loop = make(scopes, max_duration="2ep")
    with loop:
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(cross_entropy(model(x), y))
            break
        assert scopes.seen[-5:] == literal("backward_end -batch -step -epoch -train")
    assert scopes.seen == literal(f"""
        setup model_ready +fit fit_start +train train_start +epoch train_epoch_start
        {FETCH} +step train_step_start +batch train_batch_start loss_ready backward_start backward_end
        -batch -step -epoch -train
        stop train_epoch_end epoch_end train_end fit_end -fit teardown
    """)
    assert (loop.run.clock.step, loop.run.clock.batch) == (0, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_break_after_the_last_step_of_an_epoch_ends_the_epoch_once() -> None:
    """train_epoch_end was sent with the step; a second one would count the epoch twice in a callback."""
    recorder = Recorder()
    model, loop = make(recorder, max_duration="2ep")
    with loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.run.clock.step == 2:
                break
    assert recorder.seen.count("train_epoch_end") == recorder.seen.count("epoch_end") == 1
    assert loop.run.clock.epoch == 1


def test_break_in_an_iterator_that_is_kept_is_noticed_at_exit() -> None:
    recorder = Recorder()
    model, loop = make(recorder, max_duration="2ep")
    with loop:
        batches = loop.batches(tiny_data(4))
        for x, y in batches:
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.run.clock.step == 2:
                break
    assert recorder.seen == literal(BROKEN)
    assert batches is not None


def test_break_in_an_evaluation_counts_what_was_measured_until_then() -> None:
    recorder = Recorder()
    model, loop = make(recorder, eval_every="2st")
    with loop:
        for x, y in loop.batches(tiny_data(6)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for vx, vy in loop.eval_batches(tiny_data(3)):
                    loop.run.log({"val/loss": cross_entropy(model(vx), vy)})
                    break
    assert recorder.seen.count("eval_start") == recorder.seen.count("eval_end") == 3
    assert loop.run.history.steps("val/loss") == [2, 4, 6]


def test_the_end_hooks_of_a_broken_evaluation_come_with_the_next_call_of_the_loop() -> None:
    """EarlyStopping decides in eval_end: it must not wait for the next evaluation."""
    recorder = Recorder()
    model, loop = make(recorder, eval_every="1st", max_duration="2st")
    with loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(cross_entropy(model(x), y))
            assert recorder.seen.count("eval_end") == loop.run.clock.step
            loop.step()
            if loop.eval_due:
                for vx, vy in loop.eval_batches(tiny_data(3)):
                    loop.run.log({"val/loss": cross_entropy(model(vx), vy)})
                    break


def test_the_end_hooks_of_a_broken_evaluation_find_what_the_table_of_events_promises() -> None:
    found: list[Any] = []
    names = Recorder(
        eval_loader_end=lambda run: found.append((run.stage, run.loader_name, run.clock.eval.batch)),
        eval_end=lambda run: found.append((run.stage, run.metrics["val/loss"])),
    )
    model, loop = make(names)
    with loop:
        for x, y in loop.batches(tiny_data(1)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            for number, _ in enumerate(loop.eval_batches({"easy": tiny_data(3)})):
                loop.run.log({"val/loss": 1.0})
                if number == 1:
                    break
    assert found == [("val", "easy", 1), ("val", 1.0)]


def test_break_in_an_evaluation_puts_modes_and_grad_mode_back_at_once() -> None:
    model, loop = make()
    with loop:
        for x, y in loop.batches(tiny_data(1)):
            for _ in loop.eval_batches(tiny_data(2)):
                assert not model.training
                assert not torch.is_grad_enabled()
                break
            assert model.training
            assert torch.is_grad_enabled()
            assert loop.run.stage == "train"
            loop.backward(cross_entropy(model(x), y))
            loop.step()


def test_return_from_inside_an_evaluation_inside_training_leaves_both() -> None:
    scopes = Scopes()
    model, loop = make(scopes, max_duration="2ep")

    def run_it() -> None:
        with loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(cross_entropy(model(x), y))
                loop.step()
                for _ in loop.eval_batches(tiny_data(2)):
                    return

    run_it()
    assert scopes.seen[scopes.seen.index("+eval") :] == literal(f"""
        +eval eval_start eval_loader_start {FETCH} eval_batch_start -eval -epoch -train
        eval_loader_end eval_end stop metrics_ready train_epoch_end epoch_end train_end fit_end -fit teardown
    """)


def test_break_in_a_prediction() -> None:
    scopes = Scopes()
    model, loop = make(scopes)
    with loop:
        for x, _ in loop.predict_batches(tiny_data(3)):
            loop.run.outputs = model(x)
            break
        assert scopes.seen[-1] == "-predict"
        assert model.training
    assert scopes.seen == literal(f"""
        setup model_ready +fit fit_start
        +predict predict_start {FETCH} predict_batch_start -predict predict_end
        fit_end -fit teardown
    """)


# -- exceptions --------------------------------------------------------------------------------------


def test_an_exception_in_the_body_leaves_the_scopes_innermost_first_and_sends_no_end_hook() -> None:
    scopes, error = Scopes(), BoomError("mine")
    model, loop = make(scopes)
    with pytest.raises(BoomError) as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            raise error
    assert caught.value is error
    assert scopes.seen == literal(f"""
        setup model_ready +fit fit_start +train train_start +epoch train_epoch_start
        {FETCH} +step train_step_start +batch train_batch_start loss_ready backward_start backward_end
        -batch -step -epoch -train -fit exception teardown
    """)


def test_an_exception_in_the_body_of_an_evaluation() -> None:
    scopes, error = Scopes(), BoomError("mine")
    model, loop = make(scopes)
    with pytest.raises(BoomError) as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            for _ in loop.eval_batches(tiny_data(2)):
                raise error
    assert caught.value is error
    assert scopes.seen[scopes.seen.index("+eval") :] == literal(f"""
        +eval eval_start eval_loader_start {FETCH} eval_batch_start
        -eval -epoch -train -fit exception teardown
    """)
    assert model.training
    assert "val/loss" not in loop.run.metrics


def test_an_exception_that_is_caught_inside_the_with_ends_training_like_a_break() -> None:
    """The loop cannot know the reason: it sees only that its iterator was dropped."""
    recorder = Recorder()
    model, loop = make(recorder)
    with loop:
        try:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(cross_entropy(model(x), y))
                raise BoomError("mine")
        except BoomError:
            gc.collect()
    assert recorder.seen[-6:] == literal("stop train_epoch_end epoch_end train_end fit_end teardown")


def test_an_exception_in_a_hook_reaches_the_body_unchanged() -> None:
    error = BoomError("mine")
    recorder = Recorder(train_step_end=lambda run: (_ for _ in ()).throw(error))
    with pytest.raises(BoomError) as caught:
        train(*make(recorder), tiny_data(2))
    assert caught.value is error
    assert error.__notes__ == ["in Recorder.on_train_step_end at step 1, epoch 0 (train)"]
    assert recorder.seen[-2:] == ["exception", "teardown"]


def test_stop_training_in_the_body_ends_the_run_without_an_error() -> None:
    recorder = Recorder()
    model, loop = make(recorder)
    with loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(cross_entropy(model(x), y))
            if loop.run.clock.step == 1:
                raise StopTraining("enough")
            loop.step()
    assert recorder.seen == literal(f"""
        {START} {STEP} step_settled {FETCH} train_step_start train_batch_start loss_ready backward_start backward_end
        stop metrics_ready train_epoch_end epoch_end {END}
    """)
    result = loop.result()
    assert (result.stop_reason, result.stopped_by, result.clock.step) == ("enough", "the body of the loop", 1)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_stop_training_in_the_data_is_a_clean_stop(accumulate: int) -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            yield from tiny_data(3)
            raise StopTraining("no more data")

    recorder = Recorder()
    model, loop = make(recorder, accumulate=accumulate)
    train(model, loop, Stream())
    assert recorder.seen[-7:] == literal("stop metrics_ready train_epoch_end epoch_end train_end fit_end teardown")
    assert recorder.seen.count("stop") == recorder.seen.count("teardown") == 1
    result, whole = loop.result(), 3 // accumulate
    assert (result.stop_reason, result.stopped_by) == ("no more data", "the training loader")
    assert (result.clock.step, result.clock.batch) == (whole, whole * accumulate)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_stop_training_in_the_body_of_an_evaluation_leaves_no_metric_of_it() -> None:
    """As in the trainer: the mean of a few batches is not val/loss."""
    recorder = Recorder()
    model, loop = make(recorder)
    with loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            for _ in loop.eval_batches(tiny_data(2)):
                loop.run.log({"val/loss": 1.0})
                raise StopTraining("enough")
    assert loop.result().stop_reason == "enough"
    assert "eval_end" not in recorder.seen
    assert "val/loss" not in loop.run.metrics


# -- errors in closing -------------------------------------------------------------------------------


def test_an_error_in_closing_after_a_break_is_raised_at_exit() -> None:
    scopes = Scopes("train")
    model, loop = make(scopes)
    with pytest.raises(BoomError, match="leaving train") as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            break
    assert caught.value.__notes__ == ["in Scopes.around_train at step 0, epoch 0 (train)"]
    assert scopes.seen[-6:] == literal("-step -epoch -train -fit exception teardown")


def test_an_error_in_closing_an_evaluation_is_raised_before_the_next_batch_at_the_latest() -> None:
    model, loop = make(Scopes("eval"))
    reached = False
    with pytest.raises(BoomError, match="leaving eval"), loop:
        for x, y in loop.batches(tiny_data(2)):
            assert not reached, "the error was kept back"
            for _ in loop.eval_batches(tiny_data(2)):
                break
            reached = True
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert reached


@pytest.mark.parametrize("verb", ["eval_due", "eval_batches", "predict_batches"])
def test_an_error_in_closing_an_evaluation_is_raised_by_the_next_question_to_the_loop(verb: str) -> None:
    _, loop = make(Scopes("eval"))
    with pytest.raises(BoomError, match="leaving eval"), loop:
        for _ in loop.batches(tiny_data(2)):
            for _ in loop.eval_batches(tiny_data(2)):
                break
            if verb == "eval_due":
                assert not loop.eval_due
            else:
                getattr(loop, verb)(tiny_data(1))
            pytest.fail("the error was kept back")


def test_of_two_errors_in_closing_the_first_is_raised_and_the_second_is_a_note() -> None:
    model, loop = make(Scopes("eval", "train"))

    def run_it() -> None:
        with loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(cross_entropy(model(x), y))
                loop.step()
                for _ in loop.eval_batches(tiny_data(2)):
                    return

    with pytest.raises(BoomError, match="leaving eval") as caught:
        run_it()
    assert any("leaving train" in note for note in caught.value.__notes__)


def test_of_two_errors_in_one_scope_stack_the_first_is_raised_and_the_second_is_a_note() -> None:
    model, loop = make(Scopes("step", "epoch"))
    with pytest.raises(BoomError, match="leaving step") as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            break
    assert any("Scopes.around_epoch" in note and "leaving epoch" in note for note in caught.value.__notes__)


def test_an_error_in_closing_after_an_exception_is_a_note_on_it() -> None:
    error = BoomError("mine")
    model, loop = make(Scopes("epoch", "fit"))
    with pytest.raises(BoomError) as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            raise error
    assert caught.value is error
    notes = "\n".join(error.__notes__)
    assert "leaving epoch" in notes
    assert "leaving fit" in notes


def test_an_error_in_closing_the_fit_is_raised_after_a_normal_end() -> None:
    scopes = Scopes("fit")
    with pytest.raises(BoomError, match="leaving fit"):
        train(*make(scopes), tiny_data(1))
    assert scopes.seen[-4:] == literal("fit_end -fit exception teardown")


def test_an_error_of_an_end_hook_after_a_break_is_raised_at_exit() -> None:
    error = BoomError("mine")

    def boom(run: Any) -> None:
        raise error

    model, loop = make(Recorder(epoch_end=boom))
    with pytest.raises(BoomError) as caught, loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            break
    assert caught.value is error


# -- calls at the wrong time -------------------------------------------------------------------------


def test_batches_outside_of_the_with() -> None:
    model, loop = make()
    for verb in (loop.batches, loop.eval_batches, loop.predict_batches):
        with pytest.raises(ScopeError, match="not open"):
            verb(tiny_data(1))
    train(model, loop, tiny_data(1))
    with pytest.raises(ScopeError, match="not open"):
        loop.eval_batches(tiny_data(1))


def test_backward_and_step_outside_of_a_batch() -> None:
    model, loop = make()
    x, y = tiny_data(1)[0]
    with pytest.raises(ScopeError, match=r"loop\.backward"):
        loop.backward(cross_entropy(model(x), y))
    with pytest.raises(ScopeError, match=r"loop\.step"):
        loop.step()
    with loop:
        with pytest.raises(ScopeError, match=r"loop\.backward"):
            loop.backward(cross_entropy(model(x), y))
        for bx, by in loop.batches(tiny_data(1)):
            loop.backward(cross_entropy(model(bx), by))
            loop.step()
            with pytest.raises(ScopeError, match=r"loop\.step"):
                loop.step()
            with pytest.raises(ScopeError, match=r"loop\.backward"):
                loop.backward(cross_entropy(model(bx), by))


def test_a_second_with_while_the_first_is_open() -> None:
    _, loop = make()
    with loop, pytest.raises(ScopeError, match="open already"):
        loop.__enter__()


def test_batches_inside_the_body_of_batches() -> None:
    """Two trainings at once would step on each other's window."""
    model, loop = make()
    with pytest.raises(ScopeError), loop:
        for x, y in loop.batches(tiny_data(2)):
            for _ in loop.batches(tiny_data(2)):
                pass
            loop.backward(cross_entropy(model(x), y))
            loop.step()


def test_a_batch_without_a_backward_is_an_error_that_says_so() -> None:
    _, loop = make()
    with pytest.raises(LossError, match=r"loop\.backward"), loop:
        for _ in loop.batches(tiny_data(2)):
            pass


def test_a_body_that_forgets_step_is_stepped_at_the_next_batch() -> None:
    recorder = Recorder()
    model, loop = make(recorder)
    with loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
    assert (loop.run.clock.step, recorder.seen.count("train_step_end")) == (2, 2)


def test_a_duration_that_is_reached_already_is_an_error_and_not_an_empty_loop() -> None:
    model, loop = make(max_duration="1ep")
    train(model, loop, tiny_data(1))
    with pytest.raises(SetupError, match="reached already"), loop:
        for _ in loop.batches(tiny_data(1)):
            pytest.fail("there is nothing to do")


def test_a_loop_without_a_duration_ends_with_a_break() -> None:
    model, loop = make(max_duration=None)
    with loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.run.clock.step == 5:
                break
    assert (loop.run.clock.epoch, loop.run.clock.step) == (2, 5)
    assert loop.result().stop_reason == "break"


def test_step_says_whether_the_weights_moved() -> None:
    model, loop = make(accumulate=2)
    moved = []
    with loop:
        for x, y in loop.batches(tiny_data(5)):
            loop.backward(cross_entropy(model(x), y))
            moved.append(loop.step())
    assert moved == [False, True, False, True, True]


# -- what is left of the loop before -----------------------------------------------------------------


def train_with_rests(model: TinyModel, loop: Loop, *rests: str) -> list[str]:
    """The calls of a bare loop are still there; the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with loop:
            optimizer = loop.run.optimizers["SGD"]
            for x, y in loop.batches(tiny_data(4)):
                if "zero_grad" in rests:
                    optimizer.zero_grad()
                loop.backward(cross_entropy(model(x), y))
                if "step before" in rests:
                    optimizer.step()
                loop.step()
                if "step after" in rests:
                    optimizer.step()
    return [str(warning.message) for warning in caught if warning.category is HooklineWarning]


@pytest.mark.parametrize("rest", ["step before", "step after"])
def test_an_update_beside_the_loops_own_is_said_once_and_shows_the_line(rest: str) -> None:
    """The weights would move twice a step, and nothing would tell."""
    (said,) = train_with_rests(*make(max_duration="3ep"), rest)
    assert said.startswith(f"SGD.step() was called outside loop.step(), at step {int(rest == 'step after')}: ")
    assert said.endswith("so the weights move twice; leave optimizer.step() and optimizer.zero_grad() out")


def test_gradients_that_are_cleared_inside_a_window_are_said() -> None:
    """Only the last of its batches would count, with a part of its weight."""
    (said,) = train_with_rests(*make(accumulate=2, max_duration="3ep"), "zero_grad")
    assert said.startswith("the gradients of SGD were cleared inside a window of accumulate= batches")


def test_a_loop_without_such_rests_and_an_optimizer_after_it_say_nothing() -> None:
    model, loop = make(max_duration="3ep")
    assert train_with_rests(model, loop, "zero_grad") == []  # there is nothing to clear, and no harm
    assert train_with_rests(*make(accumulate=2)) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.run.optimizers["SGD"].step()
