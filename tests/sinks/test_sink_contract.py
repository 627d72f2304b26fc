"""What every sink can do: any record, any name, one run after the other, and each (name, step) once after a resume.

A sink joins by a line in ``SINKS``. One that can be read back says how in ``READERS``.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hookline import sinks
from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
    from_json,
    to_json,
)
from hookline.sinks import RunInfo, Sink
from hookline.sinks.pump import Pump

GUARD = 200

# MLflow's models still use a way of loading that a newer SQLAlchemy calls old.
pytestmark = pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")

NASTY = [
    "größer",
    "日本語/損失",
    "👩‍🔬/acc",
    "عربي",
    "e\u0301 combining",
    "\u202eright to left",
    "zero\u200bwidth",
    'double "quotes"',
    "single 'quotes'",
    "back`ticks`",
    "comma, semicolon; pipe|",
    "back\\slash",
    "trailing space ",
    " leading space",
    "tab\there",
    "new\nline",
    "carriage\rreturn",
    "crlf\r\nboth",
    "nul\x00byte",
    "bell\x07",
    "\x1b[31mred\x1b[0m",
    "emoji 🏁 at last",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1:A9)",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "&amp;&lt;",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "%s%n%d",
    "../../etc/passwd",
    "/absolute/path",
    "C:\\windows",
    "a/b/c/d/e/f/g",
    "//double//slash//",
    ".",
    "x" * 5_000,
]


def png(width: int, height: int) -> bytes:
    """A black picture, as small as it can be."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + b"\0\0\0" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def metric(step: int, name: str = "train/loss", value: Any = 0.5, kind: Any = "step") -> MetricRow:
    return MetricRow(name, step, 0, value, kind, float(step))


def every_kind(folder: Path, step: int = 1) -> list[Record]:
    """One of each, and the values that break readers."""
    media = folder / "media"
    media.mkdir(parents=True, exist_ok=True)
    (media / "x.png").write_bytes(png(4, 3))
    (media / "notes.txt").write_text("notes")
    when = (step, 0, 0.5)
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, 5e-324, 1e-320]
    arrays: list[Any] = [[], [1.0, 2.0], [[1.0, math.nan], [math.inf, 4.0]], [[[0.5]]], [[], []]]
    return [
        EventRow("start", *when),
        *(metric(step, f"odd/{number}", value) for number, value in enumerate(odd)),
        *(metric(step, f"array/{number}", value, "eval") for number, value in enumerate(arrays)),
        metric(step, "train/loss_epoch", 0.25, "epoch"),
        ImageRow("val/picture", *when, 4, 3, "a caption\nof two lines", "media/x.png", png(4, 3)),
        ImageRow("val/read_back", *when, 4, 3, file="media/x.png"),
        TextRow("val/text", *when, "to be <b>or</b> not\n\x00 日本"),
        TextRow("val/empty", *when, ""),
        TableRow("val/table", *when, ("word", "n"), (("a|b", 1), ("nan", math.nan), (None, True), ("", -math.inf))),
        TableRow("val/nothing", *when, (), ()),
        HistogramRow("weights", *when, (-1.0, 0.0, 1.0), (3, 4), 2),
        HistogramRow("weights/none", *when, (0.0, 1.0), (0,), 7),
        HistogramRow("weights/no_bins", *when, (), (), 0),
        FileRow("notes", *when, "media/notes.txt", 5),
        EventRow("checkpoint", *when, "checkpoints/step-1", 0.25),
        EventRow("exception", *when, "ValueError: <b>\n日本"),
        EventRow("end", *when),
    ]


# -- the sinks -----------------------------------------------------------------------------------


class Mine:
    """A logger of a user."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((values, step))

    def log_record(self, record: Record) -> None:
        assert record.name


@dataclass(frozen=True)
class Entry:
    make: Callable[[Path], Sink]
    library: str = ""


SINKS: dict[str, Entry] = {
    "JSONL": Entry(lambda path: sinks.JSONL(path / "copy.jsonl")),
    "CSV": Entry(lambda path: sinks.CSV()),
    "CSV(path)": Entry(lambda path: sinks.CSV(path / "mine.csv")),
    "Console": Entry(lambda path: sinks.Console(io.StringIO())),
    "Memory": Entry(lambda path: sinks.Memory()),
    "LogObject": Entry(lambda path: sinks.LogObject(Mine())),
    "TensorBoard": Entry(lambda path: sinks.TensorBoard(), "tensorboard"),
    "WandB": Entry(lambda path: sinks.WandB(mode="offline", folder=path), "wandb"),
    "MLflow": Entry(lambda path: sinks.MLflow(path / "mlruns"), "mlflow"),
}
LOCAL = [name for name, entry in SINKS.items() if not entry.library]


def made(name: str, path: Path) -> Sink:
    entry = SINKS[name]
    if entry.library:
        pytest.importorskip(entry.library)
        try:
            return entry.make(path)
        except ModuleNotFoundError as error:
            pytest.skip(f"there is no sinks.{name}: {error}")
    return entry.make(path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run."""
    folder = tmp_path / "runs" / "digits" / "first"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def nobodys_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No settings or login of whoever runs the tests, and no server."""
    folder = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, tmp_path: Path, nobodys_home: None) -> Iterator[Sink]:
    found = made(request.param, tmp_path)
    yield found
    found.close()


Begin = Callable[..., RunInfo]


# -- what each of them does ----------------------------------------------------------------------


def test_it_is_a_sink(sink: Sink) -> None:
    assert isinstance(sink, Sink)


def test_closing_what_was_never_started_is_no_error(sink: Sink) -> None:
    sink.close()


def test_every_kind_of_record_is_taken_and_nothing_is_lost(sink: Sink, run: Path, begin: Begin) -> None:
    """Behind a pump, as in a run: NaN, infinities, arrays of any shape, empty tables."""
    pump = Pump("sink", sink, pauses=())
    records = every_kind(run)
    pump.start(begin(run))
    pump.put(records)
    report = pump.close(GUARD)
    assert report.is_well, str(report)
    assert report.written == len(records)


def test_forty_nasty_names_are_taken(sink: Sink, run: Path, begin: Begin) -> None:
    assert len(set(NASTY)) == 40
    pump = Pump("sink", sink, pauses=())
    pump.start(begin(run))
    for step in (1, 2):
        pump.put([metric(step, name) for name in NASTY])
        pump.put([TextRow(f"text/{name}", step, 0, 0.0, name) for name in NASTY])
    report = pump.close(GUARD)
    assert report.is_well, str(report)
    assert report.written == 160


@pytest.mark.parametrize("name", LOCAL)
def test_half_of_a_surrogate_pair_costs_no_row(name: str, tmp_path: Path, run: Path, begin: Begin) -> None:
    """A file's name on the disk of another system becomes one, and then stands in an error or an argument."""
    half = os.fsdecode(b"caf\xe9")
    when = (1, 0, 0.0)
    pump = Pump("sink", made(name, tmp_path), pauses=())
    pump.start(begin(run))
    pump.put([metric(1, half), TextRow(half, *when, half), EventRow("exception", *when, half)])
    pump.put([TableRow("a", *when, (half,), ((half,),)), ImageRow("a", *when, 1, 1, half, half), metric(2)])
    report = pump.close(GUARD)
    assert (report.written, report.is_well) == (6, True), str(report)


def test_one_object_serves_one_run_after_the_other(sink: Sink, run: Path, begin: Begin) -> None:
    for _ in range(2):
        sink.start(begin(run))
        sink.write(every_kind(run))
        sink.flush()
        sink.flush()
        sink.close()
        sink.close()


def test_an_empty_batch_is_nothing(sink: Sink, run: Path, begin: Begin) -> None:
    sink.start(begin(run))
    sink.write([])
    sink.write([metric(1)])
    sink.write([])
    sink.flush()
    sink.close()


def test_starting_again_after_a_failed_start_is_no_error(sink: Sink, run: Path, begin: Begin) -> None:
    """A pump that could not start a sink tries it again."""
    sink.start(begin(run))
    sink.start(begin(run))
    sink.write([metric(1)])
    sink.close()


def test_what_it_is_given_is_not_changed(sink: Sink, run: Path, begin: Begin) -> None:
    matrix = [[1.0, 2.0], [3.0, 4.0]]
    records = [metric(1, "a", matrix), metric(2)]
    before = [to_json(record) for record in records]
    sink.start(begin(run))
    sink.write(records)
    sink.close()
    assert [to_json(record) for record in records] == before


# -- what can be read back -----------------------------------------------------------------------


def read_jsonl(sink: Sink, run: Path) -> list[tuple[str, int, Any]]:
    assert isinstance(sink, sinks.JSONL)
    rows = [from_json(line) for line in sink.path.read_text().splitlines()]
    return [(row.name, row.step, row.value) for row in rows if isinstance(row, MetricRow)]


def read_csv(sink: Sink, run: Path) -> list[tuple[str, int, Any]]:
    assert isinstance(sink, sinks.CSV)
    with (sink.path or run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [(row["name"], int(row["step"]), _value(row["value"])) for row in rows]


def _value(cell: str) -> Any:
    return json.loads(cell) if cell.startswith("[") else float(cell)


def read_memory(sink: Sink, run: Path) -> list[tuple[str, int, Any]]:
    assert isinstance(sink, sinks.Memory)
    return [(row.name, row.step, row.value) for row in sink.records if isinstance(row, MetricRow)]


def read_tensorboard(sink: Sink, run: Path) -> list[tuple[str, int, Any]]:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    scalars = found.PluginTagToContent("scalars")
    return [
        (name, event.step, float(make_ndarray(event.tensor_proto))) for name in scalars for event in found.Tensors(name)
    ]


READERS: dict[str, Callable[[Sink, Path], list[tuple[str, int, Any]]]] = {
    "JSONL": read_jsonl,
    "CSV": read_csv,
    "CSV(path)": read_csv,
    "Memory": read_memory,
    "TensorBoard": read_tensorboard,
}


def loss(first: int, last: int) -> list[MetricRow]:
    return [metric(step, name, step / 4) for step in range(first, last) for name in ("train/loss", "val/acc")]


@pytest.mark.parametrize("name", READERS)
def test_what_was_written_can_be_read_back_once_and_in_order(
    name: str, tmp_path: Path, run: Path, begin: Begin
) -> None:
    sink = made(name, tmp_path)
    sink.start(begin(run))
    for step in range(1, 6):
        sink.write(loss(step, step + 1))
    sink.close()
    found = READERS[name](sink, run)
    assert sorted(found) == sorted((row.name, row.step, row.value) for row in loss(1, 6))
    for metric_name in ("train/loss", "val/acc"):
        assert [step for named, step, _ in found if named == metric_name] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("again", ["same object", "new object"])
@pytest.mark.parametrize("name", READERS)
def test_after_a_resume_each_name_and_step_is_there_once(
    name: str, again: str, tmp_path: Path, run: Path, begin: Begin
) -> None:
    """The first process wrote until step 8 and was killed; the checkpoint was at 5; row 3 had been dropped."""
    sink = made(name, tmp_path)
    sink.start(begin(run))
    sink.write([*loss(1, 3), *loss(4, 9)])
    sink.flush()
    sink.close()
    if again == "new object" and name != "Memory":
        sink = made(name, tmp_path)
    sink.start(begin(run, step=5, earlier=loss(1, 6)))
    sink.write(loss(6, 8))
    sink.close()
    found = READERS[name](sink, run)
    assert max(Counter((named, step) for named, step, _ in found).values()) == 1
    assert {(named, step) for named, step, _ in found} >= {(row.name, row.step) for row in [*loss(1, 3), *loss(4, 8)]}
    assert not [step for _, step, _ in found if step > 7]


@pytest.mark.parametrize("name", [name for name in READERS if name in LOCAL])
def test_a_second_resume_and_rows_that_were_dropped(name: str, tmp_path: Path, run: Path, begin: Begin) -> None:
    sink = made(name, tmp_path)
    held: Sequence[MetricRow] = []
    for step in (0, 4, 2, 9):  # forward, back to an older checkpoint, and far ahead
        held = [*loss(1, step + 1)]
        sink.start(begin(run, step=step, earlier=held))
        sink.write(loss(step + 1, step + 4))
        sink.close()
    assert READERS[name](sink, run) == [(row.name, row.step, row.value) for row in loss(1, 13)]


def test_every_sink_of_the_package_is_in_the_table() -> None:
    known = {name.partition("(")[0] for name in SINKS}
    assert known == set(sinks.__all__) - {"RunInfo", "Sink", "SinkReport"}


def test_no_sink_leaves_a_file_outside_of_its_places(tmp_path: Path, run: Path, begin: Begin) -> None:
    for name in LOCAL:
        sink = made(name, tmp_path)
        sink.start(begin(run))
        sink.write([metric(1, nasty) for nasty in NASTY])
        sink.close()
    assert sorted(os.listdir(tmp_path)) == ["copy.jsonl", "mine.csv", "runs"]
    assert os.listdir(run) == ["metrics.csv"]
