"""Without ``device=``, a run uses the accelerator that this machine has, and the CPU if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, train_loop

QUIET = hl.ProgressBar(style=None)


def train() -> Any:
    return fit(QUIET, device=None).clock.step


def own_loop() -> Any:
    return train_loop(device=None)[0].run.clock.step


def predict() -> Any:
    return len(hl.predict(TinyModel(), tiny_data(), callbacks=[QUIET], folder=False))


@pytest.mark.parametrize("run", [train, own_loop, predict])
def test_a_cuda_build_of_torch_on_a_machine_without_a_gpu(
    run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def current_accelerator(check_available: bool = False) -> torch.device | None:
        """As torch's CUDA build answers where there is no driver."""
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert run() > 0
