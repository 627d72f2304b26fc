"""What a user sees of a run: in a terminal, in a log, in a notebook; and that the bar can never hurt it."""

from __future__ import annotations

import doctest
import importlib
import logging
import os
import pkgutil
import pty
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping, LambdaCallback, LogFile, ProgressBar
from hookline.callbacks import watch as watch_package
from hookline.callbacks.watch.progress import following, styles
from hookline.callbacks.watch.progress.display import Bar, Progress, ProgressDisplay
from hookline.callbacks.watch.progress.following import Pace
from hookline.callbacks.watch.progress.rich_display import columns, draw
from hookline.errors import ArgumentError, DurationError, StopTraining
from hookline.loop import Loop, Result, Task, Trainer
from hookline.progress import Duration
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, press_ctrl_c, set_time, sgd
from tests.support.inside import watch_folds

TIME = re.compile(r"^\d\d:\d\d:\d\d ")
SPEED = re.compile(r" [\d.,]+ (it/s|s/it), .*$")


# ------------------------------------------------------------------------------------ a run to watch


class Classifier(Task):
    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def eval_batch(self, run: Any, batch: Any) -> Any:
        x, y = batch
        run.log({"acc": (self.net(x).argmax(-1) == y).float()})
        return nn.functional.cross_entropy(self.net(x), y)

    def predict_batch(self, run: Any, batch: Any) -> Any:
        return self.net(batch[0])


def fit_classifier(*callbacks: Any, model: Task | None = None, **options: Any) -> Result:
    return fit(*callbacks, model=model or Classifier(), **options)


class Recorder:
    """A display of one's own that keeps all calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: list[Progress] = []

    def start(self, run: Any) -> None:
        self.calls.append("start")

    def update(self, progress: Progress) -> None:
        self.calls.append("update")
        self.seen.append(progress)

    def close(self) -> None:
        self.calls.append("close")

    @property
    def last(self) -> Progress:
        return self.seen[-1]

    @property
    def names(self) -> set[str]:
        return {bar.name for progress in self.seen for bar in progress.bars}


def at_every_step(recorder: Recorder, *metrics: str) -> ProgressBar:
    return ProgressBar(metrics, style=recorder, every="1st")


class FakeTime:
    """The bar's own clock, which moves only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(following, "perf_counter", lambda: self.now)

    def passes(self, seconds: float, event: str = "on_train_step_start") -> LambdaCallback:
        """A callback that makes each step, or whatever else, take so long."""

        def pass_(run: Any) -> None:
            self.now += seconds

        return LambdaCallback(name=f"passes {event}", **{event: pass_})

    def watching(self, recorder: Recorder | None = None) -> tuple[ProgressBar, LambdaCallback]:
        """A bar that shows every batch of everything, because each takes a second."""
        bar = ProgressBar(style="auto" if recorder is None else recorder, every="0.5s")
        return bar, self.passes(1.0, "on_batch_fetch_start")


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime(monkeypatch)


# ------------------------------------------------------------------------------------ a terminal to look at


class Terminal:
    """A real pseudo-terminal in place of standard output and error, and what a user sees in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int = 100, height: int = 40) -> None:
        self._master, slave = pty.openpty()
        # Closed by the fixture; line buffered, as Python opens a terminal.
        self.stream = os.fdopen(slave, "w", buffering=1, encoding="utf-8")
        self._width = width
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._monkeypatch = monkeypatch
        for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", str(height))

    def attach(self) -> None:
        """From the test itself: between a fixture and its test pytest puts its own standard output back."""
        self._monkeypatch.setattr(sys, "stdout", self.stream)
        self._monkeypatch.setattr(sys, "stderr", self.stream)

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            self._parts.append(part)

    def hang_up(self) -> None:
        self.stream.close()
        self._reader.join(300)

    @property
    def raw(self) -> str:
        """All that was written. The terminal is gone then."""
        if not self.stream.closed:
            self.hang_up()
        return b"".join(self._parts).decode()

    @property
    def screen(self) -> list[str]:
        return screen(self.raw, self._width)

    def close(self) -> None:
        if not self.stream.closed:
            self.hang_up()
        os.close(self._master)


def screen(raw: str, width: int = 100) -> list[str]:
    """What a terminal shows in the end, with the few codes that bars need. All others are an error."""
    rows, row, column = [[]], 0, 0  # type: ignore[var-annotated]
    for code, character in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|(.)", raw, re.DOTALL):
        if code == "\x1b[2K":
            rows[row] = []
        elif code == "\x1b[1A":
            row = max(0, row - 1)
        elif code:
            assert code.endswith("m"), f"{code!r} moves the cursor in a way that bars must not"
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
        else:
            if column == width:
                row, column = row + 1, 0
            while len(rows) <= row:
                rows.append([])
            rows[row] += [" "] * (column + 1 - len(rows[row]))
            rows[row][column] = character
            column += 1
        while len(rows) <= row:
            rows.append([])
    return ["".join(cells).rstrip() for cells in rows]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal(monkeypatch)
    yield terminal
    terminal.close()


# ------------------------------------------------------------------------------------ in a log


def lines_of(text: str) -> list[str]:
    """The lines without what differs from run to run: the time of day, and how fast it was."""
    return [SPEED.sub("", TIME.sub("", line)) for line in text.splitlines()]


def test_a_log_gets_a_line_for_the_first_step_and_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    result = fit_classifier(ProgressBar(), val=tiny_data())
    out = capsys.readouterr().out
    assert all(TIME.match(line) for line in out.splitlines())
    lines = lines_of(out)
    assert re.fullmatch(r"epoch 1/2 step 1/4 train/loss \d\.\d+", lines[0])
    last = f"train/loss {result.metrics['train/loss']:.4g} val/loss {result.metrics['val/loss']:.4g}"
    assert lines[-1] == f"epoch 2/2 step 4/4 {last} val/acc {result.metrics['val/acc']:.4g}"
    assert len(lines) == 3


def test_a_log_says_how_fast_it_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], fake_time: FakeTime
) -> None:
    fit_classifier(ProgressBar(style="plain"), fake_time.passes(5.0), train=tiny_data(8, batch_size=20))
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"epoch 1/2 step 5/8 train/loss [\d.]+ 5.00 s/it, 4.0 samples/s, 0:55 left$", lines[2]), lines


@pytest.mark.parametrize("event", ["on_epoch_end", "on_train_epoch_start"])
def test_a_slow_moment_between_two_epochs_is_not_the_speed_of_the_next_one(
    capsys: pytest.CaptureFixture[str], fake_time: FakeTime, event: str
) -> None:
    once = iter([60.0])

    def import_something(run: Any) -> None:
        fake_time.now += next(once, 0.0) if run.clock.epoch == 1 else 0.0

    slow = LambdaCallback(name="slow", **{event: import_something})
    fit_classifier(ProgressBar(style="plain"), fake_time.passes(0.5), slow, train=tiny_data(10), max_duration="10ep")
    line = next(line for line in capsys.readouterr().out.splitlines() if "epoch 4/10 step 10/10" in line)
    assert line.endswith("2.0 it/s, 16.0 samples/s, 0:30 left")


def test_the_speed_of_a_log_is_a_recent_one(capsys: pytest.CaptureFixture[str], fake_time: FakeTime) -> None:
    """The first epoch was slow, because all was cold: from the second on it counts no more."""

    def take_time(run: Any) -> None:
        fake_time.now += 0.9 if run.clock.epoch == 0 else 0.1

    slow = LambdaCallback(on_train_step_start=take_time)
    fit_classifier(ProgressBar(style="plain"), slow, train=tiny_data(10), max_duration="30ep")
    line = next(line for line in capsys.readouterr().out.splitlines() if "epoch 2/30 step 10/10" in line)
    assert line.endswith("10.0 it/s, 80.0 samples/s, 0:28 left")


def test_a_run_that_ends_inside_an_epoch_has_one_last_line_with_its_newest_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = fit_classifier(ProgressBar(), val=tiny_data(), max_duration="6st")
    lines = lines_of(capsys.readouterr().out)
    assert [line for line in lines if "step 6/6" in line] == [lines[-1]]
    assert f"train/loss {result.metrics['train/loss']:.4g} val/loss {result.metrics['val/loss']:.4g}" in lines[-1]


def test_what_an_own_loop_evaluates_after_training_is_shown_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """And not when the loop is closed: the program may never come to that."""
    model = TinyModel()
    with Loop(model, sgd, max_duration="3st", callbacks=[ProgressBar()], folder=False) as loop:
        for x, y in loop.batches(tiny_data(6)):
            loop.backward(CE(model(x), y))
            loop.step()
        for name in ("easy", "hard"):
            capsys.readouterr()
            for x, y in loop.eval_batches({name: tiny_data(2)}, "test"):
                loop.run.log({"loss": CE(model(x), y)})
            assert f"test/{name}/loss" in capsys.readouterr().out


def test_what_a_line_has_said_the_next_one_does_not_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    stopper = EarlyStopping(patience=0, min_delta=99.0)
    fit_classifier(ProgressBar(style="plain"), stopper, val=tiny_data(), test=tiny_data(1), max_duration="9ep")
    *_, before, last = lines_of(capsys.readouterr().out)
    assert before.startswith("epoch 2/9 step 4/4 val/loss ")
    assert re.fullmatch(r"epoch 2/9 step 4/4 test/loss \S+ test/acc \S+ stopped: val/loss has not .*", last)


def test_a_finished_run_that_is_started_again_shows_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for _ in range(2):
        capsys.readouterr()
        fit_classifier(ProgressBar(style="plain"), Checkpointer(), folder=tmp_path, resume="auto")
    assert capsys.readouterr().out == ""


def test_a_log_is_a_line_every_ten_seconds_and_not_one_a_step(
    capsys: pytest.CaptureFixture[str], fake_time: FakeTime
) -> None:
    fit_classifier(ProgressBar(style="plain"), fake_time.passes(0.5), train=tiny_data(100), max_duration="1ep")
    counts = re.findall(r"step (\d+)/100", capsys.readouterr().out)
    assert counts == ["1", "21", "41", "61", "81", "100"]


class Cheap(Task):
    """The least that can be trained, for runs of very many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def configure_optimizers(self, run: Any) -> Any:
        return sgd(self.parameters())

    def train_batch(self, run: Any, batch: Any) -> Any:
        return self.weight + 1.2345

    def eval_batch(self, run: Any, batch: Any) -> Any:
        run.log({"acc": 0.3333})
        return torch.tensor(1.2345)


def test_ten_thousand_steps_stay_under_100_kb_even_if_they_take_a_week(
    capsys: pytest.CaptureFixture[str], fake_time: FakeTime, tmp_path: Path
) -> None:
    data = tiny_data(100, batch_size=1)
    callbacks = ProgressBar(style="plain"), LogFile(), fake_time.passes(60.0)
    fit(*callbacks, model=Cheap(), train=data, val=tiny_data(1), max_duration="10000st", folder=tmp_path)
    out = capsys.readouterr().out
    assert len(out) < 100_000
    assert "step 10000/10000" in out.splitlines()[-1]
    assert "\x1b" not in out
    assert (tmp_path / "log.txt").stat().st_size < 100_000


def test_two_thousand_epochs_of_one_step_make_fewer_than_100_lines(
    capsys: pytest.CaptureFixture[str], fake_time: FakeTime
) -> None:
    data = tiny_data(1, batch_size=1)
    fit(ProgressBar(style="plain"), fake_time.passes(0.05), model=Cheap(), train=data, max_duration="2000ep")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 100
    assert "epoch 2000/2000 step 1/1" in lines[-1]


def test_a_slow_run_gets_a_line_for_every_epoch(capsys: pytest.CaptureFixture[str], fake_time: FakeTime) -> None:
    fit_classifier(ProgressBar(style="plain"), fake_time.passes(7.0), train=tiny_data(1), max_duration="200ep")
    found = set(re.findall(r"epoch (\d+)/200 step 1/1 train/loss", capsys.readouterr().out))
    assert found >= {str(epoch) for epoch in range(1, 60)}
    assert len(found) > 90


def test_every_in_steps_gives_a_line_at_those_steps(capsys: pytest.CaptureFixture[str]) -> None:
    fit_classifier(ProgressBar(style="plain", every="3st"), train=tiny_data(10), max_duration="1ep")
    assert re.findall(r"step (\d+)/10", capsys.readouterr().out) == ["3", "6", "9", "10"]


def test_every_in_epochs_gives_a_line_at_those_epochs_only(capsys: pytest.CaptureFixture[str]) -> None:
    fit_classifier(ProgressBar(style="plain", every="3ep"), val=tiny_data(), max_duration="7ep", eval_every="1st")
    assert re.findall(r"epoch (\d+)/7 step (\d)", capsys.readouterr().out) == [
        ("3", "4"), ("6", "4"), ("7", "4"),
    ]  # fmt: skip


def test_every_as_a_share_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    fit_classifier(ProgressBar(style="plain", every="0.25dur"), train=tiny_data(8), max_duration="8st")
    assert list(dict.fromkeys(re.findall(r"step (\d+)/8", capsys.readouterr().out))) == ["2", "4", "6", "8"]


def test_an_evaluation_in_the_middle_of_an_epoch_gets_a_line_with_its_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit_classifier(ProgressBar(("val/loss",), style="plain"), val=tiny_data(), max_duration="1ep", eval_every="2st")
    lines = lines_of(capsys.readouterr().out)
    assert [line.partition(" val/loss ")[0] for line in lines] == [
        "epoch 1/1 step 1/4",
        "epoch 1/1 step 2/4",
        "epoch 1/1 step 4/4",
    ]
    assert lines[0].endswith("val/loss -")
    assert not lines[1].endswith("val/loss -")


def test_a_long_evaluation_is_seen_in_the_log(capsys: pytest.CaptureFixture[str], fake_time: FakeTime) -> None:
    fit_classifier(
        ProgressBar(style="plain"),
        fake_time.passes(11.0, "on_eval_batch_start"),
        val={"easy": tiny_data(2), "hard": tiny_data(2)},
        max_duration="1ep",
    )
    lines = lines_of(capsys.readouterr().out)
    found = [re.sub(r" train/loss.*", "", line) for line in lines if "val/easy " in line or "val/hard " in line]
    assert found == [f"epoch 1/1 step 4/4 {bar}/4" for bar in ("val/easy 1", "val/easy 2", "val/hard 3", "val/hard 4")]


def test_the_log_says_why_a_run_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    fit_classifier(
        ProgressBar(style="plain"), EarlyStopping(patience=0, min_delta=99.0), val=tiny_data(), max_duration="9ep"
    )
    last = capsys.readouterr().out.splitlines()[-1]
    assert "epoch 2/9 step 4/4" in last
    assert "stopped: val/loss has not improved" in last


def test_a_reason_of_several_lines_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    stop = LambdaCallback(on_train_step_end=lambda run: run.stop("one\n  two"))
    fit_classifier(ProgressBar(style="plain"), stop)
    assert capsys.readouterr().out.endswith("stopped: one two\n")


def test_the_log_of_a_run_that_fails_ends_where_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        fit_classifier(ProgressBar(style="plain"), at_step(3, lambda run: 1 // 0))
    assert re.search(r"epoch 1/2 step 3/4 .*stopped: ZeroDivisionError\n$", capsys.readouterr().out)


# ------------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize(
    ("max_duration", "name", "count", "beside"),
    [
        ("6st", "step", "6/6", "epoch 2"),
        ("48sp", "sample", "48/48", "epoch 2 step 6"),
        ("1ep", "step", "4/4", "epoch 1/1"),
        ("2ep", "epoch", "2/2", ""),
    ],
)
def test_the_first_bar_is_in_the_unit_of_max_duration_and_ends_full(
    max_duration: str, name: str, count: str, beside: str
) -> None:
    recorder = Recorder()
    fit_classifier(at_every_step(recorder), max_duration=max_duration)
    bar = recorder.last.bars[0]
    assert (bar.name, bar.count, bar.share, recorder.last.beside) == (name, count, 1.0, beside)
    assert not bar.seconds_left


def test_a_run_by_the_clock_shows_the_time_that_is_left() -> None:
    recorder, now = Recorder(), [0.0]
    clock = LambdaCallback(
        on_setup=lambda run: set_time(run, lambda: now[0]),
        on_train_step_start=lambda run: now.append(now.pop() + 10.0),
    )
    fit_classifier(clock, at_every_step(recorder), max_duration="90s")
    bar = recorder.last.bars[0]
    assert (bar.name, bar.count) == ("time", "1:30/1:30")
    assert bar.share == 1.0
    left = [p.bars[0].seconds_left for p in recorder.seen if p.bars[0].seconds_left]
    assert left == sorted(left, reverse=True)
    assert set(left) == {90, 80, 70, 60, 50, 40, 30, 20, 10}


def test_tokens_are_counted() -> None:
    class Tokens(Classifier):
        def count(self, batch: Any) -> tuple[int, int]:
            return len(batch[0]), 500_000

    recorder = Recorder()
    fit_classifier(at_every_step(recorder), model=Tokens(), max_duration="2000000tok")
    assert [p.bars[0].count for p in recorder.seen][-1] == "2M/2M"


def test_a_loader_without_a_length_counts_up() -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(tiny_data(3))

    recorder = Recorder()
    fit_classifier(at_every_step(recorder), train=Stream(), val=Stream())
    counts = [tuple(bar.count for bar in progress.bars if bar.name != "val") for progress in recorder.seen]
    assert list(dict.fromkeys(counts)) == [
        ("1/2", "0"), ("1/2", "1"), ("1/2", "2"), ("1/2", "3"), ("2/2", "1"), ("2/2", "2"), ("2/2", "3"),
    ]  # fmt: skip
    assert recorder.last.bars[1].total is None
    # How long an epoch is, is known after the first; when the whole will be done, too.
    assert recorder.seen[1].bars[0].seconds_left is None
    assert recorder.seen[-3].bars[0].seconds_left is not None


def test_a_length_that_lies_or_raises_does_no_harm() -> None:
    class Wrong:
        def __init__(self, length: Callable[[], int]) -> None:
            self.length = length

        def __len__(self) -> int:
            return self.length()

        def __iter__(self) -> Iterator[Any]:
            return iter(tiny_data(3))

    for length in (lambda: 2, lambda: 1 // 0):
        recorder = Recorder()
        result = fit_classifier(at_every_step(recorder), train=Wrong(length), val=Wrong(length), max_duration="1ep")
        assert not result.failures
        assert (recorder.last.bars[0].count, recorder.last.bars[0].total) == ("3", None)


def test_with_accumulation_the_steps_of_an_epoch_are_counted_and_not_its_batches() -> None:
    recorder = Recorder()
    fit_classifier(at_every_step(recorder), train=tiny_data(5), max_duration="1ep", accumulate=2)
    assert [p.bars[0].count for p in recorder.seen] == ["0/3", "1/3", "2/3", "3/3", "3/3", "3/3"]
    assert recorder.last.bars[0].share == 1.0


def test_skipped_steps_do_not_leave_the_bar_behind() -> None:
    recorder = Recorder()
    skips = LambdaCallback(on_train_step_start=lambda run: run.skip_step() if run.clock.batch % 2 else None)
    fit_classifier(at_every_step(recorder), skips, train=tiny_data(4), max_duration="1ep")
    assert (recorder.last.bars[0].count, recorder.last.bars[0].share) == ("2/4", 1.0)


def test_the_evaluation_is_a_bar_of_its_own_while_it_runs(fake_time: FakeTime) -> None:
    recorder = Recorder()
    val = {"easy": tiny_data(2), "hard": tiny_data(3)}
    fit_classifier(*fake_time.watching(recorder), val=val, max_duration="1ep")
    found = [f"{p.bars[-1].name} {p.bars[-1].count}" for p in recorder.seen if p.bars[-1].name.startswith("val")]
    assert found == ["val/easy 1/5", "val/easy 2/5", "val/hard 3/5", "val/hard 4/5", "val/hard 5/5"]
    assert [bar.name for bar in recorder.last.bars] == ["step"]


def test_an_answer_inside_a_hook_draws_nothing() -> None:
    recorder = Recorder()
    asks = LambdaCallback(on_train_step_end=lambda run: run.evaluate() and run.predict())
    fit_classifier(at_every_step(recorder), asks, val=tiny_data(), eval_every=None)
    assert recorder.names == {"epoch", "step"}
    assert recorder.last.metrics.keys() == {"train/loss"}


@pytest.mark.parametrize(("call", "name"), [("evaluate", "val"), ("test", "test"), ("predict", "predict")])
def test_evaluate_test_and_predict_have_one_bar_that_stays(call: str, name: str, fake_time: FakeTime) -> None:
    recorder = Recorder()
    trainer = Trainer(max_duration="1ep", callbacks=fake_time.watching(recorder), folder=False)
    task = Classifier()
    getattr(trainer, call)(task, tiny_data(3))
    assert [f"{bar.name} {bar.count}" for progress in recorder.seen for bar in progress.bars][-2:] == [
        f"{name} 3/3"
    ] * 2
    assert set(recorder.last.metrics) == (set() if call == "predict" else {f"{name}/loss", f"{name}/acc"})
    assert recorder.calls[0] == "start"
    assert recorder.calls[-1] == "close"


def test_an_evaluation_after_a_fit_does_not_show_the_metrics_of_the_fit() -> None:
    recorder = Recorder()
    trainer = Trainer(max_duration="1ep", callbacks=[ProgressBar(style=recorder)], folder=False)
    task = Classifier()
    trainer.fit(task, tiny_data(), tiny_data())
    trainer.test(task, tiny_data())
    assert set(recorder.last.metrics) == {"test/loss", "test/acc"}
    trainer.predict(task, tiny_data())
    assert not recorder.last.metrics


def test_the_test_at_the_end_of_a_fit_is_shown_below_its_bars(fake_time: FakeTime) -> None:
    recorder = Recorder()
    fit_classifier(*fake_time.watching(recorder), test=tiny_data(2))
    assert "test" in recorder.names
    assert "test/loss" in recorder.last.metrics


def test_a_second_fit_goes_on_where_the_first_one_was() -> None:
    recorder = Recorder()
    trainer = Trainer(max_duration="2ep", callbacks=[at_every_step(recorder)], folder=False)
    task = Classifier()
    trainer.fit(task, tiny_data())
    recorder.seen.clear()
    trainer.fit(task, tiny_data(), extend="1ep")
    assert recorder.seen[0].where == "epoch 3/3 step 0/4"
    assert recorder.last.where == "epoch 3/3 step 4/4"
    assert recorder.calls.count("start") == recorder.calls.count("close") == 2


def test_a_fit_that_goes_on_inside_an_epoch_counts_on_inside_it() -> None:
    recorder = Recorder()
    trainer = Trainer(max_duration="2ep", callbacks=[at_every_step(recorder)], folder=False)
    task, stop = Classifier(), LambdaCallback(on_train_step_end=lambda run: run.clock.step == 6 and run.stop("enough"))
    trainer.fit(task, tiny_data(), callbacks=[stop])
    assert (recorder.last.where, recorder.last.note) == ("epoch 2/2 step 2/4", "stopped: enough")
    trainer.fit(task, tiny_data())
    assert (recorder.last.where, recorder.last.note) == ("epoch 2/2 step 4/4", "")


def test_an_own_loop_is_watched_too(fake_time: FakeTime) -> None:
    recorder = Recorder()
    model = TinyModel()
    callbacks = fake_time.watching(recorder)
    with Loop(model, sgd, callbacks=callbacks, max_duration="2ep", eval_every="1ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_, y_ in loop.eval_batches(tiny_data(2)):
                    loop.run.log({"val/loss": CE(model(x_), y_)})
    assert recorder.names == {"epoch", "step", "val"}
    assert recorder.last.where == "epoch 2/2 step 3/3"
    assert set(recorder.last.metrics) == {"train/loss", "val/loss"}


def test_an_own_loop_without_an_end_that_is_left_by_break() -> None:
    recorder = Recorder()
    model = TinyModel()
    with Loop(model, sgd, callbacks=[at_every_step(recorder)], folder=False) as loop:
        for x, y in loop.batches(tiny_data(3)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.run.clock.step == 5:
                break
    assert (recorder.last.where, recorder.last.note) == ("epoch 2 step 2/3", "stopped: break")
    assert recorder.calls[-1] == "close"


def test_an_evaluation_that_is_left_does_not_leave_its_bar_behind(fake_time: FakeTime) -> None:
    def stop(run: Any) -> None:
        raise StopTraining("enough")

    recorder = Recorder()
    fit_classifier(*fake_time.watching(recorder), LambdaCallback(on_eval_batch_end=stop), val=tiny_data(9))
    assert "val" in recorder.names
    assert [bar.name for bar in recorder.last.bars] == ["epoch", "step"]


def test_a_bar_that_joins_a_run_shows_from_the_next_step_on() -> None:
    recorder = Recorder()
    joins = LambdaCallback(
        on_train_epoch_start=lambda run: run.clock.epoch == 1 and run.callbacks.add(at_every_step(recorder))
    )
    fit_classifier(joins)
    assert recorder.seen[0].where == "epoch 2/2 step 1/4"
    assert recorder.calls[-1] == "close"


# ------------------------------------------------------------------------------------ metrics


def test_the_metrics_that_were_asked_for_are_shown_in_that_order_and_a_missing_one_is_seen() -> None:
    recorder = Recorder()
    result = fit_classifier(at_every_step(recorder, "val/acc", "train/loss", "val/los"), val=tiny_data())
    assert list(recorder.last.metrics.items()) == [
        ("val/acc", result.metrics["val/acc"]),
        ("train/loss", result.metrics["train/loss"]),
        ("val/los", None),
    ]


def test_of_many_metrics_a_few_are_shown_and_losses_come_first() -> None:
    class Many(Classifier):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            run.log({f"m{n}": float(n) for n in range(30)})
            return super().eval_batch(run, batch)

    recorder = Recorder()
    fit_classifier(at_every_step(recorder), model=Many(), val=tiny_data(), max_duration="1ep")
    assert list(recorder.last.metrics) == ["train/loss", "val/loss", "val/m0", "val/m1"]


def test_before_the_first_interval_is_over_the_loss_of_the_step_is_shown() -> None:
    recorder, losses = Recorder(), []
    keeps = LambdaCallback(on_loss_ready=lambda run: losses.append(run.loss.item()))
    fit_classifier(at_every_step(recorder), keeps, max_duration="1ep")
    assert [p.metrics["train/loss"] for p in recorder.seen[1:5]] == losses


def test_the_bar_does_not_touch_an_average_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a look at it would wait for the device, and the sum would be made in parts that depend on the time."""
    folds = watch_folds(monkeypatch)
    fit_classifier(train=tiny_data(20), max_duration="40st", log_every="10st")
    without = list(folds)
    folds.clear()
    fit_classifier(at_every_step(Recorder()), train=tiny_data(20), max_duration="40st", log_every="10st")
    assert [count for count in folds if count] == [count for count in without if count]


def test_nan_and_arrays_are_shown_as_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(Classifier):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            run.log({"nan": float("nan"), "inf": float("-inf"), "matrix": torch.eye(3)})

    bar = ProgressBar(("val/nan", "val/inf", "val/matrix"))
    result = fit_classifier(bar, model=Odd(), val=tiny_data(), max_duration="1ep")
    assert not result.failures
    assert "val/nan nan val/inf -inf val/matrix [3 values]" in capsys.readouterr().out


def test_a_metric_that_another_callback_logs_after_an_evaluation_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    class F1(LambdaCallback):
        writes = ("val/f1",)

    bar = ProgressBar(("val/f1",), style="plain")
    fit_classifier(bar, F1(on_eval_end=lambda run: run.log({"val/f1": 0.75})), val=tiny_data(), max_duration="1ep")
    assert capsys.readouterr().out.splitlines()[-1].count("val/f1 0.75") == 1


def test_the_bar_does_not_hide_that_a_monitored_metric_is_misspelt() -> None:
    with pytest.raises(Exception, match="val/los"):
        fit_classifier(ProgressBar(style=None), EarlyStopping("val/los"), val=tiny_data())


# ------------------------------------------------------------------------------------ a display of one's own


def test_an_own_display_is_started_updated_and_closed() -> None:
    recorder = Recorder()
    assert isinstance(recorder, ProgressDisplay)
    fit_classifier(at_every_step(recorder), val=tiny_data())
    assert recorder.calls[0] == "start"
    assert recorder.calls[-1] == "close"
    assert set(recorder.calls[1:-1]) == {"update"}
    assert recorder.last.where == "epoch 2/2 step 4/4"
    assert recorder.last.seconds > 0


@pytest.mark.parametrize("fails", ["start", "update", "close"])
def test_an_own_display_that_fails_is_closed_and_the_run_goes_on(fails: str) -> None:
    class Fails(Recorder):
        def start(self, run: Any) -> None:
            super().start(run)
            self.check("start")

        def update(self, progress: Progress) -> None:
            super().update(progress)
            if len(self.seen) == 3:
                self.check("update")

        def close(self) -> None:
            super().close()
            self.check("close")

        def check(self, method: str) -> None:
            if fails == method:
                raise RuntimeError(f"{method} went wrong")

    recorder = Fails()
    result = fit_classifier(at_every_step(recorder), val=tiny_data())
    assert result.clock.epoch == 2
    assert [str(failure.error) for failure in result.failures] == [f"{fails} went wrong"]
    assert recorder.calls.count("close") == 1
    assert recorder.calls[-1] == "close"


def test_a_display_hears_of_an_exception_and_is_closed_once() -> None:
    recorder = Recorder()
    with pytest.raises(KeyError):
        fit_classifier(at_every_step(recorder), at_step(2, lambda run: {}["x"]))
    assert (recorder.last.where, recorder.last.note) == ("epoch 1/2 step 2/4", "stopped: KeyError")
    assert recorder.calls.count("close") == 1


def test_a_slow_display_does_not_slow_the_run_down(fake_time: FakeTime) -> None:
    class Slow(Recorder):
        def update(self, progress: Progress) -> None:
            super().update(progress)
            fake_time.now += 0.5

    recorder = Slow()
    fit(ProgressBar(style=recorder), fake_time.passes(0.1), model=Cheap(), train=tiny_data(1000), max_duration="1ep")
    assert len(recorder.seen) < 10  # 100 seconds, of which it takes five


# ------------------------------------------------------------------------------------ what it costs


def test_a_step_at_which_nothing_is_due_looks_at_the_time_and_at_nothing_else(fake_time: FakeTime) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"run.{name} was read")

    bar = ProgressBar(style=Recorder())
    fit_classifier(bar)
    bar._due = fake_time.now + 1
    untouchable: Any = Untouchable()
    bar.on_train_step_end(untouchable)
    bar.on_eval_batch_end(untouchable)
    bar.on_predict_batch_end(untouchable)


def test_a_terminal_is_redrawn_ten_times_a_second_at_most(fake_time: FakeTime) -> None:
    recorder = Recorder()
    data = tiny_data(500, 1)
    fit(ProgressBar(style=recorder), fake_time.passes(0.002), model=Cheap(), train=data, max_duration="1ep")
    assert 8 <= len(recorder.seen) <= 15


def test_the_pace_of_a_log_of_a_week() -> None:
    pace = Pace(10.0, burst=60, thin=True)
    now, lines = 0.0, 0
    pace.start(now)
    while now < 7 * 86400:
        now += 5.0
        if now >= pace.due or (now % 100 == 0 and pace.edge(now)):
            lines += 1
            pace.shown(now, now)
    assert 300 < lines < 800


# ------------------------------------------------------------------------------------ styles


def test_style_none_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = fit_classifier(ProgressBar(style=None), val=tiny_data())
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not result.failures


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_an_option_of_the_trainer(progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
    hl.fit(TinyModel(), tiny_data(), loss=CE, optimizer=sgd, max_duration="1ep", folder=False, progress=progress)
    captured = capsys.readouterr()
    assert bool(captured.out + captured.err) is progress


def test_progress_that_is_off_and_given_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^Trainer\(progress=False\): callbacks has a ProgressBar"):
        hl.Trainer(progress=False, callbacks=[ProgressBar()])
    with pytest.raises(ArgumentError, match=r"^Trainer\(progress='no'\): must be True or False\.$"):
        hl.Trainer(progress="no")  # type: ignore[arg-type]


def test_an_unknown_style_is_refused_with_the_list_of_styles() -> None:
    with pytest.raises(ArgumentError, match=r"ProgressBar\(style="):
        ProgressBar(style="riche")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"ProgressBar\(style=Recorder\): is a class\. Write Recorder\(…\)\."):
        ProgressBar(style=Recorder)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"start\(run\), update\(progress\) and close\(\)"):
        ProgressBar(style=3)  # type: ignore[arg-type]


def test_other_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"ProgressBar\(metrics='val/loss'\): must be a list of strings\."):
        ProgressBar("val/loss")
    with pytest.raises(ArgumentError, match=r"ProgressBar\(metrics.*\): must be"):
        ProgressBar((3,))  # type: ignore[arg-type]
    with pytest.raises(DurationError, match="has no unit"):
        ProgressBar(every="10")
    assert ProgressBar(["val/loss"], every=Duration.parse("5s")).metrics == ("val/loss",)


@pytest.mark.parametrize(
    ("environ", "moves"),
    [
        ({"TERM": "xterm"}, True),
        ({}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "CI": "false"}, True),
    ],
)
def test_bars_move_only_in_a_terminal_that_can_and_that_somebody_looks_at(environ: dict[str, str], moves: bool) -> None:
    assert styles.can_move(SimpleNamespace(isatty=lambda: True), environ) is moves
    assert not styles.can_move(SimpleNamespace(isatty=lambda: False), environ)
    assert not styles.can_move(None, environ)


# ------------------------------------------------------------------------------------ where there is nobody


class Gone:
    """A standard output that fails when it is written to, as a broken pipe or a full disk does."""

    encoding = "utf-8"

    def __init__(self, error: Exception, *, tty: bool) -> None:
        self.error, self.tty = error, tty

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("style", ["plain", "rich"])
@pytest.mark.parametrize(
    "stdout",
    [
        None,
        Gone(BrokenPipeError(32, "broken pipe"), tty=False),
        Gone(OSError(5, "the terminal is gone"), tty=True),
        Gone(ValueError("I/O operation on closed file"), tty=True),
    ],
)
def test_a_standard_output_that_is_gone_does_not_disturb_the_run(
    monkeypatch: pytest.MonkeyPatch, style: Any, stdout: Any
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stdout)
    result = fit_classifier(ProgressBar(style=style), val=tiny_data())
    assert result.clock.epoch == 2
    assert not result.failures
    assert sys.stdout is stdout


@pytest.mark.parametrize("style", ["plain", "rich"])
def test_a_standard_output_that_is_closed_during_the_run_does_not_disturb_it(
    terminal: Terminal, style: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.attach()
    result = fit_classifier(ProgressBar(style=style, every="1st"), at_step(3, lambda run: terminal.stream.close()))
    assert result.clock.epoch == 2
    assert not result.failures
    assert sys.stdout is terminal.stream


def test_a_log_that_is_not_utf_8_gets_question_marks_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Greek(Classifier):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            run.log({"μ": 1.0})

    for style in ("plain", "rich"):
        with (tmp_path / "log").open("w", encoding="ascii") as file:
            monkeypatch.setattr(sys, "stdout", file)
            bar = ProgressBar(style=style)  # type: ignore[arg-type]
            result = fit_classifier(bar, model=Greek(), val=tiny_data(), max_duration="1ep")
        assert not result.failures
        assert "val/? 1" in (tmp_path / "log").read_text()


# ------------------------------------------------------------------------------------ in a terminal


def test_a_terminal_shows_bars_that_stay_when_the_fit_is_over(terminal: Terminal) -> None:
    terminal.attach()
    result = fit_classifier(ProgressBar(), val=tiny_data())
    print("after the fit")
    screen = terminal.screen
    assert re.fullmatch(r"epoch  2/2  ━{40}  0:\d\d", screen[0])
    assert re.fullmatch(r"step   4/4  ━{40}  [\d.,]+ it/s, [\d.,]+ samples/s", screen[1])
    loss, val, acc = (result.metrics[name] for name in ("train/loss", "val/loss", "val/acc"))
    assert screen[2] == f"train/loss {loss:.4g}  val/loss {val:.4g}  val/acc {acc:.4g}"
    assert screen[3:] == ["after the fit", ""]


@pytest.mark.parametrize(
    ("variable", "value", "style"), [("TERM", "dumb", "auto"), ("CI", "1", "tqdm")], ids=["dumb", "CI"]
)
def test_a_terminal_that_cannot_move_and_one_without_a_person_get_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, style: Any
) -> None:
    terminal.attach()
    monkeypatch.setenv(variable, value)
    fit_classifier(ProgressBar(style=style), LambdaCallback(on_train_epoch_end=lambda run: print("a print")))
    lines = terminal.raw.replace("\r\n", "\n").splitlines()
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(lines)), "a control character"
    assert [line for line in lines if not TIME.match(line)] == ["a print"] * 2
    assert TIME.match(lines[0])
    assert re.match(r"\d\d:\d\d:\d\d epoch 2/2 step 4/4 train/loss [\d.]+", lines[-1])


def test_the_evaluation_appears_below_and_goes_again(terminal: Terminal, fake_time: FakeTime) -> None:
    terminal.attach()
    fit_classifier(*fake_time.watching(), val={"hard": tiny_data(3)})
    assert re.search(r"val/hard\s+2/3", terminal.raw)
    assert not any("val/hard  " in line for line in terminal.screen)


def test_what_the_program_prints_appears_above_and_whole(terminal: Terminal) -> None:
    terminal.attach()
    log = logging.getLogger("tests.progress_bar")
    handler = logging.StreamHandler()  # made before the run: it keeps the stream of that time
    log.addHandler(handler)

    def say(run: Any) -> None:
        print(f"step {run.clock.step} [info] [/red]")
        print("a line ", end="", flush=True)
        print("in two parts")
        print("counting 1\rcounting 2")
        sys.stderr.write("an error message\n")
        log.warning("a log message")
        print("\x1b[31mred\x1b[0m and a long line " + "x" * 150)

    try:
        fit_classifier(ProgressBar(every="1st"), LambdaCallback(on_train_step_end=say), max_duration="2st")
    finally:
        log.removeHandler(handler)
    assert handler.stream is terminal.stream
    assert sys.stdout is terminal.stream
    expected = []
    for step in (1, 2):
        expected += [f"step {step} [info] [/red]", "a line in two parts", "counting 2", "an error message"]
        expected += ["a log message", "red and a long line " + "x" * 80, "x" * 70]
    assert terminal.screen[: len(expected)] == expected
    assert terminal.screen[len(expected)].startswith("step  2/2  ")
    assert terminal.raw.count("\x1b[31mred\x1b[0m") == 2


def test_what_was_printed_without_a_new_line_is_not_lost(terminal: Terminal) -> None:
    terminal.attach()
    fit_classifier(ProgressBar(), at_step(8, lambda run: print("no new line", end="")))
    assert terminal.screen[-1] == "no new line"


def test_errors_that_go_to_a_file_stay_in_the_file(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal.attach()
    with (tmp_path / "errors").open("w") as errors:
        monkeypatch.setattr(sys, "stderr", errors)
        fit_classifier(ProgressBar(), at_step(2, lambda run: print("an error", file=sys.stderr)))
    assert (tmp_path / "errors").read_text() == "an error\n"
    assert "an error" not in terminal.raw


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_terminal_clean(terminal: Terminal, error: type[BaseException]) -> None:
    terminal.attach()

    def fail(run: Any) -> None:
        raise error("no")

    with pytest.raises(error):
        fit_classifier(ProgressBar(), at_step(3, fail))
    assert sys.stdout is sys.stderr is terminal.stream
    print("the traceback")
    assert terminal.screen[-2:] == ["the traceback", ""]
    assert f"stopped: {error.__name__}" in terminal.screen[-3]
    assert "\x1b[?25l" not in terminal.raw  # the cursor is never hidden, so it cannot be lost


def test_a_failure_inside_an_evaluation_leaves_the_terminal_clean(terminal: Terminal) -> None:
    terminal.attach()

    class LaterBroken(Classifier):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            if run.clock.step:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fit_classifier(ProgressBar(), model=LaterBroken(), val=tiny_data(), max_duration="1ep")
    assert sys.stdout is terminal.stream
    assert terminal.screen[-1] == ""


def test_ctrl_c_leaves_the_terminal_clean_and_says_so(terminal: Terminal) -> None:
    terminal.attach()
    result = fit_classifier(ProgressBar(), at_step(3, press_ctrl_c), max_duration="9ep")
    assert result.interrupted
    assert sys.stdout is terminal.stream
    assert "stopped: keyboard interrupt" in terminal.screen[2]
    assert "left" not in "".join(terminal.screen)


def test_a_bar_that_is_removed_leaves_the_terminal_clean(terminal: Terminal) -> None:
    terminal.attach()
    fit_classifier(ProgressBar(), LambdaCallback(on_train_start=lambda run: run.callbacks.remove("ProgressBar")))
    assert sys.stdout is sys.stderr is terminal.stream
    print("after the fit")
    assert terminal.screen[-2:] == ["after the fit", ""]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 2), (12, 4), (30, 10), (60, 10), (300, 50)])
def test_no_terminal_is_too_narrow(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    terminal = Terminal(monkeypatch, width, height)
    terminal.attach()
    try:
        result = fit_classifier(ProgressBar(every="1st"), val=tiny_data())
        assert not result.failures
        assert all(len(line) <= width for line in terminal.screen)
        if width >= 30:
            assert "epoch  2/2" in terminal.screen[0]
            assert "step   4/4" in terminal.screen[1]
    finally:
        terminal.close()


@pytest.mark.parametrize("width", [16, 20, 30, 40])
def test_a_narrow_terminal_cuts_names_and_never_a_count(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = Terminal(monkeypatch, width, 20)
    terminal.attach()
    try:
        fit_classifier(
            ProgressBar(every="1st"), train=tiny_data(115), val={"challenging": tiny_data(1)}, max_duration="1ep"
        )
        screen = terminal.screen
        assert any("115/115" in line for line in screen), screen  # and not 115/1, which would be another number
    finally:
        terminal.close()


def test_a_window_that_becomes_narrower_is_erased_as_a_whole(terminal: Terminal) -> None:
    terminal.attach()
    from hookline.callbacks.watch.progress.screen import Region

    size = [20, 10]
    region = Region(terminal.stream, lambda: (size[0], size[1]))
    region.draw("a" * 20 + "\n" + "b" * 15)
    size[0] = 10  # the terminal breaks the two lines into four
    terminal.stream.write("|")
    region.draw("c")
    assert terminal.raw.partition("|")[2] == "\r\x1b[2K" + "\x1b[1A\x1b[2K" * 3 + "c"


def test_a_long_line_without_an_end_takes_one_row_and_is_erased(terminal: Terminal) -> None:
    from hookline.callbacks.watch.progress.screen import Region

    region = Region(terminal.stream, lambda: (20, 10))
    region.draw("bars")
    for dots in range(1, 300):
        region.hold("." * dots)
    region.hold("\x1b[31m" + "漢字" * 20 + "\x1b[2K")  # two columns each; its codes would steer the terminal
    region.print_above("done")
    assert terminal.screen[:2] == ["done", "bars"]
    assert "." * 20 not in terminal.raw
    assert "漢字" * 5 not in terminal.raw


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.attach()
    monkeypatch.setenv("NO_COLOR", "1")
    fit_classifier(ProgressBar(), val=tiny_data())
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]", terminal.raw)


def test_a_run_inside_a_run_does_not_fight_for_the_terminal(terminal: Terminal) -> None:
    terminal.attach()
    fit_classifier(ProgressBar(), at_step(2, lambda run: fit_classifier(ProgressBar(), max_duration="1ep")))
    print("the end")
    screen = terminal.screen
    assert any(TIME.match(line) and "epoch 1/1 step 4/4" in line for line in screen)
    assert [line.startswith("epoch  2/2") for line in screen].count(True) == 1
    assert screen[-2:] == ["the end", ""]


def test_rich_into_a_file_is_one_frame(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    fit_classifier(ProgressBar(style="rich"))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3
    assert out.startswith("epoch  2/2")


def test_a_metric_stays_on_one_line_with_its_name() -> None:
    from rich.console import Console

    console = Console(width=30, force_terminal=False)
    progress = Progress((Bar("step", "1/2", 1, 2),), {"val/hard/loss": 0.25, "val/easy/loss": 0.5}, 1.0)
    with console.capture() as captured:
        console.print(draw(progress, console, columns(progress, console)))
    assert captured.get().splitlines()[1:] == ["val/hard/loss 0.25", "val/easy/loss 0.5"]


SCRIPT = """
    import traceback
    import torch
    import hookline as hl
    from hookline.testing import TinyModel, tiny_data

    class Prints(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, index):
            print("from a worker", index)
            return torch.zeros(4), 0

    def say(run):
        print("from the step", run.clock.step)

    def fail(run):
        if run.clock.step == 2:
            raise ValueError("no")

    def train(hook):
        loader = torch.utils.data.DataLoader(Prints(), num_workers=1, multiprocessing_context="fork")
        hl.fit(TinyModel(), loader, tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD,
               max_duration="1ep", callbacks=[hl.on("train_step_end")(hook)], folder=False)

    train(say)
    print("after the fit")
    try:
        train(fail)
    except ValueError:
        traceback.print_exc()
"""


def test_a_program_in_a_real_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    master, slave = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key not in ("CI", "COLUMNS", "LINES", "NO_COLOR")}
    environ |= {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, env=environ
    )
    os.close(slave)
    raw = b""
    while part := _read(master):
        raw += part
    assert process.wait(300) == 0, raw.decode()
    os.close(master)
    lines = screen(raw.decode(), width=80)
    end = lines.index("after the fit")
    assert {f"from a worker {n}" for n in range(4)} | {f"from the step {n}" for n in range(1, 5)} <= set(lines[:end])
    assert lines[end - 2].startswith("step  4/4  ━━━━")
    assert lines[end - 1].startswith("epoch 1/1  train/loss ")
    traceback = lines.index("Traceback (most recent call last):")
    # A worker may still print after the bar has ended.
    stopped = max(number for number, line in enumerate(lines[:traceback]) if line.endswith("stopped: ValueError"))
    assert lines[stopped - 1].startswith("step  2/4  ━━━━")
    assert "ValueError: no" in lines[traceback:]
    assert "\x1b[?25l" not in raw.decode()  # the cursor was never hidden


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the program has ended
        return b""


# ------------------------------------------------------------------------------------ in a notebook


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    def display(frame: Any, display_id: bool) -> Any:
        shown.append(frame)
        return SimpleNamespace(update=lambda frame: shown.append(frame))

    shell = SimpleNamespace(kernel=object())
    notebook, display_module = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display_module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    result = fit_classifier(ProgressBar(("val/loss", "val/<b>")), val={"<hard>": tiny_data()})
    assert not result.failures
    html = shown[-1]._repr_html_()
    assert re.search(r'>epoch</td><td[^>]*>2/2</td><td[^>]*><progress max="1" value="1.0000"', html)
    assert "val/&lt;b&gt; <b>-</b>" in html
    assert repr(shown[-1]).startswith("epoch 2/2 step 4/4")


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("IPython")
    notebook.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert not styles.in_notebook()


# ------------------------------------------------------------------------------------ its examples


def test_the_examples_in_the_docstrings_run() -> None:
    modules = [found.name for found in pkgutil.iter_modules(watch_package.__path__)]
    results = {name: doctest.testmod(importlib.import_module(f"{watch_package.__name__}.{name}")) for name in modules}
    assert {name: result for name, result in results.items() if result.failed} == {}
