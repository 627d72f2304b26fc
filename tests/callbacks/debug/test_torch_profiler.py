"""``TorchProfiler``: which steps are recorded, what is written, and that it ends on every way out."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import hookline as hl
from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.debug import TorchProfiler
from hookline.errors import ArgumentError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, crash_at, fit, json_lines


class Counted(profile):
    """A real profiler that counts what is done with it."""

    def __init__(self, **options: Any) -> None:
        self.starts = self.stops = 0
        super().__init__(activities=[ProfilerActivity.CPU], **options)

    def start(self) -> None:
        self.starts += 1
        super().start()

    def stop(self) -> None:
        self.stops += 1
        super().stop()


def trainer(*callbacks: Any, folder: Any = False, **options: Any) -> Trainer:
    return Trainer(callbacks=callbacks, **{"max_duration": "2ep", "folder": folder, "seed": 0} | options)


def steps_in(path: Path) -> list[int]:
    """The steps of the profiler that a trace has."""
    with gzip.open(path, "rt") as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# -- what is recorded and written ----------------------------------------------------------------


def test_the_steps_of_the_schedule_are_in_the_trace_and_no_others(tmp_path: Path) -> None:
    fit(TorchProfiler(skip_first=1, wait=2, warmup=1, active=3), folder=tmp_path)
    assert files(tmp_path / "profile") == ["train-00000007-rank0.pt.trace.json.gz", "train-00000007-rank0.txt"]
    assert steps_in(tmp_path / "profile" / "train-00000007-rank0.pt.trace.json.gz") == [4, 5, 6]


def test_the_table_names_the_operators_that_ran_the_dearest_first(tmp_path: Path) -> None:
    fit(TorchProfiler(rows=5), folder=tmp_path)
    lines = (tmp_path / "profile" / "train-00000005-rank0.txt").read_text().splitlines()
    rows = [line.split() for line in lines if "%" in line and "Self" not in line]
    shares = [float(next(cell for cell in row if cell.endswith("%"))[:-1]) for row in rows]
    assert len(rows) == 5
    assert shares == sorted(shares, reverse=True)
    assert any("aten::" in " ".join(row) or "Optimizer" in " ".join(row) for row in rows)


def test_each_cycle_has_files_of_its_own(tmp_path: Path) -> None:
    fit(TorchProfiler(wait=1, warmup=1, active=2, repeat=2), folder=tmp_path)
    traces = sorted((tmp_path / "profile").glob("*.gz"))
    assert [path.name[:14] for path in traces] == ["train-00000004", "train-00000008"]
    assert [steps_in(path) for path in traces] == [[2, 3], [6, 7]]


def test_repeat_0_goes_on_to_the_end(tmp_path: Path) -> None:
    fit(TorchProfiler(wait=0, warmup=1, active=1, repeat=0), folder=tmp_path)
    assert len(list((tmp_path / "profile").glob("*.gz"))) == 4


def test_evaluations_inside_training_are_steps_of_the_profiler(tmp_path: Path) -> None:
    profiler = TorchProfiler(wait=4, warmup=1, active=2)  # of epoch 0: four steps, then two batches of the evaluation
    fit(profiler, val=tiny_data(3), folder=tmp_path)
    (trace,) = (tmp_path / "profile").glob("*.gz")
    assert trace.name.startswith("train-00000004")
    assert steps_in(trace) == [5, 6]
    assert profiler.steps == 7


def test_another_folder_can_be_named(tmp_path: Path) -> None:
    fit(TorchProfiler(folder=tmp_path / "mine"), folder=tmp_path / "run")
    assert len(files(tmp_path / "mine")) == 2
    assert not (tmp_path / "run" / "profile").exists()


def test_the_table_is_a_text_of_the_run(tmp_path: Path) -> None:
    fit(TorchProfiler(), folder=tmp_path)
    rows = json_lines(tmp_path / "metrics.jsonl")
    (text,) = (row for row in rows if row.get("name") == "profile/operators")
    assert text["text"] == (tmp_path / "profile" / "train-00000005-rank0.txt").read_text()


def test_a_run_without_a_folder_writes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(TorchProfiler()).failures == ()
    assert files(tmp_path) == []
    assert "the trace is not written; give it a folder" in caplog.text


def test_a_run_that_is_too_short_to_record_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(TorchProfiler(wait=50), folder=tmp_path)
    assert not (tmp_path / "profile").exists()
    assert "TorchProfiler recorded nothing: the run ended at its step 8, too early" in caplog.text


# -- entry points and ways out -------------------------------------------------------------------


def test_evaluate_test_and_predict_are_recorded_by_themselves(tmp_path: Path) -> None:
    for entry in ("evaluate", "test", "predict"):
        callback = TorchProfiler(active=2, folder=tmp_path / entry)
        made, model = trainer(callback), TinyModel()
        if entry == "predict":
            made.predict(model, tiny_data(6))
        else:
            getattr(made, entry)(model, tiny_data(6), loss=CE)
        stage = {"evaluate": "val"}.get(entry, entry)
        (trace,) = (tmp_path / entry).glob("*.gz")
        assert trace.name == f"{stage}-00000004-rank0.pt.trace.json.gz"
        assert steps_in(trace) == [2, 3]


def test_an_evaluation_after_a_fit_begins_the_schedule_anew(tmp_path: Path) -> None:
    callback = TorchProfiler()
    made, model = trainer(callback, folder=tmp_path), TinyModel()
    made.fit(model, tiny_data(4), loss=CE, optimizer=torch.optim.SGD)
    made.evaluate(model, tiny_data(6))
    assert [name[:14] for name in files(tmp_path / "profile")] == ["train-00000005"] * 2 + ["val-00000005-r"] * 2
    assert callback.steps == 5  # still those of the fit


WAYS_OUT = ["end", "stop", "error in training", "error in an evaluation", "Ctrl-C", "StopTraining in an evaluation"]


@pytest.mark.parametrize("way", WAYS_OUT)
def test_it_is_started_once_and_stopped_once_on_every_way_out(way: str) -> None:
    def leave(run: Any) -> None:
        in_evaluation = run.stage == "val"
        if run.clock.step < 4 or in_evaluation != way.endswith("evaluation"):
            return
        if way == "stop":
            run.stop("now")
        elif way.startswith("error"):
            raise ValueError("mine")
        elif way == "Ctrl-C":
            raise KeyboardInterrupt
        elif way.startswith("StopTraining"):
            raise hl.StopTraining("now")

    profiler = Counted()
    bomb = LambdaCallback(on_train_step_end=leave, on_eval_batch_end=leave)
    if way.startswith("error"):
        with pytest.raises(ValueError, match="mine"):
            fit(TorchProfiler(profiler), bomb, val=tiny_data(3))
    elif way == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            fit(TorchProfiler(profiler), bomb, val=tiny_data(3))
    else:
        fit(TorchProfiler(profiler), bomb, val=tiny_data(3), test=tiny_data(2))
    assert (profiler.starts, profiler.stops) == (1, 1)
    assert not torch._C._autograd._profiler_enabled()
    assert profiler.key_averages()  # and what was recorded is there


def test_it_is_stopped_when_an_own_loop_is_left_by_break() -> None:
    profiler, model = Counted(), TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, callbacks=[TorchProfiler(profiler)], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.run.clock.step == 3:
                break
        assert profiler.stops == 1
    assert (profiler.starts, profiler.stops, profiler.step_num) == (1, 1, 3)


def test_what_was_recorded_before_an_error_is_written(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(TorchProfiler(active=100), crash_at(4), folder=tmp_path)
    (trace,) = (tmp_path / "profile").glob("*.gz")
    assert steps_in(trace)[:2] == [2, 3]


# -- a profiler of the user's own ----------------------------------------------------------------


def test_a_step_of_the_profiler_is_a_step_or_a_batch_of_an_evaluation() -> None:
    profiler = Counted()
    result = fit(TorchProfiler(profiler), val=tiny_data(3), test=tiny_data(2))
    assert result.failures == ()
    assert profiler.step_num == 8 + 2 * 3  # the test at the end is no part of training


def test_its_own_handler_keeps_the_trace_and_is_there_afterwards(tmp_path: Path) -> None:
    kept: list[int] = []

    def keep(profiler: Any) -> None:
        kept.append(profiler.step_num)
        profiler.export_chrome_trace(str(tmp_path / "mine.json.gz"))

    profiler = Counted(schedule=schedule(wait=2, warmup=1, active=2, repeat=1), on_trace_ready=keep)
    assert fit(TorchProfiler(profiler), folder=tmp_path / "run").failures == ()
    assert kept == [5]
    assert steps_in(tmp_path / "mine.json.gz") == [3, 4]
    assert files(tmp_path / "run" / "profile") == ["train-00000005-rank0.txt"]  # the table is ours
    assert profiler.on_trace_ready is keep


def test_without_a_handler_the_trace_is_written_for_it(tmp_path: Path) -> None:
    profiler = Counted(schedule=schedule(wait=0, warmup=1, active=2, repeat=1))
    fit(TorchProfiler(profiler), folder=tmp_path)
    (trace,) = (tmp_path / "profile").glob("*.gz")
    assert steps_in(trace) == [1, 2]
    assert profiler.on_trace_ready is None


def test_while_another_profiler_records_it_stands_back(caplog: pytest.LogCaptureFixture) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as other:
        result = fit(TorchProfiler())
    assert result.clock.step == 8
    assert [str(failure.error) for failure in result.failures] == [
        "TorchProfiler: another profiler is recording already; torch can have one at a time"
    ]
    assert any(event.key == "aten::addmm" for event in other.key_averages())  # that one has it all


# -- after a resume ------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("stopped_at", [2, 4, 7])
def test_a_resume_goes_on_in_the_schedule(tmp_path: Path, stopped_at: int, own: bool) -> None:
    plan = {"wait": 3, "warmup": 0, "active": 3, "repeat": 1}

    def make() -> TorchProfiler:
        with pytest.warns(UserWarning, match="warmup") if own else nullcontext():
            return TorchProfiler(Counted(schedule=schedule(**plan))) if own else TorchProfiler(**plan)

    def recorded(folder: Path) -> list[int]:
        return sorted(step for path in (folder / "profile").glob("*.gz") for step in steps_in(path))

    whole, first, second = make(), make(), make()
    options: dict[str, Any] = {"max_duration": "3ep"}
    with pytest.warns(UserWarning, match="warmup") if not own else nullcontext():
        fit(whole, folder=tmp_path / "whole", **options)
        saver = Checkpointer(every=f"{stopped_at}st", at_end=False)
        fit(first, saver, at_step(stopped_at + 1, lambda run: run.stop("now")), folder=tmp_path / "run", **options)
        fit(second, Checkpointer(every="100st"), folder=tmp_path / "run", resume="auto", **options)
    assert second.state_dict() == whole.state_dict()
    assert set(recorded(tmp_path / "whole")) == {3, 4, 5}
    assert set(recorded(tmp_path / "run")) == {3, 4, 5}


def test_a_new_fit_of_the_same_object_begins_anew(tmp_path: Path) -> None:
    callback = TorchProfiler()
    fit(callback, folder=tmp_path / "one")
    fit(callback, folder=tmp_path / "two")
    assert len(files(tmp_path / "one" / "profile")) == len(files(tmp_path / "two" / "profile")) == 2


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, r"TorchProfiler\(active=0\): must be >= 1\."),
        ({"wait": -1}, r"TorchProfiler\(wait=-1\): must be >= 0\."),
        ({"warmup": 1.5}, r"TorchProfiler\(warmup=1\.5\): must be an integer\."),
        ({"repeat": True}, r"TorchProfiler\(repeat=True\)"),
        ({"rows": 0}, r"TorchProfiler\(rows=0\): must be >= 1\."),
        ({"profiler": "pytorch"}, r"TorchProfiler\(profiler='pytorch'\): must be a profile or None\."),
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TorchProfiler(**options)
