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


Case = tuple[str, Any, str]
"""What is measured, a callback, and the event of Hookline at which its hook is called."""


def foreign_hooks(repeats: int) -> Section:
    warnings.simplefilter("ignore")
    figures = []
    for what, package, cases in (
        ("Lightning, on_train_batch_end", "lightning", _of_lightning),
        ("Composer, batch_end", "composer", _of_composer),
    ):
        if find_spec(package) is None:
            figures.append(Figure(what, "not run", f"{package} is not installed"))
        else:
            figures += [_figure(*case, repeats) for case in cases()]
    return Section(
        TITLE,
        figures,
        f"The hook is called {NUMBER} times in step 3 of a run. Quickest of {repeats} repeats, and their median.",
    )


def _of_lightning() -> list[Case]:
    import lightning.pytorch as pl

    class Empty(pl.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            pass

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pass

    class Reading(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            _ = trainer.global_step, trainer.current_epoch

    return [
        ("Lightning, on_train_batch_start", Empty(), "train_batch_start"),
        ("Lightning, on_train_batch_end", Empty(), "train_step_end"),
        ("the same, two attributes of the trainer", Reading(), "train_step_end"),
    ]


def _of_composer() -> list[Case]:
    from composer import Callback

    class Empty(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            pass

        def before_forward(self, state: Any, logger: Any) -> None:
            pass

    class Reading(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            _ = state.timestamp.batch, state.dataloader_label

    class Every(Callback):
        def run_event(self, event: Any, state: Any, logger: Any) -> None:
            pass

    return [
        ("Composer, batch_end", Empty(), "train_step_end"),
        ("Composer, before_forward", Empty(), "forward_start"),
        ("Composer, batch_end by run_event", Every(), "train_step_end"),
        ("Composer, batch_end, two attributes of the state", Reading(), "train_step_end"),
    ]


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
