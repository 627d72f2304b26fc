"""Training on mixed samples is the textbook loop with the same random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Beta

from hookline.callbacks import Checkpointer, CutMix, LabelSmoothing, LambdaCallback, MixUp
from hookline.errors import ArgumentError, SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, train_loop


def textbook(alpha: float, loss: Any, *, seed: int = 0, epochs: int = 2, accumulate: int = 1) -> dict[str, Tensor]:
    model = TinyModel()
    optimizer, beta = sgd(model.parameters()), Beta(alpha, alpha)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for number, (x, y) in enumerate(tiny_data() * epochs, 1):
            kept, order = beta.sample().item(), torch.randperm(len(x))
            outputs = model(kept * x + (1 - kept) * x[order])
            mixed = kept * loss(outputs, y) + (1 - kept) * loss(outputs, y[order])
            (mixed / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return model.state_dict()


def seeded(seed: int = 0) -> LambdaCallback:
    """Start the random numbers of training at a known state."""
    return LambdaCallback(on_train_start=lambda run: torch.manual_seed(seed))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loss", [CE, nn.functional.cross_entropy], ids=["module", "function"])
def test_training_is_that_of_the_textbook_loop(loss: Any, accumulate: int) -> None:
    result = fit(seeded(), MixUp(0.7), loss=loss, accumulate=accumulate)
    expected = textbook(0.7, loss, accumulate=accumulate)
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not same_tensors(result.model.state_dict(), fit(loss=loss).model.state_dict())


def test_windows_with_ignored_targets_and_class_weights_are_weighted_as_one_batch() -> None:
    """The other samples are those of the same batch, so that a batch has one weight for both losses."""
    loss = nn.CrossEntropyLoss(torch.tensor([1.0, 3.0, 0.5]))
    seen: list[tuple[Tensor, Tensor, float]] = []

    class Note(MixUp):
        before = ()

        def mix(self, inputs: Tensor, order: Tensor, kept: float) -> tuple[Tensor, float]:
            mixed, kept = super().mix(inputs, order, kept)
            seen.append((mixed, order, kept))
            return mixed, kept

    train = [(x, torch.where(torch.arange(8) < number, -100, y)) for number, (x, y) in enumerate(tiny_data(2))]
    result = fit(Note(0.7), train=train, loss=loss, accumulate=2, max_duration="1ep")
    model = TinyModel()
    total, weights = torch.zeros(()), 0.0
    for (mixed, order, kept), (_, y) in zip(seen, train, strict=True):
        outputs, weight = model(mixed), loss.weight[y[y >= 0]].sum().item()
        total = total + weight * (kept * loss(outputs, y) + (1 - kept) * loss(outputs, y[order]))
        weights += weight
    (total / weights).backward()
    sgd(model.parameters()).step()
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name])


def test_smoothed_labels_are_mixed_with_smoothing() -> None:
    result = fit(seeded(), MixUp(0.7), LabelSmoothing(0.2))
    expected = textbook(0.7, nn.CrossEntropyLoss(label_smoothing=0.2))
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_with_a_probability_other_batches_stay_as_they_are() -> None:
    given = tiny_data(40)
    mixed = []

    def note(run: Any) -> None:
        mixed.append(not torch.equal(run.batch[0], given[run.clock.batch_in_epoch][0]))

    fit(MixUp(1.0, probability=0.5), LambdaCallback(on_forward_end=note), train=given, max_duration="1ep")
    assert 8 < sum(mixed) < 32


def test_evaluations_and_the_data_of_the_user_are_not_mixed() -> None:
    train, val = tiny_data(), tiny_data(2, seed=1)
    result = fit(MixUp(0.7), train=train, val=val)
    assert result.metrics["val/loss"] == pytest.approx(
        torch.stack([CE(result.model(x), y) for x, y in val]).mean().item(), rel=1e-5
    )
    assert all(
        torch.equal(a, b) for one, two in zip(train, tiny_data(), strict=True) for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("step", [3, 5])
def test_a_run_that_crashed_resumes_bitwise(tmp_path: Path, step: int) -> None:
    whole = fit(MixUp(0.7))
    with pytest.raises(RuntimeError, match="planted"):
        fit(MixUp(0.7), Checkpointer(f"{step}st"), crash_at(step + 1), folder=tmp_path)
    result = fit(MixUp(0.7), folder=tmp_path, resume="auto")
    assert same_tensors(result.model.state_dict(), whole.model.state_dict())


def test_with_bf16_both_losses_are_computed_under_autocast() -> None:
    found = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = CE(outputs, targets)
        found.append((outputs.dtype, value.dtype))
        return value

    fit(MixUp(0.7), loss=loss, precision="bf16", max_duration="1st")
    assert set(found) == {(torch.bfloat16, torch.float32)}
    assert len(found) >= 2


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(SetupError, match=r"MixUp: CutMix mixes the same batches\. Leave one of them out"):
        fit(MixUp(), CutMix())
    with pytest.raises(SetupError, match=r"MixUp: the inputs are torch\.int64"):
        fit(MixUp(), train=[(torch.ones(4, 4).long(), torch.zeros(4).long())])
    with pytest.raises(SetupError, match="MixUp: the batch is a dict"):
        fit(MixUp(), train=[{"x": torch.ones(4, 4), "y": torch.zeros(4).long()}])
    with pytest.raises(SetupError, match=r"MixUp: a custom loop computes its loss itself"):
        train_loop(MixUp())


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": float("inf")}, {"probability": 0.0}])
def test_arguments_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=r"MixUp\((alpha|probability)="):
        MixUp(**options)
