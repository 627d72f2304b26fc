"""Record the quick start in a real terminal, as an animated SVG. ``make images`` calls it.

The script is the first code block of ``docs/quick-start.md``. It runs in a pseudo-terminal, and the screens that it
shows become the frames of the animation. One frame is also the image of ``ProgressBar``.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from itertools import groupby, pairwise
from pathlib import Path

import pyte

DOCS = Path(__file__).parents[1]
RECORDING = Path(__file__).parent / "terminal-quick-start.svg"
PROGRESS_BAR = DOCS / "callbacks" / "pictures" / "terminal-progress-bar.svg"
COLUMNS, ROWS = 78, 9
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
COLOURS = {
    "black": "#3b4048", "red": "#f2777a", "green": "#8fd694", "brown": "#e8c872", "blue": "#7aa6f0",
    "magenta": "#d19cf0", "cyan": "#6fd0d8", "white": "#d7dae0", "default": FOREGROUND,
}  # fmt: skip
FRAME_S, MAX_PAUSE_S, LAST_S = 0.12, 0.8, 4.0
CELL_WIDTH, LINE_HEIGHT, MARGIN, BAR = 7.83, 18, 18, 34
"""Sizes in pixels, for a font of 13 pixels."""

Spans = list[tuple[int, str, str, bool]]
"""The text of one line: column, text, colour, bold."""


def record(commands: list[str], folder: Path) -> list[tuple[float, list[Spans]]]:
    """Run commands one after the other in a pseudo-terminal, and return the screens with their times."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    frames: list[tuple[float, list[Spans]]] = []
    for command in commands:
        stream.feed(f"\x1b[1m$ {command}\x1b[0m\r\n".encode())
        frames.append((time.monotonic(), spans_of(screen)))
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        process = subprocess.Popen(
            command.split(), cwd=folder, stdin=slave, stdout=slave, stderr=slave, env={**environment, "PATH": path}
        )
        os.close(slave)
        while True:
            try:
                stream.feed(os.read(master, 65536))
            except OSError:  # the command has ended and closed the terminal
                break
            if time.monotonic() - frames[-1][0] >= FRAME_S:
                frames.append((time.monotonic(), spans_of(screen)))
        if process.wait() != 0:
            raise SystemExit(f"{command} ended with {process.returncode}:\n" + "\n".join(screen.display))
        frames.append((time.monotonic(), spans_of(screen)))
    return frames


def spans_of(screen: pyte.Screen) -> list[Spans]:
    lines = []
    for row in range(ROWS):
        cells = [(column, screen.buffer[row][column]) for column in range(COLUMNS)]
        spans: Spans = []
        for (colour, bold), group in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bold)):
            found = list(group)
            text = "".join(cell.data for _, cell in found)
            if text.strip():
                spans.append((found[0][0], text.rstrip(), COLOURS.get(colour) or f"#{colour}", bold))
        lines.append(spans)
    return lines


def as_svg(frames: list[tuple[float, list[Spans]]], rows: int = ROWS) -> str:
    """Return an SVG that shows the screens one after the other, again and again."""
    pauses = [min(after[0] - before[0], MAX_PAUSE_S) for before, after in pairwise(frames)] + [LAST_S]
    total, start = sum(pauses), 0.0
    width, height = round(COLUMNS * CELL_WIDTH + 2 * MARGIN), BAR + rows * LINE_HEIGHT + MARGIN
    style, groups = [], []
    for number, ((_, lines), pause) in enumerate(zip(frames, pauses, strict=True)):
        shown = "".join(line_as_svg(spans, row) for row, spans in enumerate(lines[:rows]))
        groups.append(f'<g class="f f{number}">{shown}</g>')
        begin, end = 100 * start / total, 100 * (start + pause) / total
        if len(frames) > 1:
            hidden = f"0%{{visibility:hidden}}{begin:.2f}%{{visibility:visible}}{end:.2f}%{{visibility:hidden}}"
            style.append(f"@keyframes k{number}{{{hidden}}}")
            style.append(f".f{number}{{animation:k{number} {total:.2f}s step-end infinite}}")
        start += pause
    # A reader who wants no motion sees the last screen.
    still = f".f{{animation:none!important;visibility:hidden}}.f{len(frames) - 1}{{visibility:visible!important}}"
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 20 * index}" cy="18" r="6" fill="{colour}"/>'
        for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<style>text{{font:13px 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;fill:{FOREGROUND}}}"
        f"{''.join(style)}@media (prefers-reduced-motion:reduce){{{still}}}</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACKGROUND}"/>{dots}{"".join(groups)}</svg>\n'
    )


def line_as_svg(spans: Spans, row: int) -> str:
    y = BAR + (row + 1) * LINE_HEIGHT - 5
    texts = []
    for column, text, colour, bold in spans:
        look = f"fill:{colour};font-weight:{'bold' if bold else 'normal'}"
        x, length = MARGIN + column * CELL_WIDTH, len(text) * CELL_WIDTH
        size = f'x="{x:.1f}" y="{y}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
        texts.append(f'<text {size} style="{look}">{html.escape(text)}</text>')
    return "".join(texts)


def draw() -> None:
    page = (DOCS / "quick-start.md").read_text()
    found = re.search(r"^```python\n([\s\S]*?)^```$", page, re.MULTILINE)
    assert found is not None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "train.py").write_text(found[1])
        frames = record(["python train.py", "hookline report runs/digits"], folder)
    RECORDING.write_text(as_svg(frames))
    bars = [frame for frame in frames if any(" left" in text for spans in frame[1] for _, text, _, _ in spans)]
    PROGRESS_BAR.write_text(as_svg([bars[len(bars) // 2]], rows=4))


if __name__ == "__main__":
    draw()
