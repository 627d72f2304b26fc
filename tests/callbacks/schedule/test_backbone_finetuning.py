"""The head first, then the backbone with it, at a rate that grows to the head's."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.schedule import BackboneFinetuning
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.testing import tiny_data
from tests.support import CE, crash_at, fit, same_tensors


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]


adam = partial(torch.optim.Adam, lr=0.1)


def fit_net(*callbacks: Any, **options: Any) -> Any:
    """Six epochs of two steps."""
    return fit(
        *callbacks, **{"model": Net(), "train": tiny_data(2), "optimizer": adam, "max_duration": "6ep", **options}
    )


def rates(tuning: BackboneFinetuning, **options: Any) -> list[float | None]:
    """The backbone's rate in each epoch."""
    found: list[float | None] = []

    def note(run: Any) -> None:
        groups = run.optimizers["Adam"].param_groups
        found.append(groups[1]["lr"] if len(groups) > 1 else None)

    fit_net(tuning, LambdaCallback(on_train_epoch_end=note), **options)
    return found


def lightning(epochs: int, at: int, first: float, factor: Any, head: float, align: bool) -> list[float | None]:
    """The rates as Lightning documents them."""
    found: list[float | None] = []
    rate = None
    for epoch in range(epochs):
        if epoch == at:
            rate = first
        elif rate is not None:
            rate = factor(epoch + 1) * rate
            rate = head if align and rate > head else rate
        found.append(rate)
    return found


def test_its_rate_doubles_until_it_is_that_of_the_head() -> None:
    found = rates(BackboneFinetuning("1ep"))
    assert found == pytest.approx(lightning(6, 1, 0.01, lambda epoch: 2, 0.1, True))
    assert found == [None, *(pytest.approx(rate) for rate in (0.01, 0.02, 0.04, 0.08, 0.1))]


def test_without_alignment_it_grows_on() -> None:
    found = rates(BackboneFinetuning(0, lambda_func=3.0, should_align=False, backbone_initial_ratio_lr=0.5))
    assert found == pytest.approx(lightning(6, 0, 0.05, lambda epoch: 3, 0.1, False))


def test_a_function_of_the_epoch_and_a_first_rate() -> None:
    found = rates(BackboneFinetuning(2, lambda_func=lambda epoch: 1 + 1 / epoch, backbone_initial_lr=0.004))
    assert found == pytest.approx(lightning(6, 2, 0.004, lambda epoch: 1 + 1 / epoch, 0.1, True))


def test_the_backbone_moves_only_after_its_epoch() -> None:
    fresh = Net().state_dict()
    early = fit_net(BackboneFinetuning(9, train_bn=False)).model.state_dict()
    still = {name for name, value in early.items() if torch.equal(value, fresh[name])}
    assert still == {name for name in fresh if name.startswith("backbone")}
    late = fit_net(BackboneFinetuning(5, train_bn=False)).model.state_dict()
    assert not torch.equal(late["backbone.0.weight"], fresh["backbone.0.weight"])


def test_its_batch_norms_are_trained_from_the_start_if_wanted() -> None:
    fresh, found = Net().state_dict(), fit_net(BackboneFinetuning(9)).model.state_dict()
    assert torch.equal(found["backbone.0.weight"], fresh["backbone.0.weight"])
    assert not torch.equal(found["backbone.1.weight"], fresh["backbone.1.weight"])
    assert not torch.equal(found["backbone.1.running_mean"], fresh["backbone.1.running_mean"])


def test_a_scheduler_moves_both_rates_within_an_epoch() -> None:
    found: list[list[float]] = []
    note = LambdaCallback(
        on_optimizer_step_start=lambda run: found.append([g["lr"] for g in run.optimizer.param_groups])
    )
    fit_net(BackboneFinetuning(1), note, scheduler=lambda o: LambdaLR(o, lambda step: 0.9**step), max_duration="3ep")
    head = [0.1 * 0.9**step for step in range(6)]
    assert [groups[0] for groups in found] == pytest.approx(head)
    first = head[2] * 0.1
    assert [groups[1] for groups in found[2:]] == pytest.approx([first, first * 0.9, first * 2, first * 2 * 0.9])


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
@pytest.mark.parametrize("scheduler", [None, lambda o: LambdaLR(o, lambda step: 0.9**step)], ids=["none", "lambda"])
def test_a_resume_goes_on_with_the_same_rate(steps: int, scheduler: Any, tmp_path: Path) -> None:
    whole, tuning = BackboneFinetuning(1, train_bn=False), BackboneFinetuning(1, train_bn=False)
    straight = fit_net(whole, scheduler=scheduler)
    options = {"scheduler": scheduler, "folder": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_net(
            BackboneFinetuning(1, train_bn=False),
            crash_at(steps, "train_step_start"),
            Checkpointer(f"{steps}st"),
            **options,
        )
    again = fit_net(tuning, Checkpointer(f"{steps}st"), resume="auto", **options)
    assert tuning.state_dict() == whole.state_dict()
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


@pytest.mark.parametrize(("kept", "back"), [(1, 2), (1, 3), (1, 5), (2, 5), (3, 4), (3, 7), (5, 9), (1, 9)])
def test_a_rollback_over_an_edge_leaves_the_backbone_as_its_epoch_asks(kept: int, back: int, go_back: Any) -> None:
    """Two batches an epoch: unfrozen in the second, and at a rate that has doubled in each since."""
    found: list[float | None] = []

    def note(run: Any) -> None:
        groups = run.optimizers["Adam"].param_groups
        assert run.model.backbone[0].weight.requires_grad is (len(groups) > 1)
        found.append(groups[1]["lr"] if len(groups) > 1 else None)

    tuning = BackboneFinetuning(1)
    fit_net(tuning, go_back(kept, back), LambdaCallback(on_train_step_start=note))
    of_epoch = lightning(6, 1, 0.01, lambda epoch: 2, 0.1, True)
    assert found == pytest.approx([rate for rate in of_epoch for _ in range(2)])
    assert tuning.rate == pytest.approx(of_epoch[-1])


def test_one_that_joins_in_a_later_fit_begins_with_its_first_rate() -> None:
    trainer = Trainer(max_duration="4ep", folder=False, device="cpu")
    model = fit(trainer=trainer, model=Net(), train=tiny_data(2), optimizer=adam).model
    tuning = BackboneFinetuning(1, backbone_initial_lr=1e-4)
    trainer.fit(model, tiny_data(2), loss=CE, optimizer=adam, extend="1ep", callbacks=[tuning])
    assert tuning.rate == 1e-4


@pytest.mark.parametrize("train_bn", [True, False])
def test_the_head_is_found_behind_a_group_of_the_backbone(train_bn: bool) -> None:
    model, found = Net(), []
    groups = [{"params": model.backbone.parameters(), "lr": 1e-3}, {"params": model.head.parameters(), "lr": 0.1}]
    note = LambdaCallback(on_train_epoch_end=lambda run: found.append(run.optimizers["Adam"].param_groups[-1]["lr"]))
    fit_net(BackboneFinetuning(1, train_bn=train_bn), note, model=model, optimizer=torch.optim.Adam(groups))
    assert found == pytest.approx([0.1, 0.01, 0.02, 0.04, 0.08, 0.1])


def test_a_rate_that_is_a_tensor_stays_one_as_a_captured_step_needs() -> None:
    model, kinds = Net(), []
    optimizer = torch.optim.Adam(model.head.parameters(), lr=torch.tensor(0.1))

    def note(run: Any) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        assert all(isinstance(rate, Tensor) for rate in rates)
        kinds.append([id(rate) for rate in rates])

    epochs = LambdaCallback(on_train_epoch_end=note)
    fit_net(BackboneFinetuning(1), epochs, model=model, optimizer=optimizer, max_duration="4ep")
    assert kinds[1] == kinds[2] == kinds[3]  # the same tensors
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1, 0.04])


def test_verbose_says_both_rates(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hookline"):
        fit_net(BackboneFinetuning(1, verbose=True, rounding=3), max_duration="2ep")
    assert "epoch 1: head at 0.1, backbone at 0.01" in caplog.text


def test_a_model_without_such_a_layer_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(SetupError, match=r"BackboneFinetuning\(backbone='bakbone'\): .* The nearest names: backbone"):
        fit_net(BackboneFinetuning(1, backbone="bakbone"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unfreeze": -1}, r"BackboneFinetuning\(unfreeze=-1\): must be >= 0\."),
        (
            {"unfreeze": "200st"},
            r"BackboneFinetuning\(unfreeze='200st'\): must be in epochs, such as '10ep'\.",
        ),
        (
            {"lambda_func": 0},
            r"BackboneFinetuning\((backbone_initial_lr|backbone_initial_ratio_lr|lambda_func).*\): must be",
        ),
        (
            {"backbone_initial_ratio_lr": 0.0},
            r"BackboneFinetuning\((backbone_initial_lr|backbone_initial_ratio_lr|lambda_func).*\): must be",
        ),
        (
            {"backbone_initial_lr": -1.0},
            r"BackboneFinetuning\((backbone_initial_lr|backbone_initial_ratio_lr|lambda_func).*\): must be",
        ),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BackboneFinetuning(**options)
