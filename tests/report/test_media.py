"""Pictures and the rest are in the page as far as they fit, the newest first; files of others never are."""

from __future__ import annotations

import math
from base64 import b64decode
from pathlib import Path
from types import ModuleType

import pytest

from hookline.records import HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow, to_json
from hookline.report import media
from hookline.report.media import media_of, summary_of
from hookline.report.read import RunData, read_run


def run(folder: Path, *rows: Record) -> RunData:
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return read_run(folder)


def image(step: int, file: str, name: str = "val/samples") -> ImageRow:
    return ImageRow(name, step, 0, 0.0, 8, 8, "a caption", file)


def test_a_picture_is_in_the_page_byte_for_byte(samples: ModuleType, tmp_path: Path) -> None:
    png = samples.picture(8, 8)
    (tmp_path / "a.png").write_bytes(png)
    (entry,) = media_of(run(tmp_path, image(1, "a.png")))["images"]
    (frame,) = entry["frames"]
    assert frame["caption"] == "a caption"
    assert b64decode(frame["source"].removeprefix("data:image/png;base64,")) == png


def test_no_file_outside_of_the_run_and_nothing_but_pictures_gets_into_the_page(
    samples: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "folder.png").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(samples.picture(8, 8))
    (folder / "text.png").write_text("password")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    files = [
        "../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "text.png",
        "folder.png",
        "none.png",
        "",
        "a\0b",
    ]
    (entry,) = media_of(run(folder, *(image(step, file) for step, file in enumerate(files))))["images"]
    assert len(entry["frames"]) == len(files)
    assert all("source" not in frame and frame["missing"] for frame in entry["frames"])


def test_the_newest_of_each_name_comes_before_older_ones_when_there_is_no_room(
    samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    png = samples.picture(8, 8)
    for step in range(10):
        (tmp_path / f"{step}.png").write_bytes(png)
    monkeypatch.setattr(media, "PICTURES", 5 * (4 * len(png) // 3 + 30))
    rows = [image(step, f"{step}.png", name) for step in range(10) for name in ("a", "b")]
    entries = media_of(run(tmp_path, *rows))["images"]
    assert [[frame["step"] for frame in entry["frames"]] for entry in entries] == [[0, 4, 9], [0, 9]]
    assert [entry["count"] for entry in entries] == [10, 10]


def test_texts_and_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    cells = tuple((f"row {number}", math.nan) for number in range(500))
    found = media_of(
        run(tmp_path, TextRow("text", 1, 0, 0.0, "x" * 30_000), TableRow("table", 1, 0, 0.0, ("a", "b"), cells))
    )
    text, table = found["texts"][0]["frames"][0], found["tables"][0]["frames"][0]
    assert (len(text["text"]), text["cut"]) == (20_000, 10_000)
    assert (len(table["rows"]), table["cut"]) == (200, 300)
    assert table["rows"][0] == ["row 0", "nan"]


def test_arrays_and_histograms_keep_what_is_odd_in_them(tmp_path: Path) -> None:
    matrix = MetricRow("val/confusion", 1, 0, [[1.0, math.nan], [math.inf, 2.0]], "eval", 0.0)
    spread = HistogramRow("weights", 1, 0, 0.0, (0.0, 0.5, 1.0), (3, 4), odd=2)
    found = media_of(run(tmp_path, matrix, spread))
    assert found["arrays"][0]["frames"][0]["value"] == [[1.0, "nan"], ["inf", 2.0]]
    assert found["histograms"][0]["frames"][0] == {
        "step": 1,
        "epoch": 0,
        "edges": [0.0, 0.5, 1.0],
        "counts": [3, 4],
        "odd": 2,
    }


def test_the_summary_of_the_model_has_a_place_of_its_own(samples: ModuleType, tmp_path: Path) -> None:
    found = read_run(samples.make_run(tmp_path / "run", rows=60))
    summary = summary_of(found)
    assert summary is not None
    assert summary["columns"][0] == "layer"
    assert [entry["name"] for entry in media_of(found)["tables"]] == ["val/worst"]
    assert summary_of(RunData(tmp_path)) is None


def test_a_page_full_of_media_stays_under_its_size(tmp_path: Path) -> None:
    rows = [TextRow(f"text {name}", step, 0, 0.0, "x" * 15_000) for name in range(20) for step in range(20)]
    found = media_of(run(tmp_path, *rows))["texts"]
    assert sum(len(frame["text"]) for entry in found for frame in entry["frames"]) <= media.OTHERS
    assert sum(bool(entry["frames"]) for entry in found) == media.OTHERS // 15_000


def test_an_array_that_is_known_over_epochs_is_shown_once(tmp_path: Path) -> None:
    rows = [
        MetricRow("train/matrix", 10, 0, [1.0, 2.0], "step", 1.0),
        MetricRow("train/matrix_epoch", 20, 1, [3.0, 4.0], "epoch", 2.0),
        MetricRow("val/matrix", 20, 1, [5.0], "eval", 2.0),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    found = media_of(read_run(tmp_path))["arrays"]
    assert [(entry["name"], entry["frames"][-1]["value"]) for entry in found] == [
        ("train/matrix, by epoch", [3.0, 4.0]),
        ("val/matrix", [5.0]),
    ]
