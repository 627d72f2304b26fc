"""What is written is what MLflow's own client finds, in a local folder and at a tracking server."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

import pytest

from hookline.callbacks import Checkpointer
from hookline.errors import SetupError
from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow, from_json
from hookline.records.run_file import RunFile
from hookline.sinks.mlflow import MLflow
from hookline.sinks.pump import Pump
from hookline.sinks.sink import RunInfo
from hookline.testing import run_script, tiny_data
from tests.support import crash_at, fit, set_sink_wait, wait_until

pytest.importorskip("mlflow")

# MLflow's models still use a way of loading that a newer SQLAlchemy calls old.
pytestmark = pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")

STARTED = datetime(2030, 1, 1, tzinfo=UTC)
HANG = 200.0
"""Seconds after which something hangs."""
SERVER = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "OMP_NUM_THREADS": "1"}
"""Nothing that is not needed here: it starts sooner."""


def info(folder: Path | None = None, *, step: int = 0, run_id: str | None = None, **more: Any) -> RunInfo:
    given: dict[str, Any] = {"config": {}, "started": STARTED, **more}
    return RunInfo("digits", "first", run_id or uuid4().hex, folder, step=step, earlier=lambda: iter(()), **given)


def losses(*steps: int) -> list[Record]:
    return [MetricRow("train/loss", step, 1, 1 / step, "step", float(step)) for step in steps]


def png(width: int, height: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = BytesIO()
    image.new("RGB", (width, height), (10, 20, 30)).save(file, "PNG")
    return file.getvalue()


def client(store: Path | str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(store if isinstance(store, str) else f"sqlite:///{store / 'mlflow.db'}")


def find(store: Path | str, run_id: str) -> Any:
    """The one run of MLflow that has this id of ours."""
    reader = client(store)
    everywhere = [experiment.experiment_id for experiment in reader.search_experiments()]
    (run,) = reader.search_runs(everywhere, f"tags.`hookline.run_id` = '{run_id}'")
    return run


def history(store: Path | str, run: Any, key: str = "train/loss") -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client(store).get_metric_history(run.info.run_id, key)]


def artifact(store: Path | str, run: Any, place: str, to: Path) -> bytes:
    return Path(client(store).download_artifacts(run.info.run_id, place, str(to))).read_bytes()


def write(sink: MLflow, about: RunInfo, *batches: Sequence[Record]) -> None:
    sink.start(about)
    for batch in batches:
        sink.write(batch)
        sink.flush()
    sink.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: MLflow takes seconds to make a database."""
    return tmp_path_factory.mktemp("mlflow") / "store"


class Server:
    """A tracking server that can be ended and started again where it was."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        places = ["--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}"]
        places += ["--artifacts-destination", str(self._folder / "artifacts")]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *address, *places],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **SERVER},
                start_new_session=True,
            )
        wait_until(self._is_up, "the start of the server")

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log.txt").read_text()
        try:
            with urlopen(f"{self.uri}/health", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        """With its workers, which are in its process group."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hold_port: Callable[[], int]) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"), hold_port())
    found.start()
    yield found
    found.stop()


def test_every_kind_of_row_is_read_back_from_a_local_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember")
    about = info(tmp_path, config={"lr": 0.1, "model": {"depth": 2, "sizes": [8, 4], "name": "", "norm": None}})
    rows: list[Record] = [
        EventRow("start", 0, 0, 0.0),
        *losses(10, 20),
        MetricRow("val/loss", 20, 1, math.nan, "eval", 2.5),
        MetricRow("val/loss", 30, 1, math.inf, "eval", 2.5),
        MetricRow("val/loss", 40, 1, -math.inf, "eval", 2.5),
        MetricRow("val/confusion", 20, 1, [[3, 1], [0.0, math.nan]], "eval", 2.5),
        ImageRow("val/digits", 20, 1, 2.5, 4, 3, "four", "", png(4, 3)),
        TextRow("val/sample", 20, 1, 2.5, "to be, or näht"),
        TableRow("val/wrong", 20, 1, 2.5, ("file", "score"), (("a.png", 0.5), ("b.png", math.nan), ("c.png", None))),
        HistogramRow("weights/w", 20, 1, 2.5, (0.0, 0.5, 1.0), (3, 4), 1),
        FileRow("notes", 20, 1, 2.5, "notes.txt", 8),
        EventRow("stop", 20, 1, 3.0, "val/loss is nan"),
        EventRow("end", 20, 1, 3.0),
    ]

    write(MLflow(store, experiment="kinds", tags={"team": "vision"}), about, rows)

    run = find(store, about.run_id)
    assert client(store).get_experiment(run.info.experiment_id).name == "kinds"
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    params = {"lr": "0.1", "model.depth": "2", "model.sizes": "[8, 4]", "model.name": "", "model.norm": "None"}
    assert run.data.params == params
    tags = {key: text for key, text in run.data.tags.items() if key in ("team", "hookline.event.stop")}
    assert tags == {"team": "vision", "hookline.event.stop": "step 20: val/loss is nan"}

    assert history(store, run) == [(10, 0.1), (20, 0.05)]
    first, *_ = client(store).get_metric_history(run.info.run_id, "train/loss")
    assert first.timestamp == STARTED.timestamp() * 1000 + 10_000
    odd = [value for _, value in history(store, run, "val/loss")]
    assert [math.isnan(odd[0]), odd[1] > 1e300, odd[2] < -1e300] == [True, True, True]

    read = {place: artifact(store, run, place, tmp_path).decode() for place in (
        "arrays/val/confusion/00000020.json", "histograms/weights/w/00000020.json", "texts/val/sample/00000020.txt",
        "files/notes/notes.txt",
    )}  # fmt: skip
    array, histogram, text, file = read.values()
    assert (text, file) == ("to be, or näht", "remember")
    assert from_json(histogram) == rows[10]
    confusion = from_json(array)
    assert isinstance(confusion, MetricRow)
    assert str(confusion.value) == "[[3, 1], [0.0, nan]]"
    pictures = [found.path for found in client(store).list_artifacts(run.info.run_id, "images")]
    (picture,) = (name for name in pictures if name.endswith(".png"))
    assert picture.startswith("images/val~digits+step+20+")


@pytest.fixture
def chosen(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The store as the one that the user chose for the whole process; MLflow puts artifacts where it is."""
    import mlflow

    monkeypatch.chdir(store.parent)
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{store / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    yield uri
    mlflow.set_tracking_uri(before)


@pytest.mark.usefixtures("chosen")  # load_table looks nowhere else
def test_a_table_is_one_to_mlflow_too(store: Path) -> None:
    pytest.importorskip("pandas")
    about = info()
    table = TableRow("val/wrong", 7, 1, 0.0, ("file", "score"), (("a", 0.5), ("b", math.nan), ("c", math.inf)))
    sink = MLflow(store, experiment="tables")

    write(sink, about, [table])
    write(sink, replace(about, step=5), [table])  # after a resume it is written again, and not added to

    run = find(store, about.run_id)
    found = client(store).load_table(run.info.experiment_id, "tables/val/wrong/00000007.json")
    assert found["file"].tolist() == ["a", "b", "c"]
    assert str(found["score"].tolist()) in ("[0.5, nan, 'inf']", "[0.5, nan, inf]", "[0.5, None, 'inf']")


def test_names_that_mlflow_does_not_take_are_changed_and_kept_in_a_tag(store: Path) -> None:
    names = ["val/recall@10", "val/recall#10", "a/../b//c", "/", "größe/µ", "x" * 400, "..", "per:class"]
    about = info(config={"odd key?": {"β@1": 1}})
    rows = [MetricRow(name, 1, 1, float(number), "eval", 0.0) for number, name in enumerate(names)]
    sink = MLflow(store)

    write(sink, about, rows)
    again = [replace(row, step=2) for row in reversed(rows)]  # the names must not depend on who comes first
    write(sink, replace(about, step=1), again)

    run = find(store, about.run_id)
    prefix = "hookline.name."
    kept = {key.removeprefix(prefix): name for key, name in run.data.tags.items() if key.startswith(prefix)}
    values = {kept.get(key, key): [value for _, value in history(store, run, key)] for key in run.data.metrics}
    assert values == {name: [float(number)] * 2 for number, name in enumerate(names)}
    assert run.data.params == {"odd key-.β-1": "1"}
    assert run.data.tags["hookline.param.odd key-.β-1"] == "odd key?.β@1"


def test_long_and_many_settings_are_shortened_and_split_and_no_error(store: Path) -> None:
    about = info(config={"prompt": "ab" * 9000, **{f"p{number}": number for number in range(250)}})

    write(MLflow(store), about, [EventRow("stop", 1, 1, 0.0, "because " * 5000)])

    run = find(store, about.run_id)
    assert len(run.data.params) == 251
    assert run.data.params["prompt"].endswith("… (18,000 characters in all)")
    assert run.data.tags["hookline.event.stop"].startswith("step 1: because because")


def test_more_rows_than_one_call_takes(store: Path) -> None:
    about = info()

    write(MLflow(store), about, losses(*range(1, 2502)))

    assert len(history(store, find(store, about.run_id))) == 2501


def test_a_resumed_run_is_the_same_and_has_each_step_once(store: Path) -> None:
    about = info(config={"lr": 0.1, "depth": 2})
    picture = [ImageRow("val/x", step, 1, 0.0, 2, 2, "", "", png(2, 2)) for step in (20, 30)]
    killed = MLflow(store)
    killed.start(about)
    killed.write([*losses(10, 20, 30), *picture])  # and no close

    resumed = MLflow(store)
    later = STARTED + timedelta(days=1)
    resumed.start(replace(about, step=20, started=later, config={"lr": 0.2, "depth": 2, "new": 1}))
    assert find(store, about.run_id).info.status == "RUNNING"
    resumed.write([EventRow("resume", 20, 1, 20.0)])
    resumed.write([*losses(30, 40), picture[1], MetricRow("val/loss", 40, 1, 0.5, "eval", 41.0)])
    resumed.write([EventRow("end", 40, 1, 9.0)])
    resumed.close()

    run = find(store, about.run_id)
    assert Counter(step for step, _ in history(store, run)) == {10: 1, 20: 1, 30: 1, 40: 1}
    (metric,) = client(store).get_metric_history(run.info.run_id, "val/loss")
    assert metric.timestamp == (later.timestamp() + 21) * 1000  # when it was, and not a day of training later
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "depth": "2", "new": "1"}
    assert {key: text for key, text in run.data.tags.items() if "now" in key} == {"hookline.now.lr": "0.2"}
    files = [found.path for found in client(store).list_artifacts(run.info.run_id, "images")]
    assert len([name for name in files if name.endswith(".png")]) == 2


def test_a_batch_that_is_tried_again_is_there_once(store: Path) -> None:
    about = info()
    sink = MLflow(store)
    sink.start(about)
    batch = [*losses(1, 2), ImageRow("val/x", 2, 1, 0.0, 2, 2, "", "", b"no picture")]

    for _ in range(2):
        with pytest.raises(OSError, match="cannot identify image"):
            sink.write(batch)
    whole = [*batch[:2], ImageRow("val/x", 2, 1, 0.0, 2, 2, "", "", png(2, 2))]
    sink.write(whole)
    sink.write(whole)
    sink.close()

    run = find(store, about.run_id)
    assert history(store, run) == [(1, 1.0), (2, 0.5)]
    assert len(client(store).list_artifacts(run.info.run_id, "images")) == 2  # the picture, and a small one


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (["start", "end"], "FINISHED"),
        (["start", "exception"], "FAILED"),
        (["start", "preempt"], "KILLED"),
        (["start", "interrupt", "stop", "end"], "KILLED"),
    ],
)
def test_how_a_run_ended_is_its_status(store: Path, events: list[str], status: str) -> None:
    about = info()

    write(MLflow(store), about, [EventRow(name, 3, 1, 1.0) for name in events])

    assert find(store, about.run_id).info.status == status


def test_a_run_that_the_user_has_open_is_left_alone(store: Path, chosen: str) -> None:
    import mlflow

    with mlflow.start_run() as mine:
        write(MLflow(store), info(), losses(1))
        mlflow.log_metric("mine", 1.0)
        assert mlflow.active_run().info.run_id == mine.info.run_id

    assert mlflow.get_tracking_uri() == chosen
    assert client(store).get_run(mine.info.run_id).data.metrics == {"mine": 1.0}


@pytest.mark.usefixtures("chosen")
def test_without_an_address_it_goes_where_mlflow_puts_its_runs(store: Path) -> None:
    about = info()

    write(MLflow(), about, losses(1))

    assert find(store, about.run_id).data.metrics == {"train/loss": 1.0}


def test_a_file_that_is_gone_costs_no_row(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    about = info(tmp_path)

    write(MLflow(store), about, [FileRow("weights", 1, 1, 0.0, "gone.bin", 9), *losses(1)])

    assert "does not get the file weights" in caplog.text
    assert history(store, find(store, about.run_id)) == [(1, 1.0)]


@pytest.mark.parametrize("size", [(1000, 3), (3, 1000), (512, 2), (513, 2), (257, 1), (1, 1)])
def test_a_slender_picture_costs_no_row(size: tuple[int, int], store: Path, tmp_path: Path) -> None:
    """Such as a vector of weights as one line of pixels: MLflow cannot make its small copy of it."""
    about, picture = info(), ImageRow("w/first", 1, 1, 1.0, *size, png=png(*size))
    write(MLflow(store), about, [picture, *losses(1), picture])
    run = find(store, about.run_id)
    assert history(store, run) == [(1, 1.0)]
    if max(size) > 256 * min(size):
        assert artifact(store, run, "images/w/first/00000001.png", tmp_path) == png(*size)
    else:
        (file,) = [file.path for file in client(store).list_artifacts(run.info.run_id, "images") if "png" in file.path]
        assert file.startswith("images/w~first+step+1+")


def test_what_mlflow_does_not_take_costs_no_number_and_no_other_artifact(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about, sink = info(), MLflow(store)
    sink.start(about)
    from mlflow.tracking import MlflowClient

    calls, log_batch = [], MlflowClient.log_batch

    def counted(self: Any, run: str, **given: Any) -> Any:
        calls.append(len(given.get("metrics", ())))
        return log_batch(self, run, **given)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    text = TextRow("after/it", 1, 1, 1.0, "whole")
    rows = [ImageRow("broken", 1, 1, 1.0, 3, 3, png=b"no picture"), *losses(1), text]
    for _ in range(3):  # as often as it is tried again
        with pytest.raises(OSError, match="cannot identify"):
            sink.write(rows)
    sink.close()
    run = find(store, about.run_id)
    assert history(store, run) == [(1, 1.0)]
    assert sum(calls) == 1, "a store of files would have it three times"
    assert artifact(store, run, "texts/after/it/00000001.txt", tmp_path) == b"whole"


def test_a_run_that_fails_and_is_resumed_has_each_metric_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sink_wait(monkeypatch, HANG)

    def train(*callbacks: object) -> Any:
        sinks = [MLflow(store, experiment="trained")]
        given: dict[str, Any] = {"max_duration": "3ep", "log_every": "1st", "resume": "auto"}
        return fit(Checkpointer(every="2st"), *callbacks, val=tiny_data(), sinks=sinks, folder=tmp_path, **given)

    with pytest.raises(RuntimeError, match="planted"):
        train(crash_at(7))
    result = train()

    run = find(store, RunFile.read(tmp_path).run_id)
    assert run.info.status == "FINISHED"
    for name in ("train/loss", "train/loss_epoch", "val/loss"):
        logged = zip(result.history.steps(name), result.history[name], strict=True)
        assert history(store, run, name) == list(logged)


def test_a_tracking_server_gets_it_all(server: Server, tmp_path: Path) -> None:
    about = info(config={"lr": 0.1})
    rows = [
        *losses(1, 2),
        MetricRow("val/loss", 2, 1, math.nan, "eval", 1.0),
        TextRow("val/sample", 2, 1, 1.0, "hello"),
    ]

    write(MLflow(server.uri, run_name="other"), about, rows, [EventRow("end", 2, 1, 2.0)])

    run = find(server.uri, about.run_id)
    assert (run.info.run_name, run.info.status, run.data.params) == ("other", "FINISHED", {"lr": "0.1"})
    assert history(server.uri, run) == [(1, 1.0), (2, 0.5)]
    assert math.isnan(run.data.metrics["val/loss"])
    assert artifact(server.uri, run, "texts/val/sample/00000002.txt", tmp_path) == b"hello"


def test_a_server_that_goes_away_and_comes_back_costs_only_the_rows_between(server: Server) -> None:
    about = info()
    pump = Pump("MLflow", MLflow(server.uri), pauses=(0.01,))
    pump.start(about)
    pump.put(losses(1))
    wait_until(lambda: pump.report().written == 1, "the first row")

    server.stop()
    pump.put(losses(2, 3))
    wait_until(lambda: pump.report().dropped == 2, "the loss of two rows")
    server.start()
    pump.put([*losses(4), EventRow("end", 4, 1, 4.0)])
    report = pump.close(HANG)

    assert (report.written, report.dropped, report.hung) == (3, 2, False)
    assert "no MLflow server answers at 127.0.0.1" in report.error
    run = find(server.uri, about.run_id)
    assert [step for step, _ in history(server.uri, run)] == [1, 4]
    assert run.info.status == "FINISHED"


def test_without_a_server_the_end_of_a_run_does_not_wait_for_minutes() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and no listen: refused
        pump = Pump("MLflow", MLflow(f"http://me:secret@127.0.0.1:{nobody.getsockname()[1]}"), pauses=(0.01,))
        pump.start(info())
        pump.put(losses(1, 2))
        report = pump.close(HANG)  # MLflow alone would try seven times, with pauses of up to two minutes

    assert (report.dropped, report.hung) == (2, False)
    assert "secret" not in report.error


def test_a_server_that_accepts_and_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.sinks.mlflow.REACHED_WITHIN", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ConnectionError, match="timed out"):
            MLflow(f"http://127.0.0.1:{silent.getsockname()[1]}").start(info())


def test_nothing_is_sent_to_anybody_and_the_environment_stays(tmp_path: Path) -> None:
    """In a process of its own: MLflow reports nothing from a test, but from a user's run it would."""
    told = ("PYTEST_CURRENT_TEST", "CI", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")
    done = run_script(
        f"""
        import os, sys, threading
        for name in {told!r}:
            os.environ.pop(name, None)
        before, asked = dict(os.environ), []
        def hear(event, args):
            if event in ("socket.connect", "socket.getaddrinfo"):
                asked.append(str(args))
        sys.addaudithook(hear)

        from datetime import UTC, datetime, timedelta
        from pathlib import Path
        from hookline.records import MetricRow
        from hookline.sinks.mlflow import MLflow
        from hookline.sinks.pump import Pump
        from hookline.sinks.sink import RunInfo

        pump = Pump("MLflow", MLflow(Path(sys.argv[1])))
        pump.start(RunInfo("p", "n", "a1", None, {{}}, datetime.now(UTC), 0, lambda: iter(())))
        pump.put([MetricRow("train/loss", 1, 1, 0.5, "step", 0.0)])
        report = pump.close({HANG})
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and "elemetry" in thread.name:
                thread.join()
        print(report, asked, [name for name in os.environ if os.environ[name] != before.get(name)])
        """,
        args=[tmp_path],
        timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "MLflow: 1 rows written [] []"


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[mlflow\]'"):
        MLflow()
