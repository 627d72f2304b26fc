"""``hookline watch`` in a real browser: what is new appears by itself, and nothing that a person did is lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import EventRow, MetricRow, to_json
from hookline.records.run_file import RunFile, SessionEntry

Browse = Callable[..., Any]
Watch = Callable[[Path], Any]

STARTED = "2030-01-01T00:00:00+00:00"


def grow(folder: Path, first: int, last: int, name: str = "train/loss") -> None:
    """More rows of a run that is being trained, one for each tenth step."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = range(first, last + 1, 10)
    rows = [MetricRow(name, step, step // 100, 1 / (1 + step / 100), "step", step / 50) for step in steps]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(to_json(row) + "\n" for row in rows)


def about(folder: Path, status: Any = "running", reason: str = "") -> None:
    session = SessionEntry(STARTED, 0, status, reason=reason)
    RunFile("digits", folder.name, "id", STARTED, config={"lr": 0.1}, sessions=(session,)).write(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        grow(tmp_path / "digits" / name, 10, 500)
        about(tmp_path / "digits" / name)
    return tmp_path


@pytest.fixture
def served(watch: Watch, runs: Path) -> Any:
    return watch(runs)


@pytest.fixture
def visit(browse: Browse, served: Any) -> Any:
    """The list of runs, by the address that was printed."""
    found = browse(served.server.url, server=served.address)
    found.page.wait_for_url(f"http://{served.address}/")
    found.page.locator("#runs").wait_for()
    return found


def open_run(visit: Any, name: str) -> Any:
    visit.page.locator("#runs").get_by_role("link", name=re.compile(f"{name}$")).click()
    visit.page.locator(".chart canvas").first.wait_for()
    return visit.page.locator(".chart").first


def row(page: Any, name: str) -> Any:
    return page.locator("#runs tbody tr").filter(has_text=name)


def hover(page: Any, its: Any, part: float) -> int:
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    return int(its.locator(".when").inner_text().removeprefix("step ").replace(",", ""))


# -- the list ----------------------------------------------------------------------------------------


def test_a_name_from_right_to_left_does_not_turn_the_sign_beside_it(visit: Any, runs: Path) -> None:
    grow(runs / "digits" / "first", 510, 600, "val/\u202eloss")
    head = visit.page.locator("#runs th").filter(has_text="val/")
    head.wait_for()
    assert head.locator("bdi").inner_text().replace("\n", "") == "val/\u202eloss"
    head.get_by_role("button").click()
    assert head.locator(".order").inner_text() in "▲▼"


def test_the_printed_address_leads_to_the_list_and_the_token_is_gone_from_it(visit: Any, served: Any) -> None:
    assert visit.page.url == f"http://{served.address}/"
    assert served.server.token not in visit.page.content()
    assert visit.page.locator("#runs tbody tr").count() == 2
    assert "running" in row(visit.page, "first").inner_text()
    visit.page.go_back()
    assert served.server.token not in visit.page.url


def test_no_script_can_read_the_cookie(visit: Any) -> None:
    assert visit.page.evaluate("document.cookie") == ""


def test_a_new_run_appears_and_an_old_one_vanishes_without_a_reload(visit: Any, runs: Path) -> None:
    page = visit.page
    page.evaluate("window.still = true")
    grow(runs / "digits" / "third", 10, 20)
    row(page, "third").wait_for()
    shutil.rmtree(runs / "digits" / "first")
    row(page, "first").wait_for(state="detached")
    assert page.evaluate("window.still")


def test_status_and_values_in_the_list_follow_the_run(visit: Any, runs: Path) -> None:
    its = row(visit.page, "second")
    grow(runs / "digits" / "second", 510, 900, "val/loss")
    its.filter(has_text="step 900").wait_for()
    assert "val/loss" in visit.page.locator("#runs thead").inner_text().replace("\n", "")
    assert "0.1" in its.locator("strong").all_inner_texts()
    about(runs / "digits" / "second", "failed", "ValueError: <b>no</b>")
    its.filter(has_text="failed").wait_for()
    assert "ValueError: <b>no</b>" in its.inner_text()


def test_what_was_typed_chosen_and_focused_stays_when_the_list_is_new(visit: Any, runs: Path) -> None:
    page = visit.page
    row(page, "first").get_by_role("checkbox").check()
    page.locator("#search").press_sequentially("fir")
    assert not row(page, "second").is_visible()
    grow(runs / "digits" / "first", 510, 700)
    row(page, "first").filter(has_text="step 700").wait_for()
    assert page.locator("#search").input_value() == "fir"
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("st")
    assert page.locator("#search").input_value() == "first"
    assert row(page, "first").get_by_role("checkbox").is_checked()
    assert not row(page, "second").is_visible()


def test_chosen_runs_are_compared(visit: Any) -> None:
    page = visit.page
    compare = page.locator("#compare")
    assert compare.get_attribute("href") is None
    for name in ("first", "second"):
        row(page, name).get_by_role("checkbox").check()
    compare.click()
    page.locator(".chart canvas").first.wait_for()
    assert page.locator(".chart").first.locator(".legend .label").all_inner_texts() == ["first", "second"]
    page.get_by_role("link", name="All runs").click()
    row(page, "first").wait_for()


def test_an_empty_folder_says_so_until_there_is_a_run(browse: Browse, watch: Watch, tmp_path: Path) -> None:
    served = watch(tmp_path / "empty")
    page = browse(served.server.url, server=served.address).page
    page.get_by_text("No runs here yet").wait_for()
    grow(tmp_path / "empty" / "new", 10, 20)
    row(page, "new").wait_for()


# -- the leaderboard ---------------------------------------------------------------------------------


@pytest.fixture
def thousand(tmp_path: Path) -> Path:
    """A thousand runs: three learning rates, and a validation loss that no two runs share."""
    for number in range(1000):
        folder = tmp_path / "digits" / f"r{number:03d}"
        folder.mkdir(parents=True)
        rows = [
            MetricRow("train/loss", 100, 1, 2.0, "step", 50.0),
            MetricRow("val/loss", 100, 1, 1 + number * 7 % 1000 / 1000, "eval", 50.0),
            MetricRow("val/acc", 100, 1, number * 3 % 1000 / 1000, "eval", 50.0),
            *(MetricRow(f"val/other{extra}", 100, 1, float(number + extra), "eval", 50.0) for extra in range(4)),
        ]
        (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
        status: Any = "running" if number % 100 == 0 else "finished"
        session = SessionEntry(STARTED, 0, status, last_step=100, last_epoch=1, seconds=50.0)
        config = {"lr": (0.1, 0.01, 0.001)[number % 3], "width": 64}
        settings = {"max_duration": "400st"}
        RunFile("digits", folder.name, "id", STARTED, config=config, settings=settings, sessions=(session,)).write(
            folder
        )
    return tmp_path


def first_rows(page: Any, count: int = 3) -> list[str]:
    return [page.locator("#runs tbody tr a").nth(place).inner_text().replace("\n", "") for place in range(count)]


def test_a_thousand_runs_are_sorted_and_filtered_with_the_keyboard(
    browse: Browse, watch: Watch, thousand: Path
) -> None:
    served = watch(thousand)
    page = browse(served.server.url, server=served.address).page
    page.locator("#runs tbody tr").nth(999).wait_for()
    heads = [text.replace("\n", "").strip() for text in page.locator("#runs th").all_inner_texts()]
    assert heads == [
        *("compare", "run", "so far", "done", "time left"),
        *("val/loss", "val/acc", "val/other0", "val/other1", "lr"),
    ]  # And not the width, which is the same everywhere.
    running = row(page, "r100")
    assert "25 %" in running.inner_text()
    assert "2 m 30 s" in running.inner_text()

    loss = page.locator("#runs th").filter(has_text="loss")
    loss.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert loss.get_attribute("aria-sort") == "ascending"
    assert first_rows(page) == ["digits/r000", "digits/r143", "digits/r286"]
    page.keyboard.press("Space")  # The button has kept the focus.
    assert loss.get_attribute("aria-sort") == "descending"
    assert first_rows(page) == ["digits/r857", "digits/r714", "digits/r571"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Accuracy: the largest is the best.
    assert first_rows(page) == ["digits/r333", "digits/r666", "digits/r999"]

    page.locator("#sort").focus()
    for key in ("End", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    page.locator("#runs th").filter(has_text="other3").wait_for()
    assert page.locator("#sort").input_value() == "metric val/other3"
    assert first_rows(page) == ["digits/r000", "digits/r001", "digits/r002"]

    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("lr=0.01 r99")
    assert page.locator("#runs tbody tr:visible").count() == 3
    grow(thousand / "digits" / "r991", 110, 120)
    row(page, "r991").filter(has_text="step 120").wait_for()
    assert page.evaluate("document.activeElement.id") == "search"
    assert page.locator("#runs tbody tr:visible").count() == 3


# -- a run -------------------------------------------------------------------------------------------


def test_new_rows_are_drawn_without_a_reload(visit: Any, runs: Path) -> None:
    page = visit.page
    its = open_run(visit, "first")
    page.evaluate("window.still = true")
    before = its.locator(".legend .value").inner_text()
    assert hover(page, its, 0.99) < 520
    page.mouse.move(2, 2)
    grow(runs / "digits" / "first", 510, 1000)
    its.locator(".legend .value").filter(has_not_text=before).wait_for()
    assert float(its.locator(".legend .value").inner_text()) == pytest.approx(1 / 11, rel=1e-3)
    assert hover(page, its, 0.99) > 950
    assert page.evaluate("window.still")


def test_a_zoom_stays_while_rows_come_in(visit: Any, runs: Path) -> None:
    page = visit.page
    its = open_run(visit, "first")
    box = its.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    zoomed = hover(page, its, 0.01), hover(page, its, 0.99)
    page.mouse.move(2, 2)
    grow(runs / "digits" / "first", 510, 1000)
    page.locator(".facts").filter(has_text="1,000").wait_for()
    assert (hover(page, its, 0.01), hover(page, its, 0.99)) == zoomed
    its.locator(".u-over").dblclick()
    assert hover(page, its, 0.99) > 950


def test_smoothing_log_scale_and_place_stay_while_rows_come_in(visit: Any, runs: Path) -> None:
    page = visit.page
    page.set_viewport_size({"width": 800, "height": 400})
    open_run(visit, "first")
    page.locator("#smoothing").fill("70")
    page.locator("#log").click()
    page.evaluate("window.scrollTo(0, 150)")
    grow(runs / "digits" / "first", 510, 1000)
    page.locator(".facts").filter(has_text="1,000").wait_for(state="attached")
    assert page.locator("#smoothing").input_value() == "70"
    assert page.locator("#log").get_attribute("aria-pressed") == "true"
    assert page.evaluate("window.scrollY") == 150


def test_the_keyboard_stays_where_it_is_while_rows_come_in(visit: Any, runs: Path) -> None:
    page = visit.page
    its = open_run(visit, "first")
    its.locator(".plot").focus()
    grow(runs / "digits" / "first", 510, 1000)
    page.locator(".facts").filter(has_text="1,000").wait_for()
    assert its.locator(".plot").evaluate("plot => plot === document.activeElement")


def test_a_new_metric_gets_a_chart_and_an_event_its_place(visit: Any, runs: Path) -> None:
    page = visit.page
    open_run(visit, "first")
    grow(runs / "digits" / "first", 510, 600, "val/acc")
    event = EventRow("exception", 600, 6, 12.0, "OSError: gone")
    (runs / "digits" / "first" / "events.jsonl").write_text(to_json(event) + "\n")
    page.get_by_role("heading", name="acc", exact=True).wait_for()
    page.locator("#timeline").filter(has_text="OSError: gone").wait_for()


def test_a_run_that_went_back_loses_its_later_rows(visit: Any, runs: Path) -> None:
    page = visit.page
    its = open_run(visit, "first")
    (runs / "digits" / "first" / "metrics.jsonl").unlink()
    grow(runs / "digits" / "first", 10, 200)
    page.locator(".facts").filter(has_text="200").wait_for()
    assert hover(page, its, 0.99) < 210


def said_below_the_head(visit: Any) -> str:
    text: str = visit.page.evaluate("getComputedStyle(document.querySelector('header'), '::after').content")
    return text


def test_a_run_that_is_gone_leaves_the_page_and_says_so(visit: Any, runs: Path) -> None:
    its = open_run(visit, "first")
    shutil.rmtree(runs / "digits" / "first")
    visit.page.locator("html[data-lost]").wait_for()
    assert "no longer in the folder" in said_below_the_head(visit)  # the server does answer
    assert its.locator("canvas").is_visible()
    visit.page.close()  # it asks again and again
    assert {what.partition(":")[0] for what in visit.wrong} == {"console"}  # the browser's own word on a 404
    visit.wrong.clear()


def test_a_server_that_ended_leaves_the_page_and_one_that_is_back_is_found(visit: Any, served: Any) -> None:
    open_run(visit, "first")
    right, served.server.session = served.server.session, "another"
    visit.page.locator("html[data-lost]").wait_for()
    assert "does not answer" in said_below_the_head(visit)
    served.server.session = right
    visit.page.locator("html:not([data-lost])").wait_for()
    assert {what.partition(":")[0] for what in visit.wrong} == {"console"}
    visit.wrong.clear()


# -- other pages in the same browser -----------------------------------------------------------------


def test_a_link_from_another_site_opens_the_list(browse: Browse, served: Any) -> None:
    visit = browse("about:blank", server=served.address)
    visit.page.set_content(f'<a href="{served.server.url}">in a terminal in the browser</a>')
    visit.page.get_by_role("link").click()
    visit.page.wait_for_url(f"http://{served.address}/")
    row(visit.page, "first").wait_for()


def test_a_page_of_another_site_can_neither_read_nor_frame_it(visit: Any, served: Any) -> None:
    page = visit.page
    other = page.context.new_page()
    other.goto(f"http://localhost:{served.server.server_port}/nothing")  # another site for the browser, without cookie
    assert "token" in other.inner_text("body")
    read = f"fetch('http://{served.address}/data', {{ credentials: 'include' }}).then(() => 'read', () => 'refused')"
    other.set_content("<p>another site</p>")
    assert other.evaluate(read) == "refused"
    other.set_content(f'<iframe src="http://{served.address}/"></iframe>')
    (frame,) = [frame for frame in other.frames if frame is not other.main_frame]
    frame.wait_for_load_state()
    assert frame.locator("#page, td").count() == 0
    assert frame.url.startswith("chrome-error:")


def test_a_program_on_this_machine_without_the_token_sees_nothing(browse: Browse, served: Any) -> None:
    visit = browse(f"http://{served.address}/", server=served.address)
    assert visit.page.inner_text("body").startswith("403 Forbidden: open the full address")
    assert visit.page.locator("#page").count() == 0
    visit.wrong.clear()  # the browser reports the 403


def test_reports_of_real_size_open_live(browse: Browse, watch: Watch, samples: ModuleType, tmp_path: Path) -> None:
    samples.make_run(tmp_path / "big", 3_000, odd=True, status="running")
    served = watch(tmp_path)
    visit = browse(served.server.url, server=served.address)
    visit.page.get_by_role("link", name=re.compile("big$")).click()
    visit.page.locator(".chart canvas").first.wait_for()
    grow(tmp_path / "big", 50_010, 50_200)
    visit.page.locator(".facts").filter(has_text="50,200").wait_for()


def test_a_live_page_says_that_it_asks_its_server(visit: Any) -> None:
    assert "asks the program on this machine" in visit.page.locator("footer").inner_text()
    open_run(visit, "first")
    assert "asks the program on this machine" in visit.page.locator("footer").inner_text()
