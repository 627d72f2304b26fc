"""A schedule fires at every multiple, no more and no less, through jumps, late checks and resumes."""

from __future__ import annotations

import doctest
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import DurationError, SetupError
from hookline.progress import Clock, Duration, Schedule, schedule

UNITS = {"ep": "epoch", "st": "step", "sp": "sample", "tok": "token"}


def every(text: str) -> Schedule:
    return Schedule(Duration.parse(text))


class World:
    """A clock and a schedule that can be saved and restored, as a resume does it."""

    def __init__(self, duration: Duration) -> None:
        self.now = 0.0
        self.unit = duration.unit
        self.clock = Clock(lambda: self.now)
        self.clock.start()
        self.schedule = Schedule(duration)

    def advance(self, amount: float) -> None:
        self.now += amount if self.unit == "s" else 1.0
        if self.unit != "s":
            name = UNITS[self.unit]
            setattr(self.clock, name, getattr(self.clock, name) + int(amount))

    def resumed(self) -> World:
        saved = json.dumps([self.clock.state_dict(), self.schedule.state_dict()])
        other = World(self.schedule.every)
        other.now = 12345.0
        other.clock.start()
        clock_state, schedule_state = json.loads(saved)
        other.clock.load_state_dict(clock_state)
        other.schedule.load_state_dict(schedule_state)
        return other


def crossed(start: int, amount: int, n: int) -> bool:
    """The reference: look at each unit of the way, one by one, for a multiple."""
    return any(position % n == 0 for position in range(start + 1, start + amount + 1))


@given(
    n=st.integers(1, 20),
    unit=st.sampled_from([*UNITS, "s"]),
    moves=st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.booleans()), max_size=30),
)
def test_due_is_what_a_look_at_every_single_step_would_say(
    n: int, unit: str, moves: list[tuple[int, bool, bool]]
) -> None:
    world = World(Duration(n, unit))
    position, pending = 0, False
    assert not world.schedule.due(world.clock)
    for amount, fires, resumes in moves:
        world.advance(amount)
        pending = pending or crossed(position, amount, n)
        position += amount
        if resumes:
            world = world.resumed()
        assert world.schedule.due(world.clock) is pending
        if pending and fires:
            world.schedule.fired(world.clock)
            pending = False
            assert not world.schedule.due(world.clock)


@given(quarter=st.integers(1, 40), moves=st.lists(st.integers(0, 100), max_size=30), resume_at=st.integers(0, 30))
def test_fractions_of_seconds_are_scheduled_like_whole_ones(quarter: int, moves: list[int], resume_at: int) -> None:
    world = World(Duration(quarter / 4, "s"))
    position = 0
    for index, amount in enumerate(moves):
        world.advance(amount / 4)
        if index == resume_at:
            world = world.resumed()
        assert world.schedule.due(world.clock) is crossed(position, amount, quarter)
        position += amount
        if world.schedule.due(world.clock):
            world.schedule.fired(world.clock)


@given(st.floats(1e-9, 1e9), st.floats(0, 1e12))
def test_no_rounding_of_seconds_makes_it_due_again_right_after_it_fired(seconds: float, elapsed: float) -> None:
    world = World(Duration(seconds, "s"))
    world.advance(elapsed)
    world.schedule.fired(world.clock)
    assert not world.schedule.due(world.clock)
    assert not world.resumed().schedule.due(world.clock)


@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 200))
def test_steps_before_next_step_are_never_due_and_that_step_is(n: int, fired_at: int, step: int) -> None:
    clock, s = Clock(), Schedule(Duration(n, "st"))
    clock.step = fired_at
    s.fired(clock)
    clock.step = step = max(step, fired_at)
    upcoming = s.next_step(clock)
    assert upcoming >= step
    for clock.step in range(fired_at, step + 2 * n):
        if clock.step >= step:
            assert s.due(clock) is (clock.step >= upcoming)


def test_nothing_is_due_before_the_first_step() -> None:
    assert not any(every(text).due(Clock()) for text in ("1ep", "1st", "1sp", "1tok", "1s"))


def test_a_jump_over_several_multiples_fires_once() -> None:
    clock, s = Clock(), every("10st")
    clock.step = 57
    assert s.due(clock)
    s.fired(clock)
    clock.step = 59
    assert not s.due(clock)
    clock.step = 60
    assert s.due(clock)


def test_firing_late_does_not_shift_the_later_multiples() -> None:
    world = World(Duration.parse("10s"))
    fired_at = []
    for _ in range(40):
        world.advance(1.5)
        if world.schedule.due(world.clock):
            world.schedule.fired(world.clock)
            fired_at.append(world.now)
    assert fired_at == [10.5, 21.0, 30.0, 40.5, 51.0, 60.0]


def test_next_step_is_exact_for_steps_infinite_for_epochs_and_the_next_one_for_the_rest() -> None:
    clock = Clock()
    clock.step = 7
    assert every("10st").next_step(clock) == 10
    assert every("1ep").next_step(clock) == math.inf
    assert [every(text).next_step(clock) for text in ("5sp", "5tok", "5s")] == [8, 8, 8]


def test_next_step_of_something_overdue_is_now() -> None:
    clock, s = Clock(), every("10st")
    clock.step = 25
    assert s.next_step(clock) == 25
    s.fired(clock)
    assert s.next_step(clock) == 30


def test_time_is_decided_by_what_the_ranks_agreed_on() -> None:
    world = World(Duration.parse("10s"))
    world.advance(11)
    world.clock.agree_seconds(9.9)
    assert not world.schedule.due(world.clock)
    world.clock.agree_seconds(10.1)
    assert world.schedule.due(world.clock)


def test_a_share_must_be_resolved_before_it_can_be_scheduled() -> None:
    with pytest.raises(DurationError, match=r"'0.1dur'.*resolve it first with \.of\(max_duration\)"):
        every("0.1dur")
    Schedule(Duration.parse("0.1dur").of(Duration.parse("100st")))


def test_a_resume_with_another_interval_keeps_the_last_firing() -> None:
    clock, old = Clock(), every("100st")
    clock.step = 310
    old.fired(clock)
    shorter, longer = every("50st"), every("200st")
    for new in (shorter, longer):
        new.load_state_dict(old.state_dict())
        assert not new.due(clock)
    clock.step = 350
    assert shorter.due(clock)
    clock.step = 400
    assert longer.due(clock)


def test_a_resume_with_an_interval_in_another_unit_begins_anew() -> None:
    clock, old = Clock(), every("1ep")
    clock.epoch, clock.step = 3, 310
    old.fired(clock)
    new = every("100st")
    new.load_state_dict(old.state_dict())
    assert new.due(clock), "when it last happened in steps is not known, and too often is safer than too seldom"
    new.fired(clock)
    assert new.next_step(clock) == 400


def test_an_incomplete_state_is_refused() -> None:
    with pytest.raises(SetupError, match="the saved schedule has every and needs every, multiple"):
        every("1ep").load_state_dict({"every": "1ep"})


def test_a_schedule_prints_its_interval_and_when_it_fired_last() -> None:
    clock, s = Clock(), every("100st")
    assert repr(s) == "Schedule(every='100st', last=never)"
    clock.step = 310
    s.fired(clock)
    assert repr(s) == "Schedule(every='100st', last='300st')"


def test_the_examples_in_the_documentation_work() -> None:
    assert doctest.testmod(schedule).failed == 0


# --- shares of epochs


@given(
    share=st.integers(1, 1000).map(lambda n: n / 1000),
    epochs=st.integers(1, 5),
    batches=st.integers(1, 40),
    accumulate=st.integers(1, 4),
    left=st.sets(st.integers(1, 60)),
)
def test_a_share_of_epochs_fires_when_that_part_of_the_data_is_read(
    share: float, epochs: int, batches: int, accumulate: int, left: set[int]
) -> None:
    """At the first step that completes k times the share of all batches; also if steps are asked only when due."""
    clock, made, per_epoch = Clock(lambda: 0.0), [], math.ceil(batches / accumulate)
    clock.batches_per_step = accumulate
    found = Schedule(Duration(share, "dur").of(Duration(epochs, "ep")))
    for _ in range(epochs):
        clock.mark_epoch()
        clock.epoch_batches = batches
        wake = found.next_step(clock)
        for number in range(1, per_epoch + 1):
            clock.step += 1
            clock.batch = clock.epoch * batches + min(number * accumulate, batches)
            if number == per_epoch:
                clock.end_epoch()
            assert not found.due(clock) or clock.step >= wake or number == per_epoch
            if (clock.step >= wake or number == per_epoch) and found.due(clock):
                found.fired(clock)
                made.append(clock.step)
            wake = found.next_step(clock)
            if clock.step in left:  # saved, and gone on with by another process
                other = Clock(lambda: 0.0)
                other.load_state_dict(json.loads(json.dumps(clock.state_dict())))
                other.batches_per_step, clock = accumulate, other
                again = Schedule(Duration(share, "dur").of(Duration(epochs, "ep")))
                again.load_state_dict(json.loads(json.dumps(found.state_dict())))
                found = again
    exact, total, expected = Fraction(repr(share)), epochs * batches, []
    for k in range(1, math.floor(1 / exact) + 1):
        epoch, batch = divmod(math.ceil(k * exact * total) - 1, batches)
        expected.append(epoch * per_epoch + math.ceil((batch + 1) / accumulate))
    assert made == sorted(set(expected))
    if accumulate == 1:
        assert made == sorted({math.ceil(k * exact * total) for k in range(1, math.floor(1 / exact) + 1)})


def test_a_share_is_of_the_whole_when_the_run_is_extended() -> None:
    clock, found = Clock(), Schedule.of(Duration.parse("0.25dur"), Duration.parse("4ep"))
    clock.epoch = 4
    found.fired(clock)
    found.replan(Duration.parse("6ep"), clock)
    assert repr(found) == "Schedule(every='1.5pass', last='3pass')"
    assert not found.due(clock)
    clock.mark_epoch()
    clock.epoch_batches, clock.batch = 10, 5
    assert found.due(clock)
