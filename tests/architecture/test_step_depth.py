"""Whoever debugs a step sees five frames of ours between the call of ``fit`` and the optimizer, not sixteen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.testing import TinyModel, tiny_data

PACKAGE = Path(hl.__file__).parent
Frame = tuple[str, str]


def our_frames() -> list[Frame]:
    """The frames of hookline on the stack, outermost first: file and function."""
    frame: FrameType | None = sys._getframe(1)
    found: list[Frame] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append((str(path.relative_to(PACKAGE)), frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def stacks_of(run: Callable[[type[torch.optim.Optimizer]], object]) -> list[list[Frame]]:
    stacks: list[list[Frame]] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            stacks.append(our_frames())
            return super().step(closure)

    run(Recording)
    assert stacks
    return stacks


OPTIONS: dict[str, Any] = {"max_duration": "1ep", "folder": False, "device": "cpu"}


def with_fit(optimizer: type[torch.optim.Optimizer]) -> None:
    quiet = hl.ProgressBar(style=None)
    hl.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=optimizer, callbacks=[quiet], **OPTIONS)


def with_trainer(optimizer: type[torch.optim.Optimizer]) -> None:
    trainer = hl.Trainer(callbacks=[hl.ProgressBar(style=None)], **OPTIONS)
    trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


def with_own_loop(optimizer: type[torch.optim.Optimizer]) -> None:
    model = TinyModel()
    with hl.Loop(model, optimizer(model.parameters(), lr=0.1), **OPTIONS) as loop:  # type: ignore[call-arg]
        for x, y in loop.batches(tiny_data()):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()


@pytest.mark.parametrize(
    "run",
    [
        with_fit,
        with_trainer,
        with_own_loop,
    ],
)
def test_from_fit_to_the_optimizer_there_are_at_most_five_frames(run: Any) -> None:
    for stack in stacks_of(run):
        text = " > ".join(f"{file}:{function}" for file, function in stack)
        assert len(stack) <= 5, text


def test_forward_and_backward_are_not_run_inside_the_optimizers_step() -> None:
    stepping: list[bool] = [False]
    forwards: list[bool] = []

    class Stepping(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            stepping[0] = True
            found = super().step(closure)
            stepping[0] = False
            return found

    class Model(TinyModel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            forwards.append(stepping[0])
            return super().forward(x)

    quiet = hl.ProgressBar(style=None)
    hl.fit(Model(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=Stepping, callbacks=[quiet], **OPTIONS)
    assert forwards
    assert not any(forwards)
