"""Several runs over one another in a real browser, and what differs between them, exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.report import read_run, render_compare

Browse = Callable[..., Any]

COLOURS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const found = new Map();
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        if (alpha < 250 || Math.max(red, green, blue) - Math.min(red, green, blue) < 60) continue;
        const key = `${red} ${green} ${blue}`;
        found.set(key, (found.get(key) ?? 0) + 1);
    }
    return [...found.values()].filter((count) => count > 30).length;
}"""
"""How many colours are drawn with: the edges of a line are mixed with what is behind it, its middle is not."""


@pytest.fixture(scope="module")
def compared(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs")
    samples.make_run(folder / "baseline", 600, media=False)
    samples.make_run(folder / "fast", 600, seed=2, media=False, config={"lr": 1e-3, "model": {"name": "resnet34"}})
    samples.make_run(folder / "plain", 600, seed=4, media=False, config={"augment": [], "note": None}, status="failed")
    runs = [read_run(folder / name) for name in ("baseline", "fast", "plain")]
    (folder / "compare.html").write_text(render_compare(runs))
    return folder / "compare.html"


@pytest.fixture
def page(browse: Browse, compared: Path) -> Any:
    return browse(compared.as_uri()).page


def cells(page: Any, section: str) -> list[list[str]]:
    """A table as the page shows it, the head first."""
    table = page.locator(f"#{section} table")
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in table.locator("tr").all()]


def chart(page: Any, title: str) -> Any:
    found = page.locator(".chart").filter(has=page.get_by_role("heading", name=title, exact=True))
    found.scroll_into_view_if_needed()
    found.locator("canvas").wait_for()
    return found


def test_the_runs_are_sorted_by_any_metric_with_the_keyboard(page: Any) -> None:
    head = page.locator("#runs th").filter(has_text="val").filter(has_text="loss")
    loss = head.evaluate("head => head.cellIndex")
    head.get_by_role("button").focus()
    for key, direction in (("Enter", 1), ("Space", -1)):
        page.keyboard.press(key)
        values = [direction * float(row[loss]) for row in cells(page, "runs")[1:]]
        assert values == sorted(values)
    select = page.get_by_label("Sort by another metric")
    select.select_option("metric train/grad_norm")
    page.locator("#runs th").filter(has_text="grad_norm").wait_for()
    head = page.locator('#runs th[aria-sort="ascending"]')
    assert head.evaluate("head => head.textContent").startswith("train/grad_norm")
    assert len({row[-1] for row in cells(page, "runs")[1:]}) == 3


def test_all_runs_are_listed_with_how_they_ended(page: Any) -> None:
    rows = cells(page, "runs")[1:]
    assert [row[0] for row in rows] == ["baseline", "fast", "plain"]
    assert [row[1].split()[-1] for row in rows] == ["finished", "finished", "failed"]


def test_the_settings_that_differ_are_listed_and_no_others(page: Any) -> None:
    head, *rows = cells(page, "settings")
    assert head[1:] == ["baseline", "fast", "plain"]
    assert {row[0]: row[1:] for row in rows} == {
        "config lr": ["0.0003", "0.001", "0.0003"],
        "config model.name": ["resnet18", "resnet34", "resnet18"],
        "config model.width": ["64", "—", "64"],
        "config model.dropout": ["0.1", "—", "0.1"],
        "config augment": ['["crop", "flip"]', '["crop", "flip"]', "[]"],
        "config note": ["—", "—", "None"],
        "trainer seed": ["0", "2", "4"],
        "command arguments": [
            "train.py --lr 0.0003 --width 64",
            "train.py --lr 0.001 --width 64",
            "train.py --lr 0.0003 --width 64",
        ],
    }


def test_the_final_metrics_that_differ_are_listed_and_the_best_is_marked(page: Any, compared: Path) -> None:
    head, *rows = cells(page, "metrics")
    assert head[1:] == ["baseline", "fast", "plain"]
    finals = [read_run(compared.parent / name).series["val/loss"].values[-1] for name in ("baseline", "fast", "plain")]
    shown = {row[0]: row[1:] for row in rows}
    assert [float(text) for text in shown["val/loss"]] == pytest.approx(finals, rel=1e-5)
    assert shown["test/loss"][2] == "—"
    assert "lr/AdamW" not in shown
    best = page.locator("#metrics tr").filter(has_text="val/loss").locator(".best")
    assert float(best.inner_text()) == pytest.approx(min(finals), rel=1e-5)


def test_each_run_has_a_line_of_its_own_colour_in_one_chart(page: Any) -> None:
    its = chart(page, "train/loss")
    assert its.locator(".legend .label").all_inner_texts() == ["baseline", "fast", "plain"]
    assert its.locator("canvas").evaluate(COLOURS) == 3


def test_the_cursor_shows_the_value_of_each_run(page: Any, compared: Path) -> None:
    its = chart(page, "train/acc")
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    at = int(its.locator(".when").inner_text().removeprefix("step ").replace(",", ""))
    shown = [float(text) for text in its.locator(".legend .value").all_inner_texts()]
    for name, value in zip(("baseline", "fast", "plain"), shown, strict=True):
        series = read_run(compared.parent / name).series["train/acc"]
        nearest = min(abs(step - at) for step in series.steps)
        near = [value for step, value in zip(series.steps, series.values, strict=True) if abs(step - at) <= nearest + 1]
        assert any(value == pytest.approx(one, rel=1e-3) for one in near)


def test_a_run_can_be_hidden_in_all_charts(page: Any) -> None:
    page.locator("#runs").get_by_role("button", name="fast").click()
    assert chart(page, "train/loss").locator("canvas").evaluate(COLOURS) == 2
    assert chart(page, "train/grad_norm").locator("canvas").evaluate(COLOURS) == 2


def test_zooming_one_chart_zooms_all(page: Any) -> None:
    its, other = chart(page, "train/loss"), chart(page, "train/acc")
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    assert other.get_by_role("button", name="reset zoom").is_visible()
    other.locator(".u-over").dblclick()
    assert not its.get_by_role("button", name="reset zoom").is_visible()


def test_runs_with_nothing_in_common_are_still_drawn(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    samples.make_run(tmp_path / "one", 60, media=False)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "metrics.jsonl").write_text("")
    text = render_compare([read_run(tmp_path / "one"), read_run(tmp_path / "two")])
    (tmp_path / "compare.html").write_text(text)
    page = browse((tmp_path / "compare.html").as_uri()).page
    assert chart(page, "train/loss").locator(".legend .entry").count() == 1
    assert "two" in page.locator("#runs").inner_text()


def test_eight_runs_have_eight_colours(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    for at in range(8):
        samples.make_run(tmp_path / f"run{at}", 60, seed=at, media=False)
    (tmp_path / "compare.html").write_text(render_compare([read_run(path) for path in sorted(tmp_path.iterdir())]))
    page = browse((tmp_path / "compare.html").as_uri()).page
    keys = chart(page, "train/loss").locator(".legend .key").all()
    assert len({key.evaluate("key => getComputedStyle(key).borderTopColor") for key in keys}) == len(keys) == 8


def test_ten_runs_are_told_apart_and_no_legend_is_cut(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    for at in range(10):
        samples.make_run(tmp_path / f"run{at}", 60, seed=at, media=False)
    (tmp_path / "compare.html").write_text(render_compare([read_run(path) for path in sorted(tmp_path.iterdir())]))
    page = browse((tmp_path / "compare.html").as_uri()).page
    its = chart(page, "train/loss")
    look = "key => ['borderTopColor', 'borderTopStyle'].map((name) => getComputedStyle(key)[name]).join()"
    for each in (its, chart(page, "val/loss")):
        assert len({key.evaluate(look) for key in each.locator(".legend .key").all()}) == 10
    assert its.locator(".legend").evaluate("legend => legend.scrollHeight - legend.clientHeight") == 0


def test_what_is_hidden_in_all_runs_is_said(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "two"):
        samples.make_run(tmp_path / name, 60, media=False, config={"api_key": "[redacted]"})
    (tmp_path / "compare.html").write_text(render_compare([read_run(tmp_path / "one"), read_run(tmp_path / "two")]))
    page = browse((tmp_path / "compare.html").as_uri()).page
    assert "1 setting is hidden in all runs, and may differ." in page.locator("#settings").inner_text()


def test_the_curves_over_epochs_of_a_ninth_run_are_drawn_as_its_legend_says(
    browse: Browse, samples: ModuleType, tmp_path: Path
) -> None:
    for at in range(9):
        samples.make_run(tmp_path / f"run{at}", 60, seed=at, media=False)
    (tmp_path / "compare.html").write_text(render_compare([read_run(path) for path in sorted(tmp_path.iterdir())]))
    page = browse("about:blank").page
    page.add_init_script(
        """window.dashes = new Map();
        const set = CanvasRenderingContext2D.prototype.setLineDash;
        CanvasRenderingContext2D.prototype.setLineDash = function (dash) {
            window.dashes.set(this.canvas, [...(window.dashes.get(this.canvas) ?? []), dash.join()]);
            return set.call(this, dash);
        };"""
    )
    page.goto((tmp_path / "compare.html").as_uri())
    drawn = chart(page, "train/loss_epoch").locator("canvas").evaluate("canvas => window.dashes.get(canvas)")
    assert {"5,4", "2,3"} <= set(drawn)
