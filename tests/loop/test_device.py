"""Without ``device=``, a run uses the accelerator that this machine has, and the CPU if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.testing import TinyModel, tiny_data

QUIET = hl.ProgressBar(style=None)


def fit() -> Any:
    return hl.fit(
        TinyModel(),
        tiny_data(),
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD,
        callbacks=[QUIET],
        max_duration="1ep",
        folder=False,
    ).clock.step


def own_loop() -> Any:
    model = TinyModel()
    with hl.Loop(model, torch.optim.SGD(model.parameters()), max_duration="1ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
    return loop.run.clock.step


def predict() -> Any:
    return len(hl.predict(TinyModel(), tiny_data(), callbacks=[QUIET], folder=False))


@pytest.mark.parametrize("run", [fit, own_loop, predict])
def test_a_cuda_build_of_torch_on_a_machine_without_a_gpu(
    run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def current_accelerator(check_available: bool = False) -> torch.device | None:
        """As torch's CUDA build answers where there is no driver."""
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert run() > 0
