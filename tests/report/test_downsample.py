"""Fewer points show the same: whoever looks at a curve sees each spike, each gap, and both ends."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.report.downsample import POINTS, downsample

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.lists(FINITE | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=300)
LIMITS = st.integers(7, 60)


def buckets(count: int, limit: int, values: list[float]) -> list[range]:
    a_bucket = 4 if all(map(math.isfinite, values)) else 7
    parts = max(1, limit // a_bucket)
    return [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


@settings(deadline=None)
@given(values=VALUES, limit=LIMITS)
def test_what_is_left_are_values_of_the_curve_in_their_order_and_not_too_many(values: list[float], limit: int) -> None:
    places = downsample(values, limit).places
    assert places == sorted(set(places))
    assert len(places) <= max(limit, min(limit, len(values)))
    assert all(0 <= place < len(values) for place in places)


@settings(deadline=None)
@given(values=VALUES, limit=LIMITS)
def test_the_ends_and_the_extremes_of_the_whole_curve_never_vanish(values: list[float], limit: int) -> None:
    found = [values[place] for place in downsample(values, limit).places]
    finite = [value for value in values if math.isfinite(value)]
    if values:
        assert downsample(values, limit).places[0] == 0
        assert downsample(values, limit).places[-1] == len(values) - 1
    if finite:
        left = [value for value in found if math.isfinite(value)]
        assert (min(left), max(left)) == (min(finite), max(finite))


@settings(deadline=None)
@given(values=VALUES, limit=LIMITS)
def test_each_part_of_the_curve_keeps_its_own_lowest_and_highest_value(values: list[float], limit: int) -> None:
    if len(values) <= limit:
        return
    places = set(downsample(values, limit).places)
    for part in buckets(len(values), limit, values):
        all_of_it = [values[place] for place in part if math.isfinite(values[place])]
        left = [values[place] for place in part if place in places and math.isfinite(values[place])]
        if all_of_it:
            assert (min(left), max(left)) == (min(all_of_it), max(all_of_it))


@settings(deadline=None)
@given(values=VALUES, limit=LIMITS)
def test_nan_and_both_infinities_stay_where_they_were(values: list[float], limit: int) -> None:
    if len(values) <= limit:
        return
    places = set(downsample(values, limit).places)
    for part in buckets(len(values), limit, values):
        for text in ("nan", "inf", "-inf"):
            here = [place for place in part if str(values[place]) == text]
            assert not here or here[0] in places


@settings(deadline=None)
@given(values=VALUES, limit=LIMITS)
def test_the_means_are_those_of_all_values_and_lie_between_them(values: list[float], limit: int) -> None:
    means = downsample(values, limit).means
    if len(values) <= limit:
        assert means == []
        return
    parts = [part for part in buckets(len(values), limit, values) if any(math.isfinite(values[p]) for p in part)]
    assert len(means) == len(parts)
    for part, (place, mean) in zip(parts, means, strict=True):
        finite = [values[place] for place in part if math.isfinite(values[place])]
        assert place in part
        assert min(finite) <= mean <= max(finite) or math.isclose(mean, finite[0], rel_tol=1e-9)


def test_a_mean_of_very_large_values_is_right() -> None:
    assert {mean for _, mean in downsample([1.7e308] * 9000).means} == {1.7e308}


def test_a_short_curve_is_drawn_whole() -> None:
    values = [float(value % 7) for value in range(POINTS)]
    assert downsample(values).places == list(range(POINTS))


def test_one_spike_among_a_million_values_is_drawn() -> None:
    values = [0.0] * 1_000_000
    values[123_457] = 9.0
    assert 123_457 in downsample(values).places
