from __future__ import annotations

import os
import threading
from pathlib import Path
from types import ModuleType

import pytest

from hookline.cli.main import main


def test_the_report_is_written_and_its_path_is_printed(
    samples: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    assert main(["report", str(folder)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == folder / "report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_the_report_can_be_written_elsewhere(
    samples: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    assert main(["report", str(folder), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()
    assert not (folder / "report.html").exists()


def test_a_run_that_failed_before_its_first_metric_has_a_report(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60, status="failed")
    (folder / "metrics.jsonl").unlink()
    assert '"exception"' in (folder / "events.jsonl").read_text().splitlines()[-1]
    assert main(["report", str(folder)]) == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "the folder does not exist"),
        (lambda folder: folder.mkdir(), "it has neither metrics.jsonl nor run.json"),
        (lambda folder: folder.write_text("x"), "it is a file. Give the run's folder"),
        (
            lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").touch()),
            "has no metrics. Nothing has been logged",
        ),
        (lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").write_text("x\n")), "1 lines could not be read"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line_with_code_2(
    make: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "run")  # type: ignore[operator]
    assert main(["report", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err
    assert text.startswith("hookline report: ")
    assert said in text
    assert text.count("\n") == 1


def test_a_place_that_cannot_be_written_is_said(
    samples: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    assert main(["report", str(folder), "--output", str(tmp_path / "none" / "page.html")]) == 2
    assert "page.html cannot be written: No such file or directory" in capsys.readouterr().err


def test_rows_that_cannot_be_read_are_one_line_and_code_2(
    samples: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.make_run(tmp_path / "run", 60)
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").mkdir()
    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err == f"hookline report: {folder / 'events.jsonl'} cannot be read: Is a directory.\n"


def test_a_link_and_a_pipe_are_written_to_and_stay_what_they_are(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", 60)
    (tmp_path / "link.html").symlink_to("page.html")
    assert main(["report", str(folder), "--output", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    assert main(["report", str(folder), "--output", str(tmp_path / "pipe")]) == 0
    assert (tmp_path / "pipe").is_fifo()
    reader.join(30)
    assert found[0].startswith("<!doctype html>")
