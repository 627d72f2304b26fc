"""A run is read whole, half-written, damaged, or while it is being written."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from hookline.cli.main import main
from hookline.errors import SetupError
from hookline.records import MetricRow, from_json, to_json
from hookline.report.read import RunReader, is_run, read_run


def line(step: int, value: float = 0.5, seconds: float = 0.0) -> str:
    return to_json(MetricRow("train/loss", step, 0, value, "step", seconds)) + "\n"


def steps(run: RunReader) -> list[int]:
    return list(run.read().series["train/loss"].steps)


def test_all_that_was_written_is_read(samples: ModuleType, tmp_path: Path) -> None:
    found = read_run(samples.make_run(tmp_path / "first", rows=600, odd=True))
    files = [(tmp_path / "first" / f"{name}.jsonl").read_text() for name in ("metrics", "events")]
    lines = "".join(files).splitlines()
    assert (found.rows, found.damaged, found.trouble) == (len(lines), 0, "")
    assert found.title == "cifar/first"
    series = found.series["train/loss"]
    rows = [row for row in map(from_json, lines) if row.name == "train/loss"]
    assert list(map(str, series.values)) == [str(row.value) for row in rows]
    assert any(map(math.isnan, series.values))
    assert found.events["eval"].count == 10
    assert found.written > 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1, "project": 5}', "\x00\x00"])
def test_a_run_with_a_broken_run_file_still_has_its_curves(samples: ModuleType, tmp_path: Path, text: str) -> None:
    folder = samples.make_run(tmp_path / "broken", rows=100)
    (folder / "run.json").write_text(text)
    found = read_run(folder)
    assert found.file is None
    assert found.trouble.startswith("run.json cannot be read: ")
    assert "train/loss" in found.series
    assert found.title == "broken"


def test_a_run_without_a_run_file_or_without_rows_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(line(1))
    assert is_run(tmp_path)
    assert read_run(tmp_path).trouble == "run.json is missing"
    (tmp_path / "metrics.jsonl").rename(tmp_path / "run.json")
    assert read_run(tmp_path).rows == 0


def test_the_timeline_stays_when_the_metrics_are_rewound(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=100)
    reader = RunReader(folder)
    before = reader.read()
    (folder / "metrics.jsonl").write_text(line(1))
    after = reader.read()
    assert list(after.series) == ["train/loss"]
    assert after.events == before.events != {}


def test_bytes_that_are_no_text_are_counted_and_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(
        line(1).encode() + b"\xff\xfe\x00garbage\n" + line(2).encode() + b"\x00" * 50
    )
    found = read_run(tmp_path)
    assert list(found.series["train/loss"].steps) == [1, 2]
    assert found.damaged == 1


def test_a_line_in_the_making_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2)[:30])
    reader = RunReader(tmp_path)
    assert steps(reader) == [1]
    path.write_text(line(1) + line(2))
    assert steps(reader) == [1, 2]
    assert reader.read().damaged == 0


def test_a_last_line_without_an_end_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2).rstrip())
    reader = RunReader(tmp_path)
    assert steps(reader) == [1, 2]
    path.write_text(line(1) + line(2) + line(3))
    assert steps(reader) == [1, 2, 3]
    assert reader.read().damaged == 0


def test_only_what_is_new_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1))
    reader = RunReader(tmp_path)
    series = reader.read().series["train/loss"]
    with path.open("a") as file:
        file.write(line(2))
    assert reader.read().series["train/loss"] is series
    assert list(series.steps) == [1, 2]


def test_a_file_that_was_rewound_and_written_again_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2) + line(3))
    reader = RunReader(tmp_path)
    assert steps(reader) == [1, 2, 3]
    path.write_text(line(1))
    assert steps(reader) == [1]
    path.write_text(line(1) + line(2, seconds=7.0) + line(3, seconds=8.0) + line(4, seconds=9.0))
    assert steps(reader) == [1, 2, 3, 4]
    path.unlink()
    (tmp_path / "run.json").touch()
    assert reader.read().series == {}


def test_a_million_rows_are_read_in_few_bytes_each(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(50_000):
            file.write(line(step))
    series = read_run(tmp_path).series["train/loss"]
    columns = (series.steps, series.epochs, series.seconds, series.values)
    assert sum(column.itemsize for column in columns) == 32
    assert {len(column) for column in columns} == {50_000}


def test_what_is_no_run_is_refused_with_a_way_out(samples: ModuleType, tmp_path: Path) -> None:
    samples.make_run(tmp_path / "project" / "first", rows=60)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, said in {
        "none": "none is not a run: the folder does not exist",
        "file": "it is a file. Give the run's folder",
        "empty": "it has neither metrics.jsonl nor run.json",
        "project": "contains runs, but is not a run. Give one, such as .*project/first",
        ".": "Give one, such as .*project/first",
    }.items():
        with pytest.raises(SetupError, match=said):
            read_run(tmp_path / name)


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl", "run.json", "report.html"])
def test_a_named_pipe_or_a_device_is_an_error_with_its_name_and_nothing_waits_for_it(
    samples: ModuleType, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = samples.make_run(tmp_path / "run", 20, media=False)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (run / file).unlink(missing_ok=True)
        make(run / file)
        code = main(["report", str(run)])
        if file == "run.json":  # the report is made without it, and says so
            assert code == 0
            assert "run.json cannot be read: [Errno 22] it is not a regular file" in (run / "report.html").read_text()
        else:
            assert code == 2
            assert re.search(rf"{file} cannot be (read|written): it is not a regular file", capsys.readouterr().err)


def test_an_image_that_is_a_named_pipe_is_left_out(samples: ModuleType, tmp_path: Path) -> None:
    run = samples.make_run(tmp_path / "run", 20)
    for image in run.rglob("*.png"):
        image.unlink()
        os.mkfifo(image)
    assert main(["report", str(run)]) == 0


def test_a_comparison_does_not_wait_for_a_named_pipe(
    samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(samples.make_run(tmp_path / name, 20, media=False)) for name in ("a", "b")]
    os.mkfifo(tmp_path / "compare.html")
    assert main(["compare", *runs]) == 2
    assert "compare.html already exists" in capsys.readouterr().err
