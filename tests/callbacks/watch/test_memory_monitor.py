"""How much memory a run says that it uses, against what the system says."""

from __future__ import annotations

import gc
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch import memory_monitor
from hookline.callbacks.watch.memory_monitor import MemoryMonitor, device_memory
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Result, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, fit, json_lines


def fit_one_epoch(*callbacks: Any, **options: Any) -> Result:
    result = fit(*callbacks, **{"max_duration": "1ep", "log_every": "2st", **options})
    assert result.failures == ()
    return result


def test_it_is_what_the_system_says_of_the_process() -> None:
    result = fit_one_epoch(MemoryMonitor())
    assert result.history.steps("memory/process") == [2, 4]
    assert result.metrics["memory/process"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, abs=50)


def test_evaluation_test_and_prediction_have_their_own_rows() -> None:
    result = fit_one_epoch(MemoryMonitor(), val=tiny_data(2), test=tiny_data(2))
    assert result.history.steps("memory/process") == [2, 4]
    assert result.history.steps("memory/val/process") == result.history.steps("memory/test/process_peak") == [4]

    found: dict[str, float] = {}
    look = LambdaCallback(on_teardown=lambda run: found.update(run.metrics))
    Trainer(callbacks=[MemoryMonitor(), look], folder=False, device="cpu").predict(TinyModel(), tiny_data(2))
    assert sorted(found) == ["memory/predict/process", "memory/predict/process_peak"]
    assert found["memory/predict/process"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, abs=50)


def test_memory_that_is_taken_and_given_back_stays_in_the_peak() -> None:
    held: list[bytes] = []
    gc.collect()  # what other tests have left must not go in between

    def take_and_give(run: Any) -> None:
        if run.clock.step == 3:
            held.append(b"\x01" * 200_000_000)  # not zeros, so that each page is really there
        elif run.clock.step == 5:
            held.clear()

    result = fit_one_epoch(LambdaCallback(on_train_step_end=take_and_give), MemoryMonitor(), train=tiny_data(6))
    before, during, after = result.history["memory/process"]
    assert during - before > 150
    assert during - after > 150
    assert result.history["memory/process_peak"][2] >= during - 5  # the system counts it a little later


def test_the_workers_of_a_loader_are_counted_when_asked_for() -> None:
    x, y = (torch.cat(parts) for parts in zip(*tiny_data(), strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, num_workers=1, persistent_workers=True)
    assert fit_one_epoch(MemoryMonitor(children=True), train=loader).metrics["memory/children"] > 10


def test_without_children_there_is_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as childless:
        try:
            assert list(memory_monitor.children(str(childless.pid))) == []
        finally:
            childless.kill()
    monkeypatch.setattr(memory_monitor, "children", lambda pid: iter(()))  # other tests may have left some
    assert "memory/children" not in fit_one_epoch(MemoryMonitor()).metrics
    assert fit_one_epoch(MemoryMonitor(children=True)).metrics["memory/children"] == 0.0


def test_elsewhere_than_on_linux_it_asks_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = memory_monitor.process_memory()
    monkeypatch.setattr(memory_monitor, "status", lambda pid: {})
    found = memory_monitor.process_memory()
    assert found["memory/process"] == pytest.approx(expected["memory/process"], abs=50)
    assert found["memory/process_peak"] == pytest.approx(expected["memory/process_peak"], rel=0.5)


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert memory_monitor.status("999999999") == {}
    assert list(memory_monitor.children("999999999")) == []


# ------------------------------------------------------------------------------------ devices, of which there are none


def stats(allocated: int, peak: int) -> dict[str, int]:
    return {
        "allocated_bytes.all.current": allocated,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": 2 * allocated,
        "reserved_bytes.all.peak": 2 * peak,
        "num_alloc_retries": 3,
        "num_ooms": 1,
    }


def test_each_device_that_the_process_uses_has_its_rows() -> None:
    found: list[dict[str, int]] = [stats(1_000_000, 5_000_000), {}, stats(0, 4_000_000)]
    accelerator = SimpleNamespace(device_count=lambda: 3, memory_stats=lambda index: found[index])
    values = device_memory(torch.device("cuda"), accelerator)
    assert {name: value for name, value in values.items() if name.startswith("memory/cuda0/")} == {
        "memory/cuda0/allocated": 1.0,
        "memory/cuda0/allocated_peak": 5.0,
        "memory/cuda0/reserved": 2.0,
        "memory/cuda0/reserved_peak": 10.0,
        "memory/cuda0/retries": 3,
        "memory/cuda0/ooms": 1,
    }
    assert {name.split("/")[1] for name in values} == {"cuda0", "cuda2"}


def test_a_device_that_keeps_no_account_has_no_rows() -> None:
    def refuse(index: int) -> dict[str, int]:
        raise RuntimeError("not supported on this device")

    assert device_memory(torch.device("mps"), SimpleNamespace(device_count=lambda: 1, memory_stats=refuse)) == {}


def test_the_names_are_those_that_torch_uses() -> None:
    documented = torch.accelerator.memory_stats.__doc__ or ""
    assert "allocated_bytes.{all,large_pool,small_pool}.{current,peak" in documented
    assert "reserved_bytes.{all,large_pool,small_pool}.{current,peak" in documented
    assert '"num_alloc_retries"' in documented
    assert '"num_ooms"' in documented


def test_after_a_resume_each_step_has_one_row(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    stop = at_step(7, lambda run: run.stop("now"))
    fit_one_epoch(Checkpointer(every="4st", at_end=False), stop, MemoryMonitor(), **options)
    fit_one_epoch(Checkpointer(every="4st"), MemoryMonitor(), resume="auto", **options)
    rows = [row for row in json_lines(tmp_path / "run" / "metrics.jsonl") if row.get("name") == "memory/process"]
    assert Counter(row["step"] for row in rows) == dict.fromkeys((2, 4, 6, 8, 10, 12), 1)


def test_it_hears_no_event_of_a_step() -> None:
    assert [event for event in STEP_EVENTS if overridden(MemoryMonitor(), f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(MemoryMonitor(), scope)] == []
