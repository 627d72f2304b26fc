"""What it costs to record the loss and the samples of each step, from which a replay is compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from timeit import Timer

from table import Figure, Section, verdict

from hookline.loop.data.agreement import digest_of_indices
from hookline.loop.record.steps import StepRecord
from hookline.progress import Clock
from hookline.records.steps import ROW_BYTES

INTERVAL = 100
"""Steps of a log interval: the default of ``log_every``."""
SAMPLES = (32, 1024)
LIMIT_NS = 2_000
"""For the sum of all parts of a step with 32 samples. A bare step of a small model takes 100,000 ns and more."""


def step_record(repeats: int) -> Section:
    with TemporaryDirectory() as folder:
        record, digests = _record(Path(folder))
        step = _nanoseconds("record.losses.append(0.5); record.positions.append(7)", {"record": record}, repeats)
        record.losses.clear()
        record.positions.clear()
        written = _nanoseconds(_interval(record, digests), {}, repeats, number=20) / INTERVAL
        record.close()
    digest = {
        count: _nanoseconds("digest(indices)", {"digest": digest_of_indices, "indices": list(range(count))}, repeats)
        for count in SAMPLES
    }
    total = step + written + digest[SAMPLES[0]]
    return Section(
        "The record of the steps (ns per step)",
        [
            Figure("in the step: its loss and its position", f"{step:.0f} ns"),
            *(Figure(f"the digest of {count:,} indices", f"{its:.0f} ns") for count, its in digest.items()),
            Figure(
                f"its part of {INTERVAL} rows, read and written", f"{written:.0f} ns", f"{ROW_BYTES} bytes per step"
            ),
            Figure("all, with 32 samples", f"{total:.0f} ns", "", f"< {LIMIT_NS:,} ns", verdict(total < LIMIT_NS)),
        ],
        f"Losses are numbers, as on the CPU; on a device each is the copy that the metrics keep anyway. Rows go to "
        f"steps.bin at the end of a log interval of {INTERVAL} steps. The quickest of {repeats} repeats. The rows of "
        f"the section Logging count the reads from the device, with this record.",
    )


def _record(folder: Path) -> tuple[StepRecord, deque[int]]:
    digests: deque[int] = deque()
    record = StepRecord(Clock(), lambda position: digests.popleft())
    record.open(folder)
    return record, digests


def _interval(record: StepRecord, digests: deque[int]) -> Callable[[], None]:
    losses, positions = [index / 7 for index in range(INTERVAL)], list(range(INTERVAL))
    clock = record._clock
    clock.step = INTERVAL

    def write() -> None:
        digests.extend(positions)
        record.losses.extend(losses)
        record.positions.extend(positions)
        record.flush()

    return write


def _nanoseconds(what: str | Callable[[], None], names: dict[str, object], repeats: int, number: int = 10_000) -> float:
    timer = Timer(what, globals=names, timer=process_time)  # Other processes of the machine do not count.
    return min(timer.repeat(repeats, number)) / number * 1e9
