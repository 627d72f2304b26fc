"""The numbers at the top are the last ones and the best ones, exactly."""

from __future__ import annotations

import math

import pytest

from hookline.report.numbers import better, numbers_of, tiles_of
from hookline.report.series import Series


def series(name: str, *values: float) -> Series:
    found = Series(name, "eval")
    for place, value in enumerate(values):
        found.add(10 * (place + 1), place + 1, 0.0, value)
    return found


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("val/loss", "min"),
        ("val/cross_entropy_loss", "min"),
        ("val/hard/error", "min"),
        ("val/Accuracy", "max"),
        ("val/top5_acc", "max"),
        ("val/f1", "max"),
        ("val/r2", "max"),
        ("val/temperature", None),
        ("loss/weight", None),
    ],
)
def test_the_name_tells_which_is_better_or_it_is_not_known(name: str, mode: str | None) -> None:
    assert better(name) == mode


def test_last_best_and_extremes_are_exact_and_say_when() -> None:
    (row,) = numbers_of({"val/loss": series("val/loss", 0.9, 0.123456789012345, math.nan, 0.7)})
    assert row["last"] == {"value": 0.7, "step": 40, "epoch": 4}
    assert row["best"] == row["lowest"] == {"value": 0.123456789012345, "step": 20, "epoch": 2}
    assert row["highest"]["value"] == 0.9


def test_nan_and_infinities_are_told_as_they_are() -> None:
    (row,) = numbers_of({"val/loss": series("val/loss", math.inf, math.nan)})
    assert row["last"]["value"] == "nan"
    assert row["best"] is row["lowest"] is row["highest"] is None


def test_a_metric_of_which_nobody_knows_which_is_better_has_no_best() -> None:
    (row,) = numbers_of({"val/width": series("val/width", 3.0, 1.0, 2.0)})
    assert row["best"] is None
    assert (row["lowest"]["value"], row["highest"]["value"]) == (1.0, 3.0)


def tiles(*names: str) -> list[str]:
    found = {name: series(name, 1.0, 2.0) for name in names}
    return [tile["name"] for tile in tiles_of(found, numbers_of(found))]


def test_evaluations_are_the_key_numbers_and_training_fills_the_row() -> None:
    assert tiles("train/acc", "lr/x", "train/loss", "test/acc", "val/acc", "val/loss", "train/loss_epoch") == [
        "val/loss",
        "val/acc",
        "test/acc",
        "train/loss",
    ]


def test_a_run_without_evaluations_has_key_numbers_of_its_training() -> None:
    assert tiles("train/loss", "train/acc", "speed/x") == ["train/loss", "train/acc"]


def test_a_hundred_evaluated_metrics_are_not_a_hundred_tiles() -> None:
    assert len(tiles(*(f"val/metric{number}" for number in range(100)))) == 8
