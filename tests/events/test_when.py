"""Filters fire when a look at every single moment says so, no more and no less."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import DurationError, RegistrationError
from hookline.events import Callback, FunctionCallback, When, on
from hookline.events.line import Member
from hookline.events.spec import BY_NAME
from hookline.events.when import Gate
from hookline.progress import Duration

World = Callable[..., Any]
COUNTERS = {"ep": "epoch", "st": "step", "sp": "sample", "tok": "token"}
STAGES = ("train", "val", "test", "predict")


def record(run: Any) -> None:
    run.world.log.append((run.clock.step, run.stage))


@st.composite
def filters(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["every", "at", "neither"]))
    made: dict[str, Any] = {"once": draw(st.booleans())}
    if kind != "neither":
        unit = draw(st.sampled_from([*COUNTERS, "s"]))
        made[kind] = f"{draw(st.integers(1, 12))}{unit}"
    made["stage"] = tuple(draw(st.lists(st.sampled_from(STAGES), unique=True, max_size=3)))
    return made


class Naive:
    """The reference: it walks over every unit from the last time it fired to now and looks for a multiple."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.stages = given["stage"]
        self.once = given["once"]
        self.every = Duration.parse(given["every"]) if "every" in given else None
        self.at = Duration.parse(given["at"]) if "at" in given else None
        self.last, self.fired = 0, False

    def fires(self, clock: Any, stage: str) -> bool:
        if (self.stages and stage not in self.stages) or (self.fired and (self.once or self.at is not None)):
            return False
        if self.every is not None:
            now = int(clock.elapsed(self.every.unit))
            if not any(moment % self.every.value == 0 for moment in range(self.last + 1, now + 1)):
                return False
            self.last = now
        if self.at is not None and clock.elapsed(self.at.unit) < self.at.value:
            return False
        self.fired = True
        return True


MOVES = st.lists(st.tuples(st.sampled_from([*COUNTERS, "s"]), st.integers(0, 15), st.sampled_from(STAGES)), max_size=40)


@given(chosen=filters(), moves=MOVES)
def test_every_at_once_and_stage_fire_when_a_look_at_each_moment_says_so(
    world: World, chosen: dict[str, Any], moves: list[tuple[str, int, str]]
) -> None:
    made, naive, expected = world(on("batch_fetch_end", **chosen)(record)), Naive(chosen), []  # sent in all stages
    for number, (unit, amount, stage) in enumerate(moves):
        if unit == "s":
            made.now += amount
        else:
            setattr(made.clock, COUNTERS[unit], getattr(made.clock, COUNTERS[unit]) + amount)
        made.stage = stage
        made.emit("batch_fetch_end")
        if number % 3 == 2:  # a change of the list must not make anybody forget
            made.line.add([another := Callback()])
            made.remove(another)
        if naive.fires(made.clock, stage):
            expected.append((made.clock.step, stage))
    assert made.log == expected


def steps_at_which(world: World, run_for: int, max_duration: str | None = None, **chosen: Any) -> list[int]:
    made = world(on("train_step_end", **chosen)(record))
    made.max_duration = None if max_duration is None else Duration.parse(max_duration)
    for step in range(1, run_for + 1):
        made.clock.step = step
        made.emit("train_step_end")
    return [step for step, _ in made.log]


def test_every_hundred_steps_is_the_hundredth_and_not_the_first(world: World) -> None:
    assert steps_at_which(world, 350, every="100st") == [100, 200, 300]


def test_at_is_once(world: World) -> None:
    assert steps_at_which(world, 30, at="7st") == [7]


def test_once_with_every_is_the_first_of_them(world: World) -> None:
    assert steps_at_which(world, 350, every="100st", once=True) == [100]


def test_once_alone_is_the_first_time(world: World) -> None:
    assert steps_at_which(world, 3, once=True) == [1]


def test_a_share_is_of_max_duration(world: World) -> None:
    assert steps_at_which(world, 20, "20st", every="0.25dur") == [5, 10, 15, 20]
    assert steps_at_which(world, 20, "20st", at="0.5dur") == [10]


@pytest.mark.parametrize("keyword", ["every", "at"])
def test_a_share_of_no_duration_is_an_error_and_not_never(world: World, keyword: str) -> None:
    with pytest.raises(DurationError, match="max_duration"):
        steps_at_which(world, 1, **{keyword: "0.5dur"})


def test_a_filter_does_not_count_what_it_does_not_hear(world: World) -> None:
    made = world(on("eval_end", every="10st", stage="val")(record))
    made.clock.step = 10
    made.stage = "test"
    made.emit("eval_end")
    made.stage = "val"
    made.emit("eval_end", "eval_end")
    assert made.log == [(10, "val")]


def test_what_fired_last_survives_adding_removing_and_failing(world: World, hearing: Any) -> None:
    class Fragile(Callback):
        optional = True

        def on_train_start(self, run: Any) -> None:
            raise ValueError("no")

    made = world(on("train_step_end", every="10st")(record), on("train_end", once=True)(record), Fragile())
    made.clock.step = 10
    made.emit("train_step_end", "train_end")
    made.line.add([hearing("train_step_end", name="new")])
    made.emit("train_start")  # switches one off
    made.log.clear()
    made.emit("train_step_end", "train_end")
    assert made.log == [("new", "train_step_end")]


def test_what_fired_last_is_the_same_in_timed_and_untimed_steps(world: World) -> None:
    made = world(on("train_step_end", every="10st")(record))
    made.clock.step = 10
    made.line.hooks = made.line.timed
    made.emit("train_step_end")
    made.line.hooks = made.line.fast
    made.emit("train_step_end")
    assert made.log == [(10, "train")]


def test_one_function_behind_two_filters_has_two_memories(world: World) -> None:
    made = world(
        on("train_step_end", every="2st")(lambda run: run.world.log.append(2)),
        on("train_step_end", every="3st")(lambda run: run.world.log.append(3)),
    )
    for step in range(1, 7):
        made.clock.step = step
        made.emit("train_step_end")
    assert made.log == [2, 3, 2, 2, 3]


def test_a_filtered_function_in_two_lines_has_two_memories(world: World) -> None:
    callback = on("train_step_end", once=True)(record)
    for made in (world(callback), world(callback)):
        made.emit("train_step_end")
        assert len(made.log) == 1


# -- values ------------------------------------------------------------------------------------


def when(**given: Any) -> When:
    return on("train_start", **given)(record).when


def test_equal_filters_are_equal_and_different_ones_are_not() -> None:
    # ignite's Events.X(every=3) == Events.X(every=5): two handlers, one of them lost.
    assert when(every="3st") == when(every="3st")
    assert when(every="3st") != when(every="5st")
    assert when(every="60s") == when(every="1m")
    assert len({when(every="3st"), when(every="3st"), when(every="5st"), when(at="3st"), when(once=True)}) == 4


def test_a_filter_cannot_be_changed() -> None:
    chosen = when(every="3st", ranks={0, 2})
    with pytest.raises(FrozenInstanceError):
        chosen.once = True  # type: ignore[misc]
    assert hash(chosen) == hash(when(every="3st", ranks=frozenset({0, 2})))
    assert isinstance(chosen.ranks, frozenset)


def test_a_set_of_ranks_that_is_changed_later_does_not_change_the_filter() -> None:
    ranks = {0}
    chosen = when(ranks=ranks)
    ranks.add(1)
    assert chosen.ranks == {0}


def test_a_filter_prints_as_itself() -> None:
    chosen = when(every="3st", stage="val")
    assert repr(chosen) == (f"When(every={Duration(3, 'st')!r}, at=None, once=False, ranks='all', stage=('val',))")
    assert when(every="3st", once=True, stage=("val", "test"), ranks="zero").arguments == (
        ", every='3st', once=True, stage=('val', 'test'), ranks='zero'"
    )


@given(chosen=filters())
def test_a_filter_can_be_copied_pickled_and_replaced(chosen: dict[str, Any]) -> None:
    made = when(**chosen)
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made, once=not made.once) != made


# -- hl.on -------------------------------------------------------------------------------------


def test_a_decorated_function_can_still_be_called_and_tested() -> None:
    @on("train_step_end", every="100st")
    def double(value: int) -> int:
        return 2 * value

    assert isinstance(double, FunctionCallback)
    assert double(3) == 6
    assert double.name.endswith("double")


def test_a_function_without_a_filter_is_called_without_one_in_between(world: World) -> None:
    # An extra call a step would be an overhead that nobody asked for.
    hook = world(on("train_step_end", ranks="zero")(record)).line.fast.train_step_end[0][0]
    assert hook is record


def test_what_a_gate_remembers_is_plain_data_for_a_checkpoint(world: World) -> None:
    made = world(on("train_step_end", every="10st")(record))
    gate = made.line.fast.train_step_end[0][0]
    assert isinstance(gate, Gate)
    assert json.loads(json.dumps(gate.state_dict())) == {"done": False, "schedule": None}
    made.clock.step = 25
    made.emit("train_step_end")
    assert json.loads(json.dumps(gate.state_dict())) == {
        "done": False,
        "schedule": {"every": "10st", "multiple": 2},
    }


def test_a_gate_is_kept_by_the_member_and_not_made_again() -> None:
    member: Member[Any] = Member(on("train_start", once=True)(record))
    assert member.hooks_for(BY_NAME["train_start"])[0] is member.hooks_for(BY_NAME["train_start"])[0]


def test_a_function_says_what_it_writes_as_a_callback_does(world: World) -> None:
    writing = on("eval_end", writes=("val/acc",))(record)
    assert writing.writes == ("val/acc",)
    assert on("eval_end")(record).writes == ()
    assert writing.state_key == on("eval_end")(record).state_key  # what it fired last is found again
    with pytest.raises(RegistrationError, match=r"record\.writes = 'val/acc' is one text; make it a tuple"):
        world(on("eval_end", writes="val/acc")(record))  # type: ignore[arg-type]
