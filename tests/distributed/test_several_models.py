"""More than one module in an own loop: nothing that the optimizer moves is another weight on each rank."""

from __future__ import annotations

from typing import Any

import pytest

CASE = "cases_of_several_models.py:trained"


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_what_the_optimizer_holds_beside_the_model_is_averaged_too(ranks: Any, size: int, accumulate: int) -> None:
    (alone,) = ranks.values(CASE, 1, form="beside", accumulate=accumulate)
    first, *others = ranks.values(CASE, size, form="beside", accumulate=accumulate)
    assert first == pytest.approx(alone, abs=1e-9)
    assert all(its == first for its in others)


def test_fsdp_refuses_an_optimizer_that_holds_more_than_the_model(ranks: Any) -> None:
    for told in ranks.run(CASE, 2, form="beside", strategy="fsdp"):
        assert told.error == "SetupError"
        assert "3 parameters that are not the model's (of the shape (3, 8), (3,), (1,))" in told.text


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("form", ["dict", "no forward"])
def test_models_in_one_that_is_never_called_are_spread_one_by_one(ranks: Any, form: str, strategy: str) -> None:
    (alone,) = ranks.values(CASE, 1, form=form)
    first, second = ranks.values(CASE, 2, form=form, strategy=strategy)
    assert first == second == pytest.approx(alone, abs=1e-9)
