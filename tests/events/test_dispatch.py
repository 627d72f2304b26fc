"""Who is called for an event, with what, and when changes to the list take effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import RegistrationError
from hookline.events import EVENTS, SCOPES, Callback, Event, Heard, on
from hookline.events.line import NOBODY

World = Callable[..., Any]
ALL_HOOKS = [event.hook for event in EVENTS]


# -- who is called -----------------------------------------------------------------------------


@given(chosen=st.sets(st.sampled_from(EVENTS), max_size=10))
def test_only_the_hooks_that_a_class_overrides_are_called(world: World, hearing: Any, chosen: set[Event]) -> None:
    made = world(hearing(*[event.name for event in chosen]))
    heard = {event for event in EVENTS if getattr(made.line.hooks, event.name)}
    assert heard == chosen
    for event in EVENTS:
        made.emit(event.name)
    assert made.log == [("Hearing", event.name) for event in EVENTS if event in chosen]


def test_an_event_that_nobody_hears_is_false_and_is_one_object_for_all(world: World, hearing: Any) -> None:
    hooks = world(hearing("train_start")).line.hooks
    names = [event.name for event in EVENTS if event.name != "train_start"] + [scope.hook for scope in SCOPES]
    assert {id(getattr(hooks, name)) for name in names} == {id(NOBODY)}
    assert not NOBODY
    assert hooks.train_start


def test_what_is_heard_is_a_tuple_that_knows_its_event(world: World, hearing: Any) -> None:
    heard = world(hearing("train_start")).line.hooks.train_start
    assert isinstance(heard, Heard)
    assert isinstance(heard, tuple)
    assert heard.event == "train_start"


def test_each_callback_is_given_a_run_of_its_own_so_a_request_has_an_author(world: World) -> None:
    class Who(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_train_start(self, run: Any) -> None:
            run.world.log.append(run.member.callback is self)

    made = world(Who("a"), Who("b"))
    made.emit("train_start")
    assert made.log == [True, True]


def test_a_hook_that_is_set_on_the_object_itself_is_called(world: World) -> None:
    callback = Callback()
    callback.on_train_start = lambda run: run.world.log.append("object")  # type: ignore[method-assign]
    made = world(callback)
    made.emit("train_start")
    assert made.log == ["object"]


def test_a_hook_of_a_custom_event_that_is_set_on_the_object_itself_is_called(world: World) -> None:
    class Source(Callback):
        events = (Event("verify", gives=("x",)),)

    source = Source()
    source.on_verify = lambda run, x: run.world.log.append(x)  # type: ignore[attr-defined]
    made = world(source)
    made.line.emit_custom("verify", {"x": 3})
    assert made.log == [3]


def test_hooks_that_a_base_class_of_the_users_defines_are_called(world: World, hearing: Any) -> None:
    child = type("Child", (type(hearing("train_start")),), {})()
    made = world(child)
    made.emit("train_start")
    assert made.log == [("Child", "train_start")]


def test_the_task_runs_first_whatever_it_and_the_callbacks_declare(world: World, hearing: Any) -> None:
    class Task:
        name = "task"

        def on_train_start(self, run: Any) -> None:
            run.world.log.append(("task", "train_start"))

    made = world(hearing("train_start", name="a", before=("task",), writes=("x",)), task=Task())
    made.emit("train_start")
    assert made.log == [("task", "train_start"), ("a", "train_start")]


def test_a_task_with_a_part_called_name_does_not_break_messages(world: World) -> None:
    class Task:
        name = ("anything", "but a text")

    assert world(task=Task()).line.members[0].name.endswith("Task")


@pytest.mark.parametrize(
    ("ranks", "places"),
    [
        ("all", {(0, 0), (1, 1), (2, 0), (3, 1)}),
        ("zero", {(0, 0)}),
        ("local_zero", {(0, 0), (2, 0)}),
        ({1, 3}, {(1, 1), (3, 1)}),
        (frozenset({2}), {(2, 0)}),
    ],
)
def test_a_callback_runs_on_its_ranks_and_on_no_other(
    world: World, hearing: Any, ranks: Any, places: set[tuple[int, int]]
) -> None:
    def runs(rank: int, local_rank: int, make: Callable[[], Callback]) -> bool:
        return bool(world(make(), rank=rank, local_rank=local_rank).line.hooks.train_start)

    two_nodes_of_two = [(0, 0), (1, 1), (2, 0), (3, 1)]
    for make in (
        lambda: hearing("train_start", ranks=ranks),
        lambda: on("train_start", ranks=ranks)(lambda run: None),
    ):
        assert {place for place in two_nodes_of_two if runs(*place, make)} == places


# -- on_event ----------------------------------------------------------------------------------


class Watcher(Callback):
    def on_event(self, event: str, run: Any) -> None:
        run.world.log.append(event)


def test_on_event_sees_every_event_by_name(world: World) -> None:
    made = world(Watcher())
    for event in EVENTS:
        made.emit(event.name)
    assert made.log == [event.name for event in EVENTS]


def test_on_event_does_not_switch_the_named_hooks_off_and_comes_before_them(world: World) -> None:
    class Both(Watcher):
        def on_train_start(self, run: Any) -> None:
            run.world.log.append("named")

    made = world(Both())
    made.emit("train_start", "train_end")
    assert made.log == ["train_start", "named", "train_end"]


def test_on_event_sees_custom_events_also_those_that_come_later(world: World) -> None:
    class Source(Callback):
        events = (Event("verify"),)

    made = world(Watcher())
    made.line.add([Source()])
    made.line.emit_custom("verify", {})
    assert made.log == ["verify"]


# -- custom events -----------------------------------------------------------------------------


class Verifier(Callback):
    events = (Event("verify_train_batch", gives=("xb", "yb")),)

    def on_verify_train_batch(self, run: Any, xb: int, yb: int) -> None:
        run.world.log.append((xb, yb))


def test_a_custom_event_hands_its_payload_on_as_keywords(world: World) -> None:
    made = world(Verifier())
    made.line.emit_custom("verify_train_batch", {"yb": 2, "xb": 1})
    assert made.log == [(1, 2)]


def test_a_hook_can_send_a_custom_event_and_another_callback_hears_it(world: World) -> None:
    class Sender(Callback):
        def on_train_start(self, run: Any) -> None:
            run.emit("verify_train_batch", xb=1, yb=2)

    made = world(Sender(), Verifier())
    made.emit("train_start")
    assert made.log == [(1, 2)]


@pytest.mark.parametrize("payload", [{}, {"xb": 1}, {"xb": 1, "yb": 2, "zb": 3}, {"x": 1, "y": 2}])
def test_a_payload_with_the_wrong_keywords_names_both(world: World, payload: dict[str, object]) -> None:
    made = world(Verifier())
    with pytest.raises(RegistrationError) as caught:
        made.line.emit_custom("verify_train_batch", payload)
    assert str(caught.value) == (
        f"run.emit('verify_train_batch') gives ({', '.join(payload)}), "
        f"but the event is declared with gives=('xb', 'yb')"
    )
    assert made.log == []


def test_a_wrong_payload_is_an_error_also_when_nobody_hears_the_event(world: World) -> None:
    class Source(Callback):
        events = (Event("verify", gives=("x",)),)

    with pytest.raises(RegistrationError, match="gives=\\('x',\\)"):
        world(Source()).line.emit_custom("verify", {"y": 1})


def test_a_misspelt_event_in_emit_is_not_sent_into_the_void(world: World) -> None:
    with pytest.raises(RegistrationError) as caught:
        world(Verifier()).line.emit_custom("verify_batch", {})
    assert str(caught.value) == "run.emit('verify_batch'): no such event; did you mean verify_train_batch?"


def test_a_hooks_name_in_emit_gets_the_events_name(world: World) -> None:
    with pytest.raises(RegistrationError) as caught:
        world(Verifier()).line.emit_custom("on_verify_train_batch", {})
    assert str(caught.value).endswith("no such event; did you mean verify_train_batch?")


def test_on_event_with_a_place_for_the_payload_gets_it_and_without_one_does_not(world: World) -> None:
    class Taking(Callback):
        def on_event(self, event: str, run: Any, **payload: object) -> None:
            run.world.log.append((event, payload))

    made = world(Verifier(), Watcher(), Taking())
    made.line.emit_custom("verify_train_batch", {"xb": 1, "yb": 2})
    made.emit("train_start")
    assert made.log == [
        (1, 2),
        "verify_train_batch",
        ("verify_train_batch", {"xb": 1, "yb": 2}),
        "train_start",
        ("train_start", {}),
    ]


def test_a_function_can_hear_a_custom_event_also_behind_a_filter(world: World) -> None:
    made = world(
        Verifier(),
        on("verify_train_batch")(lambda run, xb, yb: run.world.log.append(("plain", xb))),
        on("verify_train_batch", once=True)(lambda run, xb, yb: run.world.log.append(("once", yb))),
    )
    for _ in range(2):
        made.line.emit_custom("verify_train_batch", {"xb": 1, "yb": 2})
    assert made.log == [(1, 2), ("plain", 1), ("once", 2), (1, 2), ("plain", 1)]


def test_a_custom_event_that_a_task_sends_in_a_silent_evaluation_is_silent_and_no_error(world: World) -> None:
    # The sanity check and run.evaluate() swap in the silent table; a task emits its event in eval_batch there too.
    made = world(Verifier())
    made.line.hooks = made.line.silent
    made.line.emit_custom("verify_train_batch", {"xb": 1, "yb": 2})
    assert made.log == []


def test_a_silent_line_calls_nobody(world: World) -> None:
    made = world(Watcher())
    made.line.hooks = made.line.silent
    for event in EVENTS:
        made.emit(event.name)
    assert made.log == []


# -- changes from inside a hook ----------------------------------------------------------------


def test_a_callback_that_a_hook_adds_hears_the_next_event_and_not_this_one(world: World, hearing: Any) -> None:
    class Adding(Callback):
        def on_train_start(self, run: Any) -> None:
            run.world.line.add([hearing("train_start", "train_end", name="new")])

    made = world(Adding(), hearing("train_start", "train_end", name="old"))
    made.emit("train_start", "train_end")
    assert made.log == [("old", "train_start"), ("old", "train_end"), ("new", "train_end")]


def test_a_callback_that_a_hook_removes_still_hears_this_event_and_not_the_next(world: World, hearing: Any) -> None:
    victim = hearing("train_start", "train_end", name="victim")

    class Removing(Callback):
        def on_train_start(self, run: Any) -> None:
            run.world.remove(victim)

    made = world(Removing(), victim)
    made.emit("train_start", "train_end")
    assert made.log == [("victim", "train_start")]


def test_a_callback_can_remove_itself(world: World, hearing: Any) -> None:
    class Once(Callback):
        def on_train_start(self, run: Any) -> None:
            run.world.log.append("once")
            run.world.remove(self)

    made = world(Once(), hearing("train_start", name="other"))
    made.emit("train_start", "train_start")
    assert made.log == ["once", ("other", "train_start"), ("other", "train_start")]


def test_a_removed_callback_can_be_added_again(world: World, hearing: Any) -> None:
    callback = hearing("train_start", name="a")
    made = world(callback)
    made.remove(callback)
    made.emit("train_start")
    made.line.add([callback])
    made.emit("train_start")
    assert made.log == [("a", "train_start")]


def test_the_task_is_not_lost_when_a_callback_leaves(world: World, hearing: Any) -> None:
    class Task:
        def on_train_start(self, run: Any) -> None:
            run.world.log.append("task")

    callback = hearing("train_start", name="a")
    made = world(callback, task=Task())
    made.remove(callback)
    made.emit("train_start")
    assert made.log == ["task"]
