"""What all ranks agree on, whatever it is."""

from __future__ import annotations

from typing import Any


def test_a_group_exchanges_short_and_long_values(ranks: Any) -> None:
    found = ranks.values("cases_of_basics.py:talk", 2)
    assert len({its.pop("pid") for its in found}) == 2
    expected = {
        "exchanged": [{"rank": 0}, {"rank": 1}],
        "from_zero": "rank 0",
        "total": [2.0, 1.0],
        "largest": [1.0],
        "long": [[0, 3000], [1, 3001]],
        "broadcast": [[0.0, 0.0, 0.0], 0],
    }
    assert found == [expected, expected]
