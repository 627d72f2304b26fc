"""One language for layers: a pattern matches a name or any of its parents, in every callback that takes names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import SetupError
from tests.support import fit


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"proj": nn.Linear(4, 4)})
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.mlp(self.attn["proj"](x)).relu()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(4, 3))


fit_two_steps = partial(fit, max_duration="2st", log_every="1st")


def frozen(callback: hl.Callback) -> set[str]:
    net = model()
    before = deepcopy(net.state_dict())
    fit_two_steps(callback, model=net)
    return {name.rpartition(".")[0] for name, value in net.state_dict().items() if torch.equal(value, before[name])}


def zeroed(callback: hl.Callback) -> set[str]:
    net = model()
    fit_two_steps(callback, model=net)
    return {
        name.rpartition(".")[0] for name, value in net.state_dict().items() if name[-1] == "t" and (value == 0).any()
    }


def logged(callback: hl.Callback) -> set[str]:
    names = [
        name.rpartition("/")[2]
        for name in fit_two_steps(callback, model=model()).history
        if not name.startswith("train/")
    ]
    return {name.removesuffix(".weight").removesuffix(".bias") for name in names} - {"total"}


def quantized(callback: hl.Callback) -> set[str]:
    fit_two_steps(callback, model=model())
    return set(callback.layers)  # type: ignore[attr-defined]


Make = Callable[[str], hl.Callback]
CASES: dict[str, tuple[Make, Callable[[hl.Callback], set[str]]]] = {
    "Freeze": (lambda layers: hl.Freeze(layers), frozen),
    "Finetuning": (lambda layers: hl.Finetuning(layers), frozen),
    "BackboneFinetuning": (lambda layers: hl.BackboneFinetuning(9, backbone=layers), frozen),
    "Pruning": (lambda layers: hl.Pruning(amount=0.5, parameters=layers, every="1st"), zeroed),
    "ParameterMonitor": (lambda layers: hl.ParameterMonitor(layers=layers), logged),
    "GradientMonitor": (lambda layers: hl.GradientMonitor("1st", layers=layers), logged),
    "ActivationMonitor": (lambda layers: hl.ActivationMonitor("1st", layers=layers), logged),
    "QuantizationAwareTraining": (
        lambda layers: hl.QuantizationAwareTraining(modules=layers, convert=False),
        quantized,
    ),
}
ATTENTION = {"0.attn.proj", "1.attn.proj"}


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("*.attn", ATTENTION),
        ("0", {"0.attn.proj", "0.mlp"}),
        ("?.attn", ATTENTION),
        ("[01].m*", {"0.mlp", "1.mlp"}),
        ("*.proj", ATTENTION),
    ],
)
@pytest.mark.parametrize("kind", CASES)
def test_a_pattern_matches_a_name_or_one_of_its_parents(kind: str, pattern: str, layers: set[str]) -> None:
    make, chosen = CASES[kind]
    found = chosen(make(pattern))
    if kind == "ActivationMonitor":
        found -= {"0"}  # it also looks at modules that have others inside
    assert found == layers


@pytest.mark.parametrize("kind", CASES)
def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_names(kind: str) -> None:
    make, _ = CASES[kind]
    with pytest.raises(SetupError, match=rf"{kind}\(\w+='\*\.atn'\): no .* matches\. The nearest names: .*attn"):
        fit_two_steps(make("*.atn"), model=model())
