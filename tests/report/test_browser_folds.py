"""A page with very many charts is not endless: the first few of a section are there, the others a click away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import EventRow, HistogramRow, to_json
from hookline.records.event import restore_text
from hookline.report import read_run, render_compare, write_report

Browse = Callable[..., Any]

LAYERS = 14


@pytest.fixture(scope="module")
def report(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = samples.make_run(tmp_path_factory.mktemp("runs") / "many", 400, extra_metrics=LAYERS, media=False)
    with (folder / "metrics.jsonl").open("a") as file:
        for layer in range(12):
            file.write(to_json(HistogramRow(f"weights/{layer:02d}", 10, 1, 1.0, (0.0, 1.0, 2.0), (1, 2))) + "\n")
    return write_report(folder)


def headings(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".chart h3:visible").all_inner_texts()]


def layers(page: Any) -> int:
    return sum(text.endswith("norm") and "grad" not in text for text in headings(page))


def test_nine_charts_of_a_section_are_shown_and_the_others_by_a_click(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri()).page
    assert layers(page) == 9
    page.get_by_text("5 more charts", exact=True).click()
    assert layers(page) == LAYERS
    last = page.locator(".chart").last
    last.scroll_into_view_if_needed()
    last.locator("canvas").wait_for()
    assert last.locator("canvas").bounding_box()["width"] > 200


def test_the_keyboard_opens_what_is_folded(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri()).page
    page.locator("#curves .fold > summary").focus()
    page.keyboard.press("Enter")
    assert layers(page) == LAYERS


def test_the_filter_finds_what_is_folded(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri()).page
    page.locator("#search").fill("013")
    assert headings(page) == ["013/norm"]


def test_media_are_folded_too(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri()).page
    assert page.locator("#media article:visible").count() == 9
    page.locator("#media .fold > summary").click()
    assert page.locator("#media article:visible").count() == 13  # the confusion matrix, and twelve histograms


def test_a_metric_that_comes_later_changes_nothing_that_a_person_has_set(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri()).page
    page.locator("#curves .fold > summary").click()
    page.locator("#log").click()
    page.locator("#search").fill("norm")
    fresh = json.loads(page.locator("#data").inner_text())
    fresh["charts"] = fresh["charts"][:-1]
    page.evaluate("data => window.hookline.refresh(data)", fresh)
    assert page.locator("#search").input_value() == "norm"
    assert len(headings(page)) == LAYERS  # grad_norm, and one layer less
    assert page.locator("#log").get_attribute("aria-pressed") == "true"
    assert page.locator(".chart button:visible", has_text="log").first.get_attribute("aria-pressed") == "true"
    page.locator("#search").fill("")
    assert page.locator("#curves .fold").get_attribute("open") is not None


def test_a_comparison_folds_what_the_machine_did(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    runs = [read_run(samples.make_run(tmp_path / name, 200, seed=seed)) for seed, name in enumerate(("one", "two"))]
    (tmp_path / "page.html").write_text(render_compare(runs), encoding="utf-8")
    page = browse((tmp_path / "page.html").as_uri()).page
    assert page.locator("h1").inner_text() == "Compare 2 runs of cifar"
    assert not [text for text in headings(page) if text.startswith(("speed", "memory"))]
    assert "val/loss" in headings(page)
    shown = page.locator("#metrics tbody tr:visible td:first-child").all_inner_texts()
    assert "val/loss" in shown
    assert "speed/samples_per_second" not in shown
    page.locator("#metrics .fold > summary").click()
    assert "speed/samples_per_second" in page.locator("#metrics tbody tr:visible td:first-child").all_inner_texts()
    page.locator("#curves .fold > summary").click()
    assert "speed/samples_per_second" in headings(page)


def test_a_comparison_says_whose_last_values_are_not_those_of_its_weights(
    browse: Browse, samples: ModuleType, tmp_path: Path
) -> None:
    back = EventRow("restore", 330, 10, 1e6, restore_text(230))
    kept = samples.make_run(tmp_path / "kept", 200, seed=1, status="stopped", media=False, events=(back,))
    runs = [read_run(samples.make_run(tmp_path / "plain", 200, media=False)), read_run(kept)]
    (tmp_path / "page.html").write_text(render_compare(runs), encoding="utf-8")
    notes = browse((tmp_path / "page.html").as_uri()).page.locator("#metrics .note").all_inner_texts()
    assert notes[1:] == ["kept: the weights of step 230 are restored. Here are its last values."]


def test_long_names_are_broken_behind_slashes_and_underscores(
    browse: Browse, samples: ModuleType, tmp_path: Path
) -> None:
    folder = samples.make_run(tmp_path / "run", 60, media=False)
    rows = (folder / "metrics.jsonl").read_text()
    name = "val/out_of_domain_long_name/perplexity_of_the_whole_sequence"
    (folder / "metrics.jsonl").write_text(rows.replace("val/loss", name))
    page = browse(write_report(folder).as_uri(), width=390).page
    title = page.locator(".tile h3").filter(has_text="perplexity")
    lines = title.evaluate(
        """heading => {
            const parts = [...heading.querySelector("bdi").childNodes].filter((node) => node.nodeType === 3);
            return parts.map((part) => {
                const range = document.createRange();
                range.selectNode(part);
                return range.getClientRects().length;
            });
        }"""
    )
    assert len(lines) > 6
    assert set(lines) == {1}  # no word is cut in two
