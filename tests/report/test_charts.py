"""Curves that are looked at together stand together."""

from __future__ import annotations

import math

import pytest

from hookline.report.charts import ALL_POINTS, LEAST, by_name, curve, plan, section_title, share
from hookline.report.downsample import POINTS
from hookline.report.series import Series


def charts(*names: str) -> list[tuple[str, str, list[str]]]:
    return [(chart.section, chart.title, [line.name for line in chart.lines]) for chart in plan(names)]


def test_training_and_validation_of_one_metric_are_in_one_chart() -> None:
    names = ["val/loss", "train/loss_epoch", "train/acc", "train/loss", "test/loss", "val/acc"]
    assert charts(*names) == [
        ("metrics", "loss", ["train/loss", "train/loss_epoch", "val/loss", "test/loss"]),
        ("metrics", "acc", ["train/acc", "val/acc"]),
    ]


def test_every_loader_of_an_evaluation_is_in_the_chart_of_its_metric() -> None:
    (chart,) = plan(["train/loss", "val/easy/loss", "val/hard/loss"])
    assert [line.label for line in chart.lines] == ["train", "val easy", "val hard"]


def test_the_loss_comes_first_then_what_both_have_then_the_rest() -> None:
    assert [title for _, title, _ in charts("train/a", "train/z", "val/z", "train/loss")] == ["loss", "z", "a"]


def test_learning_rates_share_a_chart_and_speeds_do_not() -> None:
    names = ["lr/AdamW/0", "lr/AdamW/1", "speed/samples_per_second", "speed/tokens_per_second"]
    assert charts(*names) == [
        ("lr", "lr", names[:2]),
        ("speed", "samples_per_second", names[2:3]),
        ("speed", "tokens_per_second", names[3:]),
    ]


def test_fifty_learning_rates_are_not_one_unreadable_chart() -> None:
    assert len(plan([f"lr/group{number}" for number in range(50)])) == 50


def test_a_metric_or_two_of_ones_own_stand_beside_the_others_under_their_full_names() -> None:
    assert charts("train/loss", "val/loss", "gap/loss", "train/acc") == [
        ("metrics", "loss", ["train/loss", "val/loss"]),
        ("metrics", "acc", ["train/acc"]),
        ("metrics", "gap/loss", ["gap/loss"]),
    ]


def test_no_metric_is_lost_whatever_it_is_called() -> None:
    names = ["loss", "a/b/c/d", "/", "//", "val/", "train/", "_epoch", "train/_epoch", "🙂/x", "val/a/b/c", " "]
    assert sorted(line.name for chart in plan(names) for line in chart.lines) == sorted(names)
    assert sorted(line.name for chart in by_name(names) for line in chart.lines) == sorted(names)


def test_sections_have_names_for_people_and_a_fixed_order() -> None:
    own = [f"{section}/{name}" for section in ("zebra", "apple") for name in "abc"]
    names = ["device/cpu", "speed/x", "train/loss", "memory/x", "lr/x", *own]
    sections = list(dict.fromkeys(section for section, _, _ in charts(*names)))
    assert sections == ["metrics", "lr", "speed", "memory", "device", "apple", "zebra"]
    assert [section_title(section) for section in sections[1:3]] == ["Learning rate", "Throughput"]
    assert section_title("zebra") == "zebra"


def test_runs_are_compared_by_full_name_with_validation_before_training() -> None:
    titles = [chart.title for chart in by_name(["train/acc", "test/loss", "train/loss", "val/loss", "lr/x"])]
    assert titles == ["val/loss", "train/loss", "test/loss", "train/acc", "lr/x"]


# -- the points --------------------------------------------------------------------------------------


def series(values: list[float]) -> Series:
    found = Series("train/loss", "step")
    for place, value in enumerate(values):
        found.add(10 * (place + 1), 0, float(place), value)
    return found


def test_a_curve_comes_back_from_its_differences() -> None:
    found = curve(series([0.5, math.nan, math.inf, 0.123456789]), POINTS)
    assert found["x"] == [10, 10, 10, 10]
    assert found["y"] == [0.5, "nan", "inf", 0.123457]
    assert "mean" not in found


def test_a_long_curve_says_how_many_values_it_stands_for_and_has_means() -> None:
    found = curve(series([float(place % 9) for place in range(9_000)]), POINTS)
    assert found["count"] == 9_000
    assert len(found["y"]) <= POINTS
    assert sum(found["x"]) == 90_000
    assert found["mean"]["y"] == [4.0] * (POINTS // 4)  # each bucket is two whole periods of 0 … 8


@pytest.mark.parametrize("curves", [1, 10, 60, 61, 200, 1_000])
def test_many_curves_share_the_room_of_the_page(curves: int) -> None:
    assert share(curves) <= POINTS
    assert share(curves) * curves <= ALL_POINTS
    assert share(curves) >= LEAST


def test_what_is_evaluated_comes_before_what_is_known_of_training_alone() -> None:
    names = ["train/a_norm", "train/loss", "val/f1", "val/loss", "own", "val/acc", "train/acc"]
    assert [chart.title for chart in plan(names)] == ["loss", "acc", "f1", "a_norm", "own"]


def test_any_metric_over_epochs_is_drawn_with_the_one_over_intervals() -> None:
    names = ["h/x", "h/x_epoch", "h/y", "h/z", "own", "own_epoch", "few/a", "few/a_epoch", "val/per_epoch"]
    found = [(chart.section, chart.title, [line.label for line in chart.lines]) for chart in plan(names)]
    assert sorted(found) == [
        ("h", "x", ["x", "by epoch"]),
        ("h", "y", ["y"]),
        ("h", "z", ["z"]),
        ("metrics", "few/a", ["a", "by epoch"]),
        ("metrics", "own", ["own", "by epoch"]),
        ("metrics", "per_epoch", ["val"]),
    ]


def test_counts_are_not_drawn_among_sizes() -> None:
    charts = plan(["memory/process", "memory/cuda0/allocated", "memory/cuda0/retries", "memory/bank_size"])
    assert [(chart.title, len(chart.lines)) for chart in charts] == [
        ("bank_size", 1),
        ("cuda0/retries", 1),
        ("memory", 2),
    ]


def test_values_that_are_close_to_one_another_keep_their_digits() -> None:
    series = Series("train/count", "step")
    for step in range(5):
        series.add(step, 0, 0.0, 1_234_567.0 + step)
    assert curve(series, 100)["y"] == [1_234_567.0, 1_234_568.0, 1_234_569.0, 1_234_570.0, 1_234_571.0]
