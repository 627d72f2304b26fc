"""What is written is what W&B's own reader finds, and nothing leaves the machine unless it should."""

from __future__ import annotations

import json
import math
import os
import pty
import select
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from hookline.errors import ArgumentError, SetupError
from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow
from hookline.sinks.sink import RunInfo
from hookline.sinks.wandb import WandB
from hookline.testing import run_script, start_script, tiny_data
from tests.support import fit, set_sink_wait

pytest.importorskip("wandb")

HANG = 200.0
"""Seconds after which something hangs."""
KEY = "a" * 40
"""Of the form of a W&B key, and of nobody."""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No settings or login of whoever runs the tests, no server but on this machine, and a new session each."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("home")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    yield
    wandb.teardown()


def info(folder: Path | None, *, step: int = 0, **more: Any) -> RunInfo:
    given: dict[str, Any] = {"config": {}, "started": datetime.now(UTC), **more}
    return RunInfo("digits", "first", "a1b2c3", folder, step=step, earlier=lambda: iter(()), **given)


def losses(*steps: int) -> list[Record]:
    return [MetricRow("train/loss", step, 1, 1 / step, "step", float(step)) for step in steps]


def png(width: int, height: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = BytesIO()
    image.new("RGB", (width, height), (10, 20, 30)).save(file, "PNG")
    return file.getvalue()


def write(sink: WandB, about: RunInfo, *batches: Sequence[Record]) -> None:
    sink.start(about)
    for batch in batches:
        sink.write(batch)
        sink.flush()
    sink.close()


def runs(folder: Path) -> list[Path]:
    """The folders of W&B, the oldest first."""
    return sorted((folder / "wandb").glob("offline-run-*"))


def read(run: Path) -> list[dict[str, Any]]:
    """The records of an offline run, as W&B itself reads them."""
    from wandb.util import get_core_path  # what `wandb leet inspect` calls

    (file,) = run.glob("run-*.wandb")
    command = [
        get_core_path(),
        "leet",
        "inspect",
        "--no-observability",
        "--json",
        "--run-file",
        str(file),
        str(run.parent),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG)
    return [json.loads(line) for line in done.stdout.splitlines()]


def history(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for record in records for key, value in record.get("summary", {}).get("update", {}).items()}


def test_every_kind_of_row_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "notes[1].txt").write_text("remember")
    rows: list[Record] = [
        EventRow("start", 0, 0, 0.0),
        *losses(10, 20),
        MetricRow("train/acc", 20, 1, math.nan, "step", 2.0),
        MetricRow("val/loss", 20, 1, math.inf, "eval", 2.0),
        MetricRow("val/confusion", 20, 1, [[3, 1], [0.5, math.nan]], "eval", 2.0),
        ImageRow("val/digits", 20, 1, 2.5, 4, 3, "four", "", png(4, 3)),
        TextRow("val/sample", 20, 1, 2.5, "<script>alert(1)</script>"),
        TableRow("val/wrong", 20, 1, 2.5, ("file", "score"), (("a.png", 0.5), ("b.png", None), (3, math.nan))),
        HistogramRow("weights/w", 20, 1, 2.5, (0.0, 0.5, 1.0), (3, 4), 1),
        FileRow("notes", 20, 1, 2.5, "notes[1].txt", 8),
        EventRow("stop", 20, 1, 3.0, "val/loss is inf"),
        EventRow("end", 20, 1, 3.0),
    ]

    write(WandB(tags=["baseline"]), info(tmp_path, config={"lr": 0.1, "model": {"depth": 2}}), rows)

    (run,) = runs(tmp_path)
    records = read(run)
    (about,) = (record["run"] for record in records if record["type"] == "run")
    assert (about["project"], about["display_name"], about["run_id"]) == ("digits", "first", "a1b2c3")
    assert about["tags"] == ["baseline"]
    config = {key: value for key, value in about["config"]["update"].items() if not key.startswith("_")}
    assert config == {"lr": 0.1, "model": {"depth": 2}}

    first, second = history(records)
    assert first == {"train/loss": 0.1, "step": 10, "epoch": 1}
    assert (second["train/loss"], second["train/acc"], second["val/loss"]) == (0.05, "NaN", "Infinity")
    assert second["val/confusion"] == [[3, 1], [0.5, "NaN"]]
    assert (second["weights/w.bins"], second["weights/w.values"]) == ([0, 0.5, 1], [3, 4])
    assert (second["val/digits.width"], second["val/digits.caption"]) == (4, "four")
    assert (run / "files" / second["val/digits.path"]).read_bytes() == png(4, 3)
    assert (run / "files" / second["val/sample.path"]).read_text() == "<pre>&lt;script&gt;alert(1)&lt;/script&gt;</pre>"
    table = json.loads((run / "files" / second["val/wrong.path"]).read_text())
    assert (table["columns"], table["data"][:2]) == (["file", "score"], [["a.png", 0.5], ["b.png", None]])
    assert (run / "files" / "files" / "notes" / "notes[1].txt").read_text() == "remember"

    axes = [record["metric"] for record in records if record["type"] == "metric"]
    assert {"glob_name": "*", "step_metric": "step"}.items() <= axes[-1].items()
    assert summary(records)["events/stop"] == "step 20: val/loss is inf"
    assert records[-1]["exit"].get("exit_code", 0) == 0


def test_what_a_trainer_logs_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sink_wait(monkeypatch, HANG)

    result = fit(val=tiny_data(), sinks=[WandB()], folder=tmp_path, log_every="1st", config={"lr": 0.1})

    rows = history(read(*runs(tmp_path)))
    for name in ("train/loss", "train/loss_epoch", "val/loss"):
        logged = zip(result.history.steps(name), result.history[name], strict=True)
        assert [(row["step"], row[name]) for row in rows if name in row] == list(logged)


def test_nothing_that_may_hold_a_secret_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", "hunter2"])

    write(WandB(), info(tmp_path), losses(1))

    (run,) = runs(tmp_path)
    assert "stats" not in {record["type"] for record in read(run)}
    files = [path for path in run.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert not list((run / "files").rglob("wandb-metadata.json"))


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember")
    name = "../../../../elsewhere/x"
    before = set(tmp_path.rglob("*"))

    rows = [
        TextRow(name, 1, 1, 0.0, "hello"),
        FileRow(name, 1, 1, 0.0, "notes.txt", 8),
        TextRow("日" * 400, 1, 1, 0.0, ""),
    ]
    write(WandB(), info(tmp_path), rows)

    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before} == {"wandb"}
    records = read(*runs(tmp_path))
    row, *_ = history(records)
    assert row["--/--/--/--/elsewhere/x._type"] == "html-file"
    assert summary(records)["names/--/--/--/--/elsewhere/x"] == name


def test_a_histogram_with_more_bins_than_wandb_takes_loses_none_of_its_values(tmp_path: Path) -> None:
    edges = tuple(float(number) for number in range(1201))

    write(WandB(), info(tmp_path), [HistogramRow("w", 1, 1, 0.0, edges, (2,) * 1200)])

    (row,) = history(read(*runs(tmp_path)))
    assert (sum(row["w.values"]), row["w.bins"][0], row["w.bins"][-1]) == (2400, 0, 1200)
    assert len(row["w.bins"]) == len(row["w.values"]) + 1 <= 513


def test_a_batch_that_is_tried_again_is_there_once(tmp_path: Path) -> None:
    lost = ImageRow("val/x", 2, 1, 0.0, 2, 2, "", "media/gone.png")
    batch = [*losses(1), lost, *losses(3)]
    sink = WandB()
    sink.start(info(tmp_path))

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            sink.write(batch)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "gone.png").write_bytes(png(2, 2))
    sink.write(batch)
    sink.close()

    assert [row["step"] for row in history(read(*runs(tmp_path)))] == [1, 2, 3]


def test_a_file_that_is_gone_costs_no_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(WandB(), info(tmp_path), [FileRow("weights", 1, 1, 0.0, "gone.bin", 9), *losses(1)])

    assert "does not get the file weights" in caplog.text
    assert len(history(read(*runs(tmp_path)))) == 1


@pytest.mark.parametrize(
    ("events", "code"),
    [(["start", "exception"], 1), (["start", "preempt"], 143), (["start", "interrupt", "stop", "end"], 255)],
)
def test_how_a_run_ended_is_its_exit_code(tmp_path: Path, events: list[str], code: int) -> None:
    sink = WandB()
    write(sink, info(tmp_path), [EventRow(name, 3, 1, 1.0) for name in events])
    write(sink, info(tmp_path, step=3), [EventRow("resume", 3, 1, 1.0), EventRow("end", 9, 1, 2.0)])

    assert [read(run)[-1]["exit"].get("exit_code", 0) for run in runs(tmp_path)] == [code, 0]


def test_where_it_lies_and_what_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "from the environment")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "c"))
    cases = {
        "a": WandB("mine", folder=tmp_path / "a"),
        "b": WandB(folder=tmp_path / "b", settings={"run_group": "g"}),
        "c": WandB(),
    }

    for sink in cases.values():
        write(sink, info(tmp_path), losses(1))

    found = {place: read(*runs(tmp_path / place))[1]["run"] for place in cases}
    assert [found[place]["project"] for place in cases] == ["mine", "from the environment", "from the environment"]
    assert found["b"]["run_group"] == "g"


def test_wandb_mode_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")

    write(WandB(), info(tmp_path), losses(1), [EventRow("end", 1, 1, 0.0)])

    assert not list(tmp_path.iterdir())


def test_a_run_that_the_user_has_open_is_left_alone(tmp_path: Path) -> None:
    import wandb

    mine = wandb.init(mode="offline", dir=tmp_path / "mine", id="mine", settings=wandb.Settings(silent=True))
    try:
        write(WandB(), info(tmp_path), losses(1))
        assert wandb.run is mine
        mine.log({"x": 1.0})
    finally:
        mine.finish()
        wandb.teardown()

    assert history(read(*runs(tmp_path / "mine"))) == [{"x": 1}]
    assert [row["step"] for row in history(read(*runs(tmp_path)))] == [1]


def test_two_sinks_of_one_process_do_not_end_each_other(tmp_path: Path) -> None:
    one, two = WandB(folder=tmp_path / "one"), WandB(folder=tmp_path / "two")
    one.start(info(None))
    two.start(replace(info(None), run_id="other"))
    one.write(losses(1))
    one.close()
    two.write(losses(1, 2))
    two.close()

    assert [len(history(read(*runs(tmp_path / name)))) for name in ("one", "two")] == [1, 2]


# -- resumed, and sent ----------------------------------------------------------------------------


class FakeServer(ThreadingHTTPServer):
    """So much of W&B's server that ``wandb sync`` and an online run can talk to it; it keeps the history."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.history: dict[int, dict[str, Any]] = {}
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: Any) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            lines = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for number, line in enumerate(lines["content"]):
                self.history[lines["offset"] + number] = json.loads(line)
            return {}
        project = {"id": "1", "name": "digits", "entity": {"id": "1", "name": "me"}}
        bucket = {
            "id": "1",
            "name": "a1b2c3",
            "displayName": "first",
            "config": "{}",
            "historyLineCount": len(self.history),
        }
        match body.get("operationName"):
            case "UpsertBucket":
                bucket |= {"project": project, "sweepName": None, "description": ""}
                return {"upsertBucket": {"bucket": bucket, "inserted": not self.history}}
            case "RunResumeStatus" if self.history:
                last = [json.dumps(self.history[max(self.history)])]
                bucket |= {"summaryMetrics": "{}", "logLineCount": 0, "eventsLineCount": 0, "tags": [], "notes": ""}
                bucket |= {"historyTail": json.dumps(last), "eventsTail": "[]", "wandbConfig": '{"t": 1}'}
                return {"model": {**project, "bucket": bucket}}
            case "RunResumeStatus":
                return {"model": None}
            case "CreateRunFiles":
                return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        return {}


class _Answers(BaseHTTPRequestHandler):
    server: FakeServer

    def do_POST(self) -> None:  # the only method that is used
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        found = self.server.answer(self.path, json.loads(body or b"{}"))
        answer = json.dumps({"data": found}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing: the test says what is wrong."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    found = FakeServer()
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def test_a_resumed_offline_run_becomes_one_run_when_it_is_sent(tmp_path: Path, server: FakeServer) -> None:
    sink = WandB()
    write(sink, info(tmp_path), losses(10, 20), [EventRow("preempt", 20, 1, 1.0)])
    write(sink, info(tmp_path, step=20), losses(30, 40), [EventRow("end", 40, 1, 2.0)])

    first, second = runs(tmp_path)
    abouts = [next(record["run"] for record in read(run) if record["type"] == "run") for run in (first, second)]
    assert [(about["run_id"], about["resume"]) for about in abouts] == [("a1b2c3", True)] * 2
    where = {"WANDB_BASE_URL": server.uri, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}
    for run in (first, second):
        command = [sys.executable, "-m", "wandb", "sync", str(run)]
        env = {**os.environ, **where}
        subprocess.run(command, check=True, capture_output=True, timeout=HANG, cwd=tmp_path, env=env)

    rows = [server.history[line] for line in sorted(server.history)]
    assert [(row["step"], row["train/loss"]) for row in rows] == [(10, 0.1), (20, 0.05), (30, 1 / 30), (40, 0.025)]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3]


PUMP = """
    import sys, time
    from datetime import UTC, datetime
    from pathlib import Path
    from hookline.records import EventRow, MetricRow
    from hookline.sinks.pump import Pump
    from hookline.sinks.sink import RunInfo
    from hookline.sinks.wandb import WandB

    def losses(*steps):
        return [MetricRow("train/loss", step, 1, 1 / step, "step", 0.0) for step in steps]

    def info(step=0):
        return RunInfo("digits", "first", "a1b2c3", Path(sys.argv[1]), {}, datetime.now(UTC), step, lambda: iter(()))

    def start(mode=None, step=0):
        pump = Pump("WandB", WandB(mode=mode), pauses=(0.01,))
        pump.start(info(step))
        pump.put(losses(step + 1))
        return pump

    def wait_until(is_so):
        while not is_so():
            time.sleep(0.01)
"""


def test_when_the_process_of_wandb_dies_it_is_said_and_the_next_run_has_a_new_one(tmp_path: Path) -> None:
    done = run_script(
        PUMP
        + """
    import os, signal
    pump = start()
    wait_until(lambda: pump.report().written)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"--pid\\0{os.getpid()}\\0" in (process / "cmdline").read_text():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended meanwhile
    def is_noticed():
        pump.put(losses(2))  # the first ones may still be on their way
        return pump.report().dropped
    wait_until(is_noticed)
    print(pump.close(200.0).error)
    print(start(step=2).close(200.0))
    """,
        args=[tmp_path],
        timeout=HANG,
    )
    said = done.stdout.splitlines()
    assert (done.returncode, len(said), said[-1]) == (0, 2, "WandB: 1 rows written"), done
    assert "Connection" in said[0] or "Pipe" in said[0], said
    assert "Traceback" not in done.stderr
    assert [row["step"] for row in history(read(runs(tmp_path)[-1]))] == [3]


def test_an_online_run_is_resumed_by_its_id(
    tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", server.uri)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    sink = WandB(mode="online")

    write(sink, info(tmp_path), losses(10, 20))
    write(sink, info(tmp_path, step=20), losses(30))

    assert Counter(row["step"] for row in server.history.values()) == {10: 1, 20: 1, 30: 1}


def test_a_server_that_goes_away_neither_stops_the_run_nor_its_end(tmp_path: Path, server: FakeServer) -> None:
    """In a process of its own, which must come to its end; what was not sent is on disk."""
    env = {"WANDB_BASE_URL": server.uri, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}
    source = (
        PUMP
        + """
    pump = start("online")
    wait_until(lambda: pump.report().written)
    print("ready", flush=True)
    input()
    pump.put(losses(2, 3))
    wait_until(lambda: pump.report().written == 3)
    report = pump.close(2.0)
    print(report.dropped, report.hung)
    """
    )
    with start_script(source, args=[tmp_path], env=env) as script:
        script.wait_for("ready", HANG)
        server.shutdown()
        server.server_close()
        assert script.process.stdin is not None
        script.process.stdin.write(b"\n")
        script.process.stdin.flush()
        done = script.finish(HANG)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["0", "True"]  # every row was taken; the sending was left
    (run,) = (tmp_path / "wandb").glob("run-*")
    assert [row["step"] for row in history(read(run))] == [1, 2, 3]


def test_online_without_a_login_fails_at_once_and_asks_nothing(tmp_path: Path) -> None:
    """In a terminal, where W&B would ask for a key and wait."""
    source = (
        PUMP
        + """
    print("REPORT", start("online").close(100.0))
    """
    )
    script = tmp_path / "script.py"
    script.write_text("\n".join(line.removeprefix("    ") for line in source.splitlines()))
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said = b""
    try:
        while select.select([ours], [], [], HANG)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # it has ended
                break
        process.wait(HANG)
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    text = said.decode()
    assert "No API key configured" in text.partition("REPORT")[2], text
    assert "(1)" not in text, text  # of its menu


def test_offline_nothing_is_sent_and_nothing_stays_behind(tmp_path: Path) -> None:
    """Whatever W&B's processes would send goes to a proxy that only counts. Workers are forked meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.0)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL")
        done = run_script(
            """
            import os, signal, sys, threading
            asked = []
            def hear(event, args):
                if event == "socket.getaddrinfo" or (event == "socket.connect" and not isinstance(args[1], str)):
                    asked.append(str(args))
            sys.addaudithook(hear)

            from contextlib import suppress
            from datetime import UTC, datetime
            from pathlib import Path
            import torch
            from torch.utils.data import DataLoader, TensorDataset
            from hookline.records import EventRow, MetricRow
            from hookline.sinks.pump import Pump
            from hookline.sinks.sink import RunInfo
            from hookline.sinks.wandb import WandB

            handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH)]
            def traces():
                now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH)]
                return now == handlers, sys.exit, sys.excepthook, sys.stdout, sys.stderr
            before, environment, threads = traces(), dict(os.environ), set(threading.enumerate())

            pump = Pump("WandB", WandB())
            pump.start(RunInfo("p", "n", "a1", Path(sys.argv[1]), {}, datetime.now(UTC), 0, lambda: iter(())))
            pump.put([MetricRow("train/loss", 1, 1, 0.5, "step", 0.0)])
            while not pump.report().written:
                pass
            services = set()
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended meanwhile
                    if "wandb" in (process / "comm").read_text() and (
                            f"--pid\\0{os.getpid()}\\0" in (process / "cmdline").read_text()):
                        services.add(process.name)
            loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
            seen = sum(len(batch[0]) for batch in loader)
            pump.put([MetricRow("train/loss", 2, 1, 0.5, "step", 0.0), EventRow("end", 2, 1, 0.0)])
            report = pump.close(200.0)
            gone = not any(Path("/proc", service).exists() for service in services)
            print(report, len(services), gone, seen, traces() == before, dict(os.environ) == environment,
                  set(threading.enumerate()) == threads, asked)
            """,
            args=[tmp_path],
            env=dict.fromkeys(names, address),
            timeout=HANG,
        )  # fmt: skip
        with pytest.raises(BlockingIOError):
            proxy.accept()

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["WandB: 3 rows written 1 True 8 True True True []"]
    assert done.stderr == ""
    assert [row["step"] for row in history(read(*runs(tmp_path)))] == [1, 2]


# -- mistakes -------------------------------------------------------------------------------------


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[wandb\]'"):
        WandB()


@pytest.mark.parametrize(
    ("given", "hint"),
    [({"mode": "on"}, "must be 'offline', 'online'"), ({"tags": "baseline"}, "must be a list of strings")],
)
def test_wrong_arguments_are_refused_at_once(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ArgumentError, match=hint):
        WandB(**given)
