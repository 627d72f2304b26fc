"""A long stream of records through each sink. Run as a script, it streams and prints what it used, as JSON."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memory import resident
from table import Figure, Section, verdict

from hookline import sinks
from hookline.records import HistogramRow, MetricRow, Record
from hookline.sinks.pump import Pump

LIMIT_MB = 50
KEPT = 10_000
CHUNK, AHEAD = 500, 5_000
"""So many records are put at once, and so many may wait: half of what the queue takes, so that none is dropped."""
NAMES = tuple(f"train/metric_{number}" for number in range(10))
EDGES, COUNTS = tuple(number / 64 for number in range(65)), (7,) * 64
SINKS = ("Memory", "CSV", "JSONL", "LogObject", "TensorBoard")


def record_stream(records: int) -> Section:
    """Each sink in a process of its own: what another has freed would hide the growth."""
    return Section(
        "A stream of records (growth of resident memory)",
        [_figure(name, records) for name in SINKS],
        f"{records:,} rows through the thread and the queue of a sink: ten metrics a step, and a histogram after each "
        f"thousand. Resident memory of a fresh process, from the first {KEPT:,} rows on (then the queue, and "
        f"Memory(most={KEPT}), have been full once), at its highest. Records a second: making them is part of it; "
        f"the queue is never full, so that none is dropped.",
    )


def _figure(name: str, records: int) -> Figure:
    command = [sys.executable, __file__, name, str(records)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    growth = found["most"] - found["first"]
    return Figure(
        f"{name}, {records:,} records",
        f"{growth:+.1f} MB",
        f"at the end {found['last'] - found['first']:+.1f}; {found['first']:.0f} MB at first; "
        f"{found['written'] / found['seconds']:,.0f} records a second, {found['dropped']} dropped",
        f"< {LIMIT_MB} MB",
        verdict(growth < LIMIT_MB and not found["dropped"]),
    )


# -- in the process ----------------------------------------------------------------------------------------


class Mine:
    """A logger of the user's own."""

    def log(self, values: dict[str, Any], step: int) -> None:
        pass


def sink_of(name: str, folder: Path) -> sinks.Sink:
    match name:
        case "Memory":
            return sinks.Memory(most=KEPT)
        case "CSV":
            return sinks.CSV()
        case "JSONL":
            return sinks.JSONL(folder / "copy.jsonl")
        case "LogObject":
            return sinks.LogObject(Mine())
        case "TensorBoard":
            return sinks.TensorBoard()
    raise ValueError(f"{name}: no such sink; there is {', '.join(SINKS)}")


def rows() -> Iterator[Record]:
    """Without an end."""
    step = 0
    while True:
        step += 1
        seconds = step / 100
        for place, name in enumerate(NAMES):
            yield MetricRow(name, step, step // 1000, 1 / (step + place), "step", seconds)
        if step % 100 == 0:
            yield HistogramRow("weights/first", step, step // 1000, seconds, EDGES, COUNTS)


def stream(name: str, records: int) -> dict[str, float]:
    with TemporaryDirectory() as text:
        folder = Path(text)
        pump = Pump(name, sink_of(name, folder))
        pump.start(sinks.RunInfo("bench", "stream", "a1", folder, {}, datetime.now(), 0, lambda: iter(())))
        source = rows()
        _put(pump, source, range(0, KEPT, CHUNK))
        gc.collect()
        first, start = resident(), time.perf_counter()
        most = _put(pump, source, range(KEPT, records, CHUNK))
        seconds = time.perf_counter() - start
        gc.collect()
        last = resident()
        report = pump.close(wait=60.0)
    used = {"first": first, "last": last, "most": max(most, last)}
    return {**used, "seconds": seconds, "written": report.written - KEPT, "dropped": report.dropped}


def _put(pump: Pump, source: Iterator[Record], chunks: range) -> float:
    """Chunks of records, until all are written; the most megabytes that were resident meanwhile."""
    most = 0.0
    for sent in chunks:
        _wait(pump, sent - AHEAD)
        pump.put(list(islice(source, CHUNK)))
        most = max(most, resident())
    _wait(pump, chunks.stop)
    return most


def _wait(pump: Pump, written: int) -> None:
    """Until so many are written, or lost."""
    while (report := pump.report()).written + report.dropped < written:
        if report.failures:
            raise RuntimeError(str(report))
        time.sleep(0.0005)


if __name__ == "__main__":
    print(json.dumps(stream(sys.argv[1], int(sys.argv[2]))))
