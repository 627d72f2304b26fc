"""Every page at two widths, light and dark: nothing sticks out, and axe finds nothing that shuts somebody out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from hookline.records import EventRow, HistogramRow, MetricRow, TableRow, to_json
from hookline.records.run_file import RunFile
from hookline.report import read_run, render_compare, write_report

Browse = Callable[..., Any]
Watch = Callable[[Path], Any]

SIZES = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def runs(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs")
    long = "a_name_that_is_so_long_that_it_has_to_be_broken_somewhere_" * 3
    samples.make_run(folder / "cifar" / "baseline", 600, config={long: long, "note": "words " * 80})
    samples.make_run(folder / "cifar" / "trouble", 600, seed=1, odd=True, status="failed", name=long)
    samples.make_run(folder / "digits" / "now", 600, seed=2, status="running", media=False)
    samples.make_run(folder / "digits" / "old", 600, seed=3, status="preempted", media=False)
    return folder


def address(page: str, runs: Path) -> str:
    if page == "report":
        return write_report(runs / "cifar" / "trouble").as_uri()
    folders = [runs / "cifar" / "baseline", runs / "cifar" / "trouble", runs / "digits" / "now"]
    (runs / "compare.html").write_text(render_compare([read_run(folder) for folder in folders]))
    return (runs / "compare.html").as_uri()


def check(visit: Any) -> None:
    page = visit.page
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    for place in page.locator("section").all():
        place.scroll_into_view_if_needed()  # charts are drawn when they come near
    assert page.evaluate("[document.scrollingElement.scrollWidth - innerWidth, scrollX]") == [0, 0]
    cut = page.evaluate(
        "[...document.querySelectorAll('#page .card')].filter(card => card.scrollWidth > card.clientWidth + 1).length"
    )
    assert cut == 0
    found = problems(page)
    assert not found, "\n".join(found)


def problems(page: Any) -> list[str]:
    """What axe finds on a page: contrast, names of controls, headings, tables, landmarks, keyboard."""
    found = Axe().run(page).response
    assert len(found["passes"]) > 10
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("page", ["report", "compare"])
def test_a_page_fits_and_can_be_read(browse: Browse, runs: Path, page: str, width: int, scheme: str) -> None:
    check(browse(address(page, runs), width=width, scheme=scheme))


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_list_of_runs_fits_and_can_be_read(
    browse: Browse, watch: Watch, runs: Path, width: int, scheme: str
) -> None:
    served = watch(runs)
    visit = browse(served.server.url, width=width, scheme=scheme, server=served.address)
    visit.page.wait_for_url(f"http://{served.address}/")
    visit.page.locator("#runs").wait_for()
    check(visit)


# Of every word in a table or beside a value: whether it is broken over two lines.
BROKEN = """() => {
    const found = [];
    const walk = document.createTreeWalker(document.getElementById("page"), NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        if (!node.parentElement.closest("th, td, dt") || node.parentElement.closest(".breaks, .long")) continue;
        for (const { 0: word, index } of node.textContent.matchAll(/[^\\s./_-]{1,20}/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) found.push(word);
        }
    }
    return found;
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["report", "compare"])
def test_no_word_of_a_table_is_broken(browse: Browse, runs: Path, page: str, width: int) -> None:
    visit = browse(address(page, runs), width=width)
    visit.page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert [word for word in visit.page.evaluate(BROKEN) if "broken" not in word] == []


def test_what_is_wider_than_its_place_fades_until_its_end_is_seen(browse: Browse, runs: Path) -> None:
    page = browse(address("compare", runs), width=390).page
    table = page.locator("#settings .scroll")
    assert "more-right" in table.get_attribute("class")
    assert "more-left" not in table.get_attribute("class")
    table.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    page.wait_for_function("() => !document.querySelector('#settings .scroll').matches('.more-right')")
    assert "more-left" in table.get_attribute("class")
    assert "linear-gradient" in table.evaluate("box => getComputedStyle(box).maskImage")


def test_on_a_narrow_page_the_timeline_and_the_sessions_fit(browse: Browse, runs: Path) -> None:
    page = browse(address("report", runs), width=390).page
    for kind in ("events", "sessions"):
        assert page.locator(f".scroll:has(.{kind})").evaluate("box => box.scrollWidth - box.clientWidth") == 0
        assert page.locator(f".{kind} td:last-child").last.evaluate("cell => cell.clientWidth") > 250


def test_a_matrix_of_large_numbers_is_seen_as_a_whole(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", 60)
    matrix = MetricRow("val/matrix", 100, 1, [[-1234567.0 * place for place in range(12)]] * 12, "eval", 1.0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(to_json(matrix) + "\n")
    page = browse(write_report(folder).as_uri()).page
    place = page.locator(".broad .scroll")
    assert place.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    assert place.locator("td").last.inner_text() == "-13.6M"
    assert place.locator("td").last.get_attribute("title") == "row 11, column 11: -13,580,200"


def add(folder: Path, *rows: Any) -> str:
    """The address of the report of a run that has logged these rows too."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(to_json(row) + "\n" for row in rows)
    return write_report(folder).as_uri()


def test_a_matrix_of_ten_columns_with_fractions_is_seen_as_a_whole(
    browse: Browse, samples: ModuleType, tmp_path: Path
) -> None:
    matrix = [[0.0123456 + place / 1000 for place in range(10)]] * 10
    address = add(samples.make_run(tmp_path / "run", 60), MetricRow("val/shares", 100, 1, matrix, "eval", 1.0))
    page = browse(address).page
    place = page.locator("article").filter(has_text="val/shares").locator(".scroll")
    assert place.evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_a_long_table_fades_downwards(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    rows = tuple((place, "x") for place in range(60))
    row = TableRow("val/long", 100, 1, 1.0, ("place", "text"), rows)
    page = browse(add(samples.make_run(tmp_path / "run", 60), row)).page
    place = page.locator("article").filter(has_text="val/long").locator(".scroll")
    assert "more-down" in place.get_attribute("class")
    place.evaluate("box => box.scrollTo(0, box.scrollHeight)")
    page.wait_for_function("() => !document.querySelector('article .more-down')")


def test_histograms_say_what_they_cannot_draw(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    rows = [HistogramRow("weights/odd", step, 1, 1.0, (0.0, 1.0, 2.0), (3, 1), odd=2) for step in (10, 20)]
    page = browse(add(samples.make_run(tmp_path / "run", 60), *rows)).page
    card = page.locator("article").filter(has_text="weights/odd")
    assert "4 values are NaN or infinite, and not drawn." in card.inner_text()


def test_a_run_that_was_killed_fits_into_a_narrow_list(
    browse: Browse, watch: Watch, samples: ModuleType, tmp_path: Path
) -> None:
    folder = samples.make_run(tmp_path / "runs" / "gone", 60, status="running", media=False)
    (folder / "run.lock").touch()  # nobody holds it
    replace(RunFile.read(folder), settings={"max_duration": "5000000st"}).write(folder)
    served = watch(tmp_path / "runs")
    page = browse(served.server.url, width=390, server=served.address).page
    page.locator(".badge.gone").wait_for()
    assert page.locator(".badge.gone").evaluate("badge => badge.getBoundingClientRect().right") < 390
    assert "of 5,000,000" in page.locator(".list").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # The table scrolls inside its card.


def test_weights_that_were_put_back_are_named_and_marked(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    events = (EventRow("restore", 60, 5, 3.0, "EarlyStopping: those of step 50"),)
    page = browse(write_report(samples.make_run(tmp_path / "run", 60, events=events, media=False)).as_uri()).page
    assert "Weights restored" in page.locator("#timeline .events").inner_text()
    assert page.locator("#timeline .mark.restore").count() == 1
