"""What is logged and what is learned is that of one process with the whole window, for any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

TOLERANCE = {"rel": 1e-6, "abs": 1e-9}


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for its, right in zip(found, expected, strict=True):
        assert its["samples"] == right["samples"]
        assert set(its["rows"]) == set(right["rows"])
        for name, values in right["rows"].items():
            assert its["rows"][name] == pytest.approx(values, **TOLERANCE), name
        assert len(its["gradients"]) == len(right["gradients"])
        for gradient, correct in zip(its["gradients"], right["gradients"], strict=True):
            assert gradient == pytest.approx(correct, **TOLERANCE)


@pytest.mark.parametrize(("size", "strategy"), [(1, "auto"), (2, "ddp"), (4, "ddp"), (2, "fsdp"), (4, "fsdp")])
def test_losses_accuracies_and_gradients_are_those_of_the_whole_window(ranks: Any, size: int, strategy: str) -> None:
    expected = ranks.values("cases_of_numbers.py:by_hand", 1, ranks=size)[0]
    found = ranks.values("cases_of_numbers.py:train", size, strategy=strategy)
    check(found[0], expected)
    for other in found[1:]:
        assert [its["rows"] for its in other] == [its["rows"] for its in found[0]]
        assert [its["newest"] for its in other] == [its["newest"] for its in found[0]]
