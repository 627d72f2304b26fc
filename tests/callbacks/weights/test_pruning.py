"""``Pruning``: which weights become zero and stay zero, checkpoints, lottery tickets, and what each mistake says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import prune

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping
from hookline.callbacks.weights import EMA, Pruning
from hookline.checkpoint import Store
from hookline.errors import ArgumentError, DurationError, HooklineWarning, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, state_of

WEIGHTS = ("hidden.weight", "out.weight")


momentum_sgd = partial(sgd, momentum=0.9, weight_decay=0.01)
"""Momentum and weight decay move a weight that has no gradient."""
fit_three_epochs = partial(fit, optimizer=momentum_sgd, max_duration="3ep")


def plain(apply: Any, epochs: int = 3) -> nn.Module:
    """The same in a plain loop, with torch's own pruning, made permanent at the end."""
    model = TinyModel()
    optimizer = momentum_sgd(model.parameters())
    for _ in range(epochs):
        for x, y in tiny_data(4):
            optimizer.zero_grad()
            CE(model(x), y).backward()
            optimizer.step()
        for part in (model.hidden, model.out):  # torch would look at the weights as they were before the last step
            for hook in part._forward_pre_hooks.values():
                hook(part, ())
        apply(model)
    for part in (model.hidden, model.out):
        if prune.is_pruned(part):
            prune.remove(part, "weight")
    return model


def parts(model: Any) -> list[tuple[nn.Module, str]]:
    return [(model.hidden, "weight"), (model.out, "weight")]


def zeros(model: nn.Module) -> int:
    return sum(int((model.get_parameter(name) == 0).sum()) for name in WEIGHTS)


# -- which weights -----------------------------------------------------------------------------------------

WAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "global": (
        {"amount": 0.3},
        lambda model: prune.global_unstructured(parts(model), prune.L1Unstructured, amount=0.3),
    ),
    "a number": (
        {"amount": 5},
        lambda model: prune.global_unstructured(parts(model), prune.L1Unstructured, amount=5),
    ),
    "each layer": (
        {"amount": 0.25, "use_global_unstructured": False},
        lambda model: [prune.l1_unstructured(part, name, 0.25) for part, name in parts(model)],
    ),
    "channels": (
        {"pruning_fn": "ln_structured", "amount": 0.25, "pruning_dim": 1},
        lambda model: [prune.ln_structured(part, name, 0.25, 2, 1) for part, name in parts(model)],
    ),
    "channels by another norm": (
        {"pruning_fn": "ln_structured", "amount": 1, "pruning_norm": 1, "parameters": "hidden.weight"},
        lambda model: prune.ln_structured(model.hidden, "weight", 1, 1, 0),
    ),
    "one's own method": (
        {"pruning_fn": prune.L1Unstructured, "amount": 0.3},
        lambda model: prune.global_unstructured(parts(model), prune.L1Unstructured, amount=0.3),
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_run_is_that_of_torchs_own_pruning_bitwise(name: str) -> None:
    options, apply = WAYS[name]
    result = fit_three_epochs(Pruning(**options))
    expected = plain(apply)
    assert zeros(expected) > 4
    assert same_tensors(state_of(result.model), state_of(expected))


@pytest.mark.parametrize("fn", ["random_unstructured", "random_structured"])
def test_random_pruning_prunes_as_many_and_the_same_with_the_same_seed(fn: str) -> None:
    one, two, other = (fit_three_epochs(Pruning(fn, 0.5, parameters="hidden.weight"), seed=seed) for seed in (0, 0, 5))
    assert int((one.model.hidden.weight == 0).sum()) == 28  # of 32: a half, three times
    assert same_tensors(state_of(one.model), state_of(two.model))
    assert not torch.equal(one.model.hidden.weight == 0, other.model.hidden.weight == 0)


def test_an_amount_may_be_a_function_of_the_epochs_that_are_over() -> None:
    seen: list[int] = []

    def amount(epoch: int) -> float:
        seen.append(epoch)
        return 0.0 if epoch == 2 else 0.5

    result = fit_three_epochs(Pruning(amount=amount))
    assert seen == [1, 2, 3]
    assert result.history["pruning/sparsity"] == pytest.approx([0.5, 0.5, 0.75])
    assert zeros(result.model) == 42  # of 56


@pytest.mark.parametrize("fn", ["l1_unstructured", "ln_structured"])
def test_an_amount_of_all_is_what_is_pruned_afterwards(fn: str) -> None:
    result = fit_three_epochs(Pruning(fn, lambda epoch: 0.25 * epoch, of="all", parameters="hidden.weight"))
    assert result.history["pruning/sparsity"] == pytest.approx([0.25, 0.5, 0.75])


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [4, 8, 12]),
        ({"every": "3st"}, [3, 6, 9, 12]),
        ({"every": "2ep"}, [8]),
        ({"every": "3st", "start": "5st", "end": "9st"}, [6, 9]),
        ({"start": "2ep"}, [8, 12]),
        ({"end": "0.5dur"}, [4]),  # one epoch and a half
    ],
)
def test_it_prunes_every_so_often_from_start_to_end(options: dict[str, Any], steps: list[int]) -> None:
    result = fit_three_epochs(Pruning(amount=0.1, **options), log_every="1st")
    assert result.history.steps("pruning/sparsity") == steps


def test_what_is_pruned_is_zero_after_every_step_and_has_no_gradient() -> None:
    class Look(hl.Callback):
        reads = ("weights", "gradients")
        seen = 0

        def on_optimizer_step_start(self, run: Any) -> None:
            pruning = run.callbacks["Pruning"]
            for name, mask in pruning.masks.items():
                assert not run.model.get_parameter(name).grad[~mask].any()
                Look.seen += int((~mask).sum())

        def on_train_step_end(self, run: Any) -> None:
            for name, mask in run.callbacks["Pruning"].masks.items():
                assert not run.model.get_parameter(name)[~mask].any()

    fit_three_epochs(Pruning(amount=0.5, every="2st"), Look())
    assert Look.seen > 100


def test_embeddings_biases_and_norms_are_left_alone_unless_they_are_named() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 4)
            self.norm = nn.LayerNorm(4)
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(x @ self.table.weight))

    names = [name for name, _ in Words().named_parameters()]
    for parameters, expected in ((None, ["out.weight"]), (["*"], names), ("norm.*", names[1:3]), ("norm", names[1:3])):
        pruning = Pruning(amount=0.5, parameters=parameters)
        fit_three_epochs(pruning, model=Words(), max_duration="1ep")
        assert list(pruning.masks) == expected


def test_a_frozen_parameter_can_be_pruned_and_unfrozen_later() -> None:
    model = TinyModel()
    model.hidden.weight.requires_grad_(False)
    unfreeze = hl.on("train_epoch_end", at="1ep")(lambda run: run.model.hidden.weight.requires_grad_(True))
    result = fit_three_epochs(Pruning(amount=0.5), unfreeze, model=model)
    assert zeros(result.model) == 49


def test_less_left_than_a_number_says_is_left_alone_with_a_warning() -> None:
    pruning = Pruning("ln_structured", 3, parameters="hidden.weight")
    with pytest.warns(HooklineWarning, match=r"leaves hidden\.weight as it is: 3 are to be pruned, and 2 are left"):
        fit_three_epochs(pruning)
    assert pruning.sparsity == 0.75


# -- what is saved -----------------------------------------------------------------------------------------


def test_every_checkpoint_has_plain_names_and_the_zeros_in_it(tmp_path: Path) -> None:
    fit_three_epochs(Pruning(amount=0.5), Checkpointer("1ep", keep_last=None), folder=tmp_path)
    for checkpoint, expected in zip(Store(tmp_path / "checkpoints").checkpoints(), (28, 42, 49), strict=True):
        weights = load_file(checkpoint.path / "model.safetensors")
        assert weights.keys() == state_of(TinyModel()).keys()
        assert sum(int((weights[name] == 0).sum()) for name in WEIGHTS) == expected


@pytest.mark.parametrize("stop", [3, 5, 9, 12])
@pytest.mark.parametrize("options", [{}, {"pruning_fn": "random_structured", "every": "3st", "lottery_ticket": "2st"}])
def test_a_resume_is_exact(tmp_path: Path, stop: int, options: dict[str, Any]) -> None:
    def make() -> Pruning:
        return Pruning(amount=0.3, **options)

    whole = make()
    straight = fit_three_epochs(whole, model=TinyModel(dropout=0.2), val=tiny_data(1))
    common: dict[str, Any] = {"folder": tmp_path, "resume": "auto", "val": tiny_data(1)}
    with pytest.raises(RuntimeError, match="planted"):
        fit_three_epochs(
            make(), Checkpointer("1st"), crash_at(stop, "step_settled"), model=TinyModel(dropout=0.2), **common
        )
    pruning = make()
    result = fit_three_epochs(pruning, Checkpointer("1st"), model=TinyModel(dropout=0.2, seed=8), **common)
    assert same_tensors(pruning.masks, whole.masks)
    assert same_tensors(state_of(result.model), state_of(straight.model))
    assert result.history["pruning/sparsity"] == straight.history["pruning/sparsity"]
    assert result.history["val/loss"] == straight.history["val/loss"]


def test_a_second_fit_keeps_what_is_pruned_and_leaves_no_hook() -> None:
    model, pruning = TinyModel(), Pruning(amount=0.5)
    trainer = Trainer(callbacks=[pruning], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd, extend="1ep")
    expected = fit_three_epochs(Pruning(amount=0.5))
    assert same_tensors(state_of(model), state_of(expected.model))


def test_a_new_run_with_the_same_object_begins_anew() -> None:
    pruning = Pruning(amount=0.5)
    fit_three_epochs(pruning)
    result = fit_three_epochs(pruning)
    assert result.history["pruning/sparsity"] == [0.5, 0.75, 0.875]


# -- lottery tickets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ticket", "from_step"), [(True, 0), ("3st", 3)])
def test_a_pruning_puts_the_weights_back_to_where_they_were(ticket: Any, from_step: int) -> None:
    kept, after = {}, {}

    class Keeps(hl.Callback):
        after = ("Pruning",)

        def on_train_step_end(self, run: Any) -> None:
            kept[run.clock.step] = state_of(run.model)

        def on_train_epoch_end(self, run: Any) -> None:
            after[run.clock.step] = (state_of(run.model), len(next(iter(run.optimizers.values())).state))

    kept[0] = state_of(TinyModel())
    pruning = Pruning(amount=0.5, lottery_ticket=ticket)
    fit_three_epochs(pruning, Keeps(), max_duration="1ep")
    weights, states = after[4]
    for name, value in weights.items():
        mask = pruning.masks.get(name, torch.ones_like(value))
        assert torch.equal(value, kept[from_step][name] * mask)
    assert states == 0  # momentum of the weights that are gone


# -- with others ---------------------------------------------------------------------------------------------


def test_an_average_has_the_zeros_too_in_evaluations_and_at_the_end() -> None:
    seen = []
    look = hl.on("eval_batch_end")(lambda run: seen.append(zeros(run.model)))
    for order in (1, -1):
        seen.clear()
        ema = EMA(0.9)
        result = fit_three_epochs(*[ema, Pruning(amount=0.5)][::order], look, val=tiny_data(1))
        assert seen == [28, 42, 49]
        assert zeros(result.model) == 49
        assert same_tensors(state_of(result.model), ema.weights)
        assert not torch.equal(result.model.out.bias, fit_three_epochs(Pruning(amount=0.5)).model.out.bias)


def test_a_second_fit_with_an_average_goes_on_from_the_raw_weights() -> None:
    def run(*parts_of: str) -> dict[str, Tensor]:
        model = TinyModel()
        trainer = Trainer(callbacks=[EMA(0.9), Pruning(amount=0.5)], max_duration=parts_of[0], folder=False)
        trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
        for part in parts_of[1:]:
            trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd, extend=part)
        return state_of(model)

    assert same_tensors(run("3ep"), run("1ep", "1ep", "1ep"))


def test_best_weights_that_are_restored_are_pruned_as_the_last_ones() -> None:
    class Falls(hl.Callback):
        writes = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            run.log({"val/score": -float(run.clock.epoch)})

    stopper = EarlyStopping("val/score", mode="max", patience=9, restore_best=True)
    result = fit_three_epochs(stopper, Pruning(amount=0.5), Falls(), val=tiny_data(1))
    assert zeros(result.model) == 49


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [-0.1, 1.5, -3, True, "half", None])
def test_an_amount_that_is_none_is_refused(amount: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Pruning\(amount.*\): must be"):
        Pruning(amount=amount)


def test_an_amount_that_a_function_gives_is_checked() -> None:
    with pytest.raises(ArgumentError, match=r"Pruning\(amount=7\.5\)"):
        fit_three_epochs(Pruning(amount=lambda epoch: 7.5))


def test_a_method_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"Pruning\(pruning_fn='l1_unstructred'\): no such method\. Did you mean 'l1_unstructured'\?",
    ):
        Pruning("l1_unstructred")
    with pytest.raises(ArgumentError, match="a subclass of BasePruningMethod"):
        Pruning(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Pruning\(of='everything'\): must be 'remaining' or 'all'\."):
        Pruning(of="everything")  # type: ignore[arg-type]
    with pytest.raises(DurationError):
        Pruning(every="often")
    with pytest.raises(ArgumentError, match=r"Pruning\(parameters=\[\]\)"):
        Pruning(parameters=[])


def test_a_name_that_matches_nothing_is_an_error_before_the_first_step() -> None:
    with pytest.raises(
        SetupError, match=r"Pruning\(parameters='hiden\.weight'\): .* The nearest names: hidden\.weight"
    ):
        fit_three_epochs(Pruning(parameters=["hiden.weight"]))


def test_a_layer_without_such_channels_is_an_error_before_the_first_step() -> None:
    with pytest.raises(SetupError, match=r"Pruning\(pruning_dim=3\): a tensor of shape \(8, 4\)"):
        fit_three_epochs(Pruning("ln_structured", pruning_dim=3))
    with pytest.raises(SetupError, match=r"Pruning\(amount=5\): out\.weight has only 3 to prune"):
        fit_three_epochs(Pruning("ln_structured", 5))
    with pytest.raises(SetupError, match="the model has no parameter of two dimensions"):
        fit_three_epochs(Pruning(), model=nn.LayerNorm(4), max_duration="1st")


class WithoutAmount(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        return default_mask


class WithoutMask(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        self.amount = amount


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (WithoutAmount, r"Pruning\(pruning_fn=WithoutAmount\): .* Write def __init__\(self, amount\)\."),
        (WithoutMask, r"Pruning\(pruning_fn=WithoutMask\): the class is abstract. Write its compute_mask\."),
    ],
)
def test_a_method_that_cannot_be_made_is_refused_at_once(method: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Pruning(method)
