"""What a sink in trouble costs the run: one that raises, one that sleeps, and one whose server goes away."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import torch
from contenders import Problem, mlp
from log_contenders import Logging
from table import Figure, Section, quartiles, verdict

from hookline.loop import Trainer
from hookline.records import Record, to_json
from hookline.sinks import RunInfo, SinkReport
from hookline.sinks.pump import WAIT

LIMIT = 1.05
MOST_CLOSING = WAIT + 0.5
SHORTER = 20
"""So many times shorter is the run of the last row."""
SLEEP = 60.0
SERVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
    def log_message(self, *arguments):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


# -- sinks -------------------------------------------------------------------------------------------------


class Calm:
    """A sink that does nothing."""

    def start(self, info: RunInfo) -> None:
        pass

    def write(self, records: Sequence[Record]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Raising(Calm):
    def write(self, records: Sequence[Record]) -> None:
        raise OSError("the disk is full")


class Sleeping(Calm):
    """Sleeps in each write, until it is woken up for good."""

    def __init__(self) -> None:
        self.awake = threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        self.awake.wait(SLEEP)


class Sending(Calm):
    """Posts rows to a server."""

    def __init__(self, port: int) -> None:
        self._server = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def write(self, records: Sequence[Record]) -> None:
        try:
            self._server.request("POST", "/rows", "\n".join(map(to_json, records)).encode())
            self._server.getresponse().read()
        except OSError:
            self._server.close()  # the next one makes a new connection
            raise


# -- runs --------------------------------------------------------------------------------------------------


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Trouble:
    """A sink, and what happens to it in the middle of training."""

    sinks: tuple[Calm, ...] = ()
    middle: Callable[[], object] = _nothing


def _without() -> AbstractContextManager[Trouble]:
    return nullcontext(Trouble())


def _raises() -> AbstractContextManager[Trouble]:
    return nullcontext(Trouble((Raising(),)))


@contextmanager
def _sleeps() -> Iterator[Trouble]:
    """It sleeps on when the run is over, and only then is woken up."""
    sink = Sleeping()
    yield Trouble((sink,))
    sink.awake.set()


@contextmanager
def _server_goes_away() -> Iterator[Trouble]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    with server:
        try:
            assert server.stdout is not None  # it is a pipe
            yield Trouble((Sending(int(server.stdout.readline())),), middle=server.kill)
        finally:
            server.kill()


WITHOUT = "without a sink"
CASES: dict[str, Callable[[], AbstractContextManager[Trouble]]] = {
    WITHOUT: _without,
    "it raises in each write": _raises,
    "it sleeps for 60 s": _sleeps,
    "its server goes away in the middle": _server_goes_away,
}


class Marked(Sequence[Any]):
    """Batches in memory, with something in the middle."""

    def __init__(self, batches: Sequence[Any], steps: int, trouble: Trouble) -> None:
        self._all = [batches[index % len(batches)] for index in range(steps)]
        self._trouble = trouble
        self.ended = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __iter__(self) -> Iterator[Any]:
        half, last = len(self) // 2, len(self) - 1
        for index, batch in enumerate(self._all):
            if index == half:
                self._trouble.middle()
            elif index == last:
                self.ended = time.perf_counter()
            yield batch


@dataclass(frozen=True, slots=True)
class Took:
    """One run, in seconds."""

    whole: float
    """From the call of ``fit`` until it is back."""
    cpu: float
    """The same in CPU time of all threads."""
    closing: float
    """The part of it after the last step."""
    reports: tuple[SinkReport, ...]


def _run(problem: Problem, steps: int, case: Callable[[], AbstractContextManager[Trouble]]) -> Took:
    with TemporaryDirectory() as folder, case() as trouble:
        batches = Marked(problem.batches, steps, trouble)
        trainer = Trainer(
            preflight=False,
            max_duration="1ep",
            log_every="100st",
            folder=folder,
            device="cpu",
            sinks=trouble.sinks,
            seed=0,
        )
        task = Logging(problem)
        start, cpu_start = time.perf_counter(), time.process_time()
        result = trainer.fit(task, batches)
        end, cpu_end = time.perf_counter(), time.process_time()
        return Took(end - start, cpu_end - cpu_start, end - batches.ended, result.sinks)


# -- figures -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Compared:
    """One case against the runs without a sink before and after it."""

    ratios: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)
    reports: tuple[SinkReport, ...] = ()

    def add(self, own: Took, before: Took, after: Took) -> None:
        self.ratios.append(2 * own.whole / (before.whole + after.whole))
        self.cpu.append(2 * own.cpu / (before.cpu + after.cpu))
        self.closing.append(own.closing)
        self.reports = own.reports


def sink_trouble(steps: int, rounds: Iterable[int]) -> Section:
    problem = mlp()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compared = {name: Compared() for name in CASES}
    alone: list[float] = []
    _run(problem, steps, _server_goes_away)  # warms up
    for round_ in rounds:
        before = _run(problem, steps, _without)
        for name in list(CASES)[:: -1 if round_ % 2 else 1]:
            own, after = _run(problem, steps, CASES[name]), _run(problem, steps, _without)
            compared[name].add(own, before, after)
            alone.append(after.whole)
            before = after
    short = _run(problem, steps // SHORTER, _sleeps)
    torch.set_num_threads(threads)
    return Section(
        "A sink in trouble (the run's time, as a ratio to the run without it)",
        [*(_figure(name, found) for name, found in compared.items()), _closing(short)],
        f"{steps:,} steps of the model of the step overhead with five metrics in every step, log_every='100st' and a "
        f"folder, {statistics.median(alone):.1f} s without a sink. Wall time of the whole run, from the call of fit "
        f"until it is back, against the mean of the runs without a sink before and after it, all in turn; the median "
        f"of {len(compared[WITHOUT].ratios)} rounds. The first row is the noise. The server is a process on the "
        f"loopback address that gets rows over HTTP and is killed in the middle. A call of a sink is given {WAIT:g} s "
        f"in all, before or after the last step: the end of a run that is shorter than that waits for what is left of "
        f"them, as the last row shows with a run of {short.whole - short.closing:.1f} s.",
    )


def _figure(name: str, found: Compared) -> Figure:
    ratio, (low, high) = statistics.median(found.ratios), quartiles(found.ratios)
    said = "".join(f"; {report}" for report in found.reports)
    return Figure(
        name,
        f"{ratio:.3f} times",
        f"half of the rounds in {low:.3f} to {high:.3f}, CPU time {statistics.median(found.cpu):.3f}; "
        f"{statistics.median(found.closing):.2f} s of it after the last step{said}",
        "" if name == WITHOUT else f"<= {LIMIT} times",
        "" if name == WITHOUT else verdict(ratio <= LIMIT),
    )


def _closing(took: Took) -> Figure:
    return Figure(
        "the end of a short run waits for one that sleeps",
        f"{took.closing:.2f} s",
        "; ".join(map(str, took.reports)),
        f"<= {MOST_CLOSING:g} s",
        verdict(took.closing <= MOST_CLOSING),
    )
