"""``MemorySnapshot``: it finds what grows, in the window that was asked for, and leaves nothing running."""

from __future__ import annotations

import gc
import inspect
import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.debug import MemorySnapshot
from hookline.callbacks.debug._memory import CudaRecording, live_tensors, table, tensors_in
from hookline.errors import ArgumentError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, json_lines

fit_adam = partial(fit, optimizer=torch.optim.Adam)


class Leak:
    """A tensor of 400 kB and a text of 100 kB that nobody drops, in each step."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.texts: list[str] = []

    def __call__(self, run: Any) -> None:
        self.tensors.append(torch.zeros(100, 1000))
        self.texts.append("x" * (100_000 + run.clock.step))  # the line that leaks


def report(folder: Path) -> str:
    (path,) = (folder / "memory").iterdir()
    return path.read_text()


def section(text: str, title: str) -> list[str]:
    """The lines below a title, up to the next empty one."""
    lines = text.partition(f"{title}")[2].splitlines()[1:]
    return lines[: [*lines, ""].index("")]


# -- on the host ---------------------------------------------------------------------------------


def test_a_leak_of_tensors_is_counted_by_shape(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=2, steps=3), LambdaCallback(on_train_step_end=Leak()), folder=tmp_path)
    (first, *_) = section(report(tmp_path), "tensors that there are more or less of:")
    assert first.split() == ["+1.200", "MB", "+3", "other", "cpu", "float32", "(100,", "1000)"]


def test_a_leak_of_python_is_found_by_its_line(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=2, steps=3), LambdaCallback(on_train_step_end=Leak()), folder=tmp_path)
    (first, *_) = section(report(tmp_path), "memory of Python that was taken")
    source, line = inspect.getsourcelines(Leak.__call__)
    leaking = line + next(i for i, text in enumerate(source) if "the line that leaks" in text)
    assert re.fullmatch(rf"\s*\+0\.300 MB\s+\+\d+  {re.escape(__file__)}:{leaking}", first)


class Knot:
    """Holds a tensor, and itself: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.tensor, self.own = torch.zeros(77, 1000), self


@pytest.mark.parametrize("made_at", [1, 3])
def test_what_waits_for_the_garbage_collector_is_no_leak_and_hides_none(tmp_path: Path, made_at: int) -> None:
    leak = Leak()

    def tie(run: Any) -> None:
        leak(run)
        if run.clock.step == made_at:
            for _ in range(9):
                Knot()

    gc.disable()  # else it would be chance when the knots go
    try:
        fit_adam(LambdaCallback(on_train_step_end=tie), MemorySnapshot(start=2, steps=3), folder=tmp_path)
    finally:
        gc.enable()
    assert "(77, 1000)" not in report(tmp_path)
    (first, *_) = section(report(tmp_path), "tensors that there are more or less of:")
    assert first.split() == ["+1.200", "MB", "+3", "other", "cpu", "float32", "(100,", "1000)"]


def test_a_run_without_a_leak_has_no_more_tensors(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=2, steps=3), folder=tmp_path)
    grown = section(report(tmp_path), "tensors that there are more or less of:")
    assert all(float(line.split()[0]) < 0.01 for line in grown if line != "none")


def test_the_sizes_are_those_of_the_model_and_of_its_optimizer(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=2, steps=3, rows=1000), folder=tmp_path)
    lines = section(report(tmp_path), "tensors at the end:")[1:]
    model = TinyModel()
    (hidden,) = (line for line in lines if "weights" in line and line.endswith("(8, 4)"))
    assert hidden.split() == ["0.000", "MB", "1", "weights", "cpu", "float32", "(8,", "4)"]
    moments = [line for line in lines if "optimizer state" in line and line.endswith("(8, 4)")]
    assert [line.split()[2] for line in moments] == ["2"]  # Adam keeps two
    assert sum("weights" in line for line in lines) == len(list(model.parameters()))


@pytest.mark.parametrize(("start", "steps", "name"), [(0, 1, 1), (1, 3, 4), (5, 2, 7), (6, 100, 8)])
def test_the_window_is_in_the_name_of_the_file(tmp_path: Path, start: int, steps: int, name: int) -> None:
    fit_adam(MemorySnapshot(start, steps), folder=tmp_path)
    assert [path.name for path in (tmp_path / "memory").iterdir()] == [f"train-{name:08d}-rank0.txt"]


def test_outside_of_the_window_nothing_is_traced(tmp_path: Path) -> None:
    traced: list[bool] = []
    look = LambdaCallback(on_train_step_start=lambda run: traced.append(tracemalloc.is_tracing()))
    fit_adam(MemorySnapshot(start=2, steps=3), look, folder=tmp_path)
    assert traced == [False, False, True, True, True, False, False, False]


def test_after_the_run_is_too_short_there_is_nothing(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=50), folder=tmp_path)
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize("entry", ["evaluate", "test", "predict"])
def test_evaluate_and_predict_count_batches(tmp_path: Path, entry: str) -> None:
    made = Trainer(callbacks=[MemorySnapshot(1, 2, folder=tmp_path)], folder=False)
    arguments: dict[str, Any] = {} if entry == "predict" else {"loss": CE}
    getattr(made, entry)(TinyModel(), tiny_data(5), **arguments)
    stage = {"evaluate": "val"}.get(entry, entry)
    assert [path.name for path in tmp_path.iterdir()] == [f"{stage}-00000003-rank0.txt"]
    assert not tracemalloc.is_tracing()


def test_evaluations_inside_training_do_not_count(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(start=5, steps=2), val=tiny_data(6), folder=tmp_path)
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["train-00000007-rank0.txt"]


class Back(hl.Callback):
    """Goes back to the end of step 1, once."""

    def __init__(self, step: int) -> None:
        self.step, self.snapshot = step, None

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == 1 and self.snapshot is None:
            self.snapshot = run.snapshot()
        elif run.clock.step == self.step:
            self.step = 0
            run.roll_back(self.snapshot)


@pytest.mark.parametrize("behind", [3, 4, 5, 6])
def test_after_a_rollback_nothing_is_traced_and_the_window_is_recorded_anew(tmp_path: Path, behind: int) -> None:
    leak = LambdaCallback(on_train_step_end=Leak())
    fit_adam(MemorySnapshot(start=2, steps=3), Back(behind), leak, folder=tmp_path, max_duration="4ep")
    assert not tracemalloc.is_tracing()
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["train-00000005-rank0.txt"]
    (first, *_) = section(report(tmp_path), "tensors that there are more or less of:")
    assert first.split() == ["+1.200", "MB", "+3", "other", "cpu", "float32", "(100,", "1000)"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_after_an_error_nothing_is_traced_and_what_there_is_is_written(tmp_path: Path, error: BaseException) -> None:
    def fail(run: Any) -> None:
        if run.clock.step == 3:
            raise error

    with pytest.raises(type(error)):
        fit_adam(MemorySnapshot(start=1, steps=5), LambdaCallback(on_train_step_end=fail), folder=tmp_path)
    assert not tracemalloc.is_tracing()
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["train-00000003-rank0.txt"]


def test_tracing_that_the_user_has_begun_goes_on(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        fit_adam(MemorySnapshot(), folder=tmp_path)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_without_a_folder_the_report_is_a_text_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit_adam(MemorySnapshot()).failures == ()
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_a_text_of_the_run(tmp_path: Path) -> None:
    fit_adam(MemorySnapshot(), folder=tmp_path)
    rows = json_lines(tmp_path / "metrics.jsonl")
    (row,) = (row for row in rows if row.get("name") == "memory_snapshot/host")
    assert row["text"] == report(tmp_path)


@pytest.mark.parametrize(("stopped_at", "names"), [(2, [7]), (5, [6, 7]), (8, [7])])
def test_a_resume_records_what_is_left_of_the_window(tmp_path: Path, stopped_at: int, names: list[int]) -> None:
    stop = at_step(stopped_at + 1, lambda run: run.stop("now"))
    saver = Checkpointer(every=f"{stopped_at}st", at_end=False)
    fit_adam(MemorySnapshot(4, 3), saver, stop, folder=tmp_path, max_duration="3ep")
    fit_adam(MemorySnapshot(4, 3), Checkpointer(every="90st"), folder=tmp_path, max_duration="3ep", resume="auto")
    found = sorted(path.name for path in (tmp_path / "memory").iterdir())
    assert found == [f"train-{name:08d}-rank0.txt" for name in names]


# -- on CUDA, of which there is none here --------------------------------------------------------


class Memory:
    """Stands for ``torch.cuda.memory``; its calls must fit those of torch."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _record_memory_history(self, *args: Any, **options: Any) -> None:
        inspect.signature(torch.cuda.memory._record_memory_history).bind(*args, **options)
        self.calls.append(f"record {options}")

    def _dump_snapshot(self, filename: str) -> None:
        inspect.signature(torch.cuda.memory._dump_snapshot).bind(filename)
        Path(filename).write_bytes(b"history")
        self.calls.append("dump")


def test_the_history_of_cuda_is_recorded_dumped_and_switched_off(tmp_path: Path) -> None:
    memory = Memory()
    recording = CudaRecording(500, memory)
    recording.begin()
    assert "train-00000004-rank0.pickle" in recording.write(tmp_path, "train-00000004-rank0")
    recording.end()
    assert memory.calls == ["record {'max_entries': 500}", "dump", "record {'enabled': None}"]
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000004-rank0.pickle"]


# -- live tensors --------------------------------------------------------------------------------


def test_each_memory_counts_once_whatever_looks_at_it() -> None:
    model = nn.Linear(30, 7)
    views = [model.weight[:3], model.weight.detach(), model.weight.view(-1)]
    model(torch.ones(2, 30)).sum().backward()
    groups = {group.key: group for group in live_tensors(model, {})}
    weights, gradients = groups["weights", "cpu", "float32", (7, 30)], groups["gradients", "cpu", "float32", (7, 30)]
    assert (weights.count, weights.nbytes) == (gradients.count, gradients.nbytes) == (1, 7 * 30 * 4)
    assert len(views) == 3
    assert not any(key[0] == "other" and key[3] in {(3, 30), (7, 30), (210,)} for key in groups)


def test_tensors_without_memory_are_left_out() -> None:
    odd = [torch.empty(3, 1234, device="meta"), torch.empty(0, 1234)]
    found = [group.shape for group in live_tensors(nn.Linear(1, 1), {})]
    assert not any(tuple(tensor.shape) in found for tensor in odd)


def test_the_tensors_of_a_batch_are_found_with_their_paths() -> None:
    batch = {"x": [torch.zeros(1), (torch.zeros(2), "text")], "y": torch.zeros(3)}
    assert {path: tensor.numel() for path, tensor in tensors_in(batch, "b")} == {
        "b['x'][0]": 1,
        "b['x'][1][0]": 2,
        "b['y']": 3,
    }


def test_a_table_says_how_much_it_leaves_out() -> None:
    model = nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in range(201, 206)))
    groups = [group for group in live_tensors(model, {}) if group.kind == "weights"]
    lines = table(groups, most=2)
    assert len(lines) == 1 + 2 + 2
    assert "in 3 smaller groups" in lines[3]
    assert lines[4].split()[2:] == ["5", "in", "all"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": -1}, r"MemorySnapshot\(start=-1\): must be >= 0\."),
        ({"steps": 0}, r"MemorySnapshot\(steps=0\): must be >= 1\."),
        ({"steps": "3st"}, r"MemorySnapshot\(steps='3st'\): must be an integer\."),
        ({"max_entries": 0}, r"max_entries=0"),
        ({"rows": 0.5}, r"rows=0.5"),
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MemorySnapshot(**options)
