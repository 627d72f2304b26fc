"""What an import adds to a fresh interpreter."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from table import Figure, Section, quartiles, verdict


@dataclass(slots=True)
class Case:
    """An import, what is there before it, and what it added in each round: milliseconds."""

    code: str
    base: str
    limit: int
    inside: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def what(self) -> str:
        return f"{self.code}, after {self.base or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Process:
    """One fresh interpreter, in milliseconds: the import inside it, and all of it."""

    inside: float
    wall: float
    cpu: float


def import_time(rounds: Callable[[str], Iterable[int]]) -> Section:
    cases = [
        Case("import hookline.events", "", 50),
        Case("import hookline; hookline.Trainer", "import torch", 100),
    ]
    for case in cases:
        _fresh(case.base, case.code)  # writes the byte code, which an installer would have done; fills the file cache
    for _ in rounds("imports"):
        for case in cases:
            without, with_it = _fresh(case.base, ""), _fresh(case.base, case.code)
            case.inside.append(with_it.inside)
            case.wall.append(with_it.wall - without.wall)
            case.cpu.append(with_it.cpu - without.cpu)
    return Section(
        "Import time (ms)",
        [_figure(case) for case in cases],
        f"Fresh processes, with and without in turn, {len(cases[0].wall)} rounds; median and quartiles of the wall "
        f"time. Measured: after nothing, the paired differences of whole processes; after torch, whose seconds vary by "
        f"more than the import takes, the import inside the process. Beside it: the other of the two.",
    )


def _figure(case: Case) -> Figure:
    measured, other = (case.inside, case.wall) if case.base else (case.wall, case.inside)
    value = statistics.median(measured)
    return Figure(
        case.what,
        f"{value:+.0f} ms ({_range(measured)})",
        f"{'process' if case.base else 'inside'} {statistics.median(other):+.0f} ({_range(other)}), "
        f"CPU time of the process {statistics.median(case.cpu):+.0f}",
        f"< {case.limit} ms",
        verdict(value < case.limit),
    )


def _range(values: Sequence[float]) -> str:
    low, high = quartiles(values)
    return f"{low:+.0f} to {high:+.0f}"


def _fresh(base: str, code: str) -> Process:
    lines = [base, "from time import perf_counter", "start = perf_counter()", code, "print(perf_counter() - start)"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    cpu, start = _children(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        check=True,
        env=environment,
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
    )
    return Process(float(done.stdout) * 1e3, (time.perf_counter() - start) * 1e3, (_children() - cpu) * 1e3)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
