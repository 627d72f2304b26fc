"""Sizes and times are told in the units of the charts."""

from __future__ import annotations

import doctest
import math

import pytest

from hookline.report import units
from hookline.report.compare import Difference
from hookline.report.units import duration, size, unit_of, with_unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "250 ms"), (59.94, "59.9 s"), (90, "1 m 30 s"), (86400, "1 d"), (-2, "-2 s")],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("megabytes", "text"), [(0, "0 B"), (999.9, "1,000 MB"), (2e9, "2,000 TB"), (-5, "-5 MB")])
def test_a_size(megabytes: float, text: str) -> None:
    assert size(megabytes) == text


def test_what_has_no_unit_and_what_is_no_number_has_none_here() -> None:
    assert with_unit("val/loss", 1.0) is with_unit("memory/process", math.nan) is None


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("memory/process_peak", "size"),
        ("memory/children", "size"),
        ("memory/cuda0/reserved_peak", "size"),
        ("memory/cuda0/retries", None),
        ("memory/cuda0/ooms", None),
        ("memory/bank_size", None),
        ("time/elapsed", "time"),
        ("time/forward_ms", None),
    ],
)
def test_only_what_our_own_callbacks_log_has_a_unit(name: str, unit: str | None) -> None:
    assert unit_of(name) == unit


def test_a_comparison_says_it_like_the_charts_unless_two_would_look_the_same() -> None:
    assert Difference("memory", "memory/process", (531.247, 17238.6)).texts == ("531 MB", "17.2 GB")
    assert Difference("memory", "memory/process", (531.247, 531.248)).texts == ("531.247 MB", "531.248 MB")
    assert Difference("memory", "memory/process", (1234.1, 1234.2)).texts == ("1.2341 GB", "1.2342 GB")
    assert Difference("time", "time/elapsed", (3661.0, 3662.0)).texts == ("1 h 1 m 1 s", "1 h 1 m 2 s")
    assert Difference("time", "time/elapsed", (3661.25, 3661.3)).texts == ("3661.25 s", "3661.3 s")


def test_the_examples_hold() -> None:
    assert doctest.testmod(units).failed == 0


def test_a_time_before_the_start_has_a_sign_and_no_thousands_of_milliseconds() -> None:
    assert (duration(-5), duration(-3700), duration(-0.5)) == ("-5 s", "-1 h 1 m", "-500 ms")
