"""A CSV file that pandas and spreadsheets read, whatever is logged and whenever it appears."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import SetupError
from hookline.records import EventRow, HistogramRow, MetricRow, Record, TextRow
from hookline.sinks import CSV, RunInfo

Begin = Callable[..., RunInfo]


def row(step: int, name: str = "train/loss", value: Any = None) -> MetricRow:
    return MetricRow(name, step, 0, step / 2 if value is None else value, "step", float(step))


def written(path: Path, records: Sequence[Record]) -> list[dict[str, str]]:
    sink = CSV(path)
    sink.write(records)
    sink.close()
    return read(path)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_it_is_in_the_runs_folder_if_no_path_is_given(tmp_path: Path, begin: Begin) -> None:
    sink = CSV()
    for name in ("first", "second"):
        sink.start(begin(tmp_path / name))
        sink.write([row(1, name)])
        sink.close()
    assert [found["name"] for found in read(tmp_path / "first" / "metrics.csv")] == ["first"]
    assert [found["name"] for found in read(tmp_path / "second" / "metrics.csv")] == ["second"]


def test_a_run_without_a_folder_needs_a_path(tmp_path: Path, begin: Begin) -> None:
    sink = CSV()
    with pytest.raises(SetupError, match=r"CSV\(path='metrics.csv'\): .*folder=False.*absolute path"):
        sink.start(begin(None))
    with pytest.raises(SetupError, match="no path before start"):
        sink.write([row(1)])
    sink.close()


def test_a_run_that_logs_nothing_leaves_a_table_without_rows(tmp_path: Path, begin: Begin) -> None:
    sink = CSV()
    sink.start(begin(tmp_path))
    sink.close()
    assert (tmp_path / "metrics.csv").read_text() == '"name","step","epoch","value","kind","seconds"\n'


def test_a_metric_that_appears_late_has_its_place_and_earlier_rows_keep_theirs(tmp_path: Path) -> None:
    records = [row(1), row(2), row(2, "val/acc"), row(3), row(3, "lr/SGD")]
    assert [(found["name"], found["step"]) for found in written(tmp_path / "m.csv", records)] == [
        ("train/loss", "1"),
        ("train/loss", "2"),
        ("val/acc", "2"),
        ("train/loss", "3"),
        ("lr/SGD", "3"),
    ]


def test_a_row_is_on_the_disk_as_soon_as_it_is_written(tmp_path: Path, begin: Begin) -> None:
    sink = CSV()
    sink.start(begin(tmp_path))
    sink.write([row(1)])
    assert len(read(tmp_path / "metrics.csv")) == 1
    sink.close()


def test_only_metrics_are_in_the_table(tmp_path: Path) -> None:
    others: list[Record] = [
        TextRow("val/sample", 1, 0, 0.0, "text"),
        HistogramRow("weights", 1, 0, 0.0, (0.0, 1.0), (3,)),
        EventRow("end", 1, 0, 0.0),
    ]
    assert [found["name"] for found in written(tmp_path / "m.csv", [*others, row(1), *others])] == ["train/loss"]


@given(value=st.floats())
def test_a_value_comes_back_bit_by_bit(value: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    (found,) = written(tmp_path_factory.mktemp("csv") / "m.csv", [row(1, value=value)])
    back = float(found["value"])
    assert (math.isnan(back) and math.isnan(value)) or back.hex() == value.hex()


@given(name=st.text(min_size=1))
def test_any_name_is_one_cell_of_one_line_and_no_formula(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("csv") / "m.csv"
    (found,) = written(path, [row(7, name)])
    assert found["step"] == "7"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert not found["name"].lstrip().startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-1+2/x", "'-1+2/x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =1+1", "'  =1+1"),
        ("\t=1+1", "'\\t=1+1"),
        ("\uff1d1", "'\uff1d1"),  # a full-width sign begins a formula too
        ("'=1", "''=1"),
        ("'quoted'", "''quoted'"),
        ("val/a;=1+1", "val/a;=1+1"),
        ('say "hi", all', 'say "hi", all'),
        ("line\nbreak\r", "line\\nbreak\\r"),
        ("größer/日本/👩‍🔬", "größer/日本/👩‍🔬"),
        ("half \ud800", "half \\ud800"),
        ("nul\x00", "nul\\x00"),
    ],
)
def test_names_are_shown_as_they_are_unless_a_spreadsheet_would_run_them(name: str, cell: str, tmp_path: Path) -> None:
    assert [found["name"] for found in written(tmp_path / "m.csv", [row(1, name)])] == [cell]


def test_every_text_is_quoted_so_that_a_spreadsheet_that_parts_at_semicolons_finds_no_formula(tmp_path: Path) -> None:
    written(tmp_path / "m.csv", [row(1, "val/a;=1+1")])
    with (tmp_path / "m.csv").open(newline="") as file:
        cells = [cell for line in csv.reader(file, delimiter=";") for cell in line]
    assert not [cell for cell in cells if cell.startswith("=")]


def test_an_array_is_json_in_its_cell(tmp_path: Path) -> None:
    (found,) = written(tmp_path / "m.csv", [row(1, "val/confusion", [[1.0, math.nan], [3.0, -math.inf]])])
    assert json.loads(found["value"]) == [[1.0, "nan"], [3.0, "-inf"]]


def test_pandas_reads_it_and_one_line_makes_it_wide(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not needed to write")
    records = [
        row(1),
        row(2, value=math.nan),
        row(2, "val/acc", 0.5),
        row(3, value=math.inf),
        row(3, "a,\n'b'", -math.inf),
    ]
    written(tmp_path / "m.csv", records)
    frame = pandas.read_csv(tmp_path / "m.csv")
    assert list(frame["name"]) == ["train/loss", "train/loss", "val/acc", "train/loss", "a,\\n'b'"]
    assert frame["value"].dtype == "float64"
    assert list(frame["value"].fillna(-1)) == [0.5, -1, 0.5, math.inf, -math.inf]
    wide = frame.pivot(index="step", columns="name", values="value")
    assert wide.loc[2, "val/acc"] == 0.5
    assert wide.shape == (3, 3)


def test_after_a_resume_each_name_and_step_is_there_once(tmp_path: Path, begin: Begin) -> None:
    sink = CSV()
    sink.start(begin(tmp_path))
    sink.write([row(1), row(2, "val/acc"), row(3), row(4)])  # row 2 of the loss was dropped
    sink.close()
    earlier: list[Record] = [row(1), row(2), TextRow("val/sample", 2, 0, 0.0, "text"), row(2, "val/acc")]
    again = CSV()
    again.start(begin(tmp_path, step=2, earlier=earlier))
    again.write([row(3)])
    again.close()
    found = [(found["name"], found["step"]) for found in read(tmp_path / "metrics.csv")]
    assert found == [("train/loss", "1"), ("train/loss", "2"), ("val/acc", "2"), ("train/loss", "3")]
    assert len(set(found)) == len(found)


def test_a_run_without_a_folder_goes_on_from_the_file(tmp_path: Path, begin: Begin) -> None:
    sink = CSV(tmp_path / "m.csv")
    odd = 'a "b",\n7,8'
    sink.start(begin(None))
    sink.write([row(1), row(2, odd), row(3), row(2, "val/matrix", [[1.0] * 20_000])])
    sink.close()
    with (tmp_path / "m.csv").open("a") as file:
        file.write('"torn",1,0')
    sink.start(begin(None, step=2))
    sink.write([row(3)])
    sink.close()
    lines = (tmp_path / "m.csv").read_text().splitlines()
    assert [line[:12] for line in lines] == [
        '"name","step',
        '"train/loss"',
        '"a ""b"",\\n7',
        '"val/matrix"',
        '"train/loss"',
    ]


def test_a_new_run_begins_the_file_anew(tmp_path: Path, begin: Begin) -> None:
    sink = CSV(str(tmp_path / "m.csv"))
    for count in (3, 1):
        sink.start(begin(tmp_path / "run"))
        sink.write([row(step) for step in range(count)])
        sink.close()
    assert len(read(tmp_path / "m.csv")) == 1
