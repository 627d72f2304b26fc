"""Of a hundred thousand pictures a page remembers some: spread over the run, the first and the newest among them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.report.kept import Kept


@settings(deadline=None)
@given(count=st.integers(1, 2_000), limit=st.integers(2, 50))
def test_few_are_kept_and_they_are_spread_evenly(count: int, limit: int) -> None:
    kept = Kept[int](limit)
    for number in range(count):
        kept.add(number)
    found = list(kept)
    assert len(found) == len(kept) <= limit
    assert (found[0], found[-1], kept.newest, kept.count) == (0, count - 1, count - 1, count)
    gaps = [after - before for before, after in pairwise(found)]
    assert len(set(gaps[:-1])) <= 1
    assert count < limit or max(gaps) <= 4 * count / limit + 1


def test_nothing_is_nothing() -> None:
    assert list(Kept[int](5)) == []
    assert len(Kept[int](5)) == 0
