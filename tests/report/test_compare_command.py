from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from hookline.cli.main import main
from hookline.records import EventRow
from hookline.records.event import restore_text


@pytest.fixture
def runs(samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    samples.make_run(tmp_path / "one", rows=60)
    samples.make_run(tmp_path / "two", rows=60, seed=1, config={"lr": 0.01, "scheduler": "[red]cosine[/red]"})
    return ["one", "two"]


def lines(text: str) -> dict[str, list[str]]:
    """The rows of the tables: the first cell and the others."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) == 3}


def test_the_terminal_lists_what_differs_and_the_page_is_written(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *runs]) == 0
    text = capsys.readouterr().out
    table = lines(text)
    assert table["setting"] == ["one", "two"]
    assert table["config: lr"] == ["0.0003", "0.01"]
    assert table["config: scheduler"] == ["—", "[red]cosine[/red]"]
    assert table["trainer: seed"] == ["0", "1"]
    assert "config: batch_size" not in table
    assert {"val/loss", "train/loss_epoch", "test/acc"} <= set(table)
    assert "lr/AdamW" not in table  # the same in both
    assert text.splitlines()[-1] == str(tmp_path / "compare.html")
    assert (tmp_path / "compare.html").read_text().startswith("<!doctype html>")


def test_only_the_table(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--table"]) == 0
    assert "val/loss" in capsys.readouterr().out
    assert not (tmp_path / "compare.html").exists()


def test_the_page_can_be_written_elsewhere(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--output", "page.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


def test_an_earlier_comparison_is_written_over_and_another_file_is_not(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "compare.html"
    assert main(["compare", *runs]) == 0
    first = page.stat().st_ino
    assert "overwritten" not in capsys.readouterr().out
    assert main(["compare", *runs]) == 0
    assert page.stat().st_ino != first
    assert capsys.readouterr().out.splitlines()[-2:] == ["the existing file is overwritten:", str(page)]
    page.write_text("<!doctype html><title>my notes</title>")
    capsys.readouterr()
    assert main(["compare", *runs]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"hookline compare: {page} already exists and is not a comparison of runs. Give the file to write with "
        f"--output; an existing file is then overwritten.\n"
    )
    assert "my notes" in page.read_text()
    assert main(["compare", *runs, "--table"]) == 0
    assert main(["compare", *runs, "--output", "compare.html"]) == 0
    assert "my notes" not in page.read_text()


def test_help_says_where_the_page_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "The page is compare.html in the current folder, or the file of --output" in text


def test_what_the_machine_did_is_printed_if_it_is_asked_for(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *runs, "--table"]) == 0
    text = capsys.readouterr().out
    assert "speed/samples_per_second" not in lines(text)
    assert "1 final metric of the machine differs: --all prints them" in text
    assert main(["compare", *runs, "--table", "--all"]) == 0
    assert "speed/samples_per_second" in lines(capsys.readouterr().out)
    rows = (samples.make_run(tmp_path / "again", rows=60) / "metrics.jsonl").read_text()
    (tmp_path / "again" / "metrics.jsonl").write_text(rows.replace("speed/samples", "speed/tokens"))
    assert main(["compare", "one", "again", "--table"]) == 0
    text = capsys.readouterr().out
    assert "No final metric differs" not in text
    assert "2 final metrics of the machine differ: --all prints them" in text


def test_whose_last_values_are_not_those_of_its_weights_is_said(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back = EventRow("restore", 100, 10, 1e6, restore_text(50))
    samples.make_run(tmp_path / "kept", 60, status="stopped", events=(back,))
    assert main(["compare", "one", "kept", "--table"]) == 0
    said = "kept: the weights of step 50 are restored. The table shows its last values."
    assert said in capsys.readouterr().out
    assert main(["compare", *runs, "--table"]) == 0
    assert "restored" not in capsys.readouterr().out


def test_a_project_that_is_that_of_all_runs_is_not_repeated(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.make_run(tmp_path / "other", rows=60, project="mnist", config={"lr": 0.1})
    assert main(["compare", "one", "other", "--table"]) == 0
    assert lines(capsys.readouterr().out)["setting"] == ["cifar/one", "mnist/other"]
    assert main(["compare", *runs, "--table"]) == 0
    assert lines(capsys.readouterr().out)["setting"] == ["one", "two"]


def test_runs_that_are_the_same_say_so(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.make_run(tmp_path / "again", rows=60)
    assert main(["compare", "one", "again", "--table"]) == 0
    text = capsys.readouterr().out
    assert "No setting differs." in text
    assert "No final metric differs." in text


def test_control_codes_in_a_name_do_not_reach_the_terminal(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.make_run(tmp_path / "odd", rows=60, name="\x1b[31mred\x07", config={"\x1b]0;title\x07": "\x9b2J"})
    assert main(["compare", "one", "odd", "--table"]) == 0
    assert not set("\x1b\x07\x9b") & set(capsys.readouterr().out)


def test_a_run_that_failed_before_its_first_row_does_not_keep_the_others_from_being_compared(
    samples: ModuleType, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``hookline compare runs/*`` after a sweep: its settings may say why it failed."""
    failed = samples.make_run(tmp_path / "failed", rows=60, config={"lr": 1e9})
    (failed / "metrics.jsonl").unlink()
    assert main(["compare", "one", "failed", "--output", "page.html"]) == 0
    table = lines(capsys.readouterr().out)
    assert table["config: lr"] == ["0.0003", "1e+09"]
    assert table["val/loss"][1] == "—"
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one"], "one: one run alone cannot be compared. Give two or more."),
        (["folder"], "folder: one run alone cannot be compared. Give two or more, such as folder/*."),
        (["one", "two", "./one"], "one and one are the same run. Give each run once."),
        (["one", "none"], "none is not a run: the folder does not exist."),
        (["one", "empty"], "empty has no metrics to compare."),
        (["one", "two", "--table", "--output", "x.html"], "--table writes no page"),
        (["one", "two", "--output", "none/x.html"], "none/x.html cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    said: str,
    runs: list[str],
    samples: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples.make_run(tmp_path / "folder" / "inside", 60)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").touch()
    assert main(["compare", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("hookline compare: ")
    assert said in text
    assert text.count("\n") == 1
    assert not (tmp_path / "compare.html").exists()


def test_in_a_file_no_word_is_cut(
    samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "a_name_without_any_place_to_break_it_" * 3
    folders = [str(samples.make_run(tmp_path / name, 60, config={long: name})) for name in ("first", "second")]
    assert main(["compare", *folders, "--table"]) == 0
    assert f"config: {long}" in capsys.readouterr().out


def test_in_a_file_no_row_is_folded_however_many_runs_there_are(
    samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    values = [f"value {number} of a setting that is as long as the order of callbacks " * 2 for number in range(8)]
    folders = [str(samples.make_run(tmp_path / value[:7], 60, config={"long": value})) for value in values]
    assert main(["compare", *folders, "--table"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "config: long" in line]
    assert all(value.strip() in row for value in values)


def test_in_a_window_without_room_for_a_column_for_each_run_a_value_has_a_line(
    samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a column for each of eight runs every word would be broken into parts of a few signs."""
    monkeypatch.setenv("COLUMNS", "80")
    configs = [{"schedule": "cosine with restarts" if number % 2 else "linear"} for number in range(8)]
    folders = [str(samples.make_run(tmp_path / f"run{number}", 60, config=its)) for number, its in enumerate(configs)]
    assert main(["compare", *folders, "--table"]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "config: schedule linear run0, run2, run4, run6" in rows
    assert "cosine with restarts run1, run3, run5, run7" in rows
    assert main(["compare", *folders[:2], "--table"]) == 0
    assert lines(capsys.readouterr().out)["setting"] == ["run0", "run1"]


@pytest.mark.parametrize("odd", [["a"], {"a": 1}, 3, None, True, 1.5], ids=repr)
@pytest.mark.parametrize("field", ["project", "name", "started", "sessions", "settings", "callbacks"])
def test_a_run_file_with_an_odd_value_is_left_out_and_named(
    runs: list[str], capsys: pytest.CaptureFixture[str], field: str, odd: object
) -> None:
    path = Path(runs[0]) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: odd}))
    assert main(["compare", *runs]) in (0, 2)
    assert main(["report", runs[0]]) == 0
    page = (Path(runs[0]) / "report.html").read_text()
    is_valid = field == "settings" and isinstance(odd, dict)
    assert ("run.json cannot be read" in page) != is_valid
