"""What a hook of another library's callback costs in a run of Hookline."""

from __future__ import annotations

import statistics
import warnings
from importlib.util import find_spec
from timeit import repeat
from typing import Any

import torch
from table import Figure, Section, verdict

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

LIMIT_US = 3
NUMBER = 2000


TITLE = "A hook of another library's callback (µs)"


def foreign_hooks(repeats: int) -> Section:
    if find_spec("lightning") is None:
        return Section(TITLE, [Figure("Lightning, on_train_batch_end", "not run")], "lightning is not installed.")
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    class Empty(pl.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            pass

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pass

    class Reading(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            _ = trainer.global_step, trainer.current_epoch

    cases = [
        ("Lightning, on_train_batch_start", Empty(), "train_batch_start"),
        ("Lightning, on_train_batch_end", Empty(), "train_step_end"),
        ("the same, two attributes of the trainer", Reading(), "train_step_end"),
    ]
    return Section(
        TITLE,
        [_figure(*case, repeats) for case in cases],
        f"The hook is called {NUMBER} times in step 3 of a run. Quickest of {repeats} repeats, and their median.",
    )


def _figure(what: str, callback: Any, event: str, repeats: int) -> Figure:
    adapted, times = hl.interop.adapt(callback), []

    def measure(run: hl.Run) -> None:
        if run.clock.step == 3:
            hook = getattr(adapted, f"on_{event}")
            times.extend(seconds / NUMBER * 1e6 for seconds in repeat(lambda: hook(run), number=NUMBER, repeat=repeats))

    model, probe = TinyModel(), hl.LambdaCallback(name="measure", **{f"on_{event}": measure})
    trainer = Trainer(max_duration="5st", folder=False, device="cpu", callbacks=[adapted, probe])
    trainer.fit(model, tiny_data(8), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    fastest = min(times)
    spread = f"median {statistics.median(times):.1f} µs"
    return Figure(what, f"{fastest:.1f} µs", spread, f"<= {LIMIT_US} µs", verdict(fastest <= LIMIT_US))
