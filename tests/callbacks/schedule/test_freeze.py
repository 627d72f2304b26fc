"""Layers that are not trained: which, how long, and as they were after a resume and after the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookline.callbacks import Checkpointer, EarlyStopping, LambdaCallback
from hookline.callbacks.schedule import Freeze
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.testing import tiny_data
from tests.support import CE, crash_at, fit, same_tensors


class Net(nn.Module):
    """A backbone with a batch norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)


def fit_net(*callbacks: Any, **options: Any) -> Any:
    return fit(*callbacks, **{"model": Net(), "val": tiny_data(seed=1), "optimizer": adamw, **options})


def moved(model: nn.Module) -> set[str]:
    """The parameters and buffers that differ from those of a new model."""
    fresh = Net().state_dict()
    return {name for name, value in model.state_dict().items() if not torch.equal(value, fresh[name])}


HEAD = {"head.weight", "head.bias"}


def test_a_frozen_layer_does_not_move_by_gradient_decay_or_statistics() -> None:
    assert moved(fit_net(Freeze("backbone")).model) == HEAD


def test_it_is_the_same_as_training_the_rest_by_hand() -> None:
    found = fit_net(Freeze("backbone")).model.state_dict()
    model = Net()
    model.backbone.requires_grad_(False)
    optimizer = adamw(model.head.parameters())
    model.backbone.eval()
    for x, y in tiny_data() * 2:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_tensors(found, model.state_dict())


@pytest.mark.parametrize(
    ("layers", "but", "frozen"),
    [
        ("*", "head", ("backbone.0.weight", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias")),
        ("backbone.0", (), ("backbone.0.weight", "backbone.0.bias")),
        (["*.bias"], ["head.*"], ("backbone.0.bias", "backbone.1.bias")),
        (["head.weight", "backbone.[1-9]"], (), ("backbone.1.weight", "backbone.1.bias", "head.weight")),
    ],
)
def test_patterns_mean_layers_and_parameters(layers: Any, but: Any, frozen: tuple[str, ...]) -> None:
    freeze = Freeze(layers, but=but)
    seen = []
    fit_net(freeze, LambdaCallback(on_train_start=lambda run: seen.append(freeze.frozen)))
    assert seen == [frozen]


def test_a_name_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(SetupError, match=r"Freeze\(layers='backbon'\): no parameter .* The nearest names: backbone"):
        fit_net(Freeze("backbon"))
    with pytest.raises(SetupError, match=r"'backbone\.2'\): no parameter of the model matches"):
        fit_net(Freeze("backbone.2"))


def test_to_freeze_all_is_an_error() -> None:
    with pytest.raises(SetupError, match="nothing is left to train"):
        fit_net(Freeze("*"))


@pytest.mark.parametrize(("until", "steps"), [("1ep", 4), ("3st", 3), ("0.5dur", 4), ("16sp", 2)])
def test_until_a_moment_and_then_it_is_trained(until: str, steps: int) -> None:
    model, first_moved = Net(), []

    def look(run: Any) -> None:
        if "backbone.0.weight" in moved(model):
            first_moved.append(run.clock.step)

    fit_net(Freeze("backbone", until=until), LambdaCallback(on_train_step_end=look), model=model)
    assert first_moved[0] == steps + 1


def test_its_batch_norms_are_in_eval_mode_while_the_model_trains() -> None:
    modes: list[tuple[bool, bool]] = []
    note = LambdaCallback(
        on_forward_start=lambda run: modes.append((run.model.training, run.model.backbone[1].training))
    )
    model = Net().eval()  # the loop puts it into train mode, after setup
    fit_net(Freeze("backbone", until="1ep"), note, model=model, eval_every="2st")
    trained = [norm for whole, norm in modes if whole]
    assert trained == [False] * 4 + [True] * 4
    assert not model.training
    assert not model.backbone[1].training


def test_batch_norms_can_be_trained_all_the_same() -> None:
    found = moved(fit_net(Freeze("backbone", train_bn=True)).model)
    assert "backbone.0.weight" not in found
    assert {"backbone.1.weight", "backbone.1.running_mean"} <= found


def test_what_was_frozen_before_stays_frozen() -> None:
    model = Net()
    model.backbone[0].bias.requires_grad_(False)
    fit_net(Freeze("backbone", until="1st"), model=model)
    assert not model.backbone[0].bias.requires_grad
    assert model.backbone[0].weight.requires_grad


def test_after_the_fit_all_can_be_trained_again_also_after_an_error() -> None:
    model = Net()
    fit_net(Freeze("backbone"), model=model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="planted"):
        fit_net(Freeze("backbone"), crash_at(1, "train_step_start"), model=model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_second_fit_goes_on_as_the_first_ended() -> None:
    trainer = Trainer(
        callbacks=[freeze := Freeze("backbone", until="3ep")], max_duration="2ep", folder=False, device="cpu"
    )
    model = Net()
    for extend in (None, "1ep"):
        fit_net(trainer=trainer, model=model, extend=extend)
        assert moved(model) == HEAD
    fit_net(trainer=trainer, model=model, extend="1ep")
    assert freeze.thawed
    assert "backbone.0.weight" in moved(model)


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.parametrize("until", ["1ep", "3st", None])
def test_a_resume_finds_the_layers_as_they_were(steps: int, until: str | None, tmp_path: Path) -> None:
    straight = fit_net(Freeze("backbone", until=until)).model.state_dict()
    with pytest.raises(RuntimeError, match="planted"):
        fit_net(
            Freeze("backbone", until=until),
            crash_at(steps, "train_step_start"),
            Checkpointer(f"{steps}st"),
            folder=tmp_path / "run",
        )
    freeze = Freeze("backbone", until=until)
    again = fit_net(freeze, Checkpointer(f"{steps}st"), folder=tmp_path / "run", resume="auto")
    assert freeze.thawed is (until is not None)
    assert same_tensors(again.model.state_dict(), straight)


def test_an_optimizer_without_the_frozen_parameters_is_an_error_if_they_are_to_be_trained_later() -> None:
    def trainable_only(parameters: Any) -> torch.optim.Optimizer:
        return adamw([parameter for parameter in parameters if parameter.requires_grad])

    assert moved(fit_net(Freeze("backbone"), optimizer=trainable_only).model) == HEAD
    with pytest.raises(SetupError, match=r"no optimizer holds backbone\.0\.weight"):
        fit_net(Freeze("backbone", until="1ep"), optimizer=trainable_only)


def test_an_evaluation_freezes_nothing() -> None:
    model, seen = Net(), []
    note = LambdaCallback(on_eval_start=lambda run: seen.append([p.requires_grad for p in run.model.parameters()]))
    trainer = Trainer(callbacks=[Freeze("backbone"), note], folder=False, device="cpu")
    trainer.evaluate(model, tiny_data(), loss=CE)
    assert seen == [[True] * 6]


def test_the_best_weights_are_put_back_and_frozen_layers_are_still_as_they_were() -> None:
    stopper = EarlyStopping("val/loss", restore_best=True, patience=9)
    worse = LambdaCallback(on_train_start=lambda run: run.optimizers["AdamW"].param_groups[0].update(lr=5.0))
    model = fit_net(stopper, Freeze("backbone"), worse, max_duration="4ep").model
    assert stopper.best_step < 16  # the last is not the best
    assert stopper.best_weights is not None
    assert same_tensors(stopper.best_weights, model.state_dict())
    assert moved(model) == HEAD


@pytest.mark.parametrize("back", [4, 5, 6], ids=["at the edge", "after a step", "after two"])
def test_a_rollback_over_the_edge_does_not_freeze_the_next_epoch(back: int, go_back: Any) -> None:
    trained: list[bool] = []
    note = LambdaCallback(on_train_step_start=lambda run: trained.append(run.model.backbone[0].weight.requires_grad))
    freeze = Freeze("backbone", until="1ep")
    fit_net(freeze, go_back(3, back), note, max_duration="12st")
    assert trained == [False] * 4 + [True] * (8 + back - 3)
    assert freeze.thawed


@pytest.mark.parametrize("layers", ["", (), [""], [3]])
def test_no_layer_at_all_is_an_error(layers: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Freeze\(layers="):
        Freeze(layers)


# -- several of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
def test_two_with_other_layers_need_no_declared_order(tmp_path: Path, backwards: bool) -> None:
    def callbacks() -> list[Any]:
        found = [Freeze("backbone.0", until="2ep"), Freeze("backbone.1")]
        return found[::-1] if backwards else found

    options: Any = {"max_duration": "4ep"}
    whole = fit_net(*callbacks(), **options)
    start = dict(Net().named_parameters())
    same = [name for name, value in whole.model.named_parameters() if torch.equal(value, start[name])]
    assert same == ["backbone.1.weight", "backbone.1.bias"]
    with pytest.raises(RuntimeError, match="planted"):
        fit_net(*callbacks(), Checkpointer("1ep"), crash_at(13), folder=tmp_path, **options)
    resumed = fit_net(*callbacks(), Checkpointer("1ep"), folder=tmp_path, resume="auto", **options)
    assert same_tensors(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("backwards", [False, True])
def test_two_that_freeze_a_parameter_until_different_times_are_refused(backwards: bool) -> None:
    callbacks = [Freeze("backbone", until="1ep"), Freeze("backbone.0")]
    with pytest.raises(SetupError, match=r"both freeze backbone\.0\.bias, and not until the same time: .* but="):
        fit_net(*callbacks[:: -1 if backwards else 1])
    fit_net(Freeze("backbone", but="backbone.0", until="1ep"), Freeze("backbone.0"))
