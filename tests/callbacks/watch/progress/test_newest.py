"""The metrics beside a bar are new, and to show them never makes a device wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.callbacks import ProgressBar
from hookline.callbacks.watch.progress.following import Newest
from hookline.testing import tiny_data
from tests.support import fit


class Reads(TorchDispatchMode):
    """Counts how often a tensor is read as a number: on a GPU each is a wait."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


class Silent:
    def start(self, run: Any) -> None: ...

    def update(self, progress: Any) -> None: ...

    def close(self) -> None: ...


def reads_of_a_run(*callbacks: Any) -> int:
    with Reads() as reads:
        fit(*callbacks, train=tiny_data(30), max_duration="30st", log_every="10st")
    return reads.count


def test_a_bar_that_is_drawn_at_every_step_reads_nothing_more_than_the_loop() -> None:
    assert reads_of_a_run(ProgressBar(style=Silent(), every="1st")) == reads_of_a_run()


def a_run(loss: Any, **metrics: float) -> Any:
    return SimpleNamespace(
        loss=loss, metrics=metrics, is_training_run=True, stage="train", callbacks=(), schedulers=(), log_every="1st"
    )


def test_until_there_is_an_average_the_loss_of_the_last_step_is_shown() -> None:
    newest = Newest(())
    newest.peek(a_run(torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True)))
    newest.peek(a_run(torch.tensor(1.0)))
    assert newest.shown(training=True) == {"train/loss": 1.0}
    newest.read(a_run(None, **{"train/loss": 1.5}))
    newest.peek(a_run(torch.tensor(9.0)))
    assert newest.shown(training=True) == {"train/loss": 1.5}


def test_on_a_device_that_must_be_waited_for_only_the_first_loss_is_read() -> None:
    class OnDevice:
        def __init__(self, value: float) -> None:
            self.value, self.device = value, SimpleNamespace(type="cuda")

        def detach(self) -> OnDevice:
            return self

        def reshape(self, *shape: int) -> OnDevice:
            return self

        def tolist(self) -> list[float]:
            return [self.value]

    newest = Newest(())
    newest.peek(a_run(OnDevice(2.0)))
    newest.peek(a_run(OnDevice(1.0)))
    assert newest.shown(training=True) == {"train/loss": 2.0}


def test_a_loss_that_cannot_be_read_is_left_out() -> None:
    newest = Newest(())
    newest.peek(a_run(None))
    newest.peek(a_run(torch.zeros(3)))
    assert newest.shown(training=True) == {}
