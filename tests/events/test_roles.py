"""An optional callback can not kill a run; a required one can, and says where. Stopping is a vote."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookline.errors import StopTraining
from hookline.events import EVENTS, Callback, Event, Failure
from hookline.events.spec import STEP_EVENTS

World = Callable[..., Any]

ALL_EVENTS = [event.name for event in EVENTS]


class Broken(Callback):
    """Raises ``error`` at one event."""

    def __init__(self, event: str, error: BaseException, *, optional: bool, name: str = "broken") -> None:
        self.name = name
        self.optional = optional
        self.error = error
        setattr(self, f"on_{event}", self.fail)

    def fail(self, run: Any) -> None:
        run.world.log.append(self.name)
        raise self.error


# -- optional ----------------------------------------------------------------------------------


def test_an_optional_callback_that_fails_at_any_event_is_switched_off_and_the_others_run(
    world: World, hearing: Any
) -> None:
    for event in ALL_EVENTS:
        error = ValueError("no")
        made = world(hearing(event, name="before"), Broken(event, error, optional=True), hearing(event, name="after"))
        made.clock.step = 7
        made.emit(event)
        made.emit(event)
        once = [("before", event), "broken", ("after", event)]
        if event == "callback_disabled":  # the others hear of it as well
            once[2:2] = [("before", event), ("after", event)]
        assert made.log == [*once, ("before", event), ("after", event)]
        assert made.line.failures == [Failure("broken", f"on_{event}", "step 7", error)]


def test_an_optional_callback_that_fails_in_a_timed_step_is_switched_off_too(world: World) -> None:
    for event in sorted(STEP_EVENTS):
        made = world(Broken(event, ValueError("no"), optional=True))
        made.line.hooks = made.line.timed
        made.emit(event, event)
        assert made.log == ["broken"], event


def test_the_failure_is_shown_once_with_where_it_was_and_how_it_failed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    made = world(Broken("train_start", ValueError("no disk"), optional=True))
    with caplog.at_level(logging.WARNING, "hookline"):
        made.emit("train_start", "train_start")
    assert [record.getMessage() for record in caplog.records] == [
        "broken.on_train_start failed at step 0: ValueError: no disk; it is optional, so it is switched off and "
        "the run continues"
    ]
    assert caplog.records[0].exc_info is not None
    assert str(made.line.failures[0]) == "broken.on_train_start failed at step 0: ValueError: no disk"


def test_the_others_are_told_at_once_and_can_see_who_it_was(world: World) -> None:
    class Listener(Callback):
        def on_callback_disabled(self, run: Any) -> None:
            run.world.log.append(run.world.line.failures[-1].callback)

    made = world(Listener(), Broken("train_start", ValueError("no"), optional=True))
    made.emit("train_start")
    assert made.log == ["broken", "broken"]


def test_a_failure_does_not_take_away_the_order_of_those_that_stay(world: World, hearing: Any) -> None:
    # Two writers whose order was said through the optional one: the run must not die of an OrderError now.
    ema = hearing("train_start", name="ema", writes=("weights",))
    swa = hearing("train_start", name="swa", writes=("weights",))
    broken = Broken("train_start", ValueError("no"), optional=True)
    broken.after, broken.before = ("ema",), ("swa",)
    made = world(swa, broken, ema)
    made.emit("train_start", "train_start")
    ema_ran, swa_ran = ("ema", "train_start"), ("swa", "train_start")
    assert made.log == [ema_ran, "broken", swa_ran, ema_ran, swa_ran]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_passes_through_an_optional_callback(world: World, error: BaseException) -> None:
    made = world(Broken("train_start", error, optional=True))
    with pytest.raises(type(error)):
        made.emit("train_start")
    assert made.line.failures == []
    assert made.heard("train_start") == ["broken"]


def test_stop_training_from_an_optional_callback_is_no_vote(world: World) -> None:
    made = world(Broken("train_start", StopTraining("because"), optional=True))
    made.emit("train_start")
    assert made.stops == []
    assert len(made.line.failures) == 1


def test_one_that_fails_in_on_event_and_again_in_its_hook_is_switched_off_once(world: World) -> None:
    class Twice(Callback):
        optional = True

        def on_event(self, event: str, run: Any) -> None:
            raise ValueError(event)

        def on_train_start(self, run: Any) -> None:
            raise KeyError

    class Listener(Callback):
        def on_callback_disabled(self, run: Any) -> None:
            run.world.log.append("disabled")

    made = world(Twice(), Listener())
    made.emit("train_start", "train_start")
    assert made.log == ["disabled"]
    assert len(made.line.failures) == 2


# -- required ----------------------------------------------------------------------------------


def test_a_required_callback_that_fails_stops_the_run_and_the_error_says_who_where_and_when(
    world: World, hearing: Any
) -> None:
    for event in ALL_EVENTS:
        error = ValueError("no")
        made = world(Broken(event, error, optional=False), hearing(event, name="after"))
        made.clock.step = 412
        with pytest.raises(ValueError, match="no") as caught:
            made.emit(event)
        assert caught.value is error
        assert caught.value.__notes__ == [f"in broken.on_{event} at step 412"]
        assert made.log == ["broken"], event
        assert made.line.failures == [], event


class Custom(Callback):
    events = (Event("verify"),)


class Sender(Callback):
    def __init__(self, *, optional: bool) -> None:
        self.optional = optional

    def on_train_start(self, run: Any) -> None:
        run.emit("verify")


def test_an_error_inside_an_event_that_a_hook_sends_names_both(world: World) -> None:
    made = world(Custom(), Sender(optional=False))
    made.line.add([Broken("verify", ValueError("no"), optional=False)])
    with pytest.raises(ValueError, match="no") as caught:
        made.emit("train_start")
    assert caught.value.__notes__ == ["in broken.on_verify at step 0", "in Sender.on_train_start at step 0"]


def test_the_error_of_a_required_callback_is_not_swallowed_by_an_optional_one_that_sent_the_event(
    world: World,
) -> None:
    made = world(Custom(), Sender(optional=True))
    made.line.add([Broken("verify", ValueError("no"), optional=False)])
    with pytest.raises(ValueError, match="no") as caught:
        made.emit("train_start")
    assert caught.value.__notes__[0] == "in broken.on_verify at step 0"
    assert made.line.failures == []


def test_an_optional_one_that_fails_in_an_event_that_an_optional_one_sent_is_the_only_one_switched_off(
    world: World,
) -> None:
    made = world(Custom(), Sender(optional=True))
    made.line.add([Broken("verify", ValueError("no"), optional=True)])
    made.emit("train_start")
    assert [failure.callback for failure in made.line.failures] == ["broken"]


# -- stopping ----------------------------------------------------------------------------------


def test_stop_training_from_a_hook_is_a_vote_and_the_others_still_run(world: World, hearing: Any) -> None:
    made = world(
        Broken("train_step_end", StopTraining("enough"), optional=False), hearing("train_step_end", name="after")
    )
    made.emit("train_step_end")
    assert made.stops == [("enough", "broken")]
    assert made.log == ["broken", ("after", "train_step_end")]


def test_stop_training_in_a_custom_event_is_a_vote_of_the_one_who_heard_it(world: World) -> None:
    made = world(Custom(), Sender(optional=True))
    made.line.add([Broken("verify", StopTraining("enough"), optional=False)])
    made.emit("train_start")
    assert made.stops == [("enough", "broken")]


def test_stop_iteration_from_a_hook_is_an_error_with_its_place(world: World) -> None:
    made = world(Broken("train_step_end", StopIteration(), optional=False))
    with pytest.raises(StopIteration) as caught:
        made.emit("train_step_end")
    assert caught.value.__notes__ == ["in broken.on_train_step_end at step 0"]


def test_stop_iteration_from_a_hook_cannot_end_a_generator_quietly(world: World) -> None:
    made = world(Broken("batch_fetch_start", StopIteration(), optional=False))

    def batches() -> Iterator[int]:
        yield 0
        made.emit("batch_fetch_start")
        yield 1

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        list(batches())


# -- events that reach everybody ---------------------------------------------------------------


def test_on_teardown_runs_for_all_whatever_the_others_do(world: World, hearing: Any) -> None:
    required = Broken("teardown", ValueError("required"), optional=False, name="required")
    optional = Broken("teardown", ValueError("optional"), optional=True, name="optional")
    interrupt = Broken("teardown", KeyboardInterrupt(), optional=False, name="interrupt")
    made = world(required, optional, interrupt, hearing("teardown", name="last"))
    errors = made.line.emit_to_all(made.line.hooks.teardown)
    assert made.log == ["required", "optional", "interrupt", ("last", "teardown")]
    assert [type(error) for error in errors] == [ValueError, KeyboardInterrupt]
    assert errors[0].__notes__ == ["in required.on_teardown at step 0"]


def test_on_teardown_runs_for_all_also_when_a_listener_to_the_switching_off_fails(world: World, hearing: Any) -> None:
    optional = Broken("teardown", ValueError("optional"), optional=True, name="optional")
    listener = Broken("callback_disabled", KeyError("listener"), optional=False, name="listener")
    made = world(optional, listener, hearing("teardown", name="last"))
    errors = made.line.emit_to_all(made.line.hooks.teardown)
    assert made.log == ["optional", "listener", ("last", "teardown")]
    assert [type(error) for error in errors] == [KeyError]


def test_a_run_that_failed_keeps_no_frames_alive_when_it_is_over(world: World) -> None:
    # What a failing hook held, a batch on the GPU for example, must not stay until the next failure.
    class Batch:
        pass

    held: list[weakref.ref[Batch]] = []

    class Fragile(Callback):
        def on_train_start(self, run: Any) -> None:
            batch = Batch()
            held.append(weakref.ref(batch))
            raise ValueError("no")

    made = world(Fragile())
    with contextlib.suppress(ValueError):
        made.emit("train_start")
    made.line.emit_to_all(made.line.hooks.teardown)
    gc.collect()
    assert held[0]() is None
