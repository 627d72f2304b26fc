"""The report as a whole: it is made of any run, is small, and is written in one piece."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import EventRow, FileRow, ImageRow, MetricRow, TableRow, to_json
from hookline.report import compare_data, page_data, read_run, render_compare, render_report, write_report
from hookline.report.page import Live
from hookline.report.read import RunData


def data_of(page: str) -> dict[str, Any]:
    found = re.search('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_shows_the_data_that_was_asked_for(samples: ModuleType, tmp_path: Path) -> None:
    run = read_run(samples.make_run(tmp_path / "run", rows=300))
    shown = data_of(render_report(run))
    assert (shown.pop("live"), shown.pop("made_by")) == (None, "Hookline 0.1.0")
    assert shown == json.loads(json.dumps(page_data(run)))


def test_every_line_of_a_chart_has_its_curve(samples: ModuleType, tmp_path: Path) -> None:
    one, two = (read_run(samples.make_run(tmp_path / name, rows=120, status=name)) for name in ("finished", "failed"))
    for data in (page_data(one), compare_data([one, two])):
        lines = [(line["run"], line["name"]) for chart in data["charts"] for line in chart["lines"]]
        assert sorted(lines) == sorted((run, name) for run, curves in enumerate(data["curves"]) for name in curves)
        assert len(data["clocks"]) == len(data["curves"]) == len(data["runs"])


def test_equal_curves_of_a_section_are_one_chart(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "metrics.jsonl").open("w") as file:
        for step in range(1, 9):
            for name, value in (("steps", step), ("batches", step), ("samples", 32 * step), ("tokens", step + 1)):
                file.write(to_json(MetricRow(f"speed/{name}_per_second", step, 0, value, "step", 1.0 * step)) + "\n")
    charts = page_data(read_run(tmp_path / "run"))["charts"]
    assert [[line["label"] for line in chart["lines"]] for chart in charts] == [
        ["batches_per_second", "steps_per_second"],
        ["samples_per_second"],
        ["tokens_per_second"],
    ]
    assert charts[0]["title"] == "batches_per_second, steps_per_second"


@pytest.mark.parametrize(("status", "is_known"), [("running", True), ("failed", False)])
def test_only_a_run_that_trains_has_time_left(status: str, is_known: bool, samples: ModuleType, tmp_path: Path) -> None:
    left = page_data(read_run(samples.make_run(tmp_path / "run", rows=120, status=status)))["facts"]["left"]
    assert (left is not None) is is_known


def test_a_run_with_nothing_in_it_has_a_page(tmp_path: Path) -> None:
    assert data_of(render_report(RunData(tmp_path)))["charts"] == []
    (tmp_path / "metrics.jsonl").write_text(
        to_json(EventRow("exception", 0, 0, 0.1, "ValueError: before step 1")) + "\n"
    )
    data = data_of(write_report(tmp_path).read_text())
    assert (data["status"]["key"], data["status"]["reason"]) == ("failed", "ValueError: before step 1")


def test_what_could_not_be_read_is_said(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    (folder / "run.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("torn\ntorn\n")
    assert page_data(read_run(folder))["notes"] == [
        "run.json is missing. Settings, costs and environment are unknown.",
        "2 lines of metrics.jsonl or events.jsonl could not be read.",
    ]


def test_a_curve_that_is_not_drawn_whole_is_said_to_be_so(tmp_path: Path) -> None:
    rows = (MetricRow("train/loss", step, 0, float(step % 7), "step", 0.0) for step in range(1, 5_001))
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    data = page_data(read_run(tmp_path))
    assert "at most 2,000 points" in data["notes"][-1]
    assert "All 5,000 rows" in data["notes"][-1]
    assert data["numbers"][0]["count"] == 5_000


def test_two_hundred_metrics_and_pictures_make_a_page_of_under_five_megabytes(
    samples: ModuleType, tmp_path: Path
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=100_000, extra_metrics=200, odd=True)
    assert write_report(folder).stat().st_size < 5_000_000


def test_the_page_is_written_in_one_piece(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    (folder / "report.html").write_text("the old one")
    before = sorted(path.name for path in folder.iterdir())
    assert write_report(folder) == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == before
    assert "the old one" not in (folder / "report.html").read_text()


def test_a_page_that_cannot_be_written_leaves_nothing_behind(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    (folder / "report.html").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(OSError, match=r"report\.html"):
        write_report(folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_live_page_knows_whom_to_ask(samples: ModuleType, tmp_path: Path) -> None:
    run = read_run(samples.make_run(tmp_path / "run", rows=60))
    live = data_of(render_report(run, Live("/data?run=1", "v7", home="/")))["live"]
    assert live == {"url": "/data?run=1", "version": "v7", "every": 2.0, "home": "/", "run": "", "control": ""}


# -- several runs ------------------------------------------------------------------------------------


def test_the_comparison_lists_exactly_what_differs(samples: ModuleType, tmp_path: Path) -> None:
    one = read_run(samples.make_run(tmp_path / "one", rows=60))
    two = read_run(samples.make_run(tmp_path / "two", rows=60, config={"lr": 0.1, "new": None}))
    data = data_of(render_compare([one, two]))
    assert [(row["group"], row["name"], row["texts"]) for row in data["settings"]["rows"]] == [
        ("config", "lr", ["0.0003", "0.1"]),
        ("config", "new", [None, "None"]),
        ("command", "arguments", ["train.py --lr 0.0003 --width 64", "train.py --lr 0.1 --width 64"]),
    ]
    assert data["metrics"]["rows"] == []  # the same seed: the very same numbers
    assert [run["title"] for run in data["runs"]] == ["one", "two"]


def test_runs_of_one_name_are_told_apart_by_their_folders(samples: ModuleType, tmp_path: Path) -> None:
    runs = [read_run(samples.make_run(tmp_path / part / "run", rows=60, name="same")) for part in ("a", "b")]
    assert [run["title"] for run in compare_data(runs)["runs"]] == ["same (a/run)", "same (b/run)"]


def test_long_settings_that_differ_only_at_their_end_look_different(samples: ModuleType, tmp_path: Path) -> None:
    made = {name: "word " * 5_000 + name for name in ("one", "two")}
    runs = [read_run(samples.make_run(tmp_path / name, rows=60, config={"text": text})) for name, text in made.items()]
    texts = compare_data(runs)["settings"]["rows"][0]["texts"]
    assert [text[-8:] for text in texts] == ["word one", "word two"]
    assert max(map(len, texts)) < 200


# -- what is too long --------------------------------------------------------------------------------


def test_settings_events_and_files_without_end_make_no_page_of_5_mb_and_the_page_says_what_is_cut(
    samples: ModuleType, tmp_path: Path
) -> None:
    vocabulary = {f"word{index}": index for index in range(6_000)}
    events = tuple(EventRow("sink", step, 1, 1.0, "<html>" * 3_000) for step in range(500))
    config = {"vocabulary": vocabulary, "words": ["word" * 250] * 6_000}
    folder = samples.make_run(
        tmp_path / "run", 60, config=config, events=events, status="failed", reason="r" * 3_000_000
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(to_json(FileRow(f"file{place}", 1, 0, 1.0, "f" * 900, 1)) + "\n" for place in range(6_000))
        file.write(to_json(TableRow("model/summary", 1, 0, 1.0, ("layer",), (("l" * 3_000_000,),))) + "\n")
        file.write(to_json(ImageRow("picture", 1, 0, 1.0, 1, 1, "c" * 3_000_000, "none.png")) + "\n")
    page = render_report(read_run(folder))
    assert len(page.encode()) < 5_000_000
    data = data_of(page)
    assert len(data["settings"]["config"]) == 1_001
    assert data["settings"]["config"][-1][1].endswith(" more are in run.json")
    assert data["status"]["reason"].endswith("… (2,980,000 more characters)")
    assert "more characters)" in next(row for row in data["events"]["rows"] if row["name"] == "sink")["text"]
    assert (len(data["files"]), data["more_files"]) == (1_000, 5_000)
    other = samples.make_run(tmp_path / "other", 60)
    both = render_compare([read_run(folder), read_run(other)])
    assert len(both.encode()) < 5_000_000
    assert data_of(both)["settings"]["more"] > 5_000


# -- without scripts ---------------------------------------------------------------------------------


def test_a_browser_without_scripts_shows_the_final_numbers(samples: ModuleType, tmp_path: Path) -> None:
    run = read_run(samples.make_run(tmp_path / "run", rows=60, status="failed", reason="<b>ValueError</b>"))
    found = re.search("<noscript>(.*?)</noscript>", render_report(run), re.DOTALL)
    assert found is not None
    assert f"<td>val/loss</td><td>{run.series['val/loss'].values[-1]:.6g}</td>" in found[1]
    assert "failed: &lt;b&gt;ValueError&lt;/b&gt;" in found[1]


def test_a_browser_without_scripts_shows_what_differs(samples: ModuleType, tmp_path: Path) -> None:
    one = read_run(samples.make_run(tmp_path / "one", rows=60))
    two = read_run(samples.make_run(tmp_path / "two", rows=60, seed=1, config={"<i>": "<script>"}))
    found = re.search("<noscript>(.*?)</noscript>", render_compare([one, two]), re.DOTALL)
    assert found is not None
    assert "<td>&lt;i&gt;</td><td>—</td><td>&lt;script&gt;</td>" in found[1]


@pytest.mark.parametrize("names", [1_000, 5_000])
def test_very_many_curves_and_pictures_make_no_page_of_5_mb_and_no_extreme_is_lost(
    samples: ModuleType, tmp_path: Path, names: int
) -> None:
    folder = samples.make_run(tmp_path / "run", 60)
    picture = ImageRow("big", 1, 0, 1.0, 900, 900, "", "big.png")
    (folder / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 1_400_000)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(to_json(picture) + "\n")
        for step in range(60):
            for name in range(names):
                value = 1e6 if step == name % 60 else random.gauss(0, 1)
                file.write(to_json(MetricRow(f"layers/block{name}/norm", step, 0, value, "step", step / 9)) + "\n")
    run = read_run(folder)
    text = render_report(run)
    assert len(text.encode()) < 5_000_000
    data = page_data(run)
    curves = [curve["y"] for name, curve in data["curves"][0].items() if name.startswith("layers/")]
    assert len(curves) == names
    assert all(1e6 in values for values in curves)
    assert data["metrics"] > names
