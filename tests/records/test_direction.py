"""Names of metrics tell callbacks and pages the same: which of two values is the better one."""

from __future__ import annotations

import doctest

import pytest

from hookline.errors import ArgumentError
from hookline.records import direction as module
from hookline.records.direction import direction, known_direction


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
        ("val/recall@5", "max"),
        ("val/map50", "max"),
        ("train/loss_epoch", "min"),
        ("val/temperature", None),
        ("val/score_loss", "min"),
        ("val/ssim_loss_epoch", "min"),
        ("val/ap_error", "min"),
        ("val/loss_map", None),
        ("val/nll_score", None),
        ("loss/weight", None),
    ],
)
def test_the_name_tells_which_is_better_or_it_is_not_known(name: str, mode: str | None) -> None:
    assert known_direction(name) == mode
    if mode is None:
        with pytest.raises(ArgumentError, match="Pass mode='max' or mode='min'"):
            direction(name)
    else:
        assert direction(name) == mode


def test_what_is_given_counts_more_than_the_name() -> None:
    assert direction("val/loss", "max") == "max"
    with pytest.raises(ArgumentError, match="mode='up': must be 'min' or 'max'"):
        direction("val/loss", "up")


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
