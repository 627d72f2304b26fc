"""The order of callbacks follows from what they declare, not from where they stand in the list."""

from __future__ import annotations

import random
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl
from hookline.errors import OrderError, RegistrationError
from hookline.events import Callback, explain
from hookline.events.order import PHASES, overlaps, phase, sort


def declare(name: str, **declared: Any) -> Callback:
    """A callback of a class of its own, with this name."""
    cls = type(name, (Callback,), {})
    callback: Callback = cls()
    for key, value in declared.items():
        setattr(callback, key, value if isinstance(value, tuple) else (value,))
    return callback


def names(*callbacks: Callback, raw_gradients: bool = False) -> list[str]:
    return [type(callback).__name__ for callback in sort(callbacks, raw_gradients=raw_gradients).callbacks]


def refused(*callbacks: Callback) -> str:
    with pytest.raises(OrderError) as caught:
        sort(callbacks)
    return str(caught.value)


# -- writers before readers --------------------------------------------------------------------


@st.composite
def dags(draw: st.DrawFn) -> list[Callback]:
    """Callbacks that read one another's metrics without a cycle, in any order of the list."""
    count = draw(st.integers(1, 8))
    callbacks = []
    for index in range(count):
        earlier = st.sampled_from(range(index)) if index else st.nothing()
        reads = draw(st.frozensets(earlier, max_size=3)) if index else frozenset()
        after = draw(st.frozensets(earlier, max_size=1)) if index else frozenset()
        callbacks.append(
            declare(
                f"C{index}",
                writes=(f"m/{index}",) if draw(st.booleans()) else (),
                reads=tuple(f"m/{other}" for other in reads),
                after=tuple(f"C{other}" for other in after),
            )
        )
    return draw(st.permutations(callbacks))


def naive(callbacks: list[Callback]) -> list[Callback]:
    """Look again and again for those that need nobody who is not placed yet; take the first of the lowest phase."""
    placed: list[Callback] = []
    while len(placed) < len(callbacks):
        waiting = [callback for callback in callbacks if callback not in placed]
        ready = [
            one
            for one in waiting
            if not any(
                set(other.writes) & set(one.reads) or type(other).__name__ in one.after
                for other in waiting
                if other is not one
            )
        ]
        placed.append(min(ready, key=phase))
    return placed


@given(callbacks=dags())
def test_writers_come_before_their_readers_in_any_list(callbacks: list[Callback]) -> None:
    ordered = list(sort(callbacks).callbacks)
    assert sorted(map(id, ordered)) == sorted(map(id, callbacks))
    for reader in ordered:
        for writer in ordered[ordered.index(reader) + 1 :]:
            assert not set(writer.writes) & set(reader.reads)
            assert type(writer).__name__ not in reader.after


@given(callbacks=dags())
def test_callbacks_that_do_not_touch_each_other_keep_the_order_of_the_list(callbacks: list[Callback]) -> None:
    assert list(sort(callbacks).callbacks) == naive(callbacks)


@given(callbacks=dags())
def test_sorting_what_is_sorted_changes_nothing(callbacks: list[Callback]) -> None:
    once = sort(callbacks).callbacks
    assert sort(once).callbacks == once


def test_shuffling_six_callbacks_a_thousand_times_gives_one_order_and_one_reason_for_each(world: Any) -> None:
    callbacks = [
        declare("Predict", writes="val/predictions"),
        declare("Score", reads="val/predictions", writes="val/score"),
        declare("Smooth", reads="val/score", writes="val/score_smooth"),
        declare("Best", reads="val/score_*", writes="val/best"),
        declare("Stop", reads=("val/best", "val/score")),
        declare("Save", reads="*"),
    ]
    shuffle = random.Random(0)
    found = set()
    for _ in range(1000):
        shuffle.shuffle(callbacks)
        order = sort(callbacks)
        found.add(tuple(f"{type(callback).__name__}: {order.why(callback)}" for callback in order.callbacks))
    (reasons,) = found
    assert reasons == (
        "Predict: reads nothing: before those that monitor, in list order",
        "Score: after Predict: reads val/predictions",
        "Smooth: after Score: reads val/score",
        "Best: after Smooth: reads val/score_*",
        "Stop: after Score: reads val/score; after Best: reads val/best",
        "Save: reads everything: last",
    )
    told = explain(world(*callbacks).line).splitlines()[1:]
    assert told == [
        f"  {number}. {reason.replace(': ', '() [required]: ', 1)}" for number, reason in enumerate(reasons, 1)
    ]


def test_a_callbacks_own_read_and_write_of_one_thing_is_no_cycle() -> None:
    assert names(declare("A", reads="x", writes="x"), declare("B")) == ["B", "A"]


@pytest.mark.parametrize(
    ("one", "other", "touch"),
    [
        ("val/loss", "val/loss", True),
        ("val/loss", "val/acc", False),
        ("val/*", "val/loss", True),
        ("val/loss", "val/*", True),
        ("val/*/loss", "val/easy/loss", True),
        ("val/*", "train/loss", False),
        ("val/*", "*/loss", True),
        ("VAL/loss", "val/loss", False),
    ],
)
def test_a_star_in_a_name_stands_for_any_part_of_it(one: str, other: str, touch: bool) -> None:
    assert overlaps(one, other) is overlaps(other, one) is touch
    reader, writer = declare("Reader", reads=one, writes="a"), declare("Writer", reads="b", writes=other)
    assert names(reader, writer) == (["Writer", "Reader"] if touch else ["Reader", "Writer"])
    assert sort([reader, writer]).why(reader) == (f"after Writer: reads {one}" if touch else PHASES[1])


@given(one=st.text("ab*", max_size=4), other=st.text("ab*", max_size=4))
def test_two_names_with_stars_overlap_if_some_name_fits_both(one: str, other: str) -> None:
    every_name = ["".join(letters) for length in range(7) for letters in product("ab", repeat=length)]
    fits_both = any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in every_name)
    assert overlaps(one, other) is fits_both


def test_one_that_reads_everything_such_as_a_checkpoint_is_last() -> None:
    save, monitor, plain = declare("Save", reads="*"), declare("Monitor", reads="val/loss"), declare("Plain")
    assert names(save, monitor, plain) == ["Plain", "Monitor", "Save"]


def test_two_that_read_everything_keep_the_order_of_the_list() -> None:
    one, two = declare("One", reads="*"), declare("Two", reads="*")
    assert names(one, declare("Plain"), two) == ["Plain", "One", "Two"]
    assert names(two, declare("Plain"), one) == ["Plain", "Two", "One"]


def test_one_that_reads_everything_comes_after_one_that_reads_everything_and_writes_for_it() -> None:
    # Two that read everything are not ordered by that; before and after still order them.
    assert names(declare("One", reads="*", after="Two"), declare("Two", reads="*")) == ["Two", "One"]


def test_a_users_callback_that_declares_nothing_runs_before_the_monitors_in_list_order() -> None:
    monitor = declare("Monitor", reads="val/loss")
    assert names(monitor, declare("B"), declare("A")) == ["B", "A", "Monitor"]


# -- before and after --------------------------------------------------------------------------


def test_before_and_after_can_be_a_class_a_class_name_or_a_name() -> None:
    target = declare("Target")
    target.name = "the target"
    for reference in (type(target), "Target", "the target"):
        assert names(declare("A", after=reference), target) == ["Target", "A"]
        assert names(target, declare("A", before=reference)) == ["A", "Target"]


def test_a_base_class_means_all_of_its_subclasses() -> None:
    base = type("Base", (Callback,), {})
    one, two = type("One", (base,), {})(), type("Two", (base,), {})()
    assert names(declare("A", after=base), one, two) == ["One", "Two", "A"]


def test_a_single_name_need_not_be_a_tuple() -> None:
    callback = declare("A")
    callback.after = "B"  # type: ignore[assignment]
    assert names(callback, declare("B")) == ["B", "A"]
    callback.after = type(declare("C"))  # type: ignore[assignment]
    assert names(callback, declare("B")) == ["A", "B"]


def test_a_class_that_a_function_defines_is_found_by_its_plain_name() -> None:
    class Local(Callback):
        pass

    assert names(declare("A", after="Local"), Local()) == ["Local", "A"]
    with pytest.raises(RegistrationError, match="did you mean 'Local'"):
        sort([declare("A", after="Lokal"), Local()])


def test_a_callback_may_name_a_group_that_it_belongs_to() -> None:
    assert names(declare("A", after=Callback), declare("B")) == ["B", "A"]


def test_a_misspelt_name_orders_nothing_so_it_is_refused() -> None:
    with pytest.raises(RegistrationError) as caught:
        sort([declare("A", after="EarlyStoping"), declare("EarlyStopping")])
    assert str(caught.value) == ("A: before/after 'EarlyStoping' is not registered; did you mean 'EarlyStopping'?")


def test_a_name_that_is_not_there_is_no_error_because_a_callback_may_be_left_out() -> None:
    assert names(declare("A", after="Checkpointer", before=type(declare("Absent"))), declare("B")) == ["A", "B"]


def test_a_declared_order_beats_the_flow_of_data() -> None:
    reader, writer = declare("Reader", reads="x", before="Writer"), declare("Writer", writes="x")
    assert names(reader, writer) == names(writer, reader) == ["Reader", "Writer"]
    save = declare("Save", reads="*", before="Last")
    assert names(declare("Last"), save) == ["Save", "Last"]


# -- mistakes ----------------------------------------------------------------------------------


def test_a_cycle_names_the_way_round_and_the_reason_of_each_part() -> None:
    text = refused(
        declare("A", reads="c", writes="a"),
        declare("B", reads="a", before="C"),
        declare("C", writes="c"),
    )
    ways = [
        "A before B (reads a)",
        "B before C (declared with before by B)",
        "C before A (reads c)",
    ]
    rotations = ["; ".join(ways[start:] + ways[:start]) for start in range(3)]
    assert text in [
        f"the declared order is a cycle: {way}. Remove one of them, or add before/after" for way in rotations
    ]


def test_two_that_each_change_what_the_other_reads_are_two_writers_until_an_order_is_declared() -> None:
    one, two = declare("One", reads="x", writes="x"), declare("Two", reads="x", writes="x")
    assert refused(one, two).startswith("One and Two both write 'x'; say which comes first")
    two.before = ("One",)
    assert names(one, two) == ["Two", "One"]


def test_two_writers_of_one_thing_are_both_named_with_what_to_write() -> None:
    assert refused(declare("Ema", writes="weights"), declare("Swa", writes="weights")) == (
        "Ema and Swa both write 'weights'; say which comes first: before or after on one of them, "
        "e.g. after = ('Ema',) on Swa"
    )


@pytest.mark.parametrize("how", [{"after": "Ema"}, {"before": "Ema"}])
def test_before_or_after_settles_two_writers(how: dict[str, str]) -> None:
    expected = ["Ema", "Swa"] if "after" in how else ["Swa", "Ema"]
    assert names(declare("Ema", writes="weights"), declare("Swa", writes="weights", **how)) == expected


def test_two_writers_may_be_ordered_through_a_third() -> None:
    ema, swa = declare("Ema", writes="weights"), declare("Swa", writes="weights")
    assert names(swa, ema, declare("Between", after="Ema", before="Swa")) == ["Ema", "Between", "Swa"]


@pytest.mark.parametrize(
    ("callbacks", "remedy"),
    [
        ((hl.SaveBest("val/loss"), hl.SaveBest("val/acc", path="acc.safetensors")), "give one of them load_best=False"),
        (
            (hl.EarlyStopping("val/loss", restore_best=True), hl.EarlyStopping("val/acc", restore_best=True)),
            "give one of them restore_best=False",
        ),
        ((hl.GradientClip(1.0), hl.GradientClip(2.0)), "leave one of them out"),
    ],
    ids=["SaveBest", "EarlyStopping", "GradientClip"],
)
def test_two_writers_of_one_class_get_the_option_of_that_class(
    callbacks: tuple[Callback, Callback], remedy: str
) -> None:
    assert refused(*callbacks).endswith(
        f": {remedy}; or give each a name, and say which comes first with before or after on one of them"
    )


def test_two_of_one_class_that_write_a_pattern_or_commute_keep_the_order_of_the_list() -> None:
    for pair in (
        [hl.ParameterMonitor(layers="0.*"), hl.ParameterMonitor(layers="1.*")],
        [hl.Freeze("0"), hl.Freeze("1")],
    ):
        assert list(sort(pair).callbacks) == pair
        assert list(sort(pair[::-1]).callbacks) == pair[::-1]


def test_two_writers_overlap_also_through_a_star() -> None:
    assert "both write 'val/*'" in refused(declare("A", writes="val/*"), declare("B", writes="val/loss"))


# -- gradients ---------------------------------------------------------------------------------


def test_readers_of_gradients_see_them_raw_when_they_are_ready_and_final_when_they_are_used() -> None:
    norm, clip = declare("Norm", reads="gradients"), declare("Clip", writes="gradients")
    assert names(norm, clip) == names(clip, norm) == ["Clip", "Norm"]
    assert names(norm, clip, raw_gradients=True) == names(clip, norm, raw_gradients=True) == ["Norm", "Clip"]


def test_the_line_uses_the_raw_order_for_gradients_ready_and_for_no_other_event(
    world: Callable[..., Any], hearing: Any
) -> None:
    norm = hearing("gradients_ready", "optimizer_step_start", name="norm", reads=("gradients",))
    clip = hearing("gradients_ready", "optimizer_step_start", name="clip", writes=("gradients",))
    for made in (world(norm, clip), world(clip, norm)):
        made.emit("gradients_ready", "optimizer_step_start")
        assert made.log == [
            ("norm", "gradients_ready"),
            ("clip", "gradients_ready"),
            ("clip", "optimizer_step_start"),
            ("norm", "optimizer_step_start"),
        ]


def test_one_who_wants_to_see_clipped_gradients_when_they_are_ready_can_say_so() -> None:
    norm, clip = declare("Norm", reads="gradients", after="Clip"), declare("Clip", writes="gradients")
    assert names(norm, clip, raw_gradients=True) == ["Clip", "Norm"]


def test_two_that_read_and_change_gradients_keep_their_declared_order_when_they_are_ready() -> None:
    clip = declare("Clip", reads="gradients", writes="gradients")
    noise = declare("Noise", reads="gradients", writes="gradients", after="Clip")
    assert names(noise, clip) == names(noise, clip, raw_gradients=True) == ["Clip", "Noise"]


def test_other_things_keep_writers_first_when_gradients_are_ready() -> None:
    assert names(declare("R", reads="x"), declare("W", writes="x"), raw_gradients=True) == ["W", "R"]


# -- those that leave --------------------------------------------------------------------------


def test_removing_a_callback_never_raises_although_two_writers_were_ordered_through_it(world: Any) -> None:
    ema, swa = declare("Ema", writes="weights"), declare("Swa", writes="weights")
    between = declare("Between", after="Ema", before="Swa")
    made = world(swa, between, ema)
    made.remove(between)
    assert [type(callback).__name__ for callback in made.line.order.callbacks] == ["Ema", "Swa"]


def test_removing_a_callback_never_turns_a_right_name_into_a_misspelt_one(world: Any) -> None:
    watch = declare("Watch")
    made = world(declare("A", after="Watch"), watch, declare("Watch2"))
    made.remove(watch)
    assert [type(callback).__name__ for callback in made.line.order.callbacks] == ["A", "Watch2"]


def test_the_reasons_do_not_name_one_that_has_left(world: Any) -> None:
    writer, reader = declare("Writer", writes="x"), declare("Reader", reads="x")
    made = world(reader, writer)
    assert made.line.order.why(reader) == "after Writer: reads x"
    made.remove(writer)
    assert made.line.order.why(reader) == "reads what others write"


def test_a_role_orders_writers_and_before_or_after_counts_more() -> None:
    average, load = declare("Mine", writes=("weights",)), declare("Loads", writes=("weights",))
    average.role, load.role = "average", "load"
    for listed in ([average, load], [load, average]):
        assert sort(listed).callbacks == (load, average)
        assert sort(listed).why(average) == "after Loads: role load before average"
    load.after = ("Mine",)
    for listed in ([average, load], [load, average]):
        assert sort(listed).callbacks == (average, load)


def test_one_that_reads_everything_is_last_also_if_it_writes_what_others_read() -> None:
    last, reader = declare("Last", reads=("*",), writes=("weights",)), declare("Reader", reads=("weights",))
    for listed in ([last, reader], [reader, last]):
        assert sort(listed).callbacks == (reader, last)


def test_a_class_in_after_orders_its_subclasses_but_not_two_of_the_same_class() -> None:
    """``BackboneFinetuning`` runs after its base class ``Finetuning``. Two of it are no cycle."""

    class Base(Callback):
        commutes = True

    class Mine(Base):
        after = (Base,)

    base, one, two = Base(), Mine(), Mine()
    for listed in ([one, base, two], [two, one, base]):
        expected = [base, *(its for its in listed if its is not base)]
        assert sort(listed).callbacks == tuple(expected)


def test_a_plot_of_any_package_is_drawn_before_it_is_sent() -> None:
    plot, notify = declare("Mine", reads=("*",)), hl.Notify(webhook="http://127.0.0.1:1")
    plot.role = "plot"
    assert sort([notify, plot]).callbacks == (plot, notify)


def test_a_role_that_does_not_exist_is_refused(world: Any) -> None:
    callback = declare("Mine")
    callback.role = "avrage"
    with pytest.raises(
        RegistrationError, match=r"Mine.role = 'avrage': there is no such role. Did you mean 'average'\?"
    ):
        world(callback)
