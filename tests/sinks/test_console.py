"""Lines that a person can read, in any terminal, log or pipe."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Sequence

import pytest

from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
)
from hookline.sinks import Console
from hookline.testing import run_script


def row(step: int, name: str, value: object, kind: str = "step") -> MetricRow:
    return MetricRow(name, step, 0, value, kind, 0.0)  # type: ignore[arg-type]


def printed(records: Sequence[Record]) -> list[str]:
    stream = io.StringIO()
    Console(stream).write(records)
    text = stream.getvalue()
    assert not text or text.endswith("\n")
    return text.splitlines()


def test_the_metrics_of_a_step_are_one_line_and_those_of_an_evaluation_another() -> None:
    records = [
        row(100, "train/loss", 0.31234),
        row(100, "train/acc", 0.91),
        row(100, "train/loss_epoch", 0.4, "epoch"),
        row(100, "val/loss", 0.5, "eval"),
        row(200, "train/loss", 0.3),
    ]
    assert printed(records) == [
        "step 100  train/loss 0.3123  train/acc 0.91",
        "step 100  train/loss_epoch 0.4",
        "step 100  val/loss 0.5",
        "step 200  train/loss 0.3",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1e-05, "1e-05"),
        (123456.7, "123457"),
        (1e12, "1e+12"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ([[1.0, 2.0], [3.0, math.nan]], "[[1.0, 2.0], [3.0, nan]]"),
        ([[0.1] * 100] * 30, "[30 values]"),
    ],
)
def test_values_are_short(value: object, shown: str) -> None:
    assert printed([row(1, "a", value)]) == [f"step 1  a {shown}"]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ImageRow("val/x", 7, 1, 0.0, 64, 48, "a cat", "media/x.png"), "val/x: image 64x48, media/x.png, a cat"),
        (ImageRow("val/x", 7, 1, 0.0, 64, 48, png=b"x"), "val/x: image 64x48"),
        (TextRow("val/text", 7, 1, 0.0, "to be\nor not"), r"val/text: text, to be\nor not"),
        (TextRow("val/text", 7, 1, 0.0, "x" * 10_000), "val/text: text, " + "x" * 200 + "..."),
        (TableRow("val/t", 7, 1, 0.0, ("a", "b"), ((1, 2), (3, 4), (5, 6))), "val/t: table of 3 rows, a, b"),
        (
            HistogramRow("w", 7, 1, 0.0, (-1.0, 0.0, 2.5), (3, 4), 2),
            "w: histogram of 7 values, -1 to 2.5, 2 not finite",
        ),
        (HistogramRow("w", 7, 1, 0.0, (), ()), "w: histogram of 0 values"),
        (FileRow("f", 7, 1, 0.0, "media/f.bin", 12345), "f: file, media/f.bin, 12,345 bytes"),
        (EventRow("checkpoint", 7, 1, 0.0, "step-7", 0.1234), "checkpoint: step-7, 0.123 s"),
        (EventRow("start", 7, 1, 0.0), "start"),
    ],
)
def test_everything_else_has_a_line_of_its_own(record: Record, line: str) -> None:
    assert printed([row(7, "a", 1.0), record, row(7, "b", 2.0)]) == ["step 7  a 1", f"step 7  {line}", "step 7  b 2"]


def test_a_name_cannot_steer_the_terminal_or_begin_a_line() -> None:
    (line,) = printed([row(1, "\x1b[2Ja\r\nstep 9  b\x07\u202e", 0.5)])
    assert line == r"step 1  \x1b[2Ja\r\nstep 9  b\x07\u202e 0.5"


def test_nothing_is_printed_for_nothing() -> None:
    assert printed([]) == []


def test_it_prints_to_the_stdout_of_the_moment_and_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.write([row(1, "a", 0.5)])
    assert capsys.readouterr().out == "step 1  a 0.5\n"


def test_a_log_that_is_not_utf_8_shows_escapes_and_loses_no_line() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(stream).write([row(1, "größer/日", 0.5)])
    assert raw.getvalue() == rb"step 1  gr\xf6\xdfer/\u65e5 0.5" + b"\n"


def test_a_stream_that_is_closed_raises_so_that_the_failure_is_counted() -> None:
    stream = io.StringIO()
    console = Console(stream)
    stream.close()
    for _ in range(2):
        with pytest.raises(ValueError, match="closed file"):
            console.write([row(1, "a", 0.5)])


def test_closing_the_sink_leaves_the_users_stream_open() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.flush()
    console.close()
    console.write([row(1, "a", 0.5)])
    assert stream.getvalue() == "step 1  a 0.5\n"


def test_a_pipe_that_nobody_reads_any_more_is_an_error_and_not_a_hang() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    with pytest.raises(BrokenPipeError):
        Console(stream).write([row(1, "a", 0.5)])
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize("variable", ["NO_COLOR", "FORCE_COLOR"])
def test_there_are_no_colours_in_any_environment(variable: str) -> None:
    script = """
        from hookline.records import MetricRow
        from hookline.sinks import Console
        Console().write([MetricRow("a", 1, 0, 0.5, "step", 0.0)])
    """
    done = run_script(script, env={variable: "1", "TERM": "xterm-256color"})
    assert (done.stdout, done.stderr, done.returncode) == ("step 1  a 0.5\n", "", 0)


def test_the_users_stdout_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    console, other = Console(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    console.write([row(1, "a", 0.5)])
    assert other.getvalue() == "step 1  a 0.5\n"
