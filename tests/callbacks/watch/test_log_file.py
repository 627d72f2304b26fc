"""``log.txt`` holds what the console showed, and to write it disturbs neither the run nor the console."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hookline.callbacks import Checkpointer, LambdaCallback, LogFile, ProgressBar
from hookline.callbacks.watch import log_file
from hookline.callbacks.watch.progress import following
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, check_callback, tiny_data
from tests.support import CE, at_step, crash_at, fit, sgd

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( .+)?")
SPEED = re.compile(r" [\d.,]+ (it/s|s/it), .*$")


fit_named = partial(fit, name="digits/first")


def lines_of(folder: Path) -> list[str]:
    """The lines without what differs from run to run: their times, and how fast it was."""
    lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    return [SPEED.sub("", line[20:]) for line in lines]


@pytest.fixture(autouse=True)
def _streams_are_put_back() -> Iterator[None]:
    """Whatever a test does: afterwards nothing stands in for a stream, and no filter is left."""
    yield
    assert type(sys.stdout).__module__ != "hookline.callbacks.watch.progress.redirect"
    assert type(sys.stderr).__module__ != "hookline.callbacks.watch.progress.redirect"
    assert not logging.getLogger("hookline").filters


# ------------------------------------------------------------------------------------ what is in it


def test_the_log_of_a_run_reads_like_its_console(tmp_path: Path) -> None:
    def say(run: Any) -> None:
        print("to standard output")
        print("to standard error", file=sys.stderr)

    result = fit_named(LogFile(), at_step(2, say), folder=tmp_path)
    lines = lines_of(tmp_path)
    assert lines[0] == "==== digits/first begins ===="
    assert lines[1].startswith("epoch 1/2 step 1/4 train/loss ")
    assert lines[2:4] == ["to standard output", "to standard error"]
    loss = f"{result.metrics['train/loss']:.4g}"
    assert lines[5] == f"epoch 2/2 step 4/4 train/loss {loss}"
    assert lines[6] == "stopped: max_duration (2ep) reached"
    assert re.fullmatch(r"ran: 8 steps, 2 epochs, 64 samples, [\d.]+ s", lines[7])
    assert lines[8] == f"train/loss: {loss}"
    assert not result.failures


def test_the_metrics_that_the_bar_shows_are_in_the_log(tmp_path: Path) -> None:
    bar = ProgressBar(("train/loss", "val/los"), style=None)
    fit_named(LogFile(), bar, folder=tmp_path)
    assert re.search(r"epoch 2/2 step 4/4 train/loss [\d.]+ val/los -\n", "\n".join(lines_of(tmp_path)))


def test_a_long_run_gets_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(following, "perf_counter", lambda: now[0])

    def take_time(run: Any) -> None:
        now[0] += 0.5

    slow = LambdaCallback(on_train_step_start=take_time)
    fit_named(LogFile(), slow, train=tiny_data(100), max_duration="1ep", folder=tmp_path)
    assert re.findall(r"step (\d+)/100", "\n".join(lines_of(tmp_path))) == ["1", "21", "41", "61", "81", "100"]


def test_the_traceback_of_a_run_that_fails_is_in_the_log(tmp_path: Path) -> None:
    def fail(run: Any) -> None:
        raise ValueError("the password=hunter2 was wrong")

    with pytest.raises(ValueError, match="hunter2"):
        fit_named(LogFile(), at_step(3, fail), folder=tmp_path)
    lines = lines_of(tmp_path)
    begin = lines.index("Traceback (most recent call last):")
    assert re.search(r"epoch 1/2 step 3/4 .*stopped: ValueError", lines[begin - 1])
    assert "ValueError: the password=[redacted] was wrong" in lines[begin:]
    assert "stopped: ValueError: the password=[redacted] was wrong" in lines[begin:]
    assert "hunter2" not in (tmp_path / "log.txt").read_text()


def test_a_failure_before_the_first_step_is_in_the_log(tmp_path: Path) -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("no such device")

    for event in ("on_setup", "on_model_ready"):
        with pytest.raises(RuntimeError, match="no such device"):
            fit_named(LambdaCallback(**{event: fail}), LogFile(), folder=tmp_path / event)
    assert "RuntimeError: no such device" in lines_of(tmp_path / "on_model_ready")


def test_a_resume_appends_below_a_line_that_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_named(LogFile(), Checkpointer("2st"), crash_at(5), folder=tmp_path)
    before = (tmp_path / "log.txt").read_text()
    fit_named(LogFile(), Checkpointer("2st"), resume="auto", folder=tmp_path)
    assert (tmp_path / "log.txt").read_text().startswith(before)
    lines = lines_of(tmp_path)
    again = lines.index("==== digits/first continues at step 4 ====")
    assert any(line.startswith("epoch 2/2 step 4/4 train/loss ") for line in lines[again:])
    assert "stopped: max_duration (2ep) reached" in lines[again:]


def test_what_is_said_while_a_checkpoint_is_loaded_stands_below_that_line(tmp_path: Path) -> None:
    say = LambdaCallback(on_checkpoint_loaded=lambda run: print("loaded"))
    fit_named(LogFile(), Checkpointer("2st"), say, max_duration="1ep", folder=tmp_path)
    fit_named(LogFile(), Checkpointer("2st"), say, resume="auto", folder=tmp_path)
    lines = lines_of(tmp_path)
    assert lines.index("loaded") > lines.index("==== digits/first continues at step 4 ====")


def test_a_second_fit_goes_on_in_the_same_file(tmp_path: Path) -> None:
    trainer = Trainer(max_duration="1ep", callbacks=[LogFile()], folder=tmp_path, name="digits/first")
    model = TinyModel()
    fit(trainer=trainer, model=model)
    fit(trainer=trainer, model=model, extend="1ep")
    headings = [line for line in lines_of(tmp_path) if line.startswith("====")]
    assert headings == ["==== digits/first begins ====", "==== digits/first continues at step 4 ===="]


def test_an_own_loop_has_a_log_too(tmp_path: Path) -> None:
    model = TinyModel()
    with Loop(model, sgd, callbacks=[LogFile()], max_duration="1ep", folder=tmp_path, name="own") as loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(CE(model(x), y))
            loop.step()
            print("a print of my own loop")
    assert lines_of(tmp_path).count("a print of my own loop") == 3


@pytest.mark.parametrize("call", ["evaluate", "test", "predict"])
def test_a_call_that_trains_nothing_writes_nothing(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(max_duration="1ep", callbacks=[LogFile()], folder=tmp_path / "run")
    options: Any = {} if call == "predict" else {"loss": CE}
    getattr(trainer, call)(TinyModel(), tiny_data(), **options)
    assert not list(tmp_path.rglob("log.txt"))


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fit_named(LogFile())
    assert not result.failures
    assert not list(tmp_path.iterdir())


def test_what_has_no_end_stands_above_the_end(tmp_path: Path) -> None:
    fit_named(LogFile(), at_step(8, lambda run: print("half a line", end="")), folder=tmp_path)
    lines = lines_of(tmp_path)
    assert lines.index("half a line") == lines.index("stopped: max_duration (2ep) reached") - 1


def test_the_prints_of_threads_and_of_workers_are_in_the_log(tmp_path: Path) -> None:
    class Prints(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            print(f"from a worker {index}")
            return torch.zeros(4), 0

    def thread(run: Any) -> None:
        other = threading.Thread(target=print, args=("from a thread",))
        other.start()
        other.join()

    loader = torch.utils.data.DataLoader(Prints(), num_workers=1, multiprocessing_context="fork")
    fit_named(LogFile(), at_step(1, thread), train=loader, max_duration="1ep", folder=tmp_path)
    assert {f"from a worker {n}" for n in range(4)} | {"from a thread"} <= set(lines_of(tmp_path))


# ------------------------------------------------------------------------------------ logging and warnings


def warn(run: Any) -> None:
    logging.getLogger("hookline").warning("something is %s", "odd")


def test_a_record_that_nobody_shows_is_in_the_log(tmp_path: Path) -> None:
    logger = logging.getLogger("hookline")
    null = logging.NullHandler()
    logger.addHandler(null)
    logger.propagate = False
    try:
        fit_named(LogFile(), at_step(1, warn), folder=tmp_path)
    finally:
        logger.removeHandler(null)
        logger.propagate = True
    assert lines_of(tmp_path).count("WARNING something is odd") == 1


def test_a_record_that_a_handler_shows_is_there_once_as_it_was_shown(tmp_path: Path) -> None:
    handler = logging.StreamHandler()  # made before the run: it keeps the stream of that time
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    logging.getLogger().addHandler(handler)
    stream = handler.stream
    try:
        fit_named(LogFile(), at_step(1, warn), folder=tmp_path)
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.stream is stream
    assert [line for line in lines_of(tmp_path) if "odd" in line] == ["mine: something is odd"]


def test_a_record_that_rich_shows_is_there_once(tmp_path: Path) -> None:
    from rich.logging import RichHandler

    handler = RichHandler()
    logging.getLogger().addHandler(handler)
    try:
        fit_named(LogFile(), at_step(1, warn), folder=tmp_path)
    finally:
        logging.getLogger().removeHandler(handler)
    assert "".join(lines_of(tmp_path)).count("something is odd") == 1


def test_the_error_of_a_record_is_in_the_log_and_the_record_is_left_alone(tmp_path: Path) -> None:
    class Formats(logging.Formatter):
        def formatException(self, ei: Any) -> str:  # noqa: N802
            return "in the user's own way"

    seen = io.StringIO()
    handler = logging.StreamHandler(seen)
    handler.setFormatter(Formats())
    logging.getLogger("hookline").addHandler(handler)

    def fail(run: Any) -> None:
        try:
            raise KeyError("key")
        except KeyError:
            logging.getLogger("hookline").exception("it failed")

    try:
        fit_named(LogFile(), at_step(1, fail), folder=tmp_path)
    finally:
        logging.getLogger("hookline").removeHandler(handler)
    assert "KeyError: 'key'" in lines_of(tmp_path)
    assert seen.getvalue() == "it failed\nin the user's own way\n"


def test_a_program_that_set_up_no_logging_sees_warnings_as_before_and_the_log_has_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(run: Any) -> None:
        logging.getLogger("hookline").warning("a record")
        warnings.warn("a warning", stacklevel=1)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
        warnings.simplefilter("always")
        warnings.showwarning = _python_shows
        fit_named(LogFile(), ProgressBar(style=None), at_step(1, say), folder=tmp_path)
    shown = capsys.readouterr().err
    assert shown.splitlines().count("a record") == 1
    assert "UserWarning: a warning" in shown
    lines = lines_of(tmp_path)
    assert lines.count("a record") == 1
    assert sum("UserWarning: a warning" in line for line in lines) == 1


def _python_shows(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    """What ``warnings`` does where pytest does not collect them."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


# ------------------------------------------------------------------------------------ the console is left alone


def test_what_is_printed_is_still_seen_and_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(run: Any) -> None:
        print("\x1b[31mred\x1b[0m token=hunter2", end="")
        print("an error", file=sys.stderr)

    fit_named(LogFile(), at_step(2, say), folder=tmp_path)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("\x1b[31mred\x1b[0m token=hunter2", "an error\n")
    assert "red token=[redacted]" in lines_of(tmp_path)


def test_the_lines_of_a_plain_bar_are_not_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_named(LogFile(), ProgressBar(style="plain"), folder=tmp_path)
    assert "epoch 2/2 step 4/4" in capsys.readouterr().out
    assert sum("epoch 2/2 step 4/4" in line for line in lines_of(tmp_path)) == 1


@pytest.mark.parametrize("bar_first", [True, False])
def test_in_a_terminal_prints_are_above_the_bars_and_in_the_log_and_bars_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bar_first: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    master, slave = pty.openpty()
    parts: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(master, parts))
    reader.start()
    with os.fdopen(slave, "w", buffering=1) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        callbacks = [ProgressBar(every="1st"), LogFile()]
        say = at_step(3, lambda run: print("above"))
        result = fit_named(*(callbacks if bar_first else reversed(callbacks)), say, folder=tmp_path)
        assert sys.stdout is terminal
    reader.join(300)
    os.close(master)
    assert not result.failures
    raw = b"".join(parts).decode()
    assert "━" in raw
    assert re.search(r"\x1b\[2Kabove\r\n", raw)  # the bars were taken away for it
    lines = lines_of(tmp_path)
    assert lines.count("above") == 1
    assert "━" not in "".join(lines)
    assert any("epoch 1/2 step 4/4" in line for line in lines)


def _read_all(master: int, parts: list[bytes]) -> None:
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            return
        parts.append(part)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_streams_are_put_back_when_a_run_fails(tmp_path: Path, error: type[BaseException]) -> None:
    before = sys.stdout, sys.stderr

    def fail(run: Any) -> None:
        raise error("no")

    with pytest.raises(error):
        fit_named(LogFile(), at_step(3, fail), folder=tmp_path)
    assert (sys.stdout, sys.stderr) == before


def test_the_streams_are_put_back_when_the_log_is_removed(tmp_path: Path) -> None:
    before = sys.stdout, sys.stderr
    fit_named(LogFile(), LambdaCallback(on_train_start=lambda run: run.callbacks.remove("LogFile")), folder=tmp_path)
    assert (sys.stdout, sys.stderr) == before


def test_a_stream_of_the_users_own_is_kept_and_its_place_is_not_taken(tmp_path: Path) -> None:
    own = io.StringIO()

    def replace(run: Any) -> None:
        sys.stdout = own

    before = sys.stdout
    try:
        fit_named(LogFile(), at_step(2, replace), folder=tmp_path)
        assert sys.stdout is own
    finally:
        sys.stdout = before


def test_a_redirect_of_the_users_own_around_a_part_is_respected(tmp_path: Path) -> None:
    own = io.StringIO()

    def collect(run: Any) -> None:
        with redirect_stdout(own):
            print("only for me")
        print("for all")

    fit_named(LogFile(), at_step(2, collect), folder=tmp_path)
    assert own.getvalue() == "only for me\n"
    assert "only for me" not in lines_of(tmp_path)
    assert "for all" in lines_of(tmp_path)


def test_a_stream_looks_as_before_from_inside_a_run(tmp_path: Path) -> None:
    with (tmp_path / "console").open("w", encoding="latin-1") as file:
        seen = []
        with redirect_stdout(file):
            out = sys.stdout

            def look(run: Any) -> None:
                seen.append((sys.stdout.isatty(), sys.stdout.fileno(), sys.stdout.encoding))

            fit_named(LogFile(), at_step(1, look), folder=tmp_path / "run")
        assert seen == [(out.isatty(), out.fileno(), "latin-1")]


def test_a_run_inside_a_run_has_its_own_log(tmp_path: Path) -> None:
    def inner(run: Any) -> None:
        fit_named(LogFile(), at_step(1, lambda run: print("inside")), max_duration="1ep", folder=tmp_path / "inner")
        print("between")

    fit_named(LogFile(), at_step(2, inner), folder=tmp_path / "outer")
    assert "inside" in lines_of(tmp_path / "inner")
    assert "between" not in lines_of(tmp_path / "inner")
    assert {"inside", "between"} <= set(lines_of(tmp_path / "outer"))


# ------------------------------------------------------------------------------------ when it cannot be written


def test_a_full_disk_is_a_failure_of_the_log_and_of_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    result = fit_named(LogFile(), at_step(3, lambda run: print("hello")), folder=tmp_path)
    assert result.clock.epoch == 2
    assert [(failure.callback, type(failure.error)) for failure in result.failures] == [("LogFile", OSError)]
    assert capsys.readouterr().out == "hello\n"


def test_a_disk_that_becomes_full_in_a_print_does_not_fail_the_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile()

    def fill(run: Any) -> None:
        def full(lines: str, **_: Any) -> None:
            log._log.error = OSError(28, "No space left on device")  # type: ignore[union-attr]

        monkeypatch.setattr(log._log, "_append", full)
        print("hello")

    result = fit_named(log, at_step(3, fill), folder=tmp_path)
    assert capsys.readouterr().out == "hello\n"
    assert [str(failure.error) for failure in result.failures] == ["[Errno 28] No space left on device"]


def test_a_file_that_cannot_be_opened_is_a_failure_of_the_log_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    result = fit_named(LogFile(), folder=tmp_path)
    assert result.clock.epoch == 2
    assert [(failure.callback, failure.hook) for failure in result.failures] == [("LogFile", "on_setup")]


def test_a_print_whose_text_breaks_the_log_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> str:
        raise RuntimeError("a regular expression went wrong")

    monkeypatch.setattr(log_file, "redact_text", broken)
    result = fit_named(LogFile(), at_step(3, lambda run: print("hello")), folder=tmp_path)
    assert result.clock.epoch == 2
    assert [type(failure.error) for failure in result.failures] == [RuntimeError]


# ------------------------------------------------------------------------------------ what it costs, and the contract


def test_a_step_at_which_nothing_is_due_looks_at_the_time_and_at_nothing_else(tmp_path: Path) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"run.{name} was read")

    log = LogFile()
    fit_named(log, folder=tmp_path)
    log._due = time.perf_counter() + 1000
    untouchable: Any = Untouchable()
    log.on_train_step_end(untouchable)
    log.on_eval_batch_end(untouchable)
    log.on_predict_batch_end(untouchable)


def test_it_keeps_the_contract() -> None:
    check_callback(LogFile)
