"""Without ``device=``, a run uses the accelerator that this machine has, and the CPU if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import ArgumentError
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


ADVICE = (
    "Write device='cuda', 'mps' or 'cpu', or leave device= out to use the accelerator of this machine, if it has one."
)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", -1, 1.5, ["cpu"]], ids=repr)
def test_what_is_not_a_device_is_an_error_without_the_list_of_torch(device: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        hl.Trainer(device=device)
    assert str(caught.value) == f"Trainer(device={device!r}): torch has no such device. {ADVICE}"


@pytest.mark.parametrize(
    "reason", ["It is not there.", "It is not there. Known are [CPU, Meta].", "It is not there\nat"]
)
def test_a_device_that_cannot_be_used_is_an_error_with_the_first_sentence_of_torch(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def empty(*args: Any, **options: Any) -> Any:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ArgumentError) as caught:
        hl.Trainer(device="cuda")
    assert str(caught.value) == f"Trainer(device='cuda'): It is not there. {ADVICE}"
