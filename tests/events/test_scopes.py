"""What ``around_*`` opens is closed: in reverse, on every way out, whatever else goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import ScopeError, StopTraining
from hookline.events import Callback

World = Callable[..., Any]


class Around(Callback):
    """Writes ``+name`` before its ``yield`` and ``-name`` after it; raises on the way if it is told to."""

    def __init__(self, name: str, *, enter: Any = None, leave: Any = None, optional: bool = False) -> None:
        self.name = name
        self.enter, self.leave = enter, leave
        self.optional = optional

    def around_eval(self, run: Any) -> Iterator[None]:
        run.world.log.append(f"+{self.name}")
        if self.enter is not None:
            raise self.enter
        yield
        run.world.log.append(f"-{self.name}")
        if self.leave is not None:
            raise self.leave


# -- order -------------------------------------------------------------------------------------


def test_scopes_nest_last_in_first_out(world: World) -> None:
    made = world(Around("a"), Around("b"), Around("c"))
    with made.scope("eval"):
        made.log.append("body")
    assert made.log == ["+a", "+b", "+c", "body", "-c", "-b", "-a"]


def test_those_that_swap_weights_are_outermost_so_all_others_see_the_swapped_ones(world: World) -> None:
    swapper = Around("swap")
    swapper.writes = ("weights",)
    swapper.after = ("a", "b")
    made = world(Around("a"), swapper, Around("b"))
    with made.scope("eval"):
        pass
    assert made.log == ["+swap", "+a", "+b", "-b", "-a", "-swap"]


def test_the_first_part_runs_before_the_start_hooks_and_the_second_after_the_end_hooks(world: World) -> None:
    class Both(Around):
        def on_eval_start(self, run: Any) -> None:
            run.world.log.append("start")

        def on_eval_end(self, run: Any) -> None:
            run.world.log.append("end")

    made = world(Both("a"))
    with made.scope("eval"):
        made.emit("eval_start", "eval_end")
    assert made.log == ["+a", "start", "end", "-a"]


def test_a_scope_inside_a_scope_is_left_first_and_alone(world: World) -> None:
    class Outer(Callback):
        def around_train(self, run: Any) -> Iterator[None]:
            run.world.log.append("+train")
            yield
            run.world.log.append("-train")

    made = world(Outer(), Around("a"))
    with made.scope("train"):
        with made.scope("eval"):
            pass
        made.log.append("between")
    assert made.log == ["+train", "+a", "-a", "between", "-train"]
    assert len(made.scopes) == 0


@given(depth=st.integers(0, 5), mark=st.integers(0, 5))
def test_leave_closes_what_is_above_the_mark_and_nothing_below(world: World, depth: int, mark: int) -> None:
    made = world(Around("a"))
    for _ in range(depth):
        made.scopes.enter(made.line.hooks.around_eval)
    made.log.clear()
    made.scopes.leave(mark)
    assert len(made.scopes) == min(depth, mark)
    assert made.log == ["-a"] * max(0, depth - mark)


# -- errors ------------------------------------------------------------------------------------


def test_all_are_left_when_the_body_fails_and_the_error_is_the_bodys(world: World) -> None:
    made = world(Around("a"), Around("b"))
    error = RuntimeError("body")
    with pytest.raises(RuntimeError) as caught, made.scope("eval"):
        raise error
    assert caught.value is error
    assert made.log == ["+a", "+b", "-b", "-a"]


def test_all_are_left_when_one_of_them_fails_on_the_way_out_and_its_error_says_where(world: World) -> None:
    error = ValueError("b is broken")
    made = world(Around("a"), Around("b", leave=error), Around("c"))
    with pytest.raises(ValueError, match="b is broken") as caught, made.scope("eval"):
        pass
    assert made.log == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert caught.value.__notes__ == ["in b.around_eval at step 0"]


def test_the_first_error_is_raised_and_later_ones_become_notes_on_it(world: World) -> None:
    made = world(Around("a", leave=KeyError("late")), Around("b"), Around("c", leave=ValueError("first")))
    with pytest.raises(ValueError, match="first") as caught, made.scope("eval"):
        pass
    assert made.log[-3:] == ["-c", "-b", "-a"]
    assert caught.value.__notes__ == [
        "in c.around_eval at step 0",
        "then a.around_eval also failed: KeyError: 'late'",
    ]


def test_an_error_on_the_way_out_is_a_note_on_the_error_that_led_out(world: World) -> None:
    made = world(Around("a", leave=ValueError("late")))
    with pytest.raises(RuntimeError, match="body") as caught, made.scope("eval"):
        raise RuntimeError("body")
    assert caught.value.__notes__ == ["then a.around_eval also failed: ValueError: late"]


def test_those_that_were_entered_are_left_when_a_later_one_fails_on_the_way_in(world: World) -> None:
    made = world(Around("a"), Around("b", enter=ValueError("no")), Around("c"))
    with pytest.raises(ValueError, match="no") as caught, made.scope("eval"):
        pytest.fail("the body runs although a scope could not be entered")
    assert made.log == ["+a", "+b", "-a"]
    assert caught.value.__notes__ == ["in b.around_eval at step 0"]


def test_ctrl_c_on_the_way_out_leaves_the_others_too(world: World) -> None:
    made = world(Around("a"), Around("b", leave=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), made.scope("eval"):
        pass
    assert made.log == ["+a", "+b", "-b", "-a"]


def test_stop_training_inside_a_scope_is_a_vote_on_both_sides_of_the_yield(world: World) -> None:
    made = world(Around("a", enter=StopTraining("in")), Around("b", leave=StopTraining("out")), Around("c"))
    with made.scope("eval"):
        made.log.append("body")
    assert made.stops == [("in", "a"), ("out", "b")]
    assert made.log == ["+a", "+b", "+c", "body", "-c", "-b"]


def test_stop_iteration_inside_a_scope_is_an_error_and_does_not_look_like_its_end(world: World) -> None:
    made = world(Around("a", leave=StopIteration("mine")))
    with pytest.raises(RuntimeError, match="generator raised StopIteration"), made.scope("eval"):
        pass


# -- exactly one yield -------------------------------------------------------------------------


class NeverYields(Callback):
    def around_eval(self, run: Any) -> Iterator[None]:
        if run is None:
            yield


class YieldsTwice(Callback):
    def around_eval(self, run: Any) -> Iterator[None]:
        try:
            yield
            yield
        finally:
            run.world.log.append("closed")


def test_a_generator_that_never_yields_has_no_second_part_and_says_so(world: World) -> None:
    made = world(NeverYields())
    with (
        pytest.raises(ScopeError, match=r"^NeverYields.around_eval did not yield; it must yield exactly once"),
        made.scope("eval"),
    ):
        pass


def test_a_generator_that_yields_twice_says_so_and_the_others_are_left(world: World) -> None:
    made = world(Around("a"), YieldsTwice())
    with (
        pytest.raises(ScopeError, match=r"^YieldsTwice.around_eval yielded twice; it must yield exactly once"),
        made.scope("eval"),
    ):
        pass
    assert made.log == ["+a", "closed", "-a"]


# -- optional ones -----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["enter", "leave"])
def test_an_optional_scope_that_fails_is_switched_off_and_the_run_goes_on(world: World, when: str) -> None:
    broken = Around("broken", optional=True, **{when: ValueError("no")})
    made = world(Around("a"), broken, Around("b"))
    with made.scope("eval"):
        made.log.append("body")
    with made.scope("eval"):
        pass
    first = ["+a", "+broken", "+b", "body", "-b", "-broken", "-a"]
    assert made.log[:-4] == ([entry for entry in first if entry != "-broken"] if when == "enter" else first)
    assert made.log[-4:] == ["+a", "+b", "-b", "-a"]
    assert [(failure.callback, failure.hook) for failure in made.line.failures] == [("broken", "around_eval")]


@pytest.mark.parametrize("kind", [NeverYields, YieldsTwice])
def test_an_optional_scope_with_the_wrong_number_of_yields_is_switched_off(world: World, kind: type[Callback]) -> None:
    callback = kind()
    callback.optional = True
    made = world(callback)
    with made.scope("eval"):
        pass
    assert isinstance(made.line.failures[0].error, ScopeError)


def test_a_scope_of_one_that_was_switched_off_meanwhile_is_still_left(world: World) -> None:
    class Fragile(Around):
        def on_eval_start(self, run: Any) -> None:
            raise ValueError("switched off")

    made = world(Fragile("a", optional=True))
    with made.scope("eval"):
        made.emit("eval_start")
        assert made.line.members[0].disabled
    assert made.log == ["+a", "-a"]


def test_a_scope_of_one_that_was_removed_meanwhile_is_still_left(world: World) -> None:
    callback = Around("a")
    made = world(callback)
    with made.scope("eval"):
        made.remove(callback)
    with made.scope("eval"):
        pass
    assert made.log == ["+a", "-a"]


def test_one_that_fails_again_on_the_way_out_is_counted_and_disabled_once(world: World) -> None:
    heard: list[str] = []

    class Fragile(Around):
        def on_eval_start(self, run: Any) -> None:
            raise ValueError("switched off")

    class Listener(Callback):
        def on_callback_disabled(self, run: Any) -> None:
            heard.append("disabled")

    made = world(Fragile("a", optional=True, leave=KeyError("again")), Listener())
    with made.scope("eval"):
        made.emit("eval_start")
    assert heard == ["disabled"]
    assert [failure.hook for failure in made.line.failures] == ["on_eval_start", "around_eval"]


def test_all_are_left_also_when_a_listener_to_the_switching_off_fails(world: World) -> None:
    class Listener(Callback):
        def on_callback_disabled(self, run: Any) -> None:
            raise ValueError("the listener is broken")

    made = world(Around("a"), Around("b", optional=True, leave=KeyError("b")), Listener())
    with pytest.raises(ValueError, match="the listener is broken"), made.scope("eval"):
        pass
    assert made.log == ["+a", "+b", "-b", "-a"]
