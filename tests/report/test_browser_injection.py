"""Forty texts that would run as a script, or break the page, if any page took them for more than text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest

from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, TableRow, TextRow, to_json
from hookline.records.run_file import CallbackEntry, CostEntry, RunFile, SessionEntry
from hookline.report import read_run, render_compare, write_report

Browse = Callable[..., Any]
Watch = Callable[[Path], Any]

STARTED = "2030-01-01T00:00:00+00:00"
PAYLOADS = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "</SCRIPT ><ScRiPt>window.pwned=1</sCrIpT>",
    "<!--<script>",
    "--><script>window.pwned=1</script><!--",
    "]]><script>window.pwned=1</script>",
    "</title><script>window.pwned=1</script>",
    "</noscript><img src=x onerror=window.pwned=1>",
    "</style><script>window.pwned=1</script>",
    "</textarea></xmp><img src=x onerror=window.pwned=1>",
    "<img src=x onerror=window.pwned=1>",
    '"><img src=x onerror=window.pwned=1>',
    "'><img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1>",
    "<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<iframe src=javascript:parent.pwned=1></iframe>",
    "<object data=data:text/html,<script>window.pwned=1</script>></object>",
    "<embed src=http://evil.example/x>",
    "<a href=javascript:window.pwned=1>click</a>",
    "<details open ontoggle=window.pwned=1>",
    "<input autofocus onfocus=window.pwned=1>",
    "<video><source onerror=window.pwned=1></video>",
    "<body onload=window.pwned=1>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<base href=http://evil.example/>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<form action=http://evil.example/><button>go</button></form>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror=window.pwned=1&gt;'>",
    "<template><img src=x onerror=window.pwned=1></template>",
    '" onmouseover="window.pwned=1" autofocus x="',
    "javascript:window.pwned=1",
    "&lt;script&gt;window.pwned=1&lt;/script&gt; &#60;b&#62; &amp;",
    "\\u003cscript\\u003ewindow.pwned=1\\u003c/script\\u003e \\\\ \\",
    '"},"x":{"y":"\u2028\u2029\x00\x1b[31m\u202e',
    "${window.pwned=1} `${pwned=1}` {{constructor.constructor('window.pwned=1')()}}",
    "url(http://evil.example/x);background:url(http://evil.example/y)} * { display: none",
    "__proto__",
    "constructor",
    "\uff1cscript\uff1ewindow.pwned=1\uff1c/script\uff1e %3Cscript%3E <\x00script>window.pwned=1</script>",
)

PARTS = [slice(first, first + 8) for first in range(0, 40, 8)]
"""A few at a time: a machine that is busy has a minute for each test."""

# Whatever a page must not hold, however it got there.
FOREIGN = """() => {
    const found = [];
    if (window.pwned !== undefined) found.push("a script ran");
    if ({}.polluted !== undefined || ({}).constructor !== Object) found.push("all objects have changed");
    const never = "iframe, object, embed, form, base, svg, math, video, audio, template, textarea, frame, marquee";
    for (const element of document.querySelectorAll(never)) found.push(element.tagName);
    if (document.scripts.length !== 2) found.push(`${document.scripts.length} scripts`);
    const head = document.querySelectorAll("link:not([rel=icon]), meta[http-equiv=refresh], body style, body title");
    for (const element of head) found.push(element.tagName);
    for (const element of document.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
            if (name.startsWith("on")) found.push(`${element.tagName} ${name}`);
            if (name === "src" && !value.startsWith("data:image/png;base64,")) found.push(`src ${value}`);
            const inside = /^(#[a-z]|\\/$|\\/show\\?run=[0-9a-f]|data:image\\/svg)/;
            if (name === "href" && !inside.test(value)) found.push(`href ${value}`);
        }
    }
    return found;
}"""
HOLDS = """([places, text]) => places.filter((place) =>
    ![...document.querySelectorAll(place)].some((element) => element.textContent === text))"""
"""The places of which no element has exactly this text."""


def test_there_are_forty() -> None:
    assert len(set(PAYLOADS)) == 40


def poison(folder: Path, text: str, samples: ModuleType) -> Path:
    """A run in which everything that can be a text is this one."""
    folder.mkdir(parents=True)
    (folder / "media").mkdir()
    (folder / "media" / "a.png").write_bytes(samples.picture(4, 4))
    now = (2, 1, 0.5)
    rows = [
        *(MetricRow(name, step, 0, 1 / step, "step", 0.1) for name in (text, "train/loss") for step in (1, 2)),
        MetricRow(f"val/{text}", 2, 1, 0.5, "eval", 0.5),
        MetricRow(f"array {text}", 2, 1, [[1.0, 2.0], [3.0, 4.0]], "eval", 0.5),
        ImageRow(text, *now, 4, 4, text, "media/a.png"),
        ImageRow(f"gone {text}", *now, 4, 4, text, text),
        TextRow(text, *now, text),
        TableRow(text, *now, (text, "b"), ((text, 1), (None, text))),
        TableRow("model/summary", *now, (text, "type"), ((text, text),)),
        HistogramRow(text, *now, (0.0, 1.0, 2.0), (3, 4)),
        FileRow(text, *now, text, 5),
    ]
    events = [EventRow(text, *now, text), EventRow("exception", *now, text)]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("".join(to_json(row) + "\n" for row in events))
    session = SessionEntry(
        STARTED, 0, "failed", STARTED, 2, 1, 0.5, text, text, (CostEntry(text, text, 1, 0.1),), (text,), (text,)
    )
    RunFile(
        text,
        text,
        text,
        STARTED,
        config={text: text, "nested": {text: [text]}},
        settings={text: text},
        arguments=(text, "--name", text),
        callbacks=(CallbackEntry(text, text, False),),
        model={"class": text, text: text},
        versions={text: text},
        platform={text: text},
        git={"commit": text, "branch": text, "dirty": True},
        sessions=(session,),
    ).write(folder)
    return folder


@pytest.fixture(scope="module")
def poisoned(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder: Path = tmp_path_factory.mktemp("runs")
    return [poison(folder / f"{at:02d}", text, samples) for at, text in enumerate(PAYLOADS)]


def provoke(page: Any) -> None:
    """What a person does: everything is scrolled into view, opened, pointed at and focused."""
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws every chart
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    page.evaluate(
        """() => { for (const element of document.querySelectorAll('#page *')) {
            for (const kind of ["pointerenter", "mouseover", "focus"]) element.dispatchEvent(new Event(kind));
            if (element.tabIndex >= 0) element.focus();
        } }"""
    )


def test_the_payloads_do_harm_where_they_are_taken_for_markup(browse: Browse, tmp_path: Path) -> None:
    """So that the other tests of this file could fail."""
    visit = browse("about:blank")
    harm = 0
    for text in PAYLOADS:
        if "refresh" in text:  # it would lead away while we look
            continue
        (tmp_path / "page.html").write_text(f"<!doctype html><title>x</title><body><div>{text}</div></body>")
        visit.page.goto((tmp_path / "page.html").as_uri())
        harm += bool(visit.wrong) or visit.page.evaluate(FOREIGN) != ["0 scripts"]
        visit.wrong.clear()
    assert harm >= 25


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_in_the_report_they_stay_text(browse: Browse, poisoned: list[Path], part: slice) -> None:
    visit = browse("about:blank")
    places = ["#numbers td", "#media h3", "#media figcaption", "#media pre", "#media td", "#media th"]
    places += [
        "#timeline td *",
        "#settings dt",
        "#settings dd",
        "#model td",
        "#model th",
        "#files td",
        "#environment dd",
    ]
    places += [".reason span", "#costs *", "#environment dt"]
    for folder, text in zip(poisoned[part], PAYLOADS[part], strict=True):
        visit.page.goto(write_report(folder).as_uri())
        provoke(visit.page)
        assert visit.page.evaluate(FOREIGN) == [], text
        assert visit.page.locator("h1").evaluate("h1 => h1.textContent") == f"{text} / {text}"
        assert visit.page.evaluate(HOLDS, [places, text]) == [], text
        assert visit.page.evaluate(HOLDS, [[".chart h3"], text.rpartition("/")[2]]) == [], text
        callbacks = visit.page.locator("#settings li").all_text_contents()
        assert any(text in callback for callback in callbacks), text
        assert visit.wrong == [], text


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_without_scripts_they_stay_text(browse: Browse, poisoned: list[Path], part: slice) -> None:
    visit = browse("about:blank", scripts=False)
    for folder, text in zip(poisoned[part], PAYLOADS[part], strict=True):
        visit.page.goto(write_report(folder).as_uri())
        assert visit.page.evaluate(FOREIGN) == [], text
        shown = visit.page.locator("noscript").evaluate("element => element.textContent")
        assert text.replace("\x00", "") in shown, text  # HTML has no such character
        assert visit.wrong == [], text


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_in_the_comparison_they_stay_text(browse: Browse, poisoned: list[Path], tmp_path: Path, part: slice) -> None:
    (tmp_path / "compare.html").write_text(render_compare([read_run(folder) for folder in poisoned[part]]))
    page = browse((tmp_path / "compare.html").as_uri()).page
    provoke(page)
    assert page.evaluate(FOREIGN) == []
    for text in PAYLOADS[part]:
        assert page.evaluate(HOLDS, [["#settings td *", "#metrics td", ".chart h3"], text]) == [], text
        assert page.evaluate(HOLDS, [["#runs button", ".chart .label"], f"{text}/{text}"]) == [], text


def test_in_the_live_pages_they_stay_text(browse: Browse, watch: Watch, poisoned: list[Path]) -> None:
    served = watch(poisoned[0].parent)
    visit = browse(served.server.url, server=served.address)
    visit.page.locator("#runs").wait_for()
    provoke(visit.page)
    assert visit.page.evaluate(FOREIGN) == []
    links = visit.page.locator("#runs td a").evaluate_all("links => links.map((link) => link.textContent)")
    assert sorted(links) == sorted(f"{text}/{text}" for text in PAYLOADS)
    for run in served.list()[::8]:
        visit.page.goto(f"http://{served.address}/show?run={run['id']}")
        visit.page.evaluate(
            "async () => window.hookline.refresh(await (await fetch(location.href.replace('show', 'data'))).json())"
        )
        provoke(visit.page)
        assert visit.page.evaluate(FOREIGN) == []
        assert visit.page.locator("h1").evaluate("h1 => h1.textContent") == f"{run['project']} / {run['name']}"


def test_as_names_of_folders_they_stay_text(browse: Browse, watch: Watch, tmp_path: Path) -> None:
    names = [text for text in PAYLOADS if "/" not in text and "\x00" not in text]
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text("")
    served = watch(tmp_path / "runs")
    visit = browse(served.server.url, server=served.address)
    visit.page.locator("#runs").wait_for()
    assert visit.page.evaluate(FOREIGN) == []
    links = visit.page.locator("#runs td a").evaluate_all("links => links.map((link) => link.textContent)")
    assert sorted(links) == sorted(names)
    assert len(names) > 10


def test_in_an_address_they_are_not_even_repeated(served: Any, browse: Browse) -> None:
    visit = browse(served.server.url, server=served.address)
    for text in PAYLOADS:
        word = quote(text, safe="")
        for path in (f"/{word}", f"/?token={word}", f"/show?run={word}", f"/data?run={word}", f"/data?since={word}"):
            reply = served.ask(path)
            assert text not in reply.body
            assert reply.headers["Content-Type"].startswith(("text/plain", "application/json"))
    for text in PAYLOADS[::4]:
        visit.page.goto(f"http://{served.address}/show?run={quote(text, safe='')}")
        assert visit.page.evaluate("window.pwned") is None
    assert all(what.startswith("console: Failed to load resource") for what in visit.wrong)
    visit.wrong.clear()


@pytest.fixture
def served(watch: Watch, tmp_path: Path) -> Any:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    return watch(tmp_path)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run with halves of characters in its texts, in a folder whose name is of another encoding."""
    folder = tmp_path / "half" / os.fsdecode(b"caf\xe9")
    folder.mkdir(parents=True)
    about = {"format": 1, "project": "\ud800", "name": "half \udfff", "run_id": "x", "started": STARTED}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "metrics.jsonl").write_text(to_json(MetricRow("val/\ud83d", 1, 0, 1.0, "eval", 0.1)) + "\n")
    return folder


def test_half_a_character_breaks_no_report(browse: Browse, half: Path) -> None:
    assert "half" in browse(write_report(half).as_uri()).page.locator("h1").inner_text()


def test_half_a_character_breaks_no_live_page(browse: Browse, watch: Watch, half: Path) -> None:
    served = watch(half.parent)
    visit = browse(served.server.url, server=served.address)
    visit.page.locator("#runs td a").click()
    visit.page.locator("h1").filter(has_text="half").wait_for()
