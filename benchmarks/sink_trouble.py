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
    """A sink, and what happens to it in the middle and at the end of training."""

    sinks: tuple[Calm, ...] = ()
    middle: Callable[[], object] = _nothing
    end: Callable[[], object] = _nothing


def _without() -> AbstractContextManager[Trouble]:
    return nullcontext(Trouble())


def _raises() -> AbstractContextManager[Trouble]:
    return nullcontext(Trouble((Raising(),)))


def _sleeps() -> AbstractContextManager[Trouble]:
    """It is woken up when training is over, so that nobody waits for it: how long that is has a row of its own."""
    sink = Sleeping()
    return nullcontext(Trouble((sink,), end=sink.awake.set))


@contextmanager
def _sleeps_on() -> Iterator[Trouble]:
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
    """Batches in memory, with something in the middle and at the end."""

    def __init__(self, batches: Sequence[Any], steps: int, trouble: Trouble) -> None:
        self._all = [batches[index % len(batches)] for index in range(steps)]
        self._trouble = trouble
        self.ended = self.cpu_ended = 0.0

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
                self.ended, self.cpu_ended = time.perf_counter(), time.process_time()
                self._trouble.end()
            yield batch


@dataclass(frozen=True, slots=True)
class Took:
    """One run, in seconds."""

    training: float
    """From the call of ``fit`` to the last step."""
    cpu: float
    """The same in CPU time of all threads."""
    closing: float
    """From the last step until ``fit`` is back."""
    reports: tuple[SinkReport, ...]


def _run(problem: Problem, steps: int, case: Callable[[], AbstractContextManager[Trouble]]) -> Took:
    with TemporaryDirectory() as folder, case() as trouble:
        batches = Marked(problem.batches, steps, trouble)
        trainer = Trainer(
            max_duration="1ep", log_every="100st", folder=folder, device="cpu", sinks=trouble.sinks, seed=0
        )
        task = Logging(problem)
        start, cpu_start = time.perf_counter(), time.process_time()
        result = trainer.fit(task, batches)
        end = time.perf_counter()
        return Took(batches.ended - start, batches.cpu_ended - cpu_start, end - batches.ended, result.sinks)


# -- figures -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Compared:
    """One case against the runs without a sink before and after it."""

    ratios: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)
    reports: tuple[SinkReport, ...] = ()

    def add(self, own: Took, before: Took, after: Took) -> None:
        self.ratios.append(2 * own.training / (before.training + after.training))
        self.cpu.append(2 * own.cpu / (before.cpu + after.cpu))
        self.closing.append(own.closing)
        self.reports = own.reports


def sink_trouble(steps: int, rounds: Iterable[int]) -> Section:
    problem = mlp()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compared = {name: Compared() for name in CASES}
    _run(problem, steps, _server_goes_away)  # warms up
    for round_ in rounds:
        before = _run(problem, steps, _without)
        for name in list(CASES)[:: -1 if round_ % 2 else 1]:
            own, after = _run(problem, steps, CASES[name]), _run(problem, steps, _without)
            compared[name].add(own, before, after)
            before = after
    asleep = _run(problem, steps, _sleeps_on)
    torch.set_num_threads(threads)
    return Section(
        "A sink in trouble (the run's time, as a ratio to the run without it)",
        [*(_figure(name, found) for name, found in compared.items()), _closing(asleep)],
        f"{steps:,} steps of the model of the step overhead with five metrics in every step, log_every='100st' and a "
        f"folder. Wall time from the call of fit to the last step, against the mean of the runs without a sink before "
        f"and after it, all in turn; the median of {len(compared[WITHOUT].ratios)} rounds. The first row is the noise. "
        f"The server is a process on the loopback address that gets rows over HTTP and is killed in the middle. The "
        f"one that sleeps is woken up after the last step; how long a run waits for one that is not is the last row, "
        f"from the last step until fit is back.",
    )


def _figure(name: str, found: Compared) -> Figure:
    ratio, (low, high) = statistics.median(found.ratios), quartiles(found.ratios)
    said = "".join(f"; {report}" for report in found.reports)
    return Figure(
        name,
        f"{ratio:.3f} times",
        f"half of the rounds in {low:.3f} to {high:.3f}, CPU time {statistics.median(found.cpu):.3f}; "
        f"closing {statistics.median(found.closing):.2f} s{said}",
        "" if name == WITHOUT else f"<= {LIMIT} times",
        "" if name == WITHOUT else verdict(ratio <= LIMIT),
    )


def _closing(took: Took) -> Figure:
    return Figure(
        "the end waits for one that hangs",
        f"{took.closing:.2f} s",
        "; ".join(map(str, took.reports)),
        f"<= {MOST_CLOSING:g} s",
        verdict(took.closing <= MOST_CLOSING),
    )
