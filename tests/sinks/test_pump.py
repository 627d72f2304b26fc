"""A sink that raises, hangs or is slow costs rows that are counted, and never the run."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.records import EventRow, ImageRow, MetricRow, Record, TableRow, TextRow
from hookline.sinks import RunInfo, Sink, SinkReport
from hookline.sinks.pump import BATCH, Pump
from hookline.testing import run_script

GUARD = 200
"""Seconds after which a test gives up waiting; nothing is expected to take them."""


def info() -> RunInfo:
    return RunInfo("digits", "first", "a1", None, {}, datetime.now(UTC), 0, lambda: iter(()))


def row(step: int, name: str = "train/loss") -> MetricRow:
    return MetricRow(name, step, 0, float(step), "step", 0.0)


def rows(first: int, last: int) -> list[MetricRow]:
    return [row(step) for step in range(first, last)]


def steps(records: Sequence[Record]) -> list[int]:
    return [record.step for record in records]


class Notes:
    """Keeps what it gets. ``faults`` says by the name of each call whether that call raises."""

    def __init__(self, faults: Callable[[str, int], BaseException | None] = lambda name, count: None) -> None:
        self.calls: list[str] = []
        self.taken: list[Record] = []
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self._faults = faults
        self._counts: Counter[str] = Counter()

    def _called(self, name: str) -> None:
        self.threads.add(threading.current_thread().name)
        self._counts[name] += 1
        self.calls.append(name)
        fault = self._faults(name, self._counts[name])
        if fault is not None:
            raise fault

    def start(self, info: RunInfo) -> None:
        self._called("start")

    def write(self, records: Sequence[Record]) -> None:
        self._called("write")
        self.batches.append(len(records))
        self.taken.extend(records)

    def flush(self) -> None:
        self._called("flush")

    def close(self) -> None:
        self._called("close")


class Hangs(Notes):
    """Comes to a stop in one of its calls until it is let go."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.reached, self.let_go = threading.Event(), threading.Event()

    def _called(self, name: str) -> None:
        if name == self.where and not self.let_go.is_set():
            self.reached.set()
            assert self.let_go.wait(GUARD)
        super()._called(name)


@pytest.fixture
def hanging() -> Iterator[Callable[[str], Hangs]]:
    made: list[Hangs] = []

    def make(where: str) -> Hangs:
        made.append(Hangs(where))
        return made[-1]

    yield make
    for sink in made:
        sink.let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("hookline sink"):
            thread.join(GUARD)


def pump(sink: Sink, *, most: int = 10_000, pauses: Sequence[float] = ()) -> Pump:
    made = Pump("Mine", sink, most=most, pauses=pauses)
    made.start(info())
    return made


def always(name: str, error: BaseException) -> Callable[[str, int], BaseException | None]:
    return lambda called, count: error if called == name else None


def first(times: int, name: str) -> Callable[[str, int], BaseException | None]:
    return lambda called, count: OSError(f"try {count}") if called == name and count <= times else None


# -- a sink that is well -------------------------------------------------------------------------


def test_every_row_arrives_once_in_order_in_one_thread() -> None:
    sink = Notes()
    working = pump(sink)
    for step in range(0, 5_000, 10):
        working.put(rows(step, step + 10))
    report = working.close(GUARD)
    assert steps(sink.taken) == list(range(5_000))
    assert report == SinkReport("Mine", written=5_000, dropped=0, failures=0)
    assert report.is_well
    assert (sink.calls[0], sink.calls[-1]) == ("start", "close")
    assert sink.threads == {"hookline sink Mine"}
    assert max(sink.batches) <= BATCH


def test_a_long_queue_is_written_in_pieces() -> None:
    sink = Notes()
    waiting = Pump("Mine", sink, pauses=())
    waiting.put(rows(0, 2 * BATCH + 5))
    waiting.start(info())
    assert waiting.close(GUARD).written == 2 * BATCH + 5
    assert sink.batches == [BATCH, BATCH, 5]
    assert sink.calls == ["start", "write", "write", "write", "flush", "close"]


def test_a_run_without_rows_starts_and_closes_its_sink() -> None:
    sink = Notes()
    working = pump(sink)
    working.put([])
    assert working.close(GUARD) == SinkReport("Mine", 0, 0, 0)
    assert sink.calls == ["start", "close"]
    assert working.trouble() is None


def test_many_threads_may_put_at_once() -> None:
    sink = Notes()
    working = pump(sink, most=math.inf)  # type: ignore[arg-type]
    ready = threading.Barrier(100)

    def put(number: int) -> None:
        ready.wait(GUARD)
        for step in range(50):
            working.put([row(step, f"metric-{number}")])

    threads = [threading.Thread(target=put, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert working.close(GUARD) == SinkReport("Mine", 5_000, 0, 0)
    for number in range(100):
        assert [r.step for r in sink.taken if r.name == f"metric-{number}"] == list(range(50))


def test_what_is_put_after_the_end_is_counted_as_dropped() -> None:
    working = pump(Notes())
    working.put(rows(0, 3))
    working.close(GUARD)
    working.put(rows(3, 5))
    assert working.report() == SinkReport("Mine", 3, 2, 0)


def test_a_pump_that_never_started_counts_its_rows_as_dropped() -> None:
    waiting = Pump("Mine", Notes())
    waiting.put(rows(0, 3))
    assert waiting.close() == SinkReport("Mine", 0, 3, 0)


def test_the_end_may_be_said_before_the_wait_and_twice() -> None:
    sink = Notes()
    working = pump(sink)
    working.put(rows(0, 3))
    working.end()
    assert working.close(GUARD) == working.close(GUARD) == SinkReport("Mine", 3, 0, 0)
    assert sink.calls.count("close") == 1


# -- a sink that raises --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("no route to host"), SystemExit(3), KeyboardInterrupt()])
def test_a_sink_that_always_raises_loses_its_rows_and_no_more(error: BaseException) -> None:
    """Also one that calls ``sys.exit``: that would end its thread without a word."""
    sink = Notes(always("write", error))
    working = pump(sink)
    working.put(rows(0, 7))
    report = working.close(GUARD)
    assert (report.written, report.dropped, report.hung) == (0, 7, False)
    assert report.failures == sink.calls.count("write") >= 1
    assert report.error == f"{type(error).__name__}: {error}".removesuffix(": ")
    assert not report.is_well
    assert sink.calls[-1] == "close"


def test_rows_that_were_tried_again_are_written_once_and_in_order() -> None:
    done = threading.Event()

    class Slow(Notes):
        def flush(self) -> None:
            done.set()

    sink = Slow(first(3, "write"))
    working = pump(sink, pauses=(0, 0, 0))
    working.put(rows(0, 7))
    assert done.wait(GUARD)
    working.put(rows(7, 9))
    report = working.close(GUARD)
    assert steps(sink.taken) == list(range(9))
    assert (report.written, report.dropped, report.failures, report.error) == (9, 0, 3, "OSError: try 3")


def test_after_its_last_try_a_batch_is_lost_and_the_next_one_is_written() -> None:
    lost = threading.Event()

    def fault(name: str, count: int) -> BaseException | None:
        if name == "flush":
            lost.set()
        return OSError("down") if name == "write" and count <= 4 else None

    sink = Notes(fault)
    working = pump(sink, pauses=(0, 0, 0))
    working.put(rows(0, 3))
    assert lost.wait(GUARD)
    working.put(rows(3, 5))
    report = working.close(GUARD)
    assert steps(sink.taken) == [3, 4]
    assert (report.written, report.dropped, report.failures) == (2, 3, 4)


def test_a_sink_that_cannot_start_is_tried_again_with_each_batch() -> None:
    sink = Notes(first(2, "start"))
    waiting = Pump("Mine", sink, pauses=())
    waiting.put(rows(0, BATCH + 1))
    waiting.start(info())
    report = waiting.close(GUARD)
    assert sink.calls == ["start", "start", "start", "write", "flush", "close"]
    assert steps(sink.taken) == [BATCH]
    assert (report.written, report.dropped, report.failures) == (1, BATCH, 2)


def test_a_sink_that_never_starts_is_neither_written_to_nor_closed() -> None:
    sink = Notes(always("start", ConnectionError("refused")))
    working = pump(sink)
    working.put(rows(0, 5))
    report = working.close(GUARD)
    assert set(sink.calls) == {"start"}
    assert (report.written, report.dropped, report.hung) == (0, 5, False)


@pytest.mark.parametrize("name", ["flush", "close"])
def test_an_error_in_flush_or_close_is_counted_and_loses_nothing(name: str) -> None:
    sink = Notes(always(name, ValueError("late")))
    working = pump(sink)
    working.put(rows(0, 5))
    report = working.close(GUARD)
    assert (report.written, report.dropped) == (5, 0)
    assert report.failures == sink.calls.count(name) >= 1
    assert report.error == "ValueError: late"


def test_the_end_of_a_run_does_not_wait_for_another_try() -> None:
    """With hours between the tries the end comes all the same."""
    tried = threading.Event()

    def fault(name: str, count: int) -> BaseException | None:
        if name == "write":
            tried.set()
        return OSError("down") if name == "write" else None

    sink = Notes(fault)
    working = pump(sink, pauses=(3600, 3600))
    working.put(rows(0, 3))
    assert tried.wait(GUARD)
    report = working.close(GUARD)
    assert (report.dropped, report.hung) == (3, False)
    assert sink.calls.count("write") == 2  # and once more, at once


@pytest.mark.parametrize("when", ["before the end", "after the end"])
def test_a_sink_that_fails_once_as_the_run_ends_loses_nothing(when: str) -> None:
    tried = threading.Event()

    def fault(name: str, count: int) -> BaseException | None:
        if name != "write" or count > 1:
            return None
        tried.set()
        return OSError("reset by peer")

    working = Pump("Mine", Notes(fault), pauses=(3600, 3600))
    working.put(rows(0, 3))
    if when == "after the end":
        working.end()
    working.start(info())
    assert tried.wait(GUARD)
    report = working.close(GUARD)
    assert (report.written, report.dropped, report.failures) == (3, 0, 1)


def test_a_sink_that_starts_as_the_run_ends_has_time_for_its_rows() -> None:
    """A new database takes seconds: a short run is over by then, and all of its rows wait."""

    class Slow(Notes):
        def start(self, info: RunInfo) -> None:
            assert started.wait(GUARD)
            super().start(info)

        def write(self, records: Sequence[Record]) -> None:
            sleep(1.0)
            super().write(records)

    started = threading.Event()
    working = pump(Slow())
    working.put(rows(0, 3))
    threading.Timer(1.8, started.set).start()
    report = working.close(2.0)
    assert (report.written, report.hung) == (3, False)


def test_trouble_is_told_once() -> None:
    working = pump(Notes(always("write", OSError("down"))))
    assert working.trouble() is None
    working.put(rows(0, 3))
    working.close(GUARD)
    told = working.trouble()
    assert told is not None
    assert "Mine: 0 rows written, 3 dropped, failed" in told
    assert "OSError: down" in told
    assert working.trouble() is None


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("https://me:hunter2@example.org said no"), "OSError: https://[redacted]@example.org said no"),
        (OSError("first\nsecond"), "OSError: first"),
        (OSError("x" * 10_000), "OSError: " + "x" * 191),
        (OSError(), "OSError"),
        (UnspeakableError(), "UnspeakableError: (its __str__ raises ZeroDivisionError)"),
    ],
    ids=["secret", "lines", "long", "empty", "unspeakable"],
)
def test_what_a_sink_raised_is_one_short_line_without_secrets(error: Exception, words: str) -> None:
    working = pump(Notes(always("write", error)))
    working.put(rows(0, 3))
    report = working.close(GUARD)
    assert report.error == words
    assert report.dropped == 3


# -- a sink that hangs ---------------------------------------------------------------------------


def test_putting_never_waits_and_the_newest_rows_win(hanging: Callable[[str], Hangs]) -> None:
    sink = hanging("write")
    stuck = pump(sink, most=100)
    stuck.put(rows(0, 3))
    assert sink.reached.wait(GUARD)
    for step in range(3, 1_000):
        stuck.put([row(step)])
    assert stuck.report() == SinkReport("Mine", 0, 897, 0)
    sink.let_go.set()
    assert stuck.close(GUARD) == SinkReport("Mine", 103, 897, 0)
    assert steps(sink.taken) == [0, 1, 2, *range(900, 1_000)]


@pytest.mark.parametrize(("where", "written"), [("start", 0), ("write", 0), ("flush", 5), ("close", 5)])
def test_the_end_leaves_a_sink_that_hangs_and_counts_every_row(
    where: str, written: int, hanging: Callable[[str], Hangs]
) -> None:
    sink = hanging(where)
    stuck = pump(sink)
    stuck.put(rows(0, 5))
    if where == "close":
        stuck.end()
    assert sink.reached.wait(GUARD)
    if where != "close":
        stuck.put(rows(5, 8))
    report = stuck.close(0)
    assert report.hung
    assert not report.is_well
    assert report.written == written
    assert report.written + report.dropped == (5 if where == "close" else 8)
    assert "still busy" in str(report)


class Clock:
    """Time that goes on only when it is looked at, a little, and by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.mark.parametrize(
    ("where", "before", "least", "most"),
    [
        ("write", 1.0, 3.9, 4.1),  # it has had one of its five seconds
        ("write", 60.0, 1.1, 1.3),  # it has had them all: a share of the run is left
        ("write", 3600.0, 4.9, 5.1),  # and of a long run that share is not more than it would have had
        ("start", 4.0, 15.9, 16.1),  # to start takes longer
        ("start", 60.0, 1.1, 1.3),
    ],
)
def test_the_end_waits_only_for_what_a_hanging_sink_has_not_had_before(
    where: str,
    before: float,
    least: float,
    most: float,
    hanging: Callable[[str], Hangs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of a minute with a dead tracker is not five seconds longer."""
    clock = Clock()
    monkeypatch.setattr("hookline.sinks.pump.monotonic", clock)
    monkeypatch.setattr(threading.Thread, "join", lambda self, seconds: setattr(clock, "now", clock.now + seconds))
    sink = hanging(where)
    stuck = pump(sink)
    stuck.put(rows(0, 5))
    assert sink.reached.wait(GUARD)
    clock.now += before
    end = clock.now
    assert stuck.close().hung
    assert least < clock.now - end < most
    monkeypatch.undo()


def test_a_sink_whose_calls_take_long_has_its_seconds_at_the_end(
    hanging: Callable[[str], Hangs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that uploads: what it takes usually is no sign of a hang."""
    clock = Clock()
    monkeypatch.setattr("hookline.sinks.pump.monotonic", clock)
    monkeypatch.setattr(threading.Thread, "join", lambda self, seconds: setattr(clock, "now", clock.now + seconds))

    class Uploads(Hangs):
        def flush(self) -> None:
            if not self.reached.is_set():
                clock.now += 7.0
                done.set()

    done, sink = threading.Event(), Uploads("write")
    sink.let_go.set()
    slow = pump(sink)
    slow.put(rows(0, 5))
    assert done.wait(GUARD)
    sink.let_go.clear()
    slow.put(rows(5, 8))
    assert sink.reached.wait(GUARD)
    clock.now += 6.0
    end = clock.now
    assert slow.close().hung
    assert 4.9 < clock.now - end < 5.1
    sink.let_go.set()
    monkeypatch.undo()


def test_a_sink_that_waits_for_its_next_try_as_the_run_ends_is_not_taken_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It raised an hour ago and is in no call: it gets its rows once more."""
    tried, pausing = threading.Event(), threading.Event()

    class Told(Clock):
        def __call__(self) -> float:
            if tried.is_set():  # looked at by the thread of the sink, for the end of its pause
                pausing.set()
            return super().__call__()

    def fault(name: str, count: int) -> BaseException | None:
        if name == "write" and count == 1:
            tried.set()
            return OSError("down")
        return None

    clock, join = Told(), threading.Thread.join
    monkeypatch.setattr("hookline.sinks.pump.monotonic", clock)
    monkeypatch.setattr("hookline.sinks.pump.SHARE", 0.0)
    monkeypatch.setattr(threading.Thread, "join", lambda self, seconds: join(self, GUARD))
    working = pump(Notes(fault), pauses=(7200,))
    working.put(rows(0, 3))
    assert pausing.wait(GUARD)
    clock.now += 3600
    report = working.close()
    assert (report.written, report.dropped, report.hung) == (3, 0, False)


def test_a_sink_that_wakes_up_late_writes_what_it_has(hanging: Callable[[str], Hangs]) -> None:
    sink = hanging("write")
    stuck = pump(sink)
    stuck.put(rows(0, 5))
    assert sink.reached.wait(GUARD)
    assert stuck.close(0).hung
    sink.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "hookline sink Mine":
            thread.join(GUARD)
    assert stuck.report() == SinkReport("Mine", 5, 0, 0)
    assert sink.calls[-1] == "close"


@pytest.mark.parametrize("where", ["start", "write", "close"])
def test_a_process_ends_although_a_sink_hangs(where: str) -> None:
    script = f"""
        import threading
        from datetime import datetime
        from hookline.records import MetricRow
        from hookline.sinks import RunInfo
        from hookline.sinks.pump import Pump

        class Hangs:
            def start(self, info): self.call("start")
            def write(self, records): self.call("write")
            def flush(self): ...
            def close(self): self.call("close")
            def call(self, name):
                if name == {where!r}:
                    threading.Event().wait()

        pump = Pump("Hangs", Hangs())
        pump.start(RunInfo("p", "n", "i", None, {{}}, datetime.now(), 0, lambda: iter(())))
        pump.put([MetricRow("a", 1, 0, 0.5, "step", 0.0)])
        print(pump.close(0.01).hung)
    """
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# -- what is large -------------------------------------------------------------------------------


def large(kind: str, step: int) -> Record:
    size = 4096 * 9  # counts as ten rows
    made: dict[str, Record] = {
        "image": ImageRow("a", step, 0, 0.0, 8, 8, png=b"x" * size),
        "text": TextRow("a", step, 0, 0.0, "x" * size),
        "table": TableRow("a", step, 0, 0.0, ("x",), (("x" * (size - 32),),)),
        "array": MetricRow("a", step, 0, [[0.5] * (size // 64)] * 2, "eval", 0.0),
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["image", "text", "table", "array"])
def test_large_rows_count_by_their_size_so_that_the_memory_is_bounded(
    kind: str, hanging: Callable[[str], Hangs]
) -> None:
    sink = hanging("write")
    stuck = pump(sink, most=100)
    stuck.put([row(0)])
    assert sink.reached.wait(GUARD)
    for step in range(1, 31):
        stuck.put([large(kind, step)])
    stuck.put([row(31), EventRow("end", 32, 0, 0.0)])
    sink.let_go.set()
    report = stuck.close(GUARD)
    assert steps(sink.taken) == [0, *range(22, 33)]  # nine large ones and two small ones fit into a hundred
    assert (report.written, report.dropped) == (12, 21)


def test_the_newest_row_is_kept_even_if_it_is_too_large(hanging: Callable[[str], Hangs]) -> None:
    sink = hanging("write")
    stuck = pump(sink, most=5)
    stuck.put([row(0)])
    assert sink.reached.wait(GUARD)
    stuck.put(rows(1, 4))
    stuck.put([large("image", 4)])
    sink.let_go.set()
    assert stuck.close(GUARD) == SinkReport("Mine", 2, 3, 0)
    assert steps(sink.taken) == [0, 4]


# -- whatever goes wrong -------------------------------------------------------------------------


@given(
    puts=st.lists(st.integers(0, 40), max_size=12),
    most=st.integers(1, 60),
    faults=st.lists(st.booleans(), max_size=30),
    tries=st.integers(0, 2),
    early=st.booleans(),
)
def test_every_row_is_written_or_dropped_and_what_is_written_keeps_its_order(
    puts: list[int], most: int, faults: list[bool], tries: int, early: bool
) -> None:
    pattern = iter(faults)
    sink = Notes(lambda name, count: OSError(name) if next(pattern, False) else None)
    working = Pump("Mine", sink, most=most, pauses=(0,) * tries)
    if early:
        working.start(info())
    done = 0
    for count in puts:
        working.put(rows(done, done + count))
        done += count
    if not early:
        working.start(info())
    report = working.close(GUARD)
    assert not report.hung
    assert report.written + report.dropped == done
    assert report.written == len(sink.taken)
    assert steps(sink.taken) == sorted(set(steps(sink.taken)))
    assert report.failures <= len(faults)
    assert report.failures == sum(faults[: len(sink.calls)])
