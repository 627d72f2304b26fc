"""Batches that do not fit into memory are computed in pieces, with the gradient of the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookline.callbacks import Checkpointer, LabelSmoothing, MicroBatches, MixUp
from hookline.errors import ArgumentError, SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, train_loop


class Hungry(TinyModel):
    """Asks torch for memory that it does not get, in the forward or the backward of more than ``most`` samples."""

    def __init__(self, most: int = 10**9, *, backward: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.most, self.in_backward = most, backward
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        if self.training:
            self.seen.append(len(x))
        if len(x) > self.most and self.training:
            if self.in_backward:
                found.register_hook(lambda grad: torch.empty(1 << 55))
            else:
                torch.empty(1 << 55)
        return found


def assert_close(one: nn.Module, other: nn.Module) -> None:
    theirs = other.state_dict()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, theirs[name])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"precision": "bf16"}])
def test_pieces_have_the_gradients_of_the_whole_batch(backward: bool, options: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.2]), ignore_index=2)
    options = {"loss": loss, "train": tiny_data(batches=5, last=5), "max_duration": "3ep", **options}
    micro = MicroBatches()
    result = fit(micro, model=Hungry(3, backward=backward), **options)
    assert micro.size == 2
    assert max(result.model.seen[-20:]) == 2
    plain = fit(**options)
    if "precision" not in options:
        assert_close(result.model, plain.model)
    assert result.clock.sample == plain.clock.sample
    assert result.history["train/loss_epoch"] == pytest.approx(plain.history["train/loss_epoch"], rel=1e-2)


def test_if_all_fits_training_is_bitwise_what_it_is_without_it() -> None:
    micro = MicroBatches()
    result = fit(micro, model=TinyModel(dropout=0.5), val=tiny_data(2))
    assert micro.size is None
    assert same_tensors(
        result.model.state_dict(), fit(model=TinyModel(dropout=0.5), val=tiny_data(2)).model.state_dict()
    )
    assert "forward" not in vars(result.model)


def test_a_forward_that_the_user_replaced_stays() -> None:
    model, seen = TinyModel(), []
    original = model.forward

    def doubled(x: Tensor) -> Tensor:
        seen.append(len(x))
        return original(x) * 2

    model.forward = doubled  # type: ignore[method-assign]
    fit(MicroBatches(3), model=model, train=tiny_data(3))
    assert vars(model)["forward"] is doubled
    seen.clear()
    model(torch.ones(2, 4))
    assert seen == [2]


def test_a_larger_batch_and_the_memory_of_the_optimizer_are_tried_when_they_come() -> None:
    class Growing(Hungry):
        """Has less room when the optimizer has its state."""

        def forward(self, x: Tensor) -> Tensor:
            self.most = 20 if len(self.seen) < 2 else 4
            return super().forward(x)

    micro = MicroBatches()
    model = Growing()
    fit(micro, model=model, optimizer=torch.optim.AdamW, train=[*tiny_data(2), *tiny_data(1, batch_size=30)])
    assert micro.size == 4
    assert max(model.seen[-8:]) <= 4


def test_batch_norms_count_each_piece_once_and_dropout_is_that_of_the_forward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    result = fit(MicroBatches(4), model=model, train=tiny_data(1), max_duration="1st")
    assert int(result.model[1].num_batches_tracked) == 2

    masks: list[Tensor] = []
    drop = nn.Dropout(0.5)
    drop.register_forward_hook(lambda module, args, out: masks.append((out == 0).clone()))
    fit(
        MicroBatches(4),
        model=nn.Sequential(nn.Linear(4, 8), drop, nn.Linear(8, 3)),
        train=tiny_data(1),
        max_duration="1st",
    )
    first, second, *again = masks
    assert not torch.equal(first, second)
    assert all(any(torch.equal(mask, one) for one in (first, second)) for mask in again)
    assert len(again) == 2


def test_a_resumed_run_has_the_same_pieces_and_the_same_weights(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_duration": "3ep", "seed": 1}
    straight = fit(MicroBatches(), model=Hungry(5, dropout=0.5), **options)
    options["folder"] = tmp_path / "run"
    with pytest.raises(RuntimeError, match="planted"):
        fit(MicroBatches(), crash_at(5), Checkpointer("3st"), model=Hungry(5, dropout=0.5), **options)
    micro = MicroBatches()
    again = fit(micro, Checkpointer("3st"), model=Hungry(5, dropout=0.5), resume="auto", **options)
    assert micro.size == 4
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def test_mixed_batches_and_smoothed_labels_are_right_in_pieces() -> None:
    others = (MixUp(0.4), LabelSmoothing(0.1))
    result = fit(MicroBatches(3), *others, seed=2)
    assert_close(result.model, fit(MixUp(0.4), LabelSmoothing(0.1), seed=2).model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": Hungry(0)}, "a single sample does not fit"),
        ({"train": [{"x": torch.ones(2, 4), "label": torch.zeros(2).long()}]}, "two tensors"),
        ({"compile": {"backend": "eager"}}, "compiled"),
    ],
)
def test_what_cannot_be_split_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        fit(MicroBatches(), **options)


def test_a_custom_loop_is_refused_and_a_size_is_a_number() -> None:
    with pytest.raises(SetupError, match="a custom loop computes its loss itself"):
        train_loop(MicroBatches(), optimizer=sgd)
    with pytest.raises(ArgumentError, match=r"MicroBatches\(size=0\): must be >= 1"):
        MicroBatches(0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # An error of another kind is not a search.
        fit(MicroBatches(), train=[(torch.ones(2, 5), torch.zeros(2).long())], loss=CE)
