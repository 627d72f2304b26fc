"""The axes of the charts: what stands beside a line of the grid is true, and no two of them are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import MetricRow, to_json
from hookline.report import write_report

Browse = Callable[..., Any]

# The texts that the charts draw, caught on their way to the canvas: [text, where it stands from above].
CATCH = """() => {
    window.drawn = [];
    const fill = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        window.drawn.push([this.canvas, text, x, y]);
        return fill.apply(this, arguments);
    };
}"""
LABELS = """canvas => {
    const own = window.drawn.filter(([its]) => its === canvas);
    const bottom = Math.max(...own.map(([, , , y]) => y));
    const texts = (wanted) => [...new Map(own.filter(wanted).map(([, text, x, y]) => [`${x} ${y}`, text])).values()];
    return { x: texts(([, , , y]) => y === bottom), y: texts(([, , , y]) => y !== bottom) };
}"""


def run_with(folder: Path, **curves: list[float]) -> Path:
    rows = [
        MetricRow(name.replace("__", "/"), 10 * (place + 1), 1, value, "step", 10.0 * (place + 1))
        for name, values in curves.items()
        for place, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return write_report(folder)


def labels(browse: Browse, report: Path, title: str) -> dict[str, list[str]]:
    visit = browse("about:blank")
    visit.page.add_init_script(f"({CATCH})()")
    visit.page.goto(report.as_uri())
    its = visit.page.locator(".chart").filter(has=visit.page.get_by_role("heading", name=title, exact=True))
    its.scroll_into_view_if_needed()
    its.locator("canvas").wait_for()
    visit.page.wait_for_function("() => window.drawn.length > 3")
    found: dict[str, list[str]] = its.locator("canvas").evaluate(LABELS)
    return found


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("train/near_one", [0.99991, 0.99993, 0.99996], "0.99994"),
        ("train/offset", [1234567.0, 1234569.0, 1234571.0], "1,234,570"),
        ("train/large", [2e6, 3e6, 4e6], "3.0M"),
        ("train/huge", [1e30, 2e30, 3e30], "2.0e30"),
        ("train/tiny", [1e-30, 2e-30, 3e-30], "2.0e-30"),
        ("memory/process", [12000.0, 12050.0, 12100.0], "12.05 GB"),
        ("time/remaining", [7230.0, 7215.0, 7200.0], "2 h 15 s"),
        ("time/elapsed", [0.012, 0.013, 0.014], "13 ms"),
    ],
)
def test_every_line_has_a_text_of_its_own(
    browse: Browse, tmp_path: Path, name: str, values: list[float], wanted: str
) -> None:
    section, _, rest = name.partition("/")
    found = labels(
        browse, run_with(tmp_path, **{name.replace("/", "__"): values}), rest if section == "train" else section
    )
    assert wanted in found["y"]
    assert len(set(found["y"])) == len(found["y"]) >= 2
    assert len(set(found["x"])) == len(found["x"]) >= 2


@pytest.mark.parametrize("count", [2, 4, 30])
def test_there_is_no_half_of_a_step(browse: Browse, tmp_path: Path, count: int) -> None:
    """With 30 rows of 39 steps the lines would lie 2.5 apart, and with two of two a tenth of a step."""
    rows = [MetricRow("train/loss", 1 + place * 39 // 30, 1, 1 / (place + 1), "step", 1.0) for place in range(count)]
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    found = labels(browse, write_report(tmp_path), "loss")["x"]
    assert len(found) >= 2
    assert all(text.isdigit() for text in found)


def test_a_tile_tells_values_that_are_close_apart(browse: Browse, tmp_path: Path) -> None:
    page = browse(run_with(tmp_path, val__near_one=[0.99991, 0.99993, 0.99996]).as_uri()).page
    assert page.locator(".tile .big").inner_text() == "0.99996"
    assert "from 0.99991 to 0.99996" in page.locator(".tile").inner_text()


def test_steps_of_ones_own_have_an_axis_of_their_own(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", 600, media=False)
    with (folder / "metrics.jsonl").open("a") as file:
        for place in range(1, 35):
            row = MetricRow("calibration/curve", 4000 * place, 5, place / 10, "step", 10.0)
            file.write(to_json(row) + "\n")
    report = write_report(folder)
    assert labels(browse, report, "loss")["x"][-1] == "1,000"
    page = browse(report.as_uri()).page
    assert "Steps\n1,000" in page.locator("header .facts").inner_text()
    its = page.locator(".chart").filter(has=page.get_by_role("heading", name="calibration/curve", exact=True))
    its.scroll_into_view_if_needed()
    assert "Its steps are its own" in its.locator(".note").inner_text()
    page.get_by_role("group", name="x axis").get_by_role("button", name="time").click()
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    assert its.locator(".when").inner_text().startswith("step ")
    its.locator(".plot").focus()
    page.keyboard.press("+")
    assert page.locator(".reset:visible").count() == 1


def test_the_cursor_shows_nothing_of_what_comes_later(browse: Browse, tmp_path: Path) -> None:
    page = browse(run_with(tmp_path, train__loss=[5.0, 4.0, 3.0], train__late=[0.0] * 9).as_uri()).page
    its = page.locator(".chart").filter(has=page.get_by_role("heading", name="loss", exact=True))
    its.locator("canvas").wait_for()
    box = its.locator(".u-over").bounding_box()

    def at(step: float) -> str:
        left, right = 10 - 0.8, 90 + 0.8
        page.mouse.move(box["x"] + box["width"] * (step - left) / (right - left), box["y"] + 40)
        return str(its.locator(".legend .value").inner_text())

    assert [at(19), at(21), at(29), at(60)] == ["5", "4", "4", "3"]
