"""The report in a real browser: curves are drawn, and what a person does with them works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import MetricRow, to_json
from hookline.report import write_report

Browse = Callable[..., Any]


@pytest.fixture(scope="module")
def report(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = samples.make_run(tmp_path_factory.mktemp("runs") / "baseline", 1_200, odd=True, status="stopped")
    return write_report(folder)


@pytest.fixture
def visit(browse: Browse, report: Path) -> Any:
    return browse(report.as_uri())


def chart(page: Any, title: str) -> Any:
    """One chart, drawn."""
    found = page.locator(".chart").filter(has=page.get_by_role("heading", name=title, exact=True))
    found.scroll_into_view_if_needed()
    found.locator("canvas").wait_for()
    return found


def hover(page: Any, its: Any, part: float) -> str:
    """Point at a part of a chart's width; where it says that this is."""
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    return str(its.locator(".when").inner_text())


def step(text: str) -> int:
    return int(text.removeprefix("step ").replace(",", ""))


def shown_range(page: Any, its: Any) -> tuple[int, int]:
    """The steps at the left and at the right edge."""
    return step(hover(page, its, 0.002)), step(hover(page, its, 0.998))


def drag(page: Any, its: Any, start: float, end: float) -> None:
    box = its.locator(".u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=5)
    page.mouse.up()


def legend(its: Any) -> dict[str, str]:
    """What the legend says of each line."""
    entries = its.locator(".legend .entry").all()
    return {entry.locator(".label").inner_text(): entry.locator(".value").inner_text() for entry in entries}


COLOURED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        if (alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) found += 1;
    }
    return found;
}"""
"""How many pixels have a colour: axes, grid and numbers are grey."""


CHANGED = """async (canvas, before) => {
    const image = new Image();
    image.src = before;
    await image.decode();
    const [width, height] = [canvas.width, canvas.height];
    const other = new OffscreenCanvas(width, height).getContext("2d");
    other.drawImage(image, 0, 0);
    const was = other.getImageData(0, 0, width, height).data;
    const is = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    let found = 0;
    for (let at = 3; at < is.length; at += 4) found += Math.abs(is[at] - was[at]) > 60 ? 1 : 0;
    return found;
}"""
"""How many pixels are not what they were, by more than the rounding of a line's edge."""


def picture(its: Any) -> str:
    """The pixels of a chart."""
    found: str = its.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    return found


def changed(its: Any, before: str) -> bool:
    return bool(its.locator("canvas").evaluate(CHANGED, before) > 20)


def rows(report: Path, name: str) -> dict[int, float]:
    lines = (report.parent / "metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if row["name"] == name]
    return {row["step"]: float(row["value"]) for row in found}


# -- curves ------------------------------------------------------------------------------------------


def test_every_chart_is_there_and_drawn(visit: Any) -> None:
    charts = visit.page.locator(".chart")
    titles = [its.locator("h3").inner_text() for its in charts.all()]
    assert titles == ["loss", "acc", "grad_norm", "lr", "samples_per_second", "memory"]
    for its in charts.all():
        its.scroll_into_view_if_needed()
        its.locator("canvas").wait_for()
        assert its.locator("canvas").evaluate(COLOURED) > 200


def test_training_and_validation_are_in_one_chart(visit: Any) -> None:
    labels = list(legend(chart(visit.page, "loss")))
    assert [label for label in labels if label in ("train", "val")] == ["train", "val"]


def test_the_legend_shows_the_values_under_the_cursor(visit: Any, report: Path) -> None:
    its = chart(visit.page, "acc")
    expected = rows(report, "train/acc")
    before = legend(its)["train"]
    for part in (0.1, 0.35, 0.8):
        at = step(hover(visit.page, its, part))
        nearest = min(abs(at - place) for place in expected)
        candidates = [value for place, value in expected.items() if abs(at - place) <= nearest + 1]
        shown = float(legend(its)["train"])
        assert any(shown == pytest.approx(value, rel=1e-3) for value in candidates), (at, shown, candidates)
    visit.page.mouse.move(5, 5)
    assert legend(its)["train"] == before == f"{expected[max(expected)]:.5g}"


def test_one_cursor_moves_in_all_charts(visit: Any) -> None:
    first, second = chart(visit.page, "acc"), chart(visit.page, "grad_norm")
    where = hover(visit.page, first, 0.5)
    assert where.startswith("step ")
    assert second.locator(".when").inner_text() == where


def test_dragging_zooms_all_charts_and_a_double_click_goes_back(visit: Any) -> None:
    page = visit.page
    its, other = chart(page, "acc"), chart(page, "grad_norm")
    low, high = shown_range(page, its)
    width = high - low
    drag(page, its, 0.25, 0.5)
    zoomed = shown_range(page, its)
    assert zoomed[0] == pytest.approx(low + 0.25 * width, abs=0.02 * width)
    assert zoomed[1] == pytest.approx(low + 0.5 * width, abs=0.02 * width)
    assert shown_range(page, other) == pytest.approx(zoomed, abs=0.01 * width)
    its.locator(".u-over").dblclick()
    assert shown_range(page, its) == (low, high)
    assert shown_range(page, other) == (low, high)


def test_a_zoom_is_reset_by_its_button(visit: Any) -> None:
    its = chart(visit.page, "acc")
    before = shown_range(visit.page, its)
    reset = its.get_by_role("button", name="reset zoom")
    assert not reset.is_visible()
    drag(visit.page, its, 0.6, 0.3)
    assert shown_range(visit.page, its) != before
    reset.click()
    assert shown_range(visit.page, its) == before
    assert not reset.is_visible()


def test_the_keyboard_moves_the_cursor_and_zooms(visit: Any) -> None:
    page = visit.page
    its = chart(page, "acc")
    its.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    first = step(its.locator(".when").inner_text())
    page.keyboard.press("ArrowRight")
    assert step(its.locator(".when").inner_text()) > first
    before = shown_range(page, its)
    hover(page, its, 0.5)
    page.keyboard.press("+")
    inner = shown_range(page, its)
    assert before[0] < inner[0] < inner[1] < before[1]
    page.keyboard.press("Escape")
    assert shown_range(page, its) == before


def test_smoothing_draws_another_line_and_can_be_taken_back(visit: Any) -> None:
    its = chart(visit.page, "grad_norm")
    rough = picture(its)
    slider = visit.page.locator("#smoothing")
    slider.fill("90")
    assert changed(its, rough)
    slider.fill("0")
    assert not changed(its, rough)


def test_the_log_scale_of_one_chart_and_of_all(visit: Any) -> None:
    page = visit.page
    its, other = chart(page, "grad_norm"), chart(page, "acc")
    plain, other_plain = picture(its), picture(other)
    its.get_by_role("button", name="log", exact=True).click()
    assert changed(its, plain)
    assert not changed(other, other_plain)
    page.locator("#log").click()
    assert changed(other, other_plain)
    page.locator("#log").click()
    assert not changed(its, plain)
    assert not changed(other, other_plain)


@pytest.mark.parametrize(("axis", "says"), [("epoch", "epoch "), ("time", " s")])
def test_the_x_axis_can_be_epochs_or_time(visit: Any, axis: str, says: str) -> None:
    its = chart(visit.page, "acc")
    visit.page.get_by_role("group", name="x axis").get_by_role("button", name=axis).click()
    assert says in hover(visit.page, its, 0.3)
    visit.page.get_by_role("group", name="x axis").get_by_role("button", name="step").click()
    assert hover(visit.page, its, 0.3).startswith("step ")


def test_a_line_is_hidden_by_a_click_on_its_name(visit: Any) -> None:
    its = chart(visit.page, "acc")
    before = its.locator("canvas").evaluate(COLOURED)
    entry = its.locator(".legend .entry").filter(has_text="train").first
    entry.click()
    visit.page.mouse.move(5, 5)
    assert its.locator("canvas").evaluate(COLOURED) < before
    assert entry.get_attribute("aria-pressed") == "false"


def test_metrics_are_found_by_name(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "many", 3_000, extra_metrics=40, media=False)
    page = browse(write_report(folder).as_uri()).page
    page.locator("#search").fill("/017/")
    titles = [its.locator("h3").inner_text() for its in page.locator(".chart").all() if its.is_visible()]
    assert titles == ["017/norm"]
    page.locator("#search").fill("")
    assert page.locator(".chart").count() > 40


def test_the_slash_key_leads_to_the_search(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    page = browse(write_report(samples.make_run(tmp_path / "many", 600, extra_metrics=10, media=False)).as_uri()).page
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


# -- the rest of the page ----------------------------------------------------------------------------


def test_the_head_says_what_ran_and_how_it_ended(visit: Any) -> None:
    header = visit.page.locator("header").inner_text()
    for text in ("cifar", "baseline", "stopped early", "val/loss has not improved for 3 evaluations"):
        assert text in header
    assert visit.page.title() == "cifar/baseline · Hookline"


def test_pictures_texts_tables_and_arrays_are_shown(visit: Any) -> None:
    media = visit.page.locator("#media")
    media.scroll_into_view_if_needed()
    image = media.locator("img").first
    assert image.evaluate("async image => { await image.decode(); return image.naturalWidth }") == 64
    for text in ("val/samples", "val/confusion", "weights/conv1", "val/worst", "val/sample"):
        assert media.get_by_role("heading", name=text, exact=True).is_visible()


def test_a_confusion_matrix_names_its_axes(visit: Any) -> None:
    card = visit.page.locator("#media .card").filter(has=visit.page.get_by_role("heading", name="val/confusion"))
    card.scroll_into_view_if_needed()
    assert card.locator("th.axis").all_inner_texts() == ["predicted", "true"]
    side, corner, first = (
        card.locator(name).first.bounding_box() for name in ("th.axis[rowspan]", "th.axis", "td:not(.corner)")
    )
    assert side["x"] < first["x"]
    assert corner["y"] < first["y"]


def test_charts_have_the_width_of_the_paper_when_they_are_printed(visit: Any) -> None:
    widths = """() => [...document.querySelectorAll(".chart, .tile")].filter((card) => card.checkVisibility())
        .map((card) => [card.querySelector(".u-wrap")?.offsetWidth, card.querySelector(".plot, .spark").clientWidth])"""
    page = visit.page
    before = page.evaluate(widths)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.evaluate(widths)
    assert len(printed) > 8
    assert all(drawn == place < 700 for drawn, place in printed), printed  # none waits until it is scrolled to
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert [place for _, place in page.evaluate(widths)] == [place for _, place in before]
    assert len(page.pdf()) > 50_000


def test_a_slider_shows_an_earlier_picture(visit: Any) -> None:
    slider = visit.page.get_by_role("slider", name="step of val/samples", exact=True)
    card = visit.page.locator("#media .card").filter(has=slider)
    newest = card.locator("img").get_attribute("src")
    slider.fill("0")
    assert card.locator("img").get_attribute("src") != newest
    assert "epoch 1" in card.locator("figcaption").inner_text()


def test_the_timeline_says_what_happened_when(visit: Any) -> None:
    timeline = visit.page.locator("#timeline")
    text = timeline.inner_text()
    for words in ("No space left on device", "ImageSamples.on_eval_end: ValueError: 3", "Resumed"):
        assert words in text
    timeline.locator(".mark").first.hover()
    assert "at step" in timeline.locator(".caption").inner_text()


def test_settings_callbacks_costs_and_environment_are_there(visit: Any) -> None:
    text = visit.page.locator("main").inner_text()
    for words in ("weight_decay", "0.05", "EarlyStopping", "Checkpointer", "torch", "2.13.0", "NVIDIA A100", "ResNet"):
        assert words in text


def test_links_in_the_page_lead_to_its_sections(visit: Any) -> None:
    links = [link.get_attribute("href") for link in visit.page.locator("nav a").all()]
    assert len(links) >= 6
    assert all(link.startswith("#") and visit.page.locator(link).count() == 1 for link in links)


def test_the_theme_can_be_chosen(visit: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(back)
    button = visit.page.locator("#theme")
    button.click()
    button.click()
    assert visit.page.evaluate(back) != light
    button.click()
    assert visit.page.evaluate(back) == light


def test_it_asks_for_nothing_but_itself(visit: Any, report: Path) -> None:
    visit.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    visit.page.wait_for_timeout(300)
    assert [url for url in visit.requests if not url.startswith("data:")] == [report.as_uri()]


# -- runs that have little to show -------------------------------------------------------------------


def test_a_run_without_metrics_says_so(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    samples.make_run(tmp_path / "new", 60, status="running", media=False)
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    page = browse(write_report(tmp_path / "new").as_uri()).page
    assert "No metrics yet" in page.locator("main").inner_text()
    assert "running" in page.locator("header").inner_text()


def test_a_run_without_its_file_shows_its_curves(browse: Browse, tmp_path: Path) -> None:
    values = [MetricRow("train/loss", step, 0, 1 / step, "step", step / 10) for step in range(1, 50)]
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in values))
    page = browse(write_report(tmp_path).as_uri()).page
    assert chart(page, "loss").locator("canvas").evaluate(COLOURED) > 200
    assert "run.json is missing" in page.locator("footer").inner_text()


@pytest.mark.parametrize(
    "values", [[float("nan")] * 5, [0.0] * 5, [1e300, -1e300], [5.0], [float("inf"), 1.0, float("-inf")]]
)
def test_numbers_that_are_hard_to_draw_break_nothing(browse: Browse, tmp_path: Path, values: list[float]) -> None:
    lines = [to_json(MetricRow("val/odd", at + 1, 0, value, "eval", at / 10)) for at, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = browse(write_report(tmp_path).as_uri()).page
    its = chart(page, "odd")
    its.get_by_role("button", name="log", exact=True).click()
    page.locator("#smoothing").fill("50")
    hover(page, its, 0.5)
    assert its.locator("canvas").is_visible()


def test_without_scripts_the_final_numbers_are_a_table(browse: Browse, report: Path) -> None:
    page = browse(report.as_uri(), scripts=False).page
    text = page.locator("body").inner_text()
    final = rows(report, "val/loss")
    assert "val/loss" in text
    assert f"{final[max(final)]:.4f}"[:5] in text
