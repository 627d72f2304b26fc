"""A file of lines never holds half a line, whatever the disk does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from hookline.errors import SetupError
from hookline.sinks.line_file import LineFile
from hookline.testing import run_script


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LineFile]:
    made = LineFile(tmp_path / "deep" / "lines.txt")
    yield made
    made.close()


class SlowDisk(FileIO):
    """Takes seven bytes at a time."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return super().write(data[:7])


def test_nothing_is_made_before_the_first_line(file: LineFile) -> None:
    assert file.size == 0
    file.close()
    assert not file.path.parent.exists()


def test_a_line_is_on_the_disk_as_soon_as_it_is_written(file: LineFile) -> None:
    file.append("one\n")
    assert file.path.read_text() == "one\n"
    file.append("two\nthree\n")
    assert file.path.read_text() == "one\ntwo\nthree\n"
    assert file.size == 14


def test_a_file_that_was_closed_is_gone_on_with(file: LineFile) -> None:
    file.append("one\n")
    file.close()
    file.append("two\n")
    assert file.path.read_text() == "one\ntwo\n"


def test_a_file_that_somebody_deletes_begins_anew_and_this_is_said(
    file: LineFile, caplog: pytest.LogCaptureFixture
) -> None:
    file.append("one\n")
    shutil.rmtree(file.path.parent)
    file.append("two\n")
    file.append("three\n")
    assert file.path.read_text() == "two\nthree\n"
    assert [f"{file.path} was deleted" in record.getMessage() for record in caplog.records] == [True]


def test_a_disk_that_takes_parts_gets_the_whole(file: LineFile) -> None:
    file.append("one\n")
    file.close()
    file._file = SlowDisk(file.path, "a")
    file.append("a line that is longer than seven bytes\n")
    assert file.path.read_text() == "one\na line that is longer than seven bytes\n"


def test_what_did_not_fit_leaves_no_part_and_can_be_tried_again(tmp_path: Path) -> None:
    """With a limit on the size of files the system takes a part of a line, and then refuses."""
    script = """
        import resource, sys
        from pathlib import Path
        from hookline.sinks.line_file import LineFile

        path = Path(sys.argv[1])
        file = LineFile(path)
        file.append("x" * 59 + "\\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            file.append("y" * 59 + "\\n")
        except OSError as error:
            print(error.strerror, path.stat().st_size, error.__notes__ == [f"while {path} was written"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file.append("y" * 59 + "\\n")
    """
    done = run_script(script, args=[tmp_path / "lines.txt"])
    assert (done.stdout, done.stderr) == ("File too large 60 True\n", "")
    assert (tmp_path / "lines.txt").read_text() == "x" * 59 + "\n" + "y" * 59 + "\n"


def test_half_of_a_surrogate_pair_is_written_as_an_escape(file: LineFile) -> None:
    file.append("\ud800 größer\n")
    assert file.path.read_text(encoding="utf-8") == "\\ud800 größer\n"


def test_rewriting_replaces_all_lines_and_goes_on_after_them(file: LineFile) -> None:
    file.append("old\n")
    file.rewrite(iter(["one\n", "two\n"]))
    file.append("three\n")
    assert file.path.read_text() == "one\ntwo\nthree\n"
    assert os.listdir(file.path.parent) == ["lines.txt"]


def test_rewriting_reads_the_old_lines_while_it_writes_the_new_ones(file: LineFile) -> None:
    file.append("one\ntwo\nthree\n")

    def kept() -> Iterator[str]:
        with file.path.open() as old:
            yield from (line for line in old if line != "two\n")

    file.rewrite(kept())
    assert file.path.read_text() == "one\nthree\n"


def test_rewriting_that_fails_leaves_the_old_file_and_no_litter(file: LineFile) -> None:
    file.append("old\n")

    def broken() -> Iterator[str]:
        yield "new\n"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        file.rewrite(broken())
    assert file.path.read_text() == "old\n"
    assert os.listdir(file.path.parent) == ["lines.txt"]


def test_a_folder_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is a folder or a device; give the path of a file"):
        LineFile(tmp_path).rewrite([])
    with pytest.raises(SetupError, match=r"/dev/null is a folder or a device"):
        LineFile(Path("/dev/null")).rewrite([])
