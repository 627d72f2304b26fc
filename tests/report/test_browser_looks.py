"""Every page at two widths, light and dark: nothing sticks out, and every text can be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.report import read_run, render_compare, write_report

Browse = Callable[..., Any]
Watch = Callable[[Path], Any]

SIZES = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]

# Of every element with a text of its own: the contrast of its colour with what lies behind it, as WCAG defines it.
FAINT = """() => {
    const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        pixel.clearRect(0, 0, 1, 1);
        pixel.fillStyle = colour;
        pixel.fillRect(0, 0, 1, 1);
        return [...pixel.getImageData(0, 0, 1, 1).data];
    };
    const over = ([red, green, blue, alpha], below) =>
        [red, green, blue].map((value, at) => (value * alpha + below[at] * (255 - alpha)) / 255);
    const behind = (element) => {
        if (!element) return [255, 255, 255];
        const own = rgba(getComputedStyle(element).backgroundColor);
        return own[3] === 255 ? own : over(own, behind(element.parentElement));
    };
    const light = (colour) => {
        const [red, green, blue] = colour.slice(0, 3).map((value) => {
            const part = value / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const found = [];
    let count = 0;
    for (const element of document.querySelectorAll("#page *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
        count += 1;
        const back = behind(element);
        const [text, base] = [light(over(rgba(getComputedStyle(element).color), back)), light(back)];
        const contrast = (Math.max(text, base) + 0.05) / (Math.min(text, base) + 0.05);
        const what = `${element.tagName}.${element.className} ${element.textContent.slice(0, 40)}`;
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${what}`);
    }
    return { count, found };
}"""


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
    seen = page.evaluate(FAINT)
    assert seen["count"] > 15
    assert seen["found"] == []


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
