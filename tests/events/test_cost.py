"""What a callback costs is known, right on average, and knowing it disturbs nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.events import EVENTS, Callback, CostRow, on
from hookline.events.cost import SAMPLE, Sampler
from hookline.events.spec import STEP_EVENTS

World = Callable[..., Any]


def picks(steps: int) -> list[int]:
    """The sampled steps, asked for as the loop does it: after each one for the next."""
    sampler, found = Sampler(), []
    pick = sampler.next_after(-1)
    while pick < steps:
        found.append(pick)
        pick = sampler.next_after(pick)
    return found


# -- which steps -------------------------------------------------------------------------------


def test_exactly_one_step_of_each_group_of_64_is_sampled() -> None:
    assert SAMPLE == 64
    assert [pick // SAMPLE for pick in picks(1000 * SAMPLE)] == list(range(1000))


@given(step=st.integers(-1, 10**9))
def test_the_next_sample_is_the_first_one_after_any_step(step: int) -> None:
    sampler = Sampler()
    following = sampler.next_after(step)
    assert step < following < (step // SAMPLE + 2) * SAMPLE
    between = range(step, min(following, step + 200))
    assert {sampler.next_after(other) for other in between} == {following}


def test_the_place_in_the_group_is_spread_evenly_so_no_schedule_hits_or_misses_it_always() -> None:
    groups = 64 * 400
    counts = [0] * SAMPLE
    for pick in picks(groups * SAMPLE):
        counts[pick % SAMPLE] += 1
    expected = groups / SAMPLE
    chi_squared = sum((count - expected) ** 2 / expected for count in counts)
    assert chi_squared < 125  # 63 degrees of freedom: more than that happens once in 100,000 times by chance


@pytest.mark.parametrize("period", [2, 7, 32, 64, 100, 128])
def test_a_callback_that_runs_every_so_many_steps_is_counted_right_on_average(period: int) -> None:
    steps = 64 * 64 * 64 * 4
    sampled = picks(steps)
    true, seen = steps // period, sum((pick + 1) % period == 0 for pick in sampled)
    assert seen * steps / len(sampled) == pytest.approx(true, rel=0.1)


def test_two_runs_sample_the_same_steps_and_the_global_random_state_stays_the_users(world: World) -> None:
    random.seed(7)
    before = random.getstate()
    assert picks(10_000) == picks(10_000)
    world(Callback())
    assert random.getstate() == before


# -- what is timed -----------------------------------------------------------------------------


def rows(made: Any) -> dict[str, int]:
    return {row.hook: row.calls for row in made.line.costs()}


def test_events_outside_the_step_are_timed_always_and_those_of_a_step_in_the_timed_table(
    world: World, hearing: Any
) -> None:
    for event in [event.name for event in EVENTS]:
        made = world(hearing(event))
        made.line.sampler.seen, made.line.sampler.sampled = 64, 1
        made.emit(event)
        assert rows(made) == ({} if event in STEP_EVENTS else {f"on_{event}": 1}), event
        made.line.hooks = made.line.timed
        made.emit(event)
        assert rows(made) == ({f"on_{event}": 64} if event in STEP_EVENTS else {f"on_{event}": 2})


def test_the_events_of_a_step_are_those_that_a_step_sends() -> None:
    assert sorted(STEP_EVENTS) == [
        "backward_end",
        "backward_start",
        "batch_fetch_end",
        "batch_fetch_start",
        "forward_end",
        "forward_start",
        "gradients_ready",
        "loss_ready",
        "optimizer_step_end",
        "optimizer_step_start",
        "rollback",
        "scheduler_step",
        "step_settled",
        "step_skipped",
        "train_batch_end",
        "train_batch_start",
        "train_step_end",
        "train_step_start",
        "zero_grad",
    ]


def test_sampled_steps_stand_for_all_steps_and_other_events_for_themselves(world: World) -> None:
    class Slow(Callback):
        def on_train_step_end(self, run: Any) -> None:
            time.sleep(0.001)

        def on_epoch_end(self, run: Any) -> None:
            time.sleep(0.001)

    made = world(Slow())
    sampler = made.line.sampler
    pick = sampler.next_after(-1)
    for step in range(640):
        made.line.hooks = made.line.timed if step == pick else made.line.fast
        if step % 64 == 0 or step == pick:  # the untimed steps cost the test time and change nothing
            made.emit("train_step_end")
        if step == pick:
            sampler.sampled += 1
            pick = sampler.next_after(step)
    sampler.seen = 640
    began = time.perf_counter()
    made.emit("epoch_end")
    took = time.perf_counter() - began
    found = {row.hook: row for row in made.line.costs()}
    assert found["on_train_step_end"].calls == 640
    assert found["on_train_step_end"].seconds >= 0.64
    assert found["on_epoch_end"].calls == 1
    assert 0.001 <= found["on_epoch_end"].seconds <= took
    seconds = [row.seconds for row in made.line.costs()]
    assert seconds == sorted(seconds, reverse=True)  # the dearest first


def test_a_callback_with_every_64st_is_caught_in_the_act_as_often_as_it_should_be(world: World) -> None:
    # At a fixed place in the group it would be seen at every sample, or never.
    made = world(on("train_step_end", every="64st")(lambda run: run.world.log.append(run.world.line.hooks)))
    sampler, steps = made.line.sampler, 64 * 64 * 64
    pick = sampler.next_after(-1)
    for step in range(steps):
        made.clock.step = step + 1
        made.line.hooks = made.line.timed if step == pick else made.line.fast
        made.emit("train_step_end")
        if step == pick:
            sampler.sampled += 1
            pick = sampler.next_after(step)
    sampler.seen = steps
    assert len(made.log) == steps // 64
    caught = sum(hooks is made.line.timed for hooks in made.log)
    assert caught * steps / sampler.sampled == pytest.approx(steps // 64, rel=0.3)
    assert rows(made) == {"on_train_step_end": steps}


def test_a_hook_that_raises_is_timed_too(world: World) -> None:
    class Broken(Callback):
        optional = True

        def on_train_start(self, run: Any) -> None:
            raise ValueError("no")

    made = world(Broken())
    made.emit("train_start")
    assert rows(made) == {"on_train_start": 1}


def test_a_scope_is_always_timed_both_parts_of_it_and_counted_once(world: World) -> None:
    class Around(Callback):
        name = "around"

        def around_step(self, run: Any) -> Iterator[None]:
            time.sleep(0.001)
            yield
            time.sleep(0.001)

    made = world(Around())
    for _ in range(3):
        with made.scope("step"):
            pass
    (row,) = made.line.costs()
    assert (row.callback, row.hook, row.calls) == ("around", "around_step", 3)
    assert row.seconds >= 0.006


def test_two_callbacks_of_one_class_are_two_rows_and_a_single_one_has_the_short_name(world: World) -> None:
    class Counter(Callback):
        def __init__(self, what: str) -> None: ...
        def on_train_start(self, run: Any) -> None: ...

    class Other(Callback):
        name = "other"

        def on_train_start(self, run: Any) -> None: ...

    made = world(Counter("epochs"), Counter("steps"), Other())
    made.emit("train_start")
    kind = Counter.__qualname__
    assert {row.callback for row in made.line.costs()} == {
        f"{kind}(what='epochs')",
        f"{kind}(what='steps')",
        "other",
    }
    alone = world(Counter("epochs"))
    alone.emit("train_start")
    assert [row.callback for row in alone.line.costs()] == [kind]


def test_costs_are_kept_when_a_callback_leaves_and_go_on_when_it_comes_back(world: World, hearing: Any) -> None:
    callback = hearing("train_start", name="a")
    made = world(callback)
    made.emit("train_start")
    made.remove(callback)
    assert rows(made) == {"on_train_start": 1}
    made.line.add([callback])
    made.emit("train_start")
    assert rows(made) == {"on_train_start": 2}


def test_a_hook_that_never_ran_has_no_row(world: World, hearing: Any) -> None:
    assert world(hearing("train_start", "train_step_end")).line.costs() == ()


def test_a_row_is_a_plain_value() -> None:
    assert CostRow("a", "on_b", 1, 0.5) == CostRow("a", "on_b", 1, 0.5)
    assert {CostRow("a", "on_b", 1, 0.5)}
