"""Draw the images of the README, of the quick start and of the callback pages: ``make images``.

``callback_images.py`` and ``quick_start_recording.py`` draw those of the callbacks and of the quick start. The terminal
image shows ``hookline demo`` in a real pseudo-terminal, the report image shows the ``report.html`` of
that run in Chromium, and the chart draws the step costs from ``docs/benchmarks.json``.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import callback_images
import matplotlib.pyplot as plt
import pyte
import quick_start_recording
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent
COLUMNS, ROWS = 78, 30
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
COLOURS = {
    "black": "#3b4048", "red": "#f2777a", "green": "#8fd694", "brown": "#e8c872", "blue": "#7aa6f0",
    "magenta": "#d19cf0", "cyan": "#6fd0d8", "white": "#d7dae0", "default": FOREGROUND,
}  # fmt: skip


def record_demo(folder: Path) -> list[str]:
    """Run the demo in a pseudo-terminal and return its screen, as HTML lines, in the middle of the run."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    command = [sys.executable, "-m", "hookline", "demo", "--folder", str(folder)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True)
    os.close(slave)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    kept: list[str] = []
    while True:
        try:
            stream.feed(os.read(master, 4096))
        except OSError:  # the demo has ended and closed the terminal
            break
        if re.search(r"epoch +8/.* left", "\n".join(screen.display)):
            kept = screen_as_html(screen)
    if process.wait() != 0 or not kept:
        raise SystemExit(f"hookline demo ended with {process.returncode}, its screen was\n" + "\n".join(screen.display))
    return kept


def screen_as_html(screen: pyte.Screen) -> list[str]:
    """Return one HTML line per row of the terminal, without the empty rows at the end."""
    lines = []
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        lines.append("".join(cell_as_html(cell) for cell in cells))
    while lines and not screen.display[len(lines) - 1].strip():
        lines.pop()
    return lines


def cell_as_html(cell: pyte.screens.Char) -> str:
    colour = COLOURS.get(cell.fg) or f"#{cell.fg}"
    weight = ";font-weight:bold" if cell.bold else ""
    return f'<span style="color:{colour}{weight}">{html.escape(cell.data)}</span>'


def draw_terminal(browser: Browser, lines: list[str]) -> None:
    page = browser.new_page(device_scale_factor=2)
    page.set_content(
        f"""<body style="margin:0"><div id="window" style="display:inline-block;background:{BACKGROUND};
        border-radius:10px;padding:14px 18px 18px;color:{FOREGROUND}">
        <div style="display:flex;gap:8px;margin-bottom:12px">
        <i style="width:12px;height:12px;border-radius:6px;background:#ff5f57"></i>
        <i style="width:12px;height:12px;border-radius:6px;background:#febc2e"></i>
        <i style="width:12px;height:12px;border-radius:6px;background:#28c840"></i></div>
        <pre style="margin:0;font:13px/1.35 'DejaVu Sans Mono',monospace">"""
        + "\n".join(["<b>$ hookline demo</b>", *lines])
        + "</pre></div></body>"
    )
    page.locator("#window").screenshot(path=IMAGES / "terminal.png", omit_background=True)


def draw_report(browser: Browser, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1180, "height": 1100}, device_scale_factor=1.25, color_scheme="light")
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("canvas")
    page.screenshot(path=IMAGES / "report.png")


def draw_chart() -> None:
    """Draw what one training step costs more than in a bare loop."""
    measured = json.loads((IMAGES.parent / "benchmarks.json").read_text())
    names = [row["name"] for row in measured["steps"]]
    added = [row["microseconds"] for row in measured["steps"]]
    figure, axes = plt.subplots(figsize=(8.2, 2.9), dpi=160)
    bars = axes.barh(names, added, color=[row["colour"] for row in measured["steps"]], height=0.62)
    axes.bar_label(bars, [f"{value:+.0f} µs" if value else "0 µs" for value in added], padding=5, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(min(0, *added), max(added) * 1.14)
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel(f"added to a bare PyTorch step of {measured['bare_step']} µs (less is better)", fontsize=9)
    axes.tick_params(axis="both", labelsize=9, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.xaxis.grid(visible=True, color="#e4e4e4")
    axes.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(IMAGES / "step-cost.png")


def main() -> None:
    draw_chart()
    quick_start_recording.draw()
    callback_images.draw()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary) / "digits"
        lines = record_demo(folder)
        chromium = os.environ.get("HOOKLINE_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        draw_terminal(browser, lines)
        draw_report(browser, folder)
        browser.close()


if __name__ == "__main__":
    main()
