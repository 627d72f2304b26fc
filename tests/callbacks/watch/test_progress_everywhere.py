"""One script: in a terminal it has bars, in a notebook a widget, and in a file or in CI a line now and then."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

SCRIPT = """
import sys, time
import torch
import hookline as hl
from hookline.testing import TinyModel, tiny_data

STYLE, EVERY, STEPS, PAUSE, FAIL = "auto", None, 15, 0.0, False
if EVERY is not None:
    from hookline.callbacks.watch.progress import following as pace
    pace.SHARE = 0  # every step is shown, however busy the machine is

@hl.on("train_step_end")
def say(run):
    time.sleep(PAUSE)
    if run.clock.step in (5, 20):
        print(f"a print of step {run.clock.step}")
        print("half a line, ", end="", flush=True)
        print("and its end")
        print(f"an error of step {run.clock.step}", file=sys.stderr)
    if FAIL and run.clock.step == 25:
        raise ValueError("it fails")

@hl.on("eval_batch_end")
def wait(run):
    time.sleep(PAUSE)

hl.fit(TinyModel(), tiny_data(STEPS), {"easy": tiny_data(5), "hard": tiny_data(5)},
       loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, max_duration="2ep", log_every="5st",
       callbacks=[say, wait, hl.ProgressBar(style=STYLE, every=EVERY), hl.LogFile()], folder=f"run-{FAIL}")
print("after the fit")
"""
PRINTED = [
    line
    for step in (5, 20)
    for line in (f"a print of step {step}", "half a line, and its end", f"an error of step {step}")
]
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-9]|4[0-9]|9[0-7])\b[0-9;]*m")
TIMED = re.compile(r"\d\d:\d\d:\d\d epoch \d/2 step \d+/\d+")


SHOW_ALL = {"EVERY": "0.001s", "PAUSE": 0.02}
"""Every step and every batch is shown, and stays for a moment."""


def script(tmp_path: Path, **changed: object) -> Path:
    text = SCRIPT
    for name, value in changed.items():
        names, values = re.search(r"^(STYLE.*) = (.*)$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
        new = values.split(", ")
        new[names.split(", ").index(name)] = repr(value)
        text = text.replace(f"{names} = {values}", f"{names} = {', '.join(new)}")
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def environ(**more: str) -> dict[str, str]:
    """As a person has it who sits before a terminal."""
    without = ("CI", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    kept = {key: value for key, value in os.environ.items() if key not in without}
    return kept | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | more


def check_log(folder: Path) -> None:
    """Whatever the console is, the log has the prints once, and no bars."""
    text = (folder / "log.txt").read_text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f━█]", text)
    lines = [line[20:] for line in text.splitlines()]
    assert [line for line in lines if line in PRINTED] == PRINTED
    assert any(line.startswith("epoch 1/2 step 15/15 train/loss") for line in lines)
    assert any(line.startswith("stopped: ") for line in lines)


# ------------------------------------------------------------------------------------ a terminal


class Terminal:
    """A program in a pseudo-terminal, and the screen that a person would see."""

    def __init__(self, path: Path, columns: int = 100, rows: int = 30, **more: str) -> None:
        self._master, slave = pty.openpty()
        self._resize(columns, rows)
        self._rows = rows
        self._process = subprocess.Popen(
            [sys.executable, path.name], cwd=path.parent, stdin=slave, stdout=slave, stderr=slave, env=environ(**more)
        )
        os.close(slave)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.code: int | None = None
        self.folder = path.parent / "run-False"

    def watch(self, until: Callable[[list[str]], bool] = lambda screen: False) -> None:
        """Look on, to the end of the program or until the screen shows something."""
        end = time.monotonic() + 300
        while not until(self.screen):
            ready = select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                self._process.kill()
                raise AssertionError(f"it did not end; the screen: {self.screen}")
            try:
                part = os.read(self._master, 65536)
            except OSError:  # the program has ended
                os.close(self._master)
                self.code = self._process.wait(300)
                return
            self.raw += part
            self._stream.feed(part)

    @property
    def seen(self) -> Iterator[list[str]]:
        """Every screen that was complete: a redraw, and a print above the bars, begin with going back."""
        screen = pyte.Screen(self._screen.columns, self._screen.lines)
        stream = pyte.ByteStream(screen)
        for part in re.split(rb"(?=\r\x1b\[2K)", self.raw):
            stream.feed(part)
            yield text_of(screen)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def make_narrower(self, columns: int) -> None:
        """As a window does: the lines that no longer fit are broken."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)
        while select.select([self._master], [], [], 0.05)[0]:
            self._stream.feed(os.read(self._master, 65536))
        self._resize(columns, self._rows)
        lines = self.screen
        self._screen = pyte.Screen(columns, self._rows)
        self._stream = pyte.ByteStream(self._screen)
        self._stream.feed("\r\n".join(lines).encode())
        self._process.send_signal(signal.SIGCONT)

    def _resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def screen(self) -> list[str]:
        return text_of(self._screen)


def text_of(screen: pyte.Screen) -> list[str]:
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")


def bars_of(screen: list[str]) -> list[str]:
    return [line for line in screen if re.match(r"(epoch|step|val/easy|val/hard) +\d", line)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """The script in a terminal of the usual size, from beginning to end."""
    terminal = Terminal(script(tmp_path_factory.mktemp("terminal"), **SHOW_ALL))
    terminal.watch()
    assert terminal.code == 0, terminal.screen
    check_log(terminal.folder)
    return terminal


def test_a_terminal_shows_bars_with_metrics_and_prints_above_them(watched: Terminal) -> None:
    screen = watched.screen
    assert screen[:6] == PRINTED
    assert re.fullmatch(r"epoch +2/2  ━+  0:\d\d", screen[6])
    assert re.fullmatch(r"step +15/15  ━+  [\d.,]+ (it/s|s/it), [\d.,]+ samples/s", screen[7])
    assert re.fullmatch(r"train/loss [\d.]+  val/easy/loss [\d.]+  val/hard/loss [\d.]+", screen[8])
    assert screen[9:] == ["after the fit"]


def test_a_terminal_shows_how_long_it_will_take_and_counts_every_step(watched: Terminal) -> None:
    lines = {line for screen in watched.seen for line in screen}
    assert any(re.search(r"epoch +1/2  ━+.*  0:\d\d, 0:\d\d left$", line) for line in lines)
    counts = {int(count) for line in lines for count in re.findall(r"^step +(\d+)/15  ", line)}
    assert counts == set(range(16))


def test_a_terminal_shows_the_evaluation_below_the_training(watched: Terminal) -> None:
    nested = [bars_of(seen) for seen in watched.seen if any(re.match(r"val/\w+ +\d+/10  ", line) for line in seen)]
    assert {bars[-1].split()[0] for bars in nested} == {"val/easy", "val/hard"}
    assert all([bar.split()[0] for bar in bars[:-1]] == ["epoch", "step"] for bars in nested)


def test_a_terminal_never_shows_a_line_twice_or_in_parts(watched: Terminal) -> None:
    for seen in watched.seen:
        printed = [line for line in seen if ("line" in line and line != "half a line,") or "of step" in line]
        assert printed == PRINTED[: len(printed)]
        assert len({bar.split()[0] for bar in bars_of(seen)}) == len(bars_of(seen))
    assert b"\x1b[?25l" not in watched.raw  # the cursor is never hidden, so it cannot be lost


def test_a_line_that_is_flushed_before_its_end_is_seen_above_the_bars(watched: Terminal) -> None:
    half = [seen for seen in watched.seen if "half a line," in seen]
    assert half
    assert all(re.match("epoch", seen[seen.index("half a line,") + 1]) for seen in half)


def test_a_question_is_seen_and_its_answer_tears_no_bar(tmp_path: Path) -> None:
    path = script(tmp_path, **SHOW_ALL)
    path.write_text(path.read_text().replace('print("and its end")', 'print("is " + input("go on? "))'))
    terminal = Terminal(path)
    for _ in range(2):
        terminal.watch(until=lambda screen: screen[-1] == "half a line, go on?")
        terminal.type("yes\n")
        terminal.watch(until=lambda screen: screen[-1] != "half a line, go on?")
    terminal.watch()
    assert terminal.code == 0, terminal.screen
    asked = ["half a line, go on? yes", "is yes"]
    assert terminal.screen[:8] == [PRINTED[0], *asked, PRINTED[2], PRINTED[3], *asked, PRINTED[5]]
    assert len(bars_of(terminal.screen)) == 2
    assert terminal.screen[-1] == "after the fit"


def test_after_a_failure_the_terminal_is_clean_and_the_traceback_is_below_the_bars(tmp_path: Path) -> None:
    terminal = Terminal(script(tmp_path, FAIL=True, **SHOW_ALL), rows=60)
    terminal.watch()
    assert terminal.code == 1
    screen = terminal.screen
    traceback = screen.index("Traceback (most recent call last):")
    assert "stopped: ValueError" in screen[traceback - 1]
    assert screen[traceback - 2].startswith("step")
    assert "ValueError: it fails" in screen
    assert not any("left" in line for line in screen)
    assert b"\x1b[?25l" not in terminal.raw
    assert terminal.raw.rfind(b"\x1b[2K") < terminal.raw.find(b"Traceback")  # nothing is drawn after it


def test_a_narrow_terminal_without_colours(tmp_path: Path) -> None:
    terminal = Terminal(script(tmp_path, **SHOW_ALL), columns=40, NO_COLOR="1")
    terminal.watch()
    assert terminal.code == 0, terminal.screen
    assert not COLOUR.search(terminal.raw.decode())
    screen = terminal.screen
    assert screen[:6] == PRINTED
    assert re.fullmatch(r"epoch +2/2  ━+  0:\d\d", screen[6])
    assert re.fullmatch(r"step +15/15  ━+  [\d.,]+ (it/s|s/it)", screen[7])
    metrics = " ".join(screen[8:-1])
    assert re.fullmatch(r"train/loss [\d.]+ +val/easy/loss [\d.]+ +val/hard/loss [\d.]+", metrics)
    assert screen[-1] == "after the fit"
    for seen in terminal.seen:  # no number is cut off in the middle
        assert all(re.search(r"(━|╸|/s|left|\d:\d\d|s/it|\d+/\d+)$", bar) for bar in bars_of(seen)), seen


def test_a_window_that_becomes_narrower_keeps_what_was_printed(tmp_path: Path) -> None:
    terminal = Terminal(script(tmp_path, **SHOW_ALL))
    terminal.watch(until=lambda screen: "an error of step 5" in screen and len(bars_of(screen)) == 2)
    terminal.make_narrower(50)
    terminal.watch()
    assert terminal.code == 0
    assert terminal.screen[:6] == PRINTED
    assert len(bars_of(terminal.screen)) == 2
    assert terminal.screen[-1] == "after the fit"


def test_the_bars_of_tqdm(tmp_path: Path) -> None:
    terminal = Terminal(script(tmp_path, STYLE="tqdm", **SHOW_ALL))
    terminal.watch()
    assert terminal.code == 0, terminal.screen
    check_log(terminal.folder)
    screen = terminal.screen
    assert screen[:6] == PRINTED
    assert re.fullmatch(r"epoch: +100%\|█+\| 2/2 \[00:\d\d.*\]", screen[6])
    assert re.fullmatch(r"step: +100%\|█+\| 15/15 \[[\d.,]+ (it/s|s/it), [\d.,]+ samples/s\]", screen[7])
    assert "train/loss=" in screen[6] + screen[8]
    assert screen[-1] == "after the fit"
    assert any(re.match(r"val/hard: +\d+%\|", line) for seen in terminal.seen for line in seen)
    assert all(line.count("%|") <= 1 for seen in terminal.seen for line in seen)


# ------------------------------------------------------------------------------------ a file


def check_lines(text: str) -> None:
    lines = text.splitlines()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), "a control character"
    assert TIMED.match(lines[0])
    assert [line for line in lines if not TIMED.match(line)] == [*PRINTED, "after the fit"]
    assert re.match(r"\d\d:\d\d:\d\d epoch 2/2 step 15/15 train/loss [\d.]+ val/easy/loss ", lines[-2])


def test_a_file_gets_lines_with_their_time_and_no_codes_and_rich_is_not_imported(tmp_path: Path) -> None:
    """With the bar that every run has unless another is given."""
    path = script(tmp_path)
    source = path.read_text().replace("hl.ProgressBar(style=STYLE, every=EVERY), ", "")
    path.write_text(
        source + 'assert not [name for name in sys.modules if name.startswith("rich")], "rich is imported"\n'
    )
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            [sys.executable, path.name],
            cwd=tmp_path, stdout=log, stderr=log, env=environ(PYTHONUNBUFFERED="1"), timeout=300, check=True,
        )  # fmt: skip
    check_lines((tmp_path / "log").read_text())
    check_log(tmp_path / "run-False")


# ------------------------------------------------------------------------------------ a notebook

EXECUTE = """
    import json, sys
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(text) for text in json.load(open("cells.json"))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    updates = [[] for _ in cells]

    class Client(NotebookClient):
        def process_message(self, message, cell, cell_index):
            if message["msg_type"] == "update_display_data":
                updates[cell_index].append(message["content"]["data"]["text/html"])
            return super().process_message(message, cell, cell_index)

    Client(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    json.dump({"outputs": [cell.outputs for cell in cells], "updates": updates}, open("found.json", "w"))
"""


def test_a_notebook_has_one_output_that_is_updated_in_place(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [script(tmp_path, FAIL=fail, **SHOW_ALL).read_text() for fail in (False, True)]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EXECUTE)],
        cwd=tmp_path, env=environ(IPYTHONDIR=str(tmp_path)), timeout=300, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    check_log(tmp_path / "run-False")
    check_log(tmp_path / "run-True")
    for fails, outputs, updates in zip((False, True), found["outputs"], found["updates"], strict=True):
        [widget] = [output for output in outputs if output["output_type"] == "display_data"]
        html = widget["data"]["text/html"]
        assert re.search(rf">step</td><td[^>]*>{10 if fails else 15}/15</td>", html)
        assert re.search(r"val/easy/loss <b>[\d.]+</b>", html)
        assert ("stopped: ValueError" in html) is fails
        assert len(updates) > 20
        assert updates[-1] == html
        assert any("step</td>" in update and "val/hard</td>" in update for update in updates)
        assert "val/hard</td>" not in html
        assert widget["data"]["text/plain"].startswith("epoch 2/2 step 1")

        printed = {name: "".join(o["text"] for o in outputs if o.get("name") == name) for name in ("stdout", "stderr")}
        end = [] if fails else ["after the fit"]
        assert printed["stdout"].splitlines() == [line for line in PRINTED if "error" not in line] + end
        assert printed["stderr"].splitlines() == [line for line in PRINTED if "error" in line]
        errors = [output["evalue"] for output in outputs if output["output_type"] == "error"]
        assert errors == (["it fails"] if fails else [])
