"""Nothing that is needed is ever deleted, and what is deleted does not depend on when it is asked."""

from __future__ import annotations

import doctest
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.checkpoint import Checkpoint, Manifest, retention
from hookline.checkpoint.hashed_file import FileRecord
from hookline.checkpoint.retention import Keep, to_delete
from hookline.checkpoint.snapshot import About
from hookline.errors import ArgumentError, DurationError
from hookline.progress import Duration


def saved(
    step: int, loss: float | None = None, *, name: str = "", full: bool = True, created: float = 0.0, **fields: Any
) -> Checkpoint:
    metrics = {} if loss is None else {"val/loss": loss}
    values = {"epoch": 0, "batch": step, "sample": step, "seconds": 0.0, "run": "r", "metrics": metrics} | fields
    about = About(step=step, **values)
    name = name or f"g{about.generation}-step-{step}" + ("" if about.exact else "-inexact")
    files = {file: FileRecord(1, "") for file in (("model.safetensors", "state.json") if full else ("model",))}
    return Checkpoint(Path("run") / name, Manifest(about, files, created))


def survivors(checkpoints: list[Checkpoint], keep: Keep) -> list[Checkpoint]:
    gone = to_delete(checkpoints, keep)
    return [checkpoint for checkpoint in checkpoints if checkpoint not in gone]


def steps(checkpoints: list[Checkpoint]) -> list[int]:
    return [checkpoint.about.step for checkpoint in checkpoints]


@st.composite
def runs(draw: st.DrawFn) -> list[Checkpoint]:
    """Checkpoints in the order in which one run and its rollbacks save them."""
    found: list[Checkpoint] = []
    step = seconds = generation = 0
    for _ in range(draw(st.integers(1, 25))):
        if found and draw(st.integers(0, 7)) == 0:  # a rollback, to before some of them
            step, generation = draw(st.integers(0, step)), generation + 1
        step += draw(st.integers(1, 7))
        seconds += draw(st.integers(0, 9))
        # Few values, so that equal ones are common.
        loss = draw(st.sampled_from([None, math.nan, 0.5, 0.25, 1.0, math.inf, -1.0]))
        fields = {"epoch": step // 5, "sample": step * 3, "seconds": seconds / 2, "generation": generation}
        exact, full = (draw(st.integers(0, 4)) > 0 for _ in range(2))
        found.append(saved(step, loss, exact=exact, full=full, **fields))
    return found


@st.composite
def rules(draw: st.DrawFn) -> Keep:
    best = draw(st.integers(0, 4))
    every = draw(st.none() | st.sampled_from(["3st", "10st", "1ep", "2ep", "7sp", "4s", "2.5s"]))
    mode = draw(st.sampled_from(["min", "max"]))
    return Keep(draw(st.integers(1, 4)), best, "val/loss" if best else None, mode, every)


@settings(deadline=None)
@given(runs(), rules())
def test_the_newest_and_the_newest_that_can_be_resumed_stay_under_every_rule(run: list[Checkpoint], keep: Keep) -> None:
    left = survivors(run, keep)
    assert left[-1] == run[-1]
    exact = [checkpoint for checkpoint in run if checkpoint.about.exact]
    assert not exact or exact[-1] in left
    usable = [checkpoint for checkpoint in exact if not checkpoint.weights_only]
    assert not usable or usable[-1] in left


@settings(deadline=None)
@given(runs(), rules())
def test_all_rules_together_keep_what_each_of_them_keeps_alone(run: list[Checkpoint], keep: Keep) -> None:
    alone = [Keep(last=keep.last), Keep(every=keep.every)]
    if keep.best:
        alone.append(Keep(best=keep.best, monitor=keep.monitor, mode=keep.mode))
    union = {checkpoint.name for rule in alone for checkpoint in survivors(run, rule)}
    assert {checkpoint.name for checkpoint in survivors(run, keep)} == union


@settings(deadline=None)
@given(runs(), rules(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_folder_is_listed_decides_nothing(run: list[Checkpoint], keep: Keep, random: Any) -> None:
    shuffled = random.sample(run, len(run))
    assert to_delete(shuffled, keep) == to_delete(run, keep)


@settings(deadline=None)
@given(runs(), rules())
def test_pruning_twice_deletes_no_more_than_once(run: list[Checkpoint], keep: Keep) -> None:
    assert to_delete(survivors(run, keep), keep) == []


@settings(max_examples=300, deadline=None)
@given(runs(), rules())
def test_pruning_after_every_save_keeps_what_pruning_at_the_end_keeps(run: list[Checkpoint], keep: Keep) -> None:
    left: list[Checkpoint] = []
    for checkpoint in run:
        left = survivors([*left, checkpoint], keep)
    assert left == survivors(run, keep)


@settings(deadline=None)
@given(runs(), rules(), st.data())
def test_a_save_that_failed_costs_none_of_the_others(run: list[Checkpoint], keep: Keep, data: st.DataObject) -> None:
    """Were one never there, all that were kept are still kept: nothing relies on another being there."""
    missing = data.draw(st.sampled_from(run))
    others = [checkpoint for checkpoint in run if checkpoint != missing]
    left = survivors(others, keep)
    assert all(checkpoint in left for checkpoint in survivors(run, keep) if checkpoint != missing)


@settings(deadline=None)
@given(runs(), st.integers(1, 4))
def test_last_counts_exact_ones_only(run: list[Checkpoint], last: int) -> None:
    exact = [checkpoint for checkpoint in run if checkpoint.about.exact]
    left = survivors(run, Keep(last=last))
    usable = [checkpoint for checkpoint in exact if not checkpoint.weights_only]
    kept = [checkpoint for checkpoint in left if checkpoint.about.exact]
    assert kept == [checkpoint for checkpoint in exact if checkpoint in (*exact[-last:], *usable[-1:])]


def test_one_saved_after_an_error_does_not_push_out_an_exact_one() -> None:
    run = [saved(1), saved(2), saved(3, exact=False)]
    assert steps(survivors(run, Keep(last=2))) == [1, 2, 3]
    assert steps(survivors([*run, saved(4)], Keep(last=2))) == [2, 4]


def test_one_saved_after_an_error_is_never_the_best() -> None:
    run = [saved(1, 0.5), saved(2, 0.1, exact=False), saved(3, 0.9)]
    assert steps(survivors(run, Keep(best=1, monitor="val/loss"))) == [1, 3]


def test_the_only_one_stays_even_if_it_is_not_exact() -> None:
    assert to_delete([saved(1, exact=False)], Keep()) == []
    assert to_delete([], Keep()) == []


@pytest.mark.parametrize(("mode", "best"), [("min", [2, 4]), ("max", [1, 4])])
def test_best_follows_the_mode(mode: Any, best: list[int]) -> None:
    run = [saved(1, 0.9), saved(2, 0.1), saved(3, 0.5), saved(4, 0.4)]
    assert steps(survivors(run, Keep(best=1, monitor="val/loss", mode=mode))) == best


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_and_a_missing_metric_are_never_the_best(mode: Any) -> None:
    run = [saved(1, math.nan), saved(2), saved(3, 0.5), saved(4)]
    assert steps(survivors(run, Keep(best=3, monitor="val/loss", mode=mode))) == [3, 4]


def test_of_equal_values_the_one_nearest_to_its_evaluation_is_kept() -> None:
    run = [saved(100, 0.5), saved(110, 0.5), saved(120, 0.5), saved(200, 0.7)]
    assert steps(survivors(run, Keep(best=1, monitor="val/loss"))) == [100, 200]


@pytest.mark.parametrize(
    ("every", "kept"), [("100st", [103, 200, 340, 360]), ("2ep", [200, 360]), ("500sp", [103, 200, 340, 360])]
)
def test_every_keeps_the_first_at_or_after_each_multiple(every: str, kept: list[int]) -> None:
    run = [saved(s, epoch=s // 100, sample=s * 5) for s in (50, 103, 150, 200, 250, 340, 350, 360)]
    assert steps(survivors(run, Keep(every=every))) == kept


def test_every_counts_seconds_of_training() -> None:
    run = [saved(step, seconds=step * 0.4) for step in range(1, 10)]
    assert steps(survivors(run, Keep(every="1.5s"))) == [4, 8, 9]


def test_after_a_rollback_a_milestone_is_that_of_the_line_that_goes_on() -> None:
    abandoned = [saved(100), saved(150), saved(200), saved(250)]
    going_on = [saved(step, generation=1) for step in (160, 200, 260)]
    left = survivors([*abandoned, *going_on], Keep(every="100st"))
    assert [(c.about.generation, c.about.step) for c in left] == [(0, 100), (1, 200), (1, 260)]


def test_a_higher_generation_is_newer_than_any_step() -> None:
    run = [saved(900), saved(1000), saved(500, generation=1)]
    assert steps(survivors(run, Keep(last=1))) == [500]


def test_of_two_of_one_step_the_later_one_is_the_newer_whatever_its_name() -> None:
    run = [saved(1, name="step-1-10", created=1.0), saved(1, name="step-1-2", created=2.0)]
    for order in itertools.permutations(run):
        assert [gone.name for gone in to_delete(order, Keep())] == ["step-1-10"]


def test_without_the_last_ones_the_newest_goes_when_the_run_is_finished() -> None:
    run, keep = [saved(1, loss=2.0), saved(2, loss=1.0), saved(3, loss=3.0)], Keep(last=0, best=1, monitor="val/loss")
    assert steps(survivors(run, keep)) == [2, 3]
    gone = to_delete(run, keep, is_finished=True)
    assert steps(gone) == [1, 3]
    unmeasured = [saved(1), saved(2)]
    assert steps(to_delete(unmeasured, keep, is_finished=True)) == [1]  # never all of them


def test_weights_alone_do_not_push_out_what_a_resume_needs() -> None:
    run = [saved(1), saved(2), saved(3, full=False), saved(4, full=False)]
    assert steps(survivors(run, Keep(last=2))) == [2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"last": 0}, r"Keep\(last=0\): keeps nothing\. Give best= or every= as well\."),
        ({"last": -1}, r"Keep\(last=-1\): must be an integer, 0 or more\."),
        ({"last": True}, "last=True"),
        ({"last": 2.0}, "last=2.0"),
        ({"best": -1, "monitor": "a"}, "best=-1"),
        ({"best": 2}, r"Keep\(best=2\): needs a metric\. Add monitor='val/loss'\."),
        ({"monitor": "val/loss"}, r"Keep\(monitor='val/loss', best=0\): keeps none for the metric\. Write best=1\."),
        (
            {"best": 1, "monitor": "a", "mode": "smallest"},
            r"Keep\(mode='smallest'\): must be 'min' \(smaller is better\) or 'max'\.",
        ),
        ({"every": "1e6tok"}, r"Keep\(every='1000000tok'\): a checkpoint does not count tokens\. Use st or sp\."),
        (
            {"every": "0.1dur"},
            r"Keep\(every='0\.1dur'\): is a fraction of max_duration\. Resolve it with \.of\(max_duration\)\.",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_what_to_write(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Keep(**arguments)


def test_a_number_without_a_unit_is_refused() -> None:
    with pytest.raises(DurationError, match="has no unit"):
        Keep(every=1000)  # type: ignore[arg-type]


def test_every_is_a_duration_also_when_given_as_text() -> None:
    assert Keep(every="10st") == Keep(every=Duration(10, "st"))


def test_the_examples_are_right() -> None:
    assert doctest.testmod(retention).failed == 0
