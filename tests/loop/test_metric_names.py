"""The names under which metrics are shown: chains, copies, epochs, and names that collide."""

from __future__ import annotations

import pytest

from hookline.errors import MetricError
from hookline.loop.metrics.rows import MetricNames


def test_a_metric_is_found_by_its_new_name_and_hidden_behind_it() -> None:
    names = MetricNames()
    names.rename("val/acc", "val/accuracy")
    assert names.rows({"val/acc": 1, "val/loss": 2}) == {"val/accuracy": 1, "val/loss": 2}
    assert names.inner("val/accuracy") == "val/acc"
    assert names.is_hidden("val/acc")
    assert not names.is_hidden("val/accuracy")
    assert not names.is_hidden("val/loss")


def test_kept_names_both_have_the_value() -> None:
    names = MetricNames()
    names.rename("val/acc", "val/accuracy", keep=True)
    assert names.rows({"val/acc": 1}) == {"val/acc": 1, "val/accuracy": 1}
    assert names.inner("val/acc") == names.inner("val/accuracy") == "val/acc"
    assert not names.is_hidden("val/acc")


def test_a_new_name_can_be_renamed_and_to_say_it_twice_does_no_harm() -> None:
    names = MetricNames()
    for _ in range(2):
        names.rename("a/x", "a/y")
    names.rename("a/y", "a/z")
    assert names.rows({"a/x": 1}) == {"a/z": 1}
    assert names.inner("a/z") == "a/x"


def test_the_row_of_an_epoch_follows_and_can_have_a_name_of_its_own() -> None:
    names = MetricNames()
    names.rename("train/loss", "train/nll")
    assert names.rows({"train/loss": 1, "train/acc": 2}, "_epoch") == {"train/nll_epoch": 1, "train/acc_epoch": 2}
    names.rename("train/acc_epoch", "train/whole")
    assert names.rows({"train/acc": 2}, "_epoch") == {"train/whole": 2}
    assert names.rows({"train/acc": 2}) == {"train/acc": 2}


def test_two_metrics_under_one_name_are_refused() -> None:
    names = MetricNames()
    names.rename("a/x", "a/z")
    with pytest.raises(MetricError, match="a/y is to be called a/z, and so is a/x"):
        names.rename("a/y", "a/z")
    with pytest.raises(MetricError, match="is called a/z, which is also logged"):
        names.rows({"a/z": 0, "a/x": 1})


def test_forgotten_names_are_the_old_ones_again() -> None:
    names = MetricNames()
    names.rename("a/x", "a/y")
    names.clear()
    assert names.rows({"a/x": 1}) == {"a/x": 1}
    assert names.inner("a/y") == "a/y"
