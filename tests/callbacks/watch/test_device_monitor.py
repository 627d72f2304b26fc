"""How busy a run says that the machine is, against what was done with it."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch import device_monitor
from hookline.callbacks.watch.device_monitor import Counters, DeviceMonitor, cuda_readings, rates, xla_memory
from hookline.errors import SetupError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Result, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, fit, json_lines

CPU = {"device/cpu", "device/memory", "device/swap"}
DISK = {"device/disk_read", "device/disk_write", "device/disk_used"}
NETWORK = {"device/network_received", "device/network_sent"}


fit_one_epoch = partial(fit, max_duration="1ep", log_every="2st")


def names(result: Result) -> set[str]:
    return {name for name in result.history if name.startswith("device/")}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine that counts everything. What some containers do not count would have no row."""
    times = SimpleNamespace(
        cpu=iter(count(0, 10)), disk=iter(count(0, 6_000_000)), network=iter(count(0, 2_000_000)), now=iter(count(0, 2))
    )

    def cpu_times() -> Any:
        busy = next(times.cpu)  # of 20 seconds of all cores, 10 are busy and 4 wait for a disk
        kind = type("scputimes", (tuple,), {"idle": 1.5 * busy / 2.5, "iowait": busy / 2.5})
        return kind((busy, 1.5 * busy / 2.5, busy / 2.5))

    def disk() -> Any:
        done = next(times.disk)
        return SimpleNamespace(read_bytes=done, write_bytes=done // 3)

    def network() -> Any:
        done = next(times.network)
        return SimpleNamespace(bytes_recv=done, bytes_sent=2 * done)

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(psutil, "disk_io_counters", disk)
    monkeypatch.setattr(psutil, "net_io_counters", network)
    monkeypatch.setattr(device_monitor, "perf_counter", lambda: float(next(times.now)))
    return times


def test_rates_are_those_of_the_interval(machine: SimpleNamespace) -> None:
    history = fit_one_epoch(DeviceMonitor()).history
    assert history.steps("device/cpu") == [2, 4]
    assert history["device/cpu"] == pytest.approx([50.0, 50.0])
    assert history["device/disk_read"] == [3.0, 3.0]
    assert history["device/disk_write"] == [1.0, 1.0]
    assert history["device/network_received"] == [1.0, 1.0]
    assert history["device/network_sent"] == [2.0, 2.0]


def test_an_evaluation_and_a_prediction_have_the_rates_of_their_own_time(machine: SimpleNamespace) -> None:
    """Each reading of the machine's counters is an interval later."""
    history = fit_one_epoch(DeviceMonitor(), val=tiny_data(2)).history
    assert history.steps("device/cpu") == [2, 4]
    assert history["device/val/network_sent"] == [2.0]
    assert history["device/network_sent"] == [2.0, 2.0]  # the interval of training continues around the evaluation

    found: dict[str, float] = {}
    look = LambdaCallback(on_teardown=lambda run: found.update(run.metrics))
    Trainer(callbacks=[DeviceMonitor(), look], folder=False, device="cpu").predict(TinyModel(), tiny_data(2))
    assert found["device/predict/disk_read"] == 3.0


def test_what_goes_over_the_network_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(run: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
            other = server.accept()[0]
            with other, other.makefile("rb") as received:
                for _ in range(50 if run.clock.step == 3 else 0):
                    one.sendall(bytes(100_000))
                    assert len(received.read(100_000)) == 100_000

    seconds = iter(count(0, 1))  # an interval is one second long
    monkeypatch.setattr(device_monitor, "perf_counter", lambda: float(next(seconds)))
    quiet = DeviceMonitor(cpu=False, gpu=False, disk=False)
    result = fit_one_epoch(LambdaCallback(on_train_step_end=talk), quiet)
    assert names(result) == NETWORK
    assert result.history["device/network_sent"][1] >= 5.0  # MB, in the second interval


def test_shares_are_those_that_the_system_says() -> None:
    wait = LambdaCallback(on_train_step_end=lambda run: time.sleep(0.05))  # the system counts in hundredths of a second
    metrics = fit_one_epoch(wait, DeviceMonitor()).metrics
    assert 0 <= metrics["device/cpu"] <= 100
    assert metrics["device/memory"] == pytest.approx(psutil.virtual_memory().percent, abs=10)
    assert metrics["device/disk_used"] == pytest.approx(psutil.disk_usage(".").percent, abs=2)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"cpu": True}, CPU),
        ({"disk": True}, DISK),
        ({"network": True}, NETWORK),
        ({"cpu": True, "disk": True, "network": True}, CPU | DISK | NETWORK),
    ],
)
def test_only_what_is_asked_for_is_logged(machine: SimpleNamespace, asked: Any, expected: set[str]) -> None:
    nothing = {"cpu": False, "gpu": False, "disk": False, "network": False}
    assert names(fit_one_epoch(DeviceMonitor(**nothing | asked))) == expected


def test_what_the_machine_does_not_count_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    result = fit_one_epoch(DeviceMonitor())
    assert result.failures == ()
    # A run this short may end before the system has counted any time.
    assert names(result) | {"device/cpu"} == CPU | {"device/disk_used"}


def test_counters_that_start_anew_give_no_negative_rate() -> None:
    values = rates(Counters(0.0, 5.0, 9.0, (7.0, 7.0), (7.0, 7.0)), Counters(1.0, 4.0, 12.0, (1.0, 8.0), (1.0, 8.0)))
    assert values == {
        "device/cpu": 0.0,
        "device/disk_read": 0.0,
        "device/disk_write": 1.0,
        "device/network_received": 0.0,
        "device/network_sent": 1.0,
    }


def test_without_psutil_it_says_what_to_install_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[monitor\]'"):
        fit_one_epoch(DeviceMonitor())


def test_for_the_gpu_alone_it_needs_no_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    result = fit_one_epoch(DeviceMonitor(cpu=False, disk=False, network=False))
    assert result.failures == ()
    assert names(result) == set()  # there is none


# ------------------------------------------------------------------------------------ devices, of which there are none


def test_a_gpu_says_how_busy_it_is() -> None:
    cuda = SimpleNamespace(
        utilization=lambda device: 87,
        mem_get_info=lambda device: (20e9, 80e9),
        temperature=lambda device: 65,
        power_draw=lambda device: 412_500,
    )
    device = torch.device("cuda", 1)
    assert DeviceMonitor()._readings("device/cuda1", cuda_readings(device, cuda)) == {
        "device/cuda1/utilization": 87,
        "device/cuda1/memory": 75.0,
        "device/cuda1/temperature": 65,
        "device/cuda1/power": 412.5,
    }


def test_what_a_driver_does_not_tell_is_said_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(device: Any) -> float:
        raise ModuleNotFoundError("pynvml does not seem to be installed or it can't be imported.")

    cuda = SimpleNamespace(
        utilization=refuse, mem_get_info=lambda device: (1, 2), temperature=refuse, power_draw=refuse
    )
    monitor, device = DeviceMonitor(), torch.device("cuda", 0)
    with caplog.at_level(logging.WARNING, "hookline"):
        for _ in range(3):
            assert monitor._readings("device/cuda0", cuda_readings(device, cuda)) == {"device/cuda0/memory": 50.0}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"DeviceMonitor logs no device/cuda0/{what}" for what in ("utilization", "temperature", "power")
    ]


def test_torch_has_the_functions_that_a_gpu_is_asked_with() -> None:
    functions = ("utilization", "mem_get_info", "temperature", "power_draw")
    assert [name for name in functions if not callable(getattr(torch.cuda, name, None))] == []


@pytest.mark.parametrize(
    "info", [{"bytes_used": 25, "bytes_limit": 100}, {"kb_free": 75, "kb_total": 100}], ids=["new", "old"]
)
def test_xla_says_how_full_its_memory_is(monkeypatch: pytest.MonkeyPatch, info: dict[str, int]) -> None:
    module = ModuleType("torch_xla.core.xla_model")
    module.get_memory_info = lambda device: info  # type: ignore[attr-defined]
    for name, found in (("torch_xla", ModuleType("t")), ("torch_xla.core", ModuleType("t")), (module.__name__, module)):
        monkeypatch.setitem(sys.modules, name, found)
    assert xla_memory(torch.device("meta")) == 25.0


# ------------------------------------------------------------------------------------ in a run


def test_after_a_resume_each_step_has_one_row(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    stop = at_step(7, lambda run: run.stop("now"))
    fit_one_epoch(Checkpointer(every="4st", at_end=False), stop, DeviceMonitor(), **options)
    fit_one_epoch(Checkpointer(every="4st"), DeviceMonitor(), resume="auto", **options)
    rows = [row for row in json_lines(tmp_path / "run" / "metrics.jsonl") if row.get("name") == "device/memory"]
    assert Counter(row["step"] for row in rows) == dict.fromkeys((2, 4, 6, 8, 10, 12), 1)


def test_it_hears_no_event_of_a_step() -> None:
    assert [event for event in STEP_EVENTS if overridden(DeviceMonitor(), f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(DeviceMonitor(), scope)] == []
