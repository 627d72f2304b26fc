"""The numbers at the top are the last ones and the best ones, exactly."""

from __future__ import annotations

import math

from hookline.report.numbers import numbers_of, tiles_of
from hookline.report.series import Series


def series(name: str, *values: float) -> Series:
    found = Series(name, "eval")
    for place, value in enumerate(values):
        found.add(10 * (place + 1), place + 1, 0.0, value)
    return found


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


def test_what_is_known_over_epochs_is_told_so_and_not_by_a_lucky_interval() -> None:
    found = {"train/loss": series("train/loss", 0.9, 0.1, 0.8), "val/loss": series("val/loss", 0.7, 0.6)}
    found["train/loss_epoch"] = series("train/loss_epoch", 0.6, 0.5)
    evaluated, trained = tiles_of(found, numbers_of(found))
    assert (evaluated["by_epoch"], evaluated["last"]["value"]) == (False, 0.6)
    assert (trained["name"], trained["by_epoch"]) == ("train/loss", True)
    assert (trained["last"]["value"], trained["best"]["value"], trained["count"]) == (0.5, 0.5, 2)
    assert trained["spark"] == [0.9, 0.1, 0.8]


def test_a_metric_of_ones_own_over_epochs_is_no_tile_beside_it() -> None:
    assert tiles("val/odd", "val/odd_epoch", "val/per_epoch") == ["val/odd", "val/per_epoch"]


def test_a_run_without_evaluations_has_key_numbers_of_its_training() -> None:
    assert tiles("train/loss", "train/acc", "speed/x") == ["train/loss", "train/acc"]


def test_a_hundred_evaluated_metrics_are_not_a_hundred_tiles() -> None:
    assert len(tiles(*(f"val/metric{number}" for number in range(100)))) == 8
