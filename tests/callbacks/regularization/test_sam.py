"""Training with SAM is the textbook loop of two passes, and the weights are moved only inside a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookline as hl
from hookline.callbacks import SAM, Checkpointer, GradientClip, LambdaCallback, MixUp
from hookline.errors import ArgumentError, SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, train_loop, weights_of


def textbook(rho: float, *, accumulate: int = 1, model: Any = None, epochs: int = 2) -> dict[str, Tensor]:
    """The loop of the paper, for each micro-batch."""
    model = model or TinyModel()
    optimizer = sgd(model.parameters())
    for number, (x, y) in enumerate(tiny_data() * epochs, 1):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        grads = torch.autograd.grad(CE(model(x), y), list(model.parameters()))
        norm = torch.sqrt(sum((grad**2).sum() for grad in grads))  # type: ignore[call-overload]
        with torch.no_grad():
            for p, grad in zip(model.parameters(), grads, strict=True):
                p.add_(rho * grad / norm)
        (CE(model(x), y) / accumulate).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(before[name])
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()  # type: ignore[no-any-return]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_that_of_the_textbook_loop(accumulate: int) -> None:
    result = fit(SAM(0.3), accumulate=accumulate)
    expected = textbook(0.3, accumulate=accumulate)
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    plain = fit(accumulate=accumulate).model.state_dict()
    assert all((value - plain[name]).abs().max() > 1e-3 for name, value in expected.items())


def test_the_weights_are_moved_only_inside_a_batch() -> None:
    moved, outside = [], []

    class Watch(hl.Callback):
        def around_step(self, run: hl.Run) -> Any:
            self.before = weights_of(run.model)
            yield

        def on_forward_end(self, run: hl.Run) -> None:
            moved.append(not same_tensors(weights_of(run.model), self.before))

        def on_gradients_ready(self, run: hl.Run) -> None:
            outside.append(same_tensors(weights_of(run.model), self.before))

    fit(SAM(0.3), Watch())
    assert moved == outside == [True] * 8


def test_the_weights_are_restored_after_an_error_in_the_forward() -> None:
    model = TinyModel()
    before = weights_of(model)

    def fail(run: Any) -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fit(SAM(0.3), LambdaCallback(on_loss_ready=fail), model=model)
    assert same_tensors(weights_of(model), before)


def test_batch_norms_count_each_batch_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    fit(SAM(), model=model)
    assert int(model[1].num_batches_tracked) == 8


def test_the_loss_of_mixed_samples_is_that_of_both_passes() -> None:
    """The first pass also has the mixed loss: its gradient is that of the pass of the run if nothing is moved."""
    found: list[tuple[Tensor, Tensor]] = []

    class Watch(hl.Callback):
        def on_train_batch_start(self, run: hl.Run) -> None:
            self.before = run.model.out.bias.detach().clone()

        def on_forward_end(self, run: hl.Run) -> None:
            self.step = run.model.out.bias.detach() - self.before

        def on_gradients_ready(self, run: hl.Run) -> None:
            found.append((self.step, run.model.out.bias.grad.clone()))

    fit(Watch(), SAM(1e-3), MixUp(1.0), max_duration="1ep")
    for step, gradient in found:
        assert torch.nn.functional.cosine_similarity(step, gradient, dim=0) > 0.999


def test_a_run_that_crashed_resumes_bitwise(tmp_path: Path) -> None:
    def model() -> Any:
        return TinyModel(dropout=0.3)

    whole = fit(SAM(0.3), model=model())
    with pytest.raises(RuntimeError, match="planted"):
        fit(SAM(0.3), Checkpointer("3st"), crash_at(5), model=model(), folder=tmp_path)
    result = fit(SAM(0.3), model=model(), folder=tmp_path, resume="auto")
    assert same_tensors(result.model.state_dict(), whole.model.state_dict())


def test_gradients_are_clipped_after_the_second_pass() -> None:
    result = fit(SAM(0.3), GradientClip(0.1), log_every="1st")
    assert same_tensors(result.model.state_dict(), fit(GradientClip(0.1), SAM(0.3), log_every="1st").model.state_dict())
    assert min(result.history["grad_clip/norm"]) > 0.1


def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    model = TinyModel()
    model.unused = nn.Linear(2, 2)
    model.hidden.requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = fit(SAM(0.3), model=model).model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"out.weight", "out.bias"}


def test_what_cannot_be_right_is_refused() -> None:
    with pytest.raises(SetupError, match="SAM: the first gradient of a batch is not scaled, and fp16 needs it"):
        fit(SAM(), precision="fp16")
    with pytest.raises(SetupError, match="SAM: LBFGS updates the weights inside a batch"):
        fit(SAM(), optimizer=torch.optim.LBFGS)
    with pytest.raises(SetupError, match="SAM: there are several optimizers"):
        fit(SAM(), optimizer=lambda parameters: [sgd([p]) for p in parameters])
    with pytest.raises(SetupError, match="SAM: a custom loop computes its loss itself"):
        train_loop(SAM())
    with pytest.raises(ArgumentError, match=r"SAM\(rho=0\): must be a number > 0"):
        SAM(0)
