"""Sinks of a real run: none of them can stop it, slow it or change what it computes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch

import hookline as hl
from hookline.errors import ArgumentError
from hookline.loop import Trainer
from hookline.records import EventRow, MetricRow, Record, from_json
from hookline.sinks import RunInfo
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, same_tensors, set_sink_wait, train_loop


class Quiet:
    """A sink that does nothing."""

    def start(self, info: RunInfo) -> None: ...
    def write(self, records: Sequence[Record]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Raises(Quiet):
    def write(self, records: Sequence[Record]) -> None:
        raise OSError("disk is gone")


class Sleeps(Quiet):
    """Longer than the run and than its end waits; let go when the test is over."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def write(self, records: Sequence[Record]) -> None:
        self.until.wait(300)


class Posts(Quiet):
    """Sends rows to a server, which goes away after the first."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reached = threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        with urlopen(Request(self.address, data=str(len(records)).encode(), method="POST"), timeout=300):
            self.reached.set()


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


long_fit = partial(fit, max_duration="20ep", log_every="1st", optimizer=torch.optim.Adam, val=tiny_data(1))


def test_sinks_that_raise_hang_or_lose_their_server_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are bitwise the same, every row is in the file, and the summary names each sink with a count."""
    set_sink_wait(monkeypatch, 0.5)
    expected = long_fit().model
    until, server = threading.Event(), HTTPServer(("127.0.0.1", 0), Server)
    posts = Posts(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever)
    serving.start()

    def go_away(run: hl.Run) -> None:
        assert posts.reached.wait(300)
        server.shutdown()
        server.server_close()

    try:
        gone = hl.on("epoch_end", at="2ep")(go_away)
        result = long_fit(gone, folder=tmp_path, sinks=[Raises(), Sleeps(until), posts])
    finally:
        until.set()
        serving.join()
    assert same_tensors(expected.state_dict(), result.model.state_dict())
    rows = [from_json(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row.step for row in rows if row.name == "train/loss"] == list(range(1, 81))
    raises, sleeps, lost = result.sinks
    assert (raises.written, raises.failures > 0, "disk is gone" in raises.error) == (0, True, True)
    assert (sleeps.hung, sleeps.written) == (True, 0)
    assert raises.dropped > 0
    assert sleeps.dropped > 0
    assert (lost.failures > 0, lost.dropped > 0) == (True, True)
    summary = result.summary()
    for report in (raises, sleeps, lost):
        assert f"sink {report.sink}: {report.written:,} rows written, {report.dropped:,} dropped" in summary
    assert "training continues" in caplog.text
    assert f"the sink {sleeps}" in caplog.text
    assert "was still busy after the end and was left" in caplog.text
    told = [from_json(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert any(isinstance(row, EventRow) and row.name == "sink" and "Raises" in row.text for row in told)


def test_a_sink_gets_every_row_in_order_and_what_happened(tmp_path: Path) -> None:
    memory = hl.sinks.Memory()
    result = long_fit(folder=tmp_path, sinks=[memory], max_duration="2ep")
    rows = [from_json(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    written = [row for row in memory.records if isinstance(row, MetricRow)]
    assert [(r.name, r.step, r.value) for r in written] == [(r.name, r.step, r.value) for r in rows]  # type: ignore[union-attr]
    assert [row.name for row in memory.records if isinstance(row, EventRow)] == ["start", "eval", "eval", "end"]
    assert result.sinks[0].is_well
    assert "sink Memory" not in result.summary()


def test_a_sink_is_told_of_the_run(tmp_path: Path) -> None:
    told: list[RunInfo] = []

    class Asks(Quiet):
        def start(self, info: RunInfo) -> None:
            told.append(info)

    long_fit(
        folder=tmp_path, sinks=[Asks()], name="digits/first", config={"lr": 0.1, "token": "abc"}, max_duration="1ep"
    )
    (info,) = told
    assert (info.project, info.name, info.folder, info.step) == ("digits", "first", tmp_path, 0)
    assert info.config["lr"] == 0.1
    assert info.config["token"] == "[redacted]"
    assert list(info.earlier()) == []


def test_after_a_resume_a_sink_knows_what_still_holds_and_that_it_is_the_same_run(tmp_path: Path) -> None:
    told: list[tuple[str, int, list[int]]] = []
    lost: list[int] = []

    class Asks(Quiet):
        def start(self, info: RunInfo) -> None:
            told.append((info.run_id, info.step, [row.step for row in info.earlier() if row.name == "train/loss"]))

    def at_first(run: hl.Run) -> None:
        if run.clock.step == 7 and not lost:
            lost.append(7)
            raise ValueError("lost")

    callbacks = (hl.Checkpointer("2st"), hl.on("train_step_end")(at_first))
    options = {"sinks": [Asks()], "max_duration": "2ep", "resume": "auto"}
    with pytest.raises(ValueError, match="lost"):
        long_fit(*callbacks, folder=tmp_path, **options)
    long_fit(*callbacks, folder=tmp_path, **options)
    (first, _, _), (second, step, steps) = told
    assert first == second
    assert (step, steps) == (6, [1, 2, 3, 4, 5, 6])


def test_callbacks_of_a_sink_join_those_of_the_run() -> None:
    heard: list[int] = []

    class Sees(Quiet):
        callbacks = (hl.LambdaCallback(on_epoch_end=lambda run: heard.append(run.clock.epoch)),)

    long_fit(sinks=[Sees()], max_duration="2ep")
    assert heard == [1, 2]


def test_the_own_loop_has_sinks_too() -> None:
    memory = hl.sinks.Memory()
    train_loop(train=tiny_data(3), max_duration="1ep", sinks=[memory], log_every="1st")
    assert len(memory.metrics("train/loss")) == 3


def test_an_object_that_logs_is_a_sink() -> None:
    logged: dict[int, dict[str, Any]] = {}

    class Mine:
        def log(self, values: dict[str, Any], step: int) -> None:
            logged.setdefault(step, {}).update(values)

    long_fit(sinks=[Mine()], max_duration="1ep")
    assert sorted(logged) == [1, 2, 3, 4]
    assert "val/loss" in logged[4]


@pytest.mark.parametrize("sinks", ["tensorboard", hl.sinks.Memory(), [object()], [hl.sinks.Memory], [None], 3])
def test_what_is_no_sink_is_refused_before_anything_runs(sinks: Any) -> None:
    with pytest.raises(ArgumentError, match="sinks="):
        Trainer(max_duration="1ep", sinks=sinks)


def test_one_sink_twice_is_refused() -> None:
    memory = hl.sinks.Memory()
    with pytest.raises(ArgumentError, match="twice"):
        Trainer(max_duration="1ep", sinks=[memory, memory])


def test_nothing_of_a_sink_lives_on_after_a_run() -> None:
    before = set(threading.enumerate())
    long_fit(sinks=[hl.sinks.Memory(), Quiet()], max_duration="1ep")
    assert set(threading.enumerate()) - before == set()


def test_an_exception_closes_the_sinks_and_tells_them_why() -> None:
    memory = hl.sinks.Memory()

    def fails(run: hl.Run) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        long_fit(hl.on("epoch_end")(fails), sinks=[memory])
    last = memory.records[-1]
    assert isinstance(last, EventRow)
    assert (last.name, last.text) == ("exception", "ValueError: no more")


def test_a_sink_that_hangs_since_the_last_fit_is_left_out_of_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old thread may still write: two at a time would be more than a sink expects."""
    set_sink_wait(monkeypatch, 0.1)
    until, model = threading.Event(), TinyModel()
    trainer = Trainer(max_duration="1ep", folder=False, sinks=[Sleeps(until), hl.sinks.Memory()])
    fit(trainer=trainer, model=model)
    result = fit(trainer=trainer, model=model, extend="1ep")
    assert [report.sink for report in result.sinks] == ["Memory"]
    assert "left out, because they hang since the last fit: Sleeps" in caplog.text
    until.set()


@pytest.mark.parametrize("sink", [hl.sinks.CSV(), hl.sinks.TensorBoard()], ids=["CSV", "TensorBoard"])
def test_a_sink_without_a_place_to_write_to_is_refused_before_anything_runs(sink: Any) -> None:
    with pytest.raises(ArgumentError, match="Give the sink an absolute path"):
        Trainer(max_duration="1ep", folder=False, sinks=[sink])
