"""Clipped training is the training of a plain loop with torch's own functions, whatever surrounds it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.callbacks import Checkpointer, LambdaCallback, SpikeGuard
from hookline.callbacks.gradients import GradientClip, GradientMonitor
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Loop
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import crash_at, fit, same_tensors, sgd, train_loop

Weights = dict[str, Tensor]
fast_sgd = partial(sgd, lr=0.5, momentum=0.9)
fit_fast = partial(fit, optimizer=fast_sgd, log_every="1st")


def plain_loop(clip: Any, epochs: int = 2) -> Weights:
    model = TinyModel()
    optimizer = fast_sgd(model.parameters())
    for x, y in tiny_data() * epochs:
        nn.functional.cross_entropy(model(x), y).backward()
        clip(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_a_run_clipped_by_norm_is_bitwise_a_plain_loop(norm_type: float) -> None:
    result = fit_fast(GradientClip(0.3, norm_type=norm_type))
    expected = plain_loop(lambda parameters: clip_grad_norm_(parameters, 0.3, norm_type))
    assert same_tensors(result.model.state_dict(), expected)
    assert not same_tensors(expected, plain_loop(lambda parameters: None))


def test_a_run_clipped_by_value_is_bitwise_a_plain_loop() -> None:
    result = fit_fast(GradientClip(value=0.05))
    assert same_tensors(result.model.state_dict(), plain_loop(lambda parameters: clip_grad_value_(parameters, 0.05)))
    assert not any(name.startswith("grad_clip/") for name in result.history)


def test_what_is_logged_is_the_norm_before_clipping_and_the_share_of_steps_that_were_clipped() -> None:
    found: list[float] = []
    plain_loop(lambda parameters: found.append(clip_grad_norm_(parameters, 0.6).item()))
    result = fit_fast(GradientClip(0.6))
    assert result.history["grad_clip/norm"] == pytest.approx(found)
    assert result.history["grad_clip/share"] == [float(norm > 0.6) for norm in found]
    assert 0 < sum(norm > 0.6 for norm in found) < len(found)  # else this would show little


def test_over_an_interval_the_logged_values_are_means() -> None:
    every = fit_fast(GradientClip(0.6)).history
    result = fit_fast(GradientClip(0.6), log_every="4st")
    assert result.history["grad_clip/norm"][0] == pytest.approx(sum(every["grad_clip/norm"][:4]) / 4)
    assert result.history["grad_clip/share"][0] == pytest.approx(sum(every["grad_clip/share"][:4]) / 4)


def test_nothing_is_logged_when_that_is_not_wanted() -> None:
    result = fit_fast(GradientClip(0.6, log=False))
    assert [name for name in result.history if "clip" in name] == []
    assert same_tensors(result.model.state_dict(), fit_fast(GradientClip(0.6)).model.state_dict())


def test_the_gradients_of_a_whole_window_are_clipped_once_however_it_is_split() -> None:
    x, y = (torch.cat(parts) for parts in zip(*tiny_data(4), strict=True))
    whole = fit_fast(GradientClip(0.3), train=[(x, y)])
    sizes = [5, 9, 2, 16]
    parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
    split = fit_fast(GradientClip(0.3), train=parts, accumulate=4)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(split.model.state_dict()[name], weight)
    assert split.history["grad_clip/norm"] == pytest.approx(whole.history["grad_clip/norm"], rel=1e-5)


def test_in_fp16_the_gradients_are_unscaled_before_they_are_clipped() -> None:
    exact, half = fit_fast(GradientClip(0.3)), fit_fast(GradientClip(0.3), precision="fp16")
    assert half.history["grad_clip/norm"] == pytest.approx(exact.history["grad_clip/norm"], rel=0.1)


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("clip_first", [True, False])
def test_monitors_see_the_gradients_as_they_were_and_the_optimizer_sees_them_clipped(
    clip_first: bool, log: bool
) -> None:
    norms: list[float] = []

    def note(run: Any) -> None:
        grads = [p.grad for p in run.model.parameters()]
        norms.append(torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads])).item())

    clip, monitor = GradientClip(0.3, log=log), GradientMonitor("1st")
    pair = [clip, monitor] if clip_first else [monitor, clip]
    result = fit_fast(*pair, LambdaCallback(on_optimizer_step_start=note))
    if log:
        assert result.history["grad_norm/total"] == pytest.approx(result.history["grad_clip/norm"])
    assert max(result.history["grad_norm/total"]) > 0.35
    assert max(norms) < 0.3001


# -- several optimizers ----------------------------------------------------------------------------


def two(clip: GradientClip) -> tuple[Weights, Any]:
    model = TinyModel()
    optimizers = {
        "low": torch.optim.SGD(model.hidden.parameters(), lr=0.5),
        "high": torch.optim.SGD(model.out.parameters(), lr=0.5),
    }
    loop, _ = train_loop(clip, model=model, optimizer=optimizers, max_duration="1ep", log_every="1st")
    return model.state_dict(), loop.run.history


def two_by_hand(low: float | None, high: float | None) -> Weights:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in tiny_data():
        nn.functional.cross_entropy(model(x), y).backward()
        for part, limit in ((model.hidden, low), (model.out, high)):
            if limit is not None:
                clip_grad_norm_(part.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def test_each_optimizer_is_clipped_by_the_norm_of_its_own_parameters() -> None:
    weights, history = two(GradientClip(0.2))
    assert same_tensors(weights, two_by_hand(0.2, 0.2))
    assert {name for name in history if name.startswith("grad_clip/")} == {
        f"grad_clip/{what}/{name}{end}"
        for what in ("norm", "share")
        for name in ("low", "high")
        for end in ("", "_epoch")
    }


@pytest.mark.parametrize(("limits", "low", "high"), [({"low": 0.1, "high": 0.4}, 0.1, 0.4), ({"high": 0.1}, None, 0.1)])
def test_a_limit_by_name_is_for_that_optimizer_only(limits: Any, low: float | None, high: float) -> None:
    assert same_tensors(two(GradientClip(limits))[0], two_by_hand(low, high))


def test_an_optimizer_that_is_not_there_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SetupError, match=r"no optimizer 'hig'. Did you mean 'high'"):
        two(GradientClip({"hig": 1.0}))


# -- what can go wrong ---------------------------------------------------------------------------


def test_wrong_arguments_are_refused_when_it_is_made() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({}, "needs one of them"),
        ({"norm": 1.0, "value": 1.0}, "needs one of them"),
        ({"norm": 0}, "must be"),
        ({"norm": -1.0}, "must be"),
        ({"norm": math.nan}, "must be"),
        ({"norm": True}, "must be"),
        ({"norm": "1.0"}, "must be"),
        ({"norm": {}}, "at least one optimizer"),
        ({"value": {"SGD": -1}}, "must be"),
        ({"norm": 1.0, "norm_type": 0}, "norm_type"),
        ({"value": 1.0, "error_if_nonfinite": True}, "needs norm="),
    ]
    wrong = []
    for arguments, message in rows:
        said = "no error"
        try:
            GradientClip(**arguments)
        except ArgumentError as error:
            said = str(error)
        if message not in said:
            wrong.append((arguments, message, said))
    assert wrong == []


class Broken(TinyModel):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float("inf")


def test_a_norm_that_is_not_finite_is_an_error_only_if_that_is_wanted() -> None:
    assert math.isnan(fit_fast(GradientClip(1.0), model=Broken()).history["grad_clip/norm"][0])
    with pytest.raises(RuntimeError, match="non-finite") as caught:
        fit_fast(GradientClip(1.0, error_if_nonfinite=True), model=Broken())
    assert "GradientClip.on_optimizer_step_start" in caught.value.__notes__[0]


def test_an_optimizer_with_a_closure_also_has_the_error_and_one_norm_a_step() -> None:
    def run(model: nn.Module, **options: Any) -> Any:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        settings: Any = {"max_duration": "1ep", "log_every": "1st", "folder": False, "device": "cpu"}
        with Loop(model, optimizer, callbacks=[GradientClip(1.0, **options)], **settings) as loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.step(optimizer, closure=lambda x=x, y=y: nn.functional.cross_entropy(model(x), y))
        return loop.run.history

    assert run(TinyModel()).steps("grad_clip/norm") == [1, 2]
    with pytest.raises(RuntimeError, match="non-finite"):
        run(Broken(), error_if_nonfinite=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_step_that_is_skipped_leaves_no_norm_behind_and_is_no_error(action: Any, strict: bool) -> None:
    data = tiny_data(4)
    data[2] = (data[2][0] * math.nan, data[2][1])
    result = fit_fast(
        GradientClip(0.6, error_if_nonfinite=strict),
        SpikeGuard(action=action),
        train=data,
        max_duration="1ep",
        log_every="4st",
    )
    norms = [clip_norm for index, clip_norm in enumerate(sound_norms(data)) if index != 2]
    if action == "skip":
        assert result.clock.step == 3
        assert result.history["grad_clip/norm"] == pytest.approx([sum(norms) / 3], rel=1e-5)
        assert result.history["grad_clip/share"] == pytest.approx([sum(norm > 0.6 for norm in norms) / 3])
    assert all(map(math.isfinite, result.history["grad_clip/norm"]))


def sound_norms(data: Any) -> list[float]:
    """The norms of a plain loop that leaves out batches with NaN."""
    model, found = TinyModel(), []
    optimizer = fast_sgd(model.parameters())
    for x, y in data:
        nn.functional.cross_entropy(model(x), y).backward()
        found.append(clip_grad_norm_(list(model.parameters()), 0.6).item())
        if math.isfinite(found[-1]):
            optimizer.step()
        optimizer.zero_grad()
    return found


def test_frozen_parameters_and_a_model_without_any_gradient_are_no_trouble() -> None:
    model = TinyModel()
    model.hidden.requires_grad_(False)
    result = fit_fast(GradientClip(0.1), model=model)
    assert torch.equal(result.model.state_dict()["hidden.weight"], TinyModel().hidden.weight)
    assert result.metrics["grad_clip/norm"] > 0.1


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4, sparse=sparse)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.embed(x).mean(1))
        return found


@pytest.mark.parametrize("limit", [{"norm": 0.1}, {"norm": 0.1, "norm_type": math.inf}, {"value": 0.02}])
def test_sparse_gradients_are_clipped_as_dense_ones_are(limit: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(10, (6, 4, 3), generator=generator)  # with words that come twice in a batch
    data = [(batch, torch.randint(3, (4,), generator=generator)) for batch in words]
    found = []
    for sparse in (True, False):
        result = fit(
            GradientClip(**limit), model=Words(sparse), train=data, optimizer=partial(sgd, lr=0.5), max_duration="1ep"
        )
        found.append(result.model.state_dict())
    for name, weight in found[1].items():
        torch.testing.assert_close(found[0][name], weight)


class NoReads(TorchDispatchMode):
    """Fails when a number is read from a tensor: on a GPU that would wait for all that was started."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("clip", [GradientClip(0.1), GradientClip(value=0.1)])
def test_no_number_is_read_from_the_device_in_a_step(clip: GradientClip) -> None:
    driven = drive(clip, ["setup", "train_start"])
    with NoReads():
        driven.then(["gradients_ready", "optimizer_step_start", "optimizer_step_end"])
    with pytest.raises(AssertionError), NoReads():
        drive(GradientClip(0.1, error_if_nonfinite=True), ["setup", "gradients_ready", "optimizer_step_start"])


def test_a_run_that_was_stopped_and_resumed_is_bitwise_one_that_was_not(tmp_path: Path) -> None:
    whole = fit_fast(GradientClip(0.3), max_duration="3ep", log_every="3st")
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep", "log_every": "3st"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_fast(GradientClip(0.3), Checkpointer("1st"), crash_at(5, "train_step_start"), **options)
    resumed = fit_fast(GradientClip(0.3), Checkpointer("1st"), resume="auto", **options)
    assert resumed.clock.step == 12
    assert same_tensors(resumed.model.state_dict(), whole.model.state_dict())
    assert resumed.history["grad_clip/norm"] == whole.history["grad_clip/norm"]
