"""``PrintMetrics``: one line for what is new, and nothing old, misspelt or in the way."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.callbacks.evaluation import PrintMetrics
from hookline.errors import ArgumentError, DurationError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, is_quiet


def printed_by(*callbacks: Any, metrics: Any = (), **options: Any) -> tuple[list[str], Any]:
    """The lines that were printed, and the result."""
    given = {name: options.pop(name) for name in ("every", "format") if name in options}
    stream = io.StringIO()
    options = {"val": tiny_data(2, seed=1), "log_every": "2st", **options}
    result = fit(PrintMetrics(metrics, stream=stream, **given), *callbacks, **options)
    return stream.getvalue().splitlines(), result


def heads(lines: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in lines]


def test_an_epoch_is_one_line_with_its_evaluation_in_it() -> None:
    lines, result = printed_by(format=".6f")
    assert lines == [
        f"epoch {epoch}, step {4 * epoch}: train/loss_epoch {train:.6f}, val/loss {val:.6f}"
        for epoch, train, val in zip(
            (1, 2), result.history["train/loss_epoch"], result.history["val/loss"], strict=True
        )
    ]


def test_standard_output_is_the_default_also_when_it_is_replaced_later(capsys: pytest.CaptureFixture[str]) -> None:
    printer = PrintMetrics()
    capsys.readouterr()
    fit(printer, max_duration="1ep")
    assert capsys.readouterr().out.startswith("epoch 1, step 4: train/loss_epoch ")


def test_an_evaluation_inside_an_epoch_has_a_line_of_its_own_with_its_metrics_only() -> None:
    lines, _ = printed_by(eval_every="3st")
    assert heads(lines) == ["epoch 0, step 3", "epoch 1, step 4", "epoch 1, step 6", "epoch 2, step 8"]
    assert "train/" not in lines[0]
    assert "val/loss" in lines[0]
    assert "val/loss" not in lines[1]  # that of step 3 is old
    assert "val/loss" in lines[3]  # the one at the end of training


def test_old_values_are_never_printed() -> None:
    """Others print the last value that there is, whatever epoch it is of."""
    rarely = hl.on("eval_end")(lambda run: run.log({"rare": 1.0}) if run.clock.epoch == 1 else None)
    lines, _ = printed_by(rarely, max_duration="3ep")
    assert ["val/rare" in line for line in lines] == [True, False, False]


def test_the_final_test_and_evaluate_are_printed() -> None:
    lines, _ = printed_by(test=tiny_data(1, seed=3))
    assert lines[-1].startswith("epoch 2, step 8: test/loss ")
    assert "val/loss" not in lines[-1]
    stream = io.StringIO()
    trainer = Trainer(callbacks=[PrintMetrics(stream=stream)], folder=False, device="cpu")
    trainer.evaluate(TinyModel(), tiny_data(), loss=CE)
    assert stream.getvalue().startswith("val/loss ")


def test_patterns_choose_and_order() -> None:
    rate = hl.on("metrics_ready")(lambda run: run.log({"lr/SGD": 0.1}, reduce="last"))
    lines, _ = printed_by(rate, metrics=("lr/*", "val/loss"))
    assert [part.split()[0] for part in lines[0].partition(": ")[2].split(", ")] == ["lr/SGD", "val/loss"]
    # Metrics that another hook has just logged are new.
    steps, _ = printed_by(rate, metrics=("lr/*", "train/loss"), every="2st")
    assert [line.partition(": ")[2].split(", ")[0] for line in steps] == ["lr/SGD 0.1"] * 4


def test_a_pattern_that_matches_nothing_is_said_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        lines, _ = printed_by(metrics=("val/los", "val/loss"))
    assert len(lines) == 2
    assert "PrintMetrics has found no metric for val/los; there is train/loss" in caplog.text


def test_every_so_many_epochs_and_always_the_last() -> None:
    lines, _ = printed_by(every="2ep", max_duration="5ep")
    assert heads(lines) == ["epoch 2, step 8", "epoch 4, step 16", "epoch 5, step 20"]


def test_steps_are_printed_at_the_ends_of_intervals() -> None:
    lines, result = printed_by(every="4st", log_every="3st", format=".6f", eval_every="1ep")
    training = [line for line in lines if "train/loss" in line]
    assert heads(training) == ["epoch 1, step 4", "epoch 2, step 8"]
    assert f"train/loss {result.history['train/loss'][1]:.6f}" in training[0]
    assert [line for line in lines if "val/loss" in line] == [
        f"epoch {epoch}, step {4 * epoch}: val/loss {value:.6f}"
        for epoch, value in enumerate(result.history["val/loss"], 1)
    ]


def test_a_share_of_the_run_is_counted_in_its_unit() -> None:
    assert heads(printed_by(every="0.5dur", max_duration="4ep")[0]) == ["epoch 2, step 8", "epoch 4, step 16"]


def test_a_stop_in_the_middle_of_an_epoch_prints_what_was_measured_last() -> None:
    stop = hl.on("train_step_end", at="6st")(lambda run: run.stop("enough"))
    lines, _ = printed_by(stop)
    assert heads(lines) == ["epoch 1, step 4", "epoch 1, step 6"]
    assert "val/loss" in lines[1]


def test_a_resumed_run_prints_only_what_is_new(tmp_path: Path) -> None:
    printed_by(hl.Checkpointer("1ep"), folder=tmp_path, max_duration="2ep")
    lines, _ = printed_by(hl.Checkpointer("1ep"), folder=tmp_path, max_duration="2ep", resume="auto", extend="1ep")
    assert heads(lines) == ["epoch 3, step 12"]


def test_arrays_are_left_out_and_nan_is_a_number() -> None:
    logs = hl.on("eval_end")(lambda run: run.log({"odd": float("nan"), "confusion": torch.eye(2)}))
    lines, _ = printed_by(logs)
    assert "val/odd nan" in lines[0]
    assert "confusion" not in lines[0]


def test_a_closed_stream_switches_it_off_and_the_run_goes_on() -> None:
    stream = io.StringIO()
    stream.close()
    assert fit(PrintMetrics(stream=stream)).clock.epoch == 2


def test_it_listens_to_no_event_of_a_step() -> None:
    trainer = Trainer(callbacks=[PrintMetrics(stream=io.StringIO())], max_duration="1ep", folder=False, device="cpu")
    fit(trainer=trainer)
    assert is_quiet(trainer)


def test_what_means_nothing_is_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match="format='no'"):
        PrintMetrics(format="no")
    with pytest.raises(
        ArgumentError,
        match=r"PrintMetrics\(stream='log\.txt'\): must be a text file that is open for writing or None\.",
    ):
        PrintMetrics(stream="log.txt")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be a string or a list of strings"):
        PrintMetrics((1,))  # type: ignore[arg-type]
    with pytest.raises(DurationError):
        PrintMetrics(every="often")
    assert PrintMetrics("val/*").metrics == ("val/*",)
