"""The code that the document about callbacks of TorchTNT prints runs in TorchTNT and in Hookline."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl

pytest.importorskip("torchtnt.framework", reason="torchtnt is not installed: `make interop` runs these tests")

from torchtnt.framework import state, unit
from torchtnt.framework.evaluate import evaluate
from torchtnt.framework.predict import predict
from torchtnt.framework.train import train

from tests.interop.printed import run_printed
from tests.interop.test_torchtnt import data, net, same, unit_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about the profiler without a GPU.

CALLBACK = '''
 from torchtnt.runner.callback import Callback

 class PyTorchProfiler(Callback):
    """
    A callback which profiles user code using PyTorch Profiler: https://pytorch.org/docs/stable/profiler.html
    """

    def __init__(
        self,
        profiler: torch.profiler.profile,
    ) -> None:
        self.profiler: torch.profiler.profile = profiler

    def on_train_start(self, state: State, unit: TrainUnit[TTrainData]) -> None:
        self.profiler.start()

    def on_train_step_end(self, state: State, unit: TrainUnit[TTrainData]) -> None:
        self.profiler.step()

    def on_train_end(self, state: State, unit: TrainUnit[TTrainData]) -> None:
        self.profiler.stop()

    def on_eval_start(self, state: State, unit: EvalUnit[TEvalData]) -> None:
        # if in fit do nothing since the profiler was already started in on_train_start
        if state.entry_point == EntryPoint.EVALUATE:
            self.profiler.start()

    def on_eval_step_end(self, state: State, unit: EvalUnit[TEvalData]) -> None:
        self.profiler.step()

    def on_eval_end(self, state: State, unit: EvalUnit[TEvalData]) -> None:
        # if in fit do nothing since the profiler will be stopped in on_train_end
        if state.entry_point == EntryPoint.EVALUATE:
            self.profiler.stop()

    def on_predict_start(self, state: State, unit: PredictUnit[TPredictData]) -> None:
        self.profiler.start()

    def on_predict_step_end(
        self, state: State, unit: PredictUnit[TPredictData]
    ) -> None:
        self.profiler.step()

    def on_predict_end(self, state: State, unit: PredictUnit[TPredictData]) -> None:
        self.profiler.stop()
'''

SET_UP = """
 profiler = PyTorchProfiler(
        profiler=torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=2, warmup=2, active=6, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(dir_name=path),
            with_stack=True,
        )
    )
 train(train_unit, train_dataloader, callbacks=[profiler])
"""

MOVED = {"torchtnt.runner": "torchtnt.framework"}
"""The package that the document imports from has another name today."""


def printed(code: str, **names: Any) -> dict[str, Any]:
    """Run the class as printed, and then more code that uses it."""
    given = {"torch": torch, "State": state.State, "EntryPoint": state.EntryPoint}
    kinds = {name: getattr(unit, name) for name in ("TrainUnit", "EvalUnit", "PredictUnit")}
    data_of = {f"T{name}Data": unit.__dict__[f"T{name}Data"] for name in ("Train", "Eval", "Predict")}
    return run_printed(CALLBACK + code, {**given, **kinds, **data_of, **names}, MOVED)


def profiled(folder: Path) -> list[str]:
    """The steps in the only trace of a folder."""
    (trace,) = folder.iterdir()
    events = json.loads(trace.read_text())["traceEvents"]
    return sorted({event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep")})


def in_hookline(train_unit: Any, train_dataloader: Any, callbacks: list[Any]) -> None:
    hl.Trainer(max_duration="1ep", callbacks=callbacks, folder=False, device="cpu", progress=False).fit(
        train_unit, train_dataloader
    )


def test_the_printed_set_up_records_the_same_steps(tmp_path: Path) -> None:
    units = unit_of(), unit_of()
    for name, its, trains in (("there", units[0], partial(train, max_epochs=1)), ("here", units[1], in_hookline)):
        printed(SET_UP, train=trains, train_unit=its, train_dataloader=data(12), path=str(tmp_path / name))
    assert (
        profiled(tmp_path / "here") == profiled(tmp_path / "there") == [f"ProfilerStep#{step}" for step in range(4, 10)]
    )
    assert same(units[1].module, units[0].module)


@pytest.mark.parametrize("entry", ["evaluate", "predict"])
def test_the_printed_callback_profiles_each_entry_point(entry: str) -> None:
    kind = printed("")["PyTorchProfiler"]
    there, here = (kind(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])) for _ in range(2))
    {"evaluate": evaluate, "predict": predict}[entry](unit_of(), data(5), callbacks=[there])
    trainer = hl.Trainer(callbacks=[here], folder=False, device="cpu", progress=False)
    if entry == "evaluate":
        trainer.evaluate(net(), data(5), loss=torch.nn.CrossEntropyLoss())
    else:
        trainer.predict(net(), data(5))
    assert here.profiler.step_num == there.profiler.step_num == 5
