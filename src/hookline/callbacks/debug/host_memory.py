"""Read the memory of this machine and of this process from the operating system."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path


def host_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, float]:
    """Return sizes in bytes by description, as far as they are known on this machine."""
    process, machine = _sizes(proc / "self" / "status"), _sizes(proc / "meminfo")
    found = {
        "this process": process.get("VmRSS"),
        "this process at most": process.get("VmHWM"),
        "free on the machine": machine.get("MemAvailable"),
        "of the machine": machine.get("MemTotal"),
        "limit of the container": _number(cgroup / "memory.max"),
        "limit of the process": _address_space(),
    }
    return {name: size for name, size in found.items() if size is not None}


def _sizes(path: Path) -> dict[str, float]:
    """Parse lines such as ``VmRSS:  1234 kB``. Empty if there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): float(size) * 1024 for name, size, _ in parts}


def _number(path: Path) -> float | None:
    """Return the number in a file, or ``None``."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        # The file does not exist, or it contains "max", which means that there is no limit.
        return None


def _address_space() -> float | None:
    """Return the limit of the address space in bytes, or ``None``."""
    # The module exists only on Unix.
    with suppress(ImportError):
        resource = import_module("resource")
        limit: int = resource.getrlimit(resource.RLIMIT_AS)[0]
        return None if limit == resource.RLIM_INFINITY else float(limit)
    return None
