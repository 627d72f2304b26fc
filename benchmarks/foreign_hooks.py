"""What a hook of another library's callback costs in a run of Hookline.

``foreign_hooks.py LIBRARY REPEATS`` measures one library, in its environment, and prints what it found.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from timeit import repeat
from typing import TYPE_CHECKING, Any

from table import Figure, Section, verdict

if TYPE_CHECKING:
    import hookline as hl

LIMIT_US = 3
NUMBER = 2000
ROOT = Path(__file__).parents[1]

TITLE = "A hook of another library's callback (µs)"
Case = tuple[str, Any, str]
"""A hook, a callback that has it, and the event at which Hookline calls it."""


def foreign_hooks(repeats: int) -> Section:
    sys.path.append(str(ROOT / "tests/interop"))
    import environments

    figures = [row for library in CASES for row in _of_library(library, environments.make(library), repeats)]
    return Section(
        TITLE,
        figures,
        f"Each library in its own environment. The hook is called {NUMBER} times in step 3 of a run. Quickest of "
        f"{repeats} repeats, and their median.",
    )


def _of_library(library: str, python: str | None, repeats: int) -> list[Figure]:
    if python is None:
        return [Figure(library, "not run", "it cannot be installed or imported here")]
    command = [python, "-W", "ignore", __file__, library, str(repeats)]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    return [_figure(f"{library}, {hook}", times) for hook, times in json.loads(done.stdout.splitlines()[-1])]


def _figure(what: str, times: Sequence[float]) -> Figure:
    fastest = min(times)
    spread = f"median {statistics.median(times):.1f} µs"
    return Figure(what, f"{fastest:.1f} µs", spread, f"<= {LIMIT_US} µs", verdict(fastest <= LIMIT_US))


# -- in the environment of a library -------------------------------------------------------------------


def _lightning() -> Iterator[Case]:
    import lightning.pytorch as pl

    class Empty(pl.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            pass

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pass

    class Reading(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            _ = trainer.global_step, trainer.current_epoch

    yield "on_train_batch_start", Empty(), "train_batch_start"
    yield "on_train_batch_end", Empty(), "train_step_end"
    yield "on_train_batch_end, two attributes of the trainer", Reading(), "train_step_end"


def _composer() -> Iterator[Case]:
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

    yield "batch_end", Empty(), "train_step_end"
    yield "before_forward", Empty(), "forward_start"
    yield "batch_end by run_event", Every(), "train_step_end"
    yield "batch_end, two attributes of the state", Reading(), "train_step_end"


def _transformers() -> Iterator[Case]:
    from transformers import TrainerCallback

    class Empty(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pass

    yield "on_step_end", Empty(), "train_step_end"


def _keras() -> Iterator[Case]:
    import keras

    class Empty(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    yield "on_train_batch_end", Empty(), "train_step_end"


def _torchtnt() -> Iterator[Case]:
    from torchtnt.framework.callback import Callback

    class Empty(Callback):
        def on_train_step_end(self, state: Any, unit: Any) -> None:
            pass

    yield "on_train_step_end", Empty(), "train_step_end"


def _pytorch_accelerated() -> Iterator[Case]:
    from pytorch_accelerated.callbacks import TrainerCallback

    class Empty(TrainerCallback):
        def on_train_step_end(self, trainer: Any, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            pass

    yield "on_train_step_end", Empty(), "loss_ready"


def _aitoolbox() -> Iterator[Case]:
    from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback

    class Empty(AbstractCallback):
        def __init__(self) -> None:
            super().__init__("empty")

        def on_train_loop_registration(self) -> None:
            self.train_loop_obj.grad_cb_used = True

        def on_after_gradient_update(self, optimizer_idx: int) -> None:
            pass

        def on_batch_end(self) -> None:
            pass

    yield "on_after_gradient_update", Empty(), "gradients_ready"
    yield "on_batch_end", Empty(), "train_step_end"


def _ignite() -> Iterator[Case]:
    from ignite.engine import Engine, Events

    engine = Engine(lambda engine, batch: None)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: None)
    yield "ITERATION_COMPLETED", engine, "train_step_end"


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "lightning": _lightning,
    "composer": _composer,
    "transformers": _transformers,
    "keras": _keras,
    "torchtnt": _torchtnt,
    "pytorch-accelerated": _pytorch_accelerated,
    "aitoolbox": _aitoolbox,
    "ignite": _ignite,
}


def _times(callback: Any, event: str, repeats: int) -> list[float]:
    import torch

    import hookline as hl
    from hookline.testing import TinyModel, tiny_data

    adapted, times = hl.interop.adapt(callback), []

    def measure(run: hl.Run) -> None:
        if run.clock.step == 3:
            call = _call(adapted, event, run)
            times.extend(seconds / NUMBER * 1e6 for seconds in repeat(call, number=NUMBER, repeat=repeats))

    probe = hl.LambdaCallback(name="measure", **{f"on_{event}": measure})
    trainer = hl.Trainer(
        preflight=False, max_duration="5st", folder=False, device="cpu", progress=False, callbacks=[adapted, probe]
    )
    trainer.fit(TinyModel(), tiny_data(8), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return times


def _call(adapted: Any, event: str, run: hl.Run) -> Callable[[], None]:
    """Return the call that is timed. At ``loss_ready``, each call has another loss, as in another batch."""
    hook = getattr(adapted, f"on_{event}")
    if event != "loss_ready":
        return lambda: hook(run)
    losses = cycle((run.loss, run.loss * 1))

    def call() -> None:
        run.loss = next(losses)
        hook(run)

    return call


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = [(hook, _times(callback, event, int(sys.argv[2]))) for hook, callback, event in CASES[sys.argv[1]]()]
    print(json.dumps(found))  # The parent reads it.
