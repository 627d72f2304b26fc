"""Several modules in an own loop, and models that are not the same: no rank has a weight of its own in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.support.inside import roots_of

CASE = "cases_of_several_models.py:trained"


def test_what_the_optimizer_holds_beside_the_model_is_warned_of(ranks: Any) -> None:
    """It may be a copy that gets averaged gradients by hand, so it is no error; it may be the weights of a loss."""
    for told in ranks.run(CASE, 2, form="beside"):
        assert told.code == 0, told.output
        assert "3 of 5 parameters of optimizer SGD are not Linear's" in told.output
        assert "in several processes their gradients are not averaged" in told.output


def test_what_the_optimizer_holds_and_the_loss_does_not_reach_holds_up_nothing(ranks: Any) -> None:
    """As the head that was replaced."""
    (alone,) = ranks.values(CASE, 1, form="left over")
    first, second = ranks.values(CASE, 2, form="left over")
    assert first == second == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("form", ["dict", "no forward"])
def test_models_in_one_that_is_never_called_are_spread_one_by_one(ranks: Any, form: str, strategy: str) -> None:
    (alone,) = ranks.values(CASE, 1, form=form)
    first, second = ranks.values(CASE, 2, form=form, strategy=strategy)
    assert first == second == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("wider", "parameter model.0.weight: ranks 0, 1 have float32 (8, 6), rank 2 has float32 (12, 6). "),
        ("narrower", "parameter model.0.weight: ranks 0, 1 have float32 (12, 6), rank 2 has float32 (8, 6). "),
        ("buffer", "buffer model.mask: ranks 0, 1 have float32 (3,), rank 2 has float32 (4,). "),
        ("one more", "parameter model.2.weight: ranks 0, 1 do not have it, rank 2 has float32 (3, 3). "),
        ("frozen", "parameter model.0.weight: ranks 0, 1 have float32 (8, 6), rank 2 has float32 (8, 6) (frozen). "),
        ("lazy", "model.1.weight has no size before the first forward (a Lazy module)"),
    ],
)
def test_models_that_differ_are_told_apart_before_anything_is_sent(
    ranks: Any, what: str, words: str, strategy: str
) -> None:
    for told in ranks.run("cases_of_several_models.py:other_on_the_last_rank", 3, what=what, strategy=strategy):
        assert (told.code, told.error) == (1, "SetupError"), told.output
        assert words in told.text


def test_parts_that_are_named_twice_or_lie_in_one_another_are_sharded_once() -> None:
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(inner, nn.ReLU())
    model = nn.ModuleDict({"outer": outer, "again": nn.ModuleList([inner, outer])})
    assert roots_of(model, model) == [outer]


def test_ctrl_c_while_a_rank_waits_for_the_teardown_of_another_leaves_nothing_behind(
    ranks: Any, tmp_path: Path
) -> None:
    """Else the watchdog would end a script that goes on."""
    zero, one = ranks.values("cases_of_several_models.py:slow_teardown", 2, folder=str(tmp_path))
    assert zero == ["KeyboardInterrupt"]
    assert one[1:] == []
