"""No number that a run can log stops the page: a chart with an endless axis would take the others along."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.records import HistogramRow, MetricRow, Record, to_json
from hookline.report import write_report

Browse = Callable[..., Any]

ODD = {
    "constant": [5.0] * 9,
    "zero": [0.0] * 9,
    "all_nan": [math.nan] * 9,
    "all_infinite": [math.inf, -math.inf] * 4,
    "negative": [-1.0, -2.0, -0.5],
    "sixty_decades": [1e-30, 1e30, 1.0],
    "six_hundred_decades": [1e-300, 1e300, 1.0],
    "largest": [1.7e308, -1.7e308, 0.0],
    "smallest": [5e-324, 1e-310, 3e-320],
    "narrow": [1 + 1e-15 * place for place in range(9)],
    "narrow_and_large": [1e15 + place for place in range(9)],
    "between_round_numbers": [0.951, 0.952, 0.953],
    "one": [3.0],
    "mixed": [1.0, -1.0, math.nan, 0.0, math.inf],
}


def odd_run(folder: Path) -> Path:
    rows: list[Record] = [
        MetricRow(f"train/{name}", 7 * (place + 1), place // 3, value, "step", 1.5 * place)
        for name, values in ODD.items()
        for place, value in enumerate(values)
    ]
    rows.append(MetricRow("train/far_away", 10**15, 5, 1.0, "step", 1e9))
    edges = (-math.inf, 0.0, math.inf)
    rows += [HistogramRow("spread/endless", step, 0, 0.0, edges, (1, 2)) for step in (1, 2)]
    rows += [HistogramRow("spread/same_step", 5, 0, 0.0, (0.0, 1.0, 2.0), counts) for counts in ((3, 1), (1, 3))]
    rows += [HistogramRow("spread/none", step, 0, 0.0, (0.0, 1.0), (0,)) for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return write_report(folder)


def draw_all(page: Any) -> None:
    page.locator(".fold").evaluate_all("folds => folds.forEach(fold => (fold.open = true))")
    for its in page.locator(".chart").all():
        its.scroll_into_view_if_needed()
        its.locator("canvas").wait_for()


@pytest.mark.parametrize("axis", ["step", "epoch", "time"])
def test_every_chart_is_drawn_on_every_axis_and_both_scales(browse: Browse, tmp_path: Path, axis: str) -> None:
    page = browse(odd_run(tmp_path).as_uri()).page
    assert page.locator(".chart").count() == len(ODD) + 1
    draw_all(page)
    page.get_by_role("group", name="x axis").get_by_role("button", name=axis).click()
    draw_all(page)
    page.locator("#smoothing").fill("80")
    page.locator("#log").click()
    draw_all(page)
    page.locator("#log").click()
    draw_all(page)


def test_zooming_in_without_end_by_the_keyboard_stays_drawn(browse: Browse, tmp_path: Path) -> None:
    page = browse(odd_run(tmp_path).as_uri()).page
    chart = page.locator(".chart").first
    chart.locator("canvas").wait_for()
    chart.locator(".plot").focus()
    for _ in range(120):
        page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert chart.locator(".when").inner_text().startswith("step ")
    page.keyboard.press("Escape")
    assert page.locator(".reset:visible").count() == 0


def test_what_is_no_number_is_said_and_counted(browse: Browse, tmp_path: Path) -> None:
    page = browse(odd_run(tmp_path).as_uri()).page
    page.locator("#curves .fold > summary").click()
    chart = page.locator(".chart").filter(has=page.get_by_role("heading", name="mixed", exact=True))
    chart.scroll_into_view_if_needed()
    chart.locator("canvas").wait_for()
    assert chart.locator(".note").inner_text() == "2 NaN or infinite (▾, ▴)"
    chart.get_by_role("button", name="log").click()
    assert chart.locator(".note").inner_text() == "2 NaN or infinite (▾, ▴); 2 not above zero, so not on this scale"


def test_one_value_alone_makes_no_time_before_the_start(browse: Browse, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(to_json(MetricRow("train/loss", 1, 0, 0.5, "step", 0.1)) + "\n")
    page = browse(write_report(tmp_path).as_uri()).page
    page.get_by_role("group", name="x axis").get_by_role("button", name="time").click()
    over = page.locator(".chart .u-over")
    over.hover(position={"x": 1, "y": 20})
    assert not page.locator(".chart .when").inner_text().startswith("-")


UPPER_HALF = """canvas => {
  const [width, height] = [canvas.width, Math.floor(canvas.height / 2)];
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const coloured = new Set();
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] && Math.max(...data.slice(at, at + 3)) - Math.min(...data.slice(at, at + 3)) > 60)
      coloured.add((at / 4) % width);
  return coloured.size / width;
}"""
"""The part of the width in which something is drawn in a colour; grid and labels are grey."""


@pytest.mark.parametrize(("middle", "least", "most"), [(1.0, 0.6, 1.0), (math.nan, 0.0, 0.15)])
def test_a_gap_reaches_from_value_to_value_also_beside_a_curve_with_more_points(
    browse: Browse, tmp_path: Path, middle: float, least: float, most: float
) -> None:
    """Else a line leads to where nothing was measured."""
    rows = [MetricRow("train/acc", step, 0, 0.0, "step", step) for step in range(1, 25)]
    rows += [MetricRow("val/acc", step, 0, value, "eval", step) for step, value in ((8, 1.0), (16, middle), (24, 1.0))]
    rows.sort(key=lambda row: row.step)
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    page = browse(write_report(tmp_path).as_uri()).page
    canvas = page.locator(".chart canvas").first
    canvas.wait_for()
    assert least <= canvas.evaluate(UPPER_HALF) <= most
