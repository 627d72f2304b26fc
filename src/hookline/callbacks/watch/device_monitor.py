"""``DeviceMonitor``: load of the CPU, GPU, disk and network."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks.watch._interval import IntervalMonitor, named_for_stage, stage_name
from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

MB = 1e6


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the machine since it was started. ``None`` for those that it does not have."""

    seconds: float
    cpu_busy: float = 0.0
    cpu_total: float = 0.0
    disk: tuple[float, float] | None = None
    """MB that were read and written."""
    network: tuple[float, float] | None = None
    """MB that were received and sent."""


class DeviceMonitor(IntervalMonitor):
    """Log how busy the machine is: CPU, memory, disk, network and GPU.

    The callback logs at the end of each log interval and of each epoch. Rates are means over the interval. It
    also logs at the end of each evaluation and prediction, as ``device/val/cpu``, ``device/test/cpu`` or
    ``device/predict/cpu``; there rates are means over the evaluation or prediction. All values are of the whole
    machine, not only of this run. A value that the machine or the driver does not provide has no row. All values
    except those of the GPU need psutil (``hookline[monitor]``).

    Args:
        cpu: Log ``device/cpu`` (all cores together), ``device/memory`` and ``device/swap``, in percent.
        gpu: Log values of the GPU that trains: ``device/cuda0/utilization`` and ``device/cuda0/memory`` in
            percent, ``device/cuda0/temperature`` in °C and ``device/cuda0/power`` in watts. All except the
            memory need ``nvidia-ml-py``. On XLA: ``device/xla0/memory``.
        disk: Log ``device/disk_read`` and ``device/disk_write`` in MB per second, and ``device/disk_used``, the
            percentage of the disk of the run's folder that is used.
        network: Log ``device/network_received`` and ``device/network_sent``, in MB per second.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[DeviceMonitor(network=False)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> 0 <= result.metrics["device/memory"] <= 100
        True
    """

    ranks = "local_zero"
    writes = ("device/*",)

    def __init__(self, cpu: bool = True, gpu: bool = True, disk: bool = True, network: bool = True) -> None:
        self.cpu = cpu
        self.gpu = gpu
        self.disk = disk
        self.network = network
        super().__init__()
        self._before = self._before_eval = Counters(0.0)
        self._silent: set[str] = set()
        """Values that the driver of the GPU does not provide."""

    def on_setup(self, run: Run) -> None:
        self._silent = set()
        self._begin(run)

    def on_train_start(self, run: Run) -> None:
        self._begin(run)

    def _begin(self, run: Run) -> None:
        """Start a new interval."""
        super().on_setup(run)
        self._before = self._count()

    def report(self, run: Run) -> None:
        """Log the values of the interval."""
        now = self._count()
        if values := self._values(run, self._before, now):
            run.log(values, reduce="last")
        self._before = now

    def on_eval_start(self, run: Run) -> None:
        self._before_eval = self._count()

    def on_predict_start(self, run: Run) -> None:
        self._before_eval = self._count()

    def on_eval_end(self, run: Run) -> None:
        self._report_stage(run)

    def on_predict_end(self, run: Run) -> None:
        self._report_stage(run)

    def _report_stage(self, run: Run) -> None:
        """Log the values of an evaluation or a prediction."""
        if values := self._values(run, self._before_eval, self._count()):
            run.log(named_for_stage(values, stage_name(run)), reduce="last")

    def _values(self, run: Run, before: Counters, now: Counters) -> dict[str, float]:
        """Return the load between two readings of the counters, and the current values."""
        values = rates(before, now)
        if self.cpu:
            psutil = _psutil()
            values["device/memory"] = psutil.virtual_memory().percent
            values["device/swap"] = psutil.swap_memory().percent
        if self.disk:
            values["device/disk_used"] = (
                _psutil().disk_usage(_existing(run.folder if run.has_folder else Path())).percent
            )
        if self.gpu:
            values |= self._gpu(run.device)
        return values

    def _count(self) -> Counters:
        """Read the counters that the options need."""
        if not (self.cpu or self.disk or self.network):
            return Counters(perf_counter())
        psutil = _psutil()
        busy, total = cpu_seconds(psutil.cpu_times()) if self.cpu else (0.0, 0.0)
        disk = psutil.disk_io_counters() if self.disk else None  # This is None in some containers.
        network = psutil.net_io_counters() if self.network else None
        return Counters(
            perf_counter(),
            busy,
            total,
            None if disk is None else (disk.read_bytes / MB, disk.write_bytes / MB),
            None if network is None else (network.bytes_recv / MB, network.bytes_sent / MB),
        )

    # -- GPU -----------------------------------------------------------------------------------

    def _gpu(self, device: torch.device) -> dict[str, float]:
        """Return the values of the GPU or XLA device."""
        if device.type == "cuda":
            return self._readings(f"device/cuda{_index(device)}", cuda_readings(device, torch.cuda))
        if device.type == "xla":
            return self._readings(f"device/xla{_index(device)}", {"memory": lambda: xla_memory(device)})
        return {}

    def _readings(self, name: str, readings: dict[str, Callable[[], float]]) -> dict[str, float]:
        """Return the values that the driver provides. Warn once about each of the others."""
        values = {}
        for what, read in readings.items():
            if what in self._silent:
                continue
            try:
                values[f"{name}/{what}"] = float(read())
            except Exception as error:  # Drivers raise many kinds of errors.
                self._silent.add(what)
                logger.warning("DeviceMonitor logs no %s/%s: %s: %s", name, what, type(error).__name__, error)
        return values


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists: an evaluation does not create the run's."""
    return folder if folder.exists() else _existing(folder.parent)


def rates(before: Counters, now: Counters) -> dict[str, float]:
    """Return the load between two readings of the counters.

    Example:
        >>> rates(Counters(0.0, 10.0, 40.0, (100.0, 0.0)), Counters(2.0, 11.0, 44.0, (103.0, 1.0)))
        {'device/cpu': 25.0, 'device/disk_read': 1.5, 'device/disk_write': 0.5}
    """
    values = {}
    if now.cpu_total > before.cpu_total:
        share = (now.cpu_busy - before.cpu_busy) / (now.cpu_total - before.cpu_total)
        values["device/cpu"] = 100 * min(1.0, max(0.0, share))
    seconds = now.seconds - before.seconds
    pairs = (
        ("device/disk_read", "device/disk_write", before.disk, now.disk),
        ("device/network_received", "device/network_sent", before.network, now.network),
    )
    for one, other, earlier, later in pairs:
        if earlier is not None and later is not None and seconds > 0:
            values[one] = max(0.0, later[0] - earlier[0]) / seconds
            values[other] = max(0.0, later[1] - earlier[1]) / seconds
    return values


def cpu_seconds(times: Any) -> tuple[float, float]:
    """Return the busy and the total seconds of all cores.

    Linux counts the time of guests in that of the user, and waiting for a disk as idle.
    """
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def cuda_readings(device: torch.device, cuda: Any) -> dict[str, Callable[[], float]]:
    """Return functions that read the values of a CUDA device. ``cuda`` is ``torch.cuda``."""
    return {
        "utilization": lambda: cuda.utilization(device),
        "memory": lambda: _used(*cuda.mem_get_info(device)),
        "temperature": lambda: cuda.temperature(device),
        "power": lambda: cuda.power_draw(device) / 1000,  # The driver reports milliwatts.
    }


def xla_memory(device: torch.device) -> float:
    """Return the percentage of the memory of an XLA device that is used.

    Older versions report KB, and the free memory.
    """
    info = import_module("torch_xla.core.xla_model").get_memory_info(device)
    if "bytes_limit" in info:
        return 100 * float(info["bytes_used"]) / float(info["bytes_limit"])
    return _used(info["kb_free"], info["kb_total"])


def _used(free: float, total: float) -> float:
    """Return the used part in percent."""
    return 100 * (total - free) / total


def _index(device: torch.device) -> int:
    """Return the index of the device."""
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if device.type == "cuda" else 0


def _psutil() -> Any:
    """Import psutil, or raise ``SetupError``."""
    try:
        return import_module("psutil")
    except ImportError:
        raise SetupError(
            "DeviceMonitor needs psutil for CPU, disk and network: pip install 'hookline[monitor]', "
            "or DeviceMonitor(cpu=False, disk=False, network=False)"
        ) from None
