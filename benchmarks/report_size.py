"""A report over many rows: how long it takes to write and to open, and how large it is.

Run as a script, it writes the report of a folder and prints what that took, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from table import Figure, Section, verdict

from hookline.report import write_report

MOST_SECONDS, MOST_MB, MOST_OPENING = 10.0, 5.0, 3.0
SAMPLES = Path(__file__).parents[1] / "tests" / "report" / "sample_runs.py"
BROWSER = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
DRAWN = """() => {
    const canvas = document.querySelector(".chart canvas");
    if (!canvas || !canvas.width) return false;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.subarray(at, at + 4);
        if (alpha > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) return true;
    }
    return false;
}"""
"""Whether the first chart has something in colour, which is a curve: axes and words are grey."""


def report_size(rows: int, times: int) -> Section:
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _sample_runs().make_run(run, rows)
        with (run / "metrics.jsonl").open("rb") as file:
            lines = sum(1 for _ in file)
        made = [_write_in_a_process(run) for _ in range(times)]
        report = run / "report.html"
        figures = [
            _written(lines, made, (run / "metrics.jsonl").stat().st_size),
            _size(report),
            _opening(report, times),
        ]
    return Section(
        f"A report over {lines:,} rows",
        figures,
        f"A run of ten epochs with six metrics an interval, pictures, tables and histograms. Written in a fresh "
        f"process, from the call of write_report until the file is there. Opened in headless Chromium, that is running "
        f"already, as a file in a new profile, 1280 by 900: from the call until a curve is drawn in the first chart. "
        f"Medians of {times}.",
    )


def _sample_runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_runs", SAMPLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write_in_a_process(run: Path) -> dict[str, float]:
    command = [sys.executable, __file__, str(run)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def _written(lines: int, made: list[dict[str, float]], size: int) -> Figure:
    seconds = statistics.median(one["seconds"] for one in made)
    slowest, peak = (max(one[what] for one in made) for what in ("seconds", "peak"))
    cpu = statistics.median(one["cpu"] for one in made)
    return Figure(
        f"written, from {size / 1e6:.0f} MB",
        f"{seconds:.2f} s",
        f"at most {slowest:.2f}, CPU time {cpu:.2f}; {lines / seconds:,.0f} rows a second; "
        f"the process took {peak:.0f} MB",
        f"< {MOST_SECONDS:g} s",
        verdict(seconds < MOST_SECONDS),
    )


def _size(report: Path) -> Figure:
    size = report.stat().st_size / 1e6
    return Figure("the file", f"{size:.2f} MB", "", f"< {MOST_MB:g} MB", verdict(size < MOST_MB))


# -- the browser -------------------------------------------------------------------------------------------


def _opening(report: Path, times: int) -> Figure:
    what, target = "opened, until a chart is drawn", f"< {MOST_OPENING:g} s"
    executable = os.environ.get("HOOKLINE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        return Figure(what, "not measured", "no Chromium here: apt-get install chromium", target)
    if importlib.util.find_spec("playwright") is None:
        return Figure(what, "not measured", "no Playwright here: pip install playwright", target)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(BROWSER))
        seconds = [_open(browser, report) for _ in range(times)]
        browser.close()
    value = statistics.median(seconds)
    return Figure(what, f"{value:.2f} s", f"at most {max(seconds):.2f}", target, verdict(value < MOST_OPENING))


def _open(browser: Any, report: Path) -> float:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    start = time.perf_counter()
    page.goto(report.as_uri(), wait_until="commit")
    page.wait_for_function(DRAWN)
    seconds = time.perf_counter() - start
    page.context.close()
    return seconds


def timed(run: Path) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    write_report(run)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    print(json.dumps(timed(Path(sys.argv[1]))))
