"""``log.txt`` can be read by anybody: whole lines with their time, no secrets, no codes, not too much."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookline.callbacks.watch import log_file
from hookline.callbacks.watch.log_file import LogText, plain_text

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( .+)?")


def lines_of(path: Path) -> list[str]:
    """The lines without their times."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    return [line[20:] for line in lines]


def test_every_line_of_a_text_has_its_time(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("one\n\n  three")
    log.close()
    assert lines_of(tmp_path / "log.txt") == ["==== begins ====", "one", "", "  three"]


def test_what_comes_before_the_heading_stands_below_it(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.keep("resumed from here")
    log.write_text("and so on")
    assert (tmp_path / "log.txt").read_text() == ""
    log.begin("goes on at step 7")
    log.begin("never")
    log.close()
    assert lines_of(tmp_path / "log.txt") == ["==== goes on at step 7 ====", "resumed from here", "and so on"]


def test_a_line_is_on_the_disk_as_soon_as_it_is_printed(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("the last words of a run that is killed")
    assert lines_of(tmp_path / "log.txt")[-1] == "the last words of a run that is killed"
    log.close()


def test_it_goes_on_below_a_line_that_was_torn(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"2030-01-01 00:00:00 half a l")
    log = LogText(tmp_path / "log.txt")
    assert log.goes_on
    log.begin("goes on at step 5")
    log.close()
    assert lines_of(tmp_path / "log.txt") == ["half a l", "==== goes on at step 5 ===="]


def test_secrets_are_not_written(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("api_key=hunter2 https://me:hunter2@example.org \x1b[1mAuthorization: Bearer\x1b[0m hunter2hunter2")
    log.keep("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----")
    log.close()
    assert "hunter2" not in (tmp_path / "log.txt").read_text()
    assert lines_of(tmp_path / "log.txt")[1].count("[redacted]") == 3


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2K\x1b[1A\x1b[?25lup", "up"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x7fd\x9be", "abcde"),
        ("tab\tstays, ünïcödé ✓ too", "tab\tstays, ünïcödé ✓ too"),
        ("\x1b", ""),
    ],
)
def test_codes_for_a_terminal_are_left_out(text: str, plain: str) -> None:
    assert plain_text(text) == plain


def test_of_a_very_long_line_the_beginning_is_kept() -> None:
    found = plain_text("short\n" + "x " * 10_000)
    assert found.startswith("short\nx x ")
    assert found.endswith("… (10,000 more characters)")


def test_text_that_is_no_unicode_is_written_as_well_as_it_can_be(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("a name of a file: \udcff")
    log.close()
    assert log.error is None
    assert lines_of(tmp_path / "log.txt")[1] == "a name of a file: \\udcff"


def test_a_program_that_prints_without_end_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "MAX_BYTES", 2000)
    path = tmp_path / "log.txt"
    log = LogText(path)
    log.begin("begins")
    for number in range(1000):
        log.keep(f"print {number} ÄÖÜ")
    log.write_text("step 1000")
    log.close()
    assert path.stat().st_size < 2300
    lines = lines_of(path)
    assert lines[1] == "print 0 ÄÖÜ"
    assert [index for index, line in enumerate(lines) if "what the program prints is left out" in line] == [
        len(lines) - 2
    ]
    assert lines[-1] == "step 1000"  # how the run went is written to the end

    again = LogText(path)
    again.begin("goes on at step 1000")
    again.keep("print")
    again.close()
    assert ["goes on" in line for line in lines_of(path)[-2:]] == [True, False]
    assert "left out" in lines_of(path)[-1]


def test_one_print_that_is_larger_than_all_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MAX_BYTES", 2000)
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("ä line\n" * 10_000)
    log.close()
    assert (tmp_path / "log.txt").stat().st_size < 2300
    assert "left out" in (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()[-1]


def test_a_full_disk_is_noted_and_nothing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log = LogText(tmp_path / "log.txt")
    log.begin("begins")
    log.keep("one")
    log.write_text("two")
    log.close()
    assert isinstance(log.error, OSError)
    assert "No space left" in str(log.error)


def test_a_write_after_the_end_is_noted_and_nothing_is_raised(tmp_path: Path) -> None:
    log = LogText(tmp_path / "log.txt")
    log.close()
    log.keep("another thread is late")
    assert isinstance(log.error, ValueError)
