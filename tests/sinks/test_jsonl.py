"""``metrics.jsonl`` and its copy: every row, once, also after a torn line and a resume."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookline.errors import HooklineWarning, SetupError
from hookline.records import EventRow, ImageRow, MetricRow, Record, TextRow, from_json
from hookline.sinks import JSONL, RunInfo
from hookline.sinks.jsonl import JsonLines

Begin = Callable[..., RunInfo]


def row(step: int, name: str = "train/loss") -> MetricRow:
    return MetricRow(name, step, 0, step / 2, "step", float(step))


def read(path: Path) -> list[Record]:
    return [from_json(line) for line in path.read_text().splitlines()]


# -- what the loop itself writes -----------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[JsonLines]:
    made = JsonLines(tmp_path / "run" / "metrics.jsonl")
    yield made
    made.close()


def test_rows_of_every_kind_are_written_and_read(lines: JsonLines) -> None:
    rows = [row(1), TextRow("val/sample", 1, 0, 0.5, "a\nb"), EventRow("start", 0, 0, 0.0)]
    lines.write([])
    assert not lines.path.parent.exists()
    lines.write(rows)
    assert list(lines.read(lines.size)) == rows


def test_only_the_rows_until_a_size_are_read(lines: JsonLines) -> None:
    lines.write([row(1), row(2)])
    size = lines.size
    lines.write([row(3)])
    assert list(lines.read(size)) == [row(1), row(2)]
    assert list(lines.read(0)) == []
    assert list(JsonLines(lines.path.with_name("none")).read(100)) == []


def test_a_rewound_file_goes_on_from_there(lines: JsonLines) -> None:
    lines.write([row(1), row(2)])
    size = lines.size
    lines.write([row(3), row(4)])
    lines.rewind(size)
    assert lines.size == size
    lines.write([row(3)])
    assert read(lines.path) == [row(1), row(2), row(3)]


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_torn_last_line_is_cut_off_when_the_run_goes_on(lines: JsonLines, cut: int) -> None:
    lines.write([row(1), row(2)])
    lines.close()
    text = lines.path.read_bytes()
    lines.path.write_bytes(text[:-cut])
    lines.rewind(len(text))
    lines.write([row(2)])
    assert read(lines.path) == [row(1), row(2)]


def test_a_size_in_the_middle_of_a_line_keeps_the_whole_lines_before_it(lines: JsonLines) -> None:
    lines.write([row(1), row(2)])
    lines.rewind(lines.size - 5)
    assert read(lines.path) == [row(1)]


def test_a_file_is_not_made_longer_or_made_at_all_by_rewinding(lines: JsonLines) -> None:
    lines.rewind(100)
    assert not lines.path.exists()
    lines.write([row(1)])
    lines.rewind(10_000)
    assert read(lines.path) == [row(1)]


def test_a_line_that_is_no_row_is_said_and_left_out(lines: JsonLines) -> None:
    lines.write([row(1)])
    lines.close()
    with lines.path.open("a") as file:
        file.write('{"kind": "hologram"}\nno json\n')
    lines.write([row(2)])
    with pytest.warns(HooklineWarning, match="a row cannot be read and is left out") as warned:
        assert list(lines.read(lines.size)) == [row(1), row(2)]
    assert len(warned) == 2


def test_a_long_file_is_read_row_by_row(lines: JsonLines) -> None:
    """A run of days has millions of rows: they are never all in memory."""
    for start in range(0, 20_000, 1_000):
        lines.write([row(step) for step in range(start, start + 1_000)])
    tracemalloc.start()
    try:
        count = sum(1 for _ in lines.read(lines.size))
        lines.rewind(lines.size)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < lines.size / 4


# -- the copy ------------------------------------------------------------------------------------


def test_every_record_is_in_the_copy_as_it_is_in_the_original(tmp_path: Path, begin: Begin) -> None:
    sink = JSONL(str(tmp_path / "elsewhere" / "copy.jsonl"))
    sink.start(begin(tmp_path))
    rows = [row(1), ImageRow("val/x", 1, 0, 0.0, 8, 8, "cat", "media/x.png", b"png"), EventRow("end", 1, 0, 1.0)]
    sink.write(rows)
    assert len(sink.path.read_text().splitlines()) == 3  # before it is closed
    sink.close()
    assert [found.name for found in read(sink.path)] == ["train/loss", "val/x", "end"]
    assert "png" not in json.loads(sink.path.read_text().splitlines()[1])


def test_a_new_run_begins_the_file_anew(tmp_path: Path, begin: Begin) -> None:
    sink = JSONL(tmp_path / "copy.jsonl")
    for count in (3, 1):
        sink.start(begin(tmp_path / "run"))
        sink.write([row(step) for step in range(count)])
        sink.close()
    assert read(sink.path) == [row(0)]


def test_after_a_resume_the_copy_holds_what_the_original_holds(tmp_path: Path, begin: Begin) -> None:
    """Also rows that this sink had dropped are there again."""
    earlier = [row(1), row(2), row(3)]
    sink = JSONL(tmp_path / "copy.jsonl")
    sink.start(begin(tmp_path / "run"))
    sink.write([row(1), row(3), row(4), row(5)])
    sink.close()
    again = JSONL(tmp_path / "copy.jsonl")
    again.start(begin(tmp_path / "run", step=3, earlier=earlier))
    again.write([row(4)])
    again.close()
    assert read(sink.path) == [*earlier, row(4)]


def test_a_run_without_a_folder_goes_on_from_the_copy(tmp_path: Path, begin: Begin) -> None:
    sink = JSONL(tmp_path / "copy.jsonl")
    sink.start(begin(None))
    sink.write([row(step) for step in range(1, 6)])
    sink.close()
    sink.start(begin(None, step=3))
    sink.write([row(4)])
    sink.close()
    assert read(sink.path) == [row(1), row(2), row(3), row(4)]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_the_loops_own_file_is_refused_and_not_touched(name: str, tmp_path: Path, begin: Begin) -> None:
    own = tmp_path / name
    own.write_text("the loop writes here")
    (tmp_path / "link.jsonl").symlink_to(own)
    for path in (own, tmp_path / "x" / ".." / name, tmp_path / "link.jsonl"):
        sink = JSONL(path)
        with pytest.raises(SetupError, match=r"the loop itself writes this file.*give a copy another path"):
            sink.start(begin(tmp_path))
    assert own.read_text() == "the loop writes here"
    elsewhere = JSONL(own)
    elsewhere.start(begin(tmp_path / "other run"))
    elsewhere.close()
