"""Draw the SVG images of the pages about concepts: ``make images``."""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent
BLUE, GREEN, ORANGE, RED, GREY, INK = "#cfe0fb", "#cfeeda", "#fde3c0", "#f8cfcf", "#eceff3", "#1f2733"


def box(x: float, y: float, width: float, height: float, text: str, fill: str, *, top: bool = False) -> str:
    """Return a rectangle with a text in its middle, or at its top."""
    line = y + 17 if top else y + height / 2 + 5
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{INK}"/>'
        f'<text x="{x + width / 2}" y="{line}" text-anchor="middle">{escape(text)}</text>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{INK}" stroke-width="1.5" marker-end="url(#end)"/>'


def words(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'


def write(name: str, width: int, height: int, parts: list[str]) -> None:
    marker = '<marker id="end" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
    (IMAGES / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="14" fill="{INK}">'
        f'<defs>{marker}<path d="M0 0 L9 4 L0 8 z"/></marker></defs>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw_time() -> None:
    parts = [box(10, 10, 640, 150, "epoch", GREY, top=True)]
    for step in range(3):
        x = 25 + 208 * step
        parts.append(box(x, 40, 195, 105, f"step {step + 1}: one update", BLUE, top=True))
        parts += [box(x + 10 + 90 * i, 72, 85, 60, f"batch {2 * step + i + 1}", GREEN) for i in range(2)]
    write("time", 660, 170, parts)


def draw_order() -> None:
    parts = [box(10, 60, 170, 50, "F1", GREEN), words(200, 72, "writes val/f1"), arrow(180, 85, 318, 85)]
    parts += [box(320, 60, 100, 50, "val/f1", ORANGE), arrow(420, 75, 538, 42), arrow(420, 95, 538, 128)]
    parts += [box(540, 15, 170, 50, "EarlyStopping", BLUE), box(540, 105, 170, 50, "Checkpointer", BLUE)]
    write("order", 720, 170, [*parts, words(455, 90, "read it")])


def draw_scopes() -> None:
    parts = [box(10, 10, 640, 250, "fit", GREY, top=True), box(25, 38, 610, 210, "train", ORANGE, top=True)]
    parts += [box(40, 66, 580, 170, "epoch", BLUE, top=True), box(55, 95, 320, 125, "step", GREEN, top=True)]
    parts += [box(70 + 150 * i, 130, 140, 70, "batch", "#fff") for i in range(2)]
    write("scopes", 660, 270, [*parts, box(395, 95, 210, 125, "eval", GREEN)])


def draw_ranks() -> None:
    parts = [words(10, 45, "rank 0"), words(10, 115, "rank 1")]
    for rank in range(2):
        y = 20 + 70 * rank
        parts += [box(75 + 110 * i, y, 100, 40, f"step {i + 1}", GREEN) for i in range(2)]
        parts += [box(425, y, 120, 40, "save, stop", RED)]
    parts += [box(300, 20, 115, 110, "vote", ORANGE), arrow(235, 160, 235, 133)]
    write("ranks", 560, 190, [*parts, words(130, 178, "a callback requests a stop")])


def draw_exactness() -> None:
    parts = [words(10, 35, "first start"), box(110, 15, 200, 30, "steps 1 to 20", GREEN)]
    parts += [box(310, 15, 60, 30, "to 23", RED), words(380, 35, "killed"), arrow(310, 45, 310, 78)]
    parts += [words(100, 68, "checkpoint of step 20"), words(10, 100, "second start")]
    parts += [box(310, 80, 300, 30, "steps 21 to 50", GREEN), words(10, 155, "never killed")]
    parts += [box(110, 135, 500, 30, "steps 1 to 50", GREEN), arrow(640, 95, 612, 95), arrow(640, 150, 612, 150)]
    write("exactness", 760, 180, [*parts, words(645, 127, "the same bits")])


if __name__ == "__main__":
    for draw in (draw_time, draw_order, draw_scopes, draw_ranks, draw_exactness):
        draw()
