"""The code that the document about callbacks of Lightning prints runs in Lightning and in Hookline."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from tests.interop.printed import run_printed
from tests.interop.test_lightning import PACKAGES, data, in_hookline, module_for

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns about loaders and small data.

PRINTING = """
    from pi_ml.callbacks import Callback


    class MyPrintingCallback(Callback):
        def on_train_start(self, trainer, pl_module):
            print("Training is starting")

        def on_train_end(self, trainer, pl_module):
            print("Training is ending")


    trainer = Trainer(callbacks=[MyPrintingCallback()])
"""

COUNTER = """
    class Counter(Callback):
        def __init__(self, what="epochs", verbose=True):
            self.what = what
            self.verbose = verbose
            self.state = {"epochs": 0, "batches": 0}

        @property
        def state_key(self):
            # note: we do not include `verbose` here on purpose
            return self._generate_state_key(what=self.what)

        def on_train_epoch_end(self, *args, **kwargs):
            if self.what == "epochs":
                self.state["epochs"] += 1

        def on_train_batch_end(self, *args, **kwargs):
            if self.what == "batches":
                self.state["batches"] += 1

        def on_load_checkpoint(self, trainer, pl_module, callback_state):
            self.state.update(callback_state)

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            return self.state.copy()


    # two callbacks of the same type are being used
    trainer = Trainer(callbacks=[Counter(what="epochs"), Counter(what="batches")])
"""


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def printed(code: str, pl: Any, trainer: Any) -> dict[str, Any]:
    """Run code as printed, with the package under the name that it has today."""
    moved = {"pi_ml": pl.__name__} if "pi_ml" in code else {}
    return run_printed(code, {"Trainer": trainer, "Callback": pl.callbacks.Callback}, moved)


def fit_there(trainer: Any, pl: Any) -> None:
    trainer.fit(module_for(pl), data(16), data(2, seed=2))


def of_lightning(pl: Any, folder: Path) -> Any:
    options = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    bars = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return partial(pl.Trainer, max_epochs=2, default_root_dir=folder, **options, **bars)


def of_hookline(callbacks: list[Any]) -> Any:
    """What the printed line makes in Hookline: a trainer with these callbacks."""
    return hl.Trainer(max_duration="2ep", callbacks=callbacks, folder=False, device="cpu", progress=False)


def test_the_printed_callback_prints_the_same(pl: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_there(printed(PRINTING, pl, of_lightning(pl, tmp_path))["trainer"], pl)
    there = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training is")]
    printed(PRINTING, pl, of_hookline)["trainer"].fit(module_for(pl), data(16), data(2, seed=2))
    assert capsys.readouterr().out.splitlines() == there == ["Training is starting", "Training is ending"]


def test_the_printed_counters_count_the_same(pl: Any, tmp_path: Path) -> None:
    theirs = printed(COUNTER, pl, of_lightning(pl, tmp_path))["trainer"]
    fit_there(theirs, pl)
    there = {its.state_key: its.state for its in theirs.callbacks if hasattr(its, "what")}
    kept: list[Any] = []
    trainer = printed(COUNTER, pl, lambda callbacks: kept.extend(callbacks) or of_hookline(callbacks))["trainer"]
    trainer.fit(module_for(pl), data(16), data(2, seed=2))
    assert {its.state_key: its.state for its in kept} == there
    assert there == {
        "Counter{'what': 'epochs'}": {"epochs": 2, "batches": 0},
        "Counter{'what': 'batches'}": {"epochs": 0, "batches": 32},
    }


def test_the_printed_counters_get_their_state_back(pl: Any, tmp_path: Path) -> None:
    """The document says so. Versions of Lightning from 1.8 on do not save what ``on_save_checkpoint`` returns."""

    def counters() -> list[Any]:
        kind = printed(COUNTER, pl, lambda callbacks: None)["Counter"]
        return [kind(what="epochs"), kind(what="batches")]

    cut, rest = counters(), counters()
    pause = hl.on("train_step_end", at="6st")(lambda run: run.pause("later"))
    in_hookline([*cut, pause, hl.Checkpointer()], tmp_path)
    assert cut[1].state == {"epochs": 0, "batches": 6}
    in_hookline([*rest, hl.Checkpointer()], tmp_path, resume="auto")
    assert rest[0].state == {"epochs": 3, "batches": 0}
    assert rest[1].state == {"epochs": 0, "batches": 12}
