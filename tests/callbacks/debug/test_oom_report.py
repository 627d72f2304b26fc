"""``OOMReport``: when memory runs out there is a report, and the error goes on as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hookline.callbacks import LambdaCallback
from hookline.callbacks._memory import is_out_of_memory
from hookline.callbacks.debug import OOMReport
from hookline.callbacks.debug._memory import host_memory
from hookline.callbacks.debug.oom_report import write_history
from hookline.errors import ArgumentError
from hookline.loop import Loop
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import CE, fit

TOO_MUCH = 10**15  # numbers: more than any machine has


class Hungry(TinyModel):
    """Asks for more memory than there is, in training or in an evaluation, from a call on."""

    def __init__(self, calls: int = 2, *, in_training: bool = True) -> None:
        super().__init__()
        self.calls, self.in_training = calls, in_training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden_states = self.hidden(x)
        if self.training == self.in_training:
            self.calls -= 1
            if self.calls < 0:
                return torch.empty(TOO_MUCH)
        return self.out(hidden_states)  # type: ignore[no-any-return]


def fit_hungry(*callbacks: Any, **options: Any) -> Any:
    return fit(*callbacks, **{"model": Hungry(), "optimizer": torch.optim.Adam, **options})


def report(folder: Path) -> str:
    (path,) = (folder / "oom").iterdir()
    return path.read_text()


def test_the_report_says_where_it_was_and_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="allocate"):
        fit_hungry(OOMReport(), folder=tmp_path)
    assert [path.name for path in (tmp_path / "oom").iterdir()] == ["step-00000002-rank0.txt"]
    first, second, *_ = report(tmp_path).splitlines()
    assert first == "out of memory at step 2, epoch 0"
    assert second.startswith("RuntimeError: ")
    assert "DefaultCPUAllocator" in second


def test_it_has_the_batch_the_model_and_the_optimizer(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport(rows=100_000), folder=tmp_path)  # other tests may have left larger ones in this process
    lines = [line.split() for line in report(tmp_path).splitlines()]
    start = lines.index(["the", "batch:"])
    assert lines[start + 1 : start + 3] == [
        ["0.000", "MB", "batch[0]", "float32", "(8,", "4)", "cpu"],
        ["0.000", "MB", "batch[1]", "int64", "(8,)", "cpu"],
    ]
    start = lines.index(["live", "tensors:"])
    shown = [" ".join(line[3:]) for line in lines[start + 2 :]]
    assert "weights cpu float32 (8, 4)" in shown
    assert "optimizer state cpu float32 (8, 4)" in shown


def test_the_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 100_000), nn.Linear(100_000, 3), nn.Softmax(dim=-1))

    def fail(run: Any) -> None:
        if run.clock.step == 2:
            bytearray(TOO_MUCH)

    with pytest.raises(MemoryError):
        fit_hungry(OOMReport(), LambdaCallback(on_gradients_ready=fail), model=model, folder=tmp_path)
    size, text = sum(parameter.nbytes for parameter in model.parameters()) / 1e6, report(tmp_path)
    assert f" weights: {size:,.3f} MB\n" in text
    assert f" gradients of a backward: {size:,.3f} MB\n" in text
    assert f" optimizer state: {2 * size:,.3f} MB\n" in text  # Adam keeps two numbers for each
    assert "MemoryError" in text.splitlines()[1]


def test_it_names_the_line_that_failed_and_what_it_held(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport(), folder=tmp_path)
    lines = report(tmp_path).partition("tensors in the lines that failed")[2].splitlines()
    (where,) = (i for i, line in enumerate(lines) if line.startswith(f"{__file__}:") and line.endswith(" in forward"))
    held = [line.split()[2] for line in lines[where + 1 :] if line.strip()]
    assert held == ["hidden_states", "x"]  # the largest first


def test_data_in_memory_does_not_fill_the_report(tmp_path: Path) -> None:
    data = tiny_data(500)

    def fail(run: Any) -> None:
        many = [torch.zeros(number) for number in range(1, 200)]
        torch.empty(TOO_MUCH, len(many))

    with pytest.raises(RuntimeError):
        fit_hungry(
            OOMReport(rows=10), LambdaCallback(on_train_step_end=fail), model=TinyModel(), train=data, folder=tmp_path
        )
    text = report(tmp_path)
    assert len(text.splitlines()) < 100
    assert "and 189 smaller ones" in text


def test_a_failure_in_an_evaluation_has_its_batch(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport(), model=Hungry(4, in_training=False), val=tiny_data(3, batch_size=5), folder=tmp_path)
    lines = [line.split() for line in report(tmp_path).splitlines()]
    start = lines.index(["the", "batch:"])
    assert lines[start + 1] == ["0.000", "MB", "batch[0]", "float32", "(5,", "4)", "cpu"]


class Greedy(Dataset[Any]):
    """A data set whose last sample is too large."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4 if index < 3 else TOO_MUCH), torch.tensor(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_in_the_data_is_reported_too(tmp_path: Path, workers: int) -> None:
    with pytest.raises(RuntimeError, match="allocate"):
        fit_hungry(OOMReport(), model=TinyModel(), train=DataLoader(Greedy(), num_workers=workers), folder=tmp_path)
    assert "out of memory at step 3" in report(tmp_path)


def test_an_own_loop_is_reported_too(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (  # noqa: PT012
        pytest.raises(RuntimeError),
        Loop(model, optimizer, callbacks=[OOMReport()], max_duration="1ep", folder=tmp_path) as loop,
    ):
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(CE(model(x), y))
            torch.empty(TOO_MUCH)
    assert "(8, 4)" in report(tmp_path)


def test_the_error_goes_on_unchanged(tmp_path: Path) -> None:
    errors = []
    for callbacks in ([], [OOMReport()]):
        with pytest.raises(RuntimeError) as caught:
            fit_hungry(*callbacks, folder=tmp_path / str(len(callbacks)))
        errors.append(caught.value)
    without, with_it = errors
    assert type(with_it) is type(without)
    assert str(with_it) == str(without)
    assert getattr(with_it, "__notes__", []) == getattr(without, "__notes__", [])
    assert with_it.__cause__ is without.__cause__ is None


def test_other_errors_have_no_report(tmp_path: Path) -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        fit_hungry(OOMReport(), LambdaCallback(on_train_step_end=fail), model=TinyModel(), folder=tmp_path)
    assert not (tmp_path / "oom").exists()


def test_a_model_that_calls_the_size_of_a_batch_batch_has_the_batch_in_the_report(tmp_path: Path) -> None:
    class Unpacks(TinyModel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, features = x.shape
            return torch.empty(batch * features * TOO_MUCH)

    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport(), model=Unpacks(), folder=tmp_path)
    lines = [line.split() for line in report(tmp_path).splitlines()]
    assert lines[lines.index(["the", "batch:"]) + 1][2:] == ["batch[0]", "float32", "(8,", "4)", "cpu"]


def test_a_run_without_a_folder_has_the_report_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport())
    assert "out of memory at step 2, epoch 0" in caplog.text
    assert "live tensors:" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_another_folder_can_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError):
        fit_hungry(OOMReport(folder=tmp_path / "mine"), folder=tmp_path / "run")
    assert str(tmp_path / "mine" / "step-00000002-rank0.txt") in caplog.text
    assert not (tmp_path / "run" / "oom").exists()


def test_a_process_that_has_used_up_its_memory_can_still_report(tmp_path: Path) -> None:
    done = run_script(
        """
        import resource, sys, torch
        from hookline.callbacks.debug import OOMReport
        from hookline.loop import Trainer
        from hookline.testing import TinyModel, tiny_data

        held = []

        class Leaking(TinyModel):
            def forward(self, x):
                held.append(torch.empty(50_000_000))
                return super().forward(x)

        used = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 700_000_000,) * 2)
        trainer = Trainer(max_duration="9ep", callbacks=[OOMReport()], folder=sys.argv[1], device="cpu")
        try:
            trainer.fit(Leaking(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        except (RuntimeError, MemoryError) as error:
            print("raised")
        """,
        args=[tmp_path / "run"],
    )
    assert done.stdout == "raised\n", done.stderr
    text = report(tmp_path / "run")
    rows = [line.split() for line in text.splitlines()]
    (leak,) = (row for row in rows if row[-1:] == ["(50000000,)"] and "other" in row)
    assert 1 <= int(leak[2]) <= 4
    assert leak[0] == f"{int(leak[2]) * 200:,}.000"
    assert "limit of the process: " in text


# -- which errors, and what the system says ------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("Unable to allocate 8 EiB"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_an_error_that_is_one_of_memory_is_known(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_one_that_was_raised_from_one_of_memory_counts() -> None:
    error = ValueError("my wrapper")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


def test_the_memory_of_the_host_is_what_the_system_says(tmp_path: Path) -> None:
    found = host_memory()
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert found["of the machine"] == int(meminfo["MemTotal"].split()[0]) * 1024
    assert 0 < found["this process"] <= found["of the machine"]
    (tmp_path / "memory.max").write_text("5000000\n")
    assert host_memory(cgroup=tmp_path)["limit of the container"] == 5e6
    (tmp_path / "memory.max").write_text("max\n")
    assert "limit of the container" not in host_memory(cgroup=tmp_path)
    assert "this process" not in host_memory(proc=tmp_path)


class Memory:
    """Stands for ``torch.cuda.memory``, of which there is none here."""

    def __init__(self, traces: list[list[str]]) -> None:
        self.traces = traces

    def _snapshot(self) -> dict[str, Any]:
        return {"device_traces": self.traces}

    def _dump_snapshot(self, filename: str) -> None:
        Path(filename).write_text(json.dumps(self.traces))


def test_the_history_of_cuda_is_written_if_there_is_one(tmp_path: Path) -> None:
    write_history(tmp_path / "none.pickle", Memory([[], []]))
    write_history(tmp_path / "some.pickle", Memory([[], ["alloc"]]))
    assert [path.name for path in tmp_path.iterdir()] == ["some.pickle"]


@pytest.mark.parametrize("rows", [0, 2.5, True])
def test_bad_arguments_are_refused_at_once(rows: Any) -> None:
    with pytest.raises(ArgumentError, match=r"OOMReport\(rows.*\): must be"):
        OOMReport(rows=rows)
