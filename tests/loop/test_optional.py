"""An optional callback can neither change nor end a run; a required one that fails ends it by name."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

import hookline as hl
from hookline.events.spec import EVENTS, SCOPES
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, loop_of, press_ctrl_c, same_tensors, train_loop, weights_of

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "saving": ("on_checkpoint_save", "on_checkpoint_saved", "around_save"),
    "a save that fails": ("on_checkpoint_failed",),
    "a resume": ("on_checkpoint_loaded", "on_checkpoint_rejected"),
    "a signal": ("on_preempt",),
    "Ctrl-C": ("on_interrupt",),
    "an error": ("on_exception",),
    "going back": ("on_rollback",),
    "a prediction": (
        *("on_predict_start", "on_predict_batch_start", "on_predict_batch_end", "on_predict_end", "around_predict"),
    ),
}
"""Hooks that the run below does not come to, by the way to them: see ``outcome``."""
IN_FIT = tuple(
    event.name for event in EVENTS if event.hook not in {hook for hooks in ELSEWHERE.values() for hook in hooks}
)


class BoomError(Exception):
    """What a fragile callback raises."""


def _boom(self: Any, run: Any) -> None:
    raise BoomError(f"{self.name} fails")


def _boom_before(self: Any, run: Any) -> Iterator[None]:
    raise BoomError(f"{self.name} fails before its yield")
    yield


def _boom_after(self: Any, run: Any) -> Iterator[None]:
    yield
    raise BoomError(f"{self.name} fails after its yield")


def fragile(name: str, hooks: dict[str, Callable[..., Any]], *, optional: bool = True) -> hl.Callback:
    """A callback that fails in the hooks given."""
    callback = hl.Callback()
    callback.name, callback.optional = name, optional
    for hook, function in hooks.items():
        setattr(callback, hook, MethodType(function, callback))
    return callback


EVERY_HOOK = {event.hook: _boom for event in EVENTS} | {scope.hook: _boom_before for scope in SCOPES}


class Recorder(hl.Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)


class SkipAndStop(hl.Callback):
    """Skips a step and ends the run, so that these events are sent, too."""

    def on_gradients_ready(self, run: Any) -> None:
        if run.clock.batch == 4:
            run.skip_step()

    def on_epoch_end(self, run: Any) -> None:
        if run.clock.epoch == 2:
            run.stop("enough")


def long_fit(*callbacks: hl.Callback) -> tuple[list[torch.Tensor], Any]:
    """Three epochs with dropout, accumulation, a scheduler, named evaluations and a test."""
    data = {"train": tiny_data(5), "val": {"a": tiny_data(2), "b": tiny_data(1)}, "test": tiny_data(1)}
    rules = {"optimizer": torch.optim.AdamW, "scheduler": partial(ExponentialLR, gamma=0.9)}
    often = {"max_duration": "3ep", "accumulate": 2, "eval_every": "1st", "log_every": "1st"}
    result = fit(*callbacks, SkipAndStop(), model=TinyModel(dropout=0.5), **data, **rules, **often)
    return weights_of(result.model), result


@pytest.fixture(scope="module")
def alone() -> tuple[list[torch.Tensor], Any]:
    """The run without any of them."""
    return long_fit()


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="hookline")


def test_twenty_that_fail_in_every_hook_leave_the_weights_bitwise_the_same(alone: Any) -> None:
    weights, result = long_fit(*[fragile(f"fragile {number}", EVERY_HOOK) for number in range(20)])
    assert same_tensors(weights, alone[0])
    assert result.stop_reason == "enough"
    assert {failure.callback for failure in result.failures} == {f"fragile {number}" for number in range(20)}
    assert dict(result.metrics) == dict(alone[1].metrics)


def test_twenty_that_fail_in_different_hooks_are_listed_with_counts_in_the_summary(alone: Any) -> None:
    hooks = [f"on_{event}" for event in IN_FIT][2:40:2][:17]
    callbacks = [fragile(f"in {hook}", {hook: _boom}) for hook in hooks]
    callbacks += [fragile(f"in around_{name}", {f"around_{name}": _boom_after}) for name in ("eval", "step", "fit")]
    assert len(callbacks) == 20
    weights, result = long_fit(*callbacks)
    assert same_tensors(weights, alone[0])
    summary = result.summary()
    for callback in callbacks:
        hook = callback.name.removeprefix("in ")
        lines = [line for line in summary.splitlines() if f"{callback.name}.{hook} failed at step" in line]
        assert len(lines) == 1
        assert lines[0].startswith("switched off after 1 failure(s): ")
        assert "BoomError: " in lines[0]


@pytest.mark.parametrize("event", IN_FIT)
def test_one_that_fails_in_any_hook_is_switched_off_and_the_run_goes_on(event: str, alone: Any) -> None:
    if event == "callback_disabled":
        first = fragile("first", {"on_setup": _boom})
        weights, result = long_fit(first, fragile("fragile", {"on_callback_disabled": _boom}))
        assert [failure.callback for failure in result.failures] == ["first", "fragile"]
    else:
        weights, result = long_fit(fragile("fragile", {f"on_{event}": _boom}))
        assert [(failure.callback, failure.hook) for failure in result.failures] == [("fragile", f"on_{event}")]
    assert same_tensors(weights, alone[0])


@pytest.mark.parametrize("scope", ["fit", "train", "epoch", "step", "batch", "eval"])
@pytest.mark.parametrize("part", [_boom_before, _boom_after])
def test_one_that_fails_around_a_scope_is_switched_off(scope: str, part: Any, alone: Any) -> None:
    weights, result = long_fit(fragile("fragile", {f"around_{scope}": part}))
    assert [(failure.callback, failure.hook) for failure in result.failures] == [("fragile", f"around_{scope}")]
    assert same_tensors(weights, alone[0])


class At(hl.Callback):
    """Does something at one event of the second step."""

    def __init__(self, event: str, act: Callable[[Any], object]) -> None:
        self.event, self.act = event, act

    def on_event(self, event: str, run: Any) -> None:
        if event == self.event and run.clock.step == 2:
            self.act(run)


class GoesBack(hl.Callback):
    """Takes the third step back, once."""

    def __init__(self) -> None:
        self.taken: Any = None
        self.done = False

    def on_step_settled(self, run: Any) -> None:
        if run.clock.step == 2 and self.taken is None:
            self.taken = run.snapshot()
        elif run.clock.step == 3 and not self.done:
            self.done = True
            run.roll_back(self.taken)


def block(run: Any) -> None:
    """A file where the checkpoints should go."""
    (run.folder / "checkpoints").write_text("mine")


def outcome(way: str, folder: Path, *callbacks: hl.Callback) -> tuple[list[Any], list[Any]]:
    """What a run on this way comes to: how it ends, weights, predictions, checkpoints; and the failures."""
    acts: dict[str, hl.Callback] = {
        "a signal": At("train_step_end", lambda run: signal.raise_signal(signal.SIGTERM)),
        "Ctrl-C": At("train_step_end", press_ctrl_c),
        "an error": At("train_step_end", lambda run: (_ for _ in ()).throw(KeyError("mine"))),
        "a save that fails": At("train_step_end", block),
        "going back": GoesBack(),
    }
    torch.manual_seed(11)
    model, found = TinyModel(dropout=0.5), []
    trainer = Trainer(
        callbacks=[*callbacks, hl.Checkpointer("1st" if way == "saving" else "3st", on_error="warn")]
        + [act for name, act in acts.items() if name == way],
        max_duration="2ep",
        folder=folder,
        resume="auto" if way == "a resume" else None,
        seed=0,
    )
    try:
        if way == "a prediction":
            found.append(trainer.predict(model, tiny_data(2)).tolist())
        else:
            found.append(fit(trainer=trainer, model=model, train=tiny_data(3)).stop_reason)
    except (KeyError, hl.Preempted) as error:
        found.append(repr(error))
    saved = sorted(path.name for path in folder.glob("checkpoints/step-*"))
    found += [saved, [parameter.tolist() for parameter in model.parameters()]]
    return found, list(loop_of(trainer).run.callbacks.disabled)


@pytest.mark.filterwarnings("ignore:.*damaged checkpoints:hookline.errors.HooklineWarning")
@pytest.mark.parametrize(("way", "hook"), [(way, hook) for way, hooks in ELSEWHERE.items() for hook in hooks])
def test_one_that_fails_where_a_run_seldom_comes_is_switched_off_too(way: str, hook: str, tmp_path: Path) -> None:
    """A save, a resume, a signal, an error: the moments at which a failure would cost the most."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = [_boom_before, _boom_after] if hook.startswith("around_") else [_boom]
    try:
        for name in ("alone", *(part.__name__ for part in parts)):
            if way == "a resume":
                outcome("a signal", tmp_path / name)
                (tmp_path / name / "checkpoints" / "damaged").mkdir()
        alone, none = outcome(way, tmp_path / "alone")
        assert none == []
        for part in parts:
            found, failures = outcome(way, tmp_path / part.__name__, fragile("fragile", {hook: part}))
            assert found == alone
            assert [(failure.callback, failure.hook) for failure in failures] == [("fragile", hook)]
    finally:
        signal.signal(signal.SIGINT, before)


def test_every_hook_there_is_has_been_made_to_fail() -> None:
    scopes = {f"around_{name}" for name in ("fit", "train", "epoch", "step", "batch", "eval")}
    elsewhere = {hook for hooks in ELSEWHERE.values() for hook in hooks}
    assert {f"on_{name}" for name in IN_FIT} | scopes | elsewhere == EVERY_HOOK.keys()


def test_one_that_fails_hears_nothing_more_and_the_others_hear_of_it() -> None:
    heard: list[str] = []

    class Once(hl.Callback):
        name = "once"
        optional = True

        def on_event(self, event: str, run: Any) -> None:
            heard.append(event)
            if event == "train_step_end":
                raise BoomError("once")

    class Nurse(hl.Callback):
        def on_callback_disabled(self, run: Any) -> None:
            failure = run.callbacks.disabled[-1]
            heard.append(f"{failure.callback}.{failure.hook} at {failure.where}")

    long_fit(Once(), Nurse())
    assert heard[-2:] == ["train_step_end", "once.on_train_step_end at step 1, epoch 0 (train)"]
    assert heard.count("train_step_end") == 1


def test_one_that_fails_inside_its_open_scope_still_leaves_the_scope() -> None:
    log: list[str] = []

    class Scoped(hl.Callback):
        optional = True

        def around_eval(self, run: Any) -> Iterator[None]:
            log.append("in")
            yield
            log.append("out")

        def on_eval_start(self, run: Any) -> None:
            raise BoomError("inside")

    long_fit(Scoped())
    assert log == ["in", "out"]


def test_the_failure_is_shown_once_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="hookline")
    long_fit(fragile("fragile", {"on_train_step_end": _boom, "on_step_settled": _boom}))
    assert caplog.text.count("it is optional, so it is switched off") == 1
    assert "fragile.on_train_step_end failed at step 1" in caplog.text


def test_a_failed_answer_of_one_does_not_end_the_run(alone: Any) -> None:
    """run.predict on data that the model cannot take: the run must not stay in eval mode without gradients."""
    wrong = [(torch.zeros(2, 5), torch.zeros(2))]
    for verb in ("predict", "evaluate"):

        class Asking(hl.Callback):
            optional = True

            def on_train_step_end(self, run: Any, verb: str = verb) -> None:
                getattr(run, verb)(wrong)

        weights, result = long_fit(Asking())
        assert [failure.hook for failure in result.failures] == ["on_train_step_end"]
        assert same_tensors(weights, alone[0])


@pytest.mark.parametrize(
    ("verb", "action"),
    [
        ("stop", lambda run: run.stop("no")),
        ("request_eval", lambda run: run.request_eval()),
        ("skip_step", lambda run: run.skip_step()),
        ("swap_weights", lambda run: run.swap_weights({})),
        ("loss", lambda run: setattr(run, "loss", run.loss * 2)),
        ("batch", lambda run: setattr(run, "batch", run.batch)),
        ("StopTraining", lambda run: (_ for _ in ()).throw(hl.StopTraining("no"))),
    ],
)
def test_one_that_asks_for_what_only_a_required_one_may_is_switched_off(verb: str, action: Any, alone: Any) -> None:
    class Asking(hl.Callback):
        optional = True

        def on_loss_ready(self, run: Any) -> None:
            action(run)

    weights, result = long_fit(Asking())
    assert len(result.failures) == 1
    assert verb in f"{type(result.failures[0].error).__name__} {result.failures[0].error}"
    assert same_tensors(weights, alone[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes_through_one_that_is_optional(error: type[BaseException]) -> None:
    class Quitting(hl.Callback):
        optional = True

        def on_train_step_end(self, run: Any) -> None:
            raise error

    with pytest.raises(error):
        long_fit(Quitting())


def test_a_required_one_that_fails_because_another_was_switched_off_ends_the_run_in_order() -> None:
    """on_callback_disabled may raise: everybody's teardown must run all the same."""
    for hook in ("on_teardown", "around_fit", "on_train_step_end"):
        recorder = Recorder()
        weak = fragile("weak", {hook: _boom_after if hook == "around_fit" else _boom})
        strict = fragile("strict", {"on_callback_disabled": _boom}, optional=False)
        with pytest.raises(BoomError, match="strict fails") as caught:
            long_fit(weak, strict, recorder)
        assert any("strict.on_callback_disabled" in note for note in caught.value.__notes__)
        assert recorder.seen.count("teardown") == 1
        assert recorder.seen[-1] == "teardown"


@pytest.mark.parametrize("hook", ["on_setup", "on_train_step_end", "on_eval_end", "around_eval", "on_fit_end"])
def test_a_required_one_ends_the_run_with_its_name(hook: str) -> None:
    others = [fragile(f"fragile {number}", EVERY_HOOK) for number in range(3)]
    required = fragile("required", {hook: _boom_before if hook == "around_eval" else _boom}, optional=False)
    with pytest.raises(BoomError, match="required fails") as caught:
        long_fit(*others, required)
    assert caught.value.__notes__[0].startswith(f"in required.{hook} at step ")


def test_an_optional_callback_in_the_own_loop() -> None:
    loop, _ = train_loop(fragile("weak", EVERY_HOOK), train=tiny_data(2), max_duration="1ep")
    assert loop.run.clock.step == 2
    assert [failure.callback for failure in loop.result().failures] == ["weak"]


@pytest.mark.filterwarnings("default::hookline.errors.HooklineWarning")
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_metric_that_a_switched_off_callback_fed_decides_nothing_any_more(epoch: int) -> None:
    """A stale val/score looks like one that has stopped improving; a missing one must not end the run."""

    class Scorer(hl.Callback):
        optional = True
        writes = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            if run.clock.epoch == epoch:
                raise BoomError("no score")
            run.log({"val/score": 1.0})

    data, stopper = tiny_data(1), hl.EarlyStopping("val/score", patience=1)
    result = fit(Scorer(), stopper, train=data, val=data, max_duration="4ep")
    assert (result.clock.epoch, result.stopped_by) == (4, None)
