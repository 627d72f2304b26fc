"""``TorchProfiler`` in a second fit of the same trainer, and two of them in one run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile, schedule

from hookline.callbacks.debug import TorchProfiler
from hookline.errors import SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit

fit_epoch = partial(fit, max_duration="1ep")


def own(wait: int) -> profile:
    plan = schedule(wait=wait, warmup=1, active=2, repeat=1)
    return profile(activities=[ProfilerActivity.CPU], schedule=plan)


def test_a_second_fit_after_the_schedule_has_ended_does_not_say_that_nothing_was_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, model = Trainer(max_duration="1ep", callbacks=[TorchProfiler(own(1))], folder=tmp_path), TinyModel()
    fit(model=model, trainer=trainer)
    assert len(list((tmp_path / "profile").glob("*.gz"))) == 1
    assert fit(model=model, trainer=trainer, extend="1ep").clock.step == 8
    assert "recorded nothing" not in caplog.text


def test_an_evaluation_that_was_recorded_is_no_record_of_a_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, model = Trainer(max_duration="1ep", callbacks=[TorchProfiler(own(5))], folder=tmp_path), TinyModel()
    trainer.evaluate(model, tiny_data(9), loss=CE)
    fit(model=model, trainer=trainer)
    assert "recorded nothing: the run ended at its step 4" in caplog.text


def test_a_new_fit_that_is_too_short_says_so_although_the_one_before_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = TorchProfiler(active=2)
    fit_epoch(callback, folder=tmp_path / "one")
    assert "recorded nothing" not in caplog.text
    fit_epoch(callback, folder=tmp_path / "two", max_duration="1st")
    assert "recorded nothing: the run ended at its step 1" in caplog.text


def test_two_of_them_in_one_run_are_refused_with_what_to_do(tmp_path: Path) -> None:
    one, two = TorchProfiler(), TorchProfiler(wait=5)
    two.after = ("TorchProfiler",)
    with pytest.raises(SetupError, match="two TorchProfilers, and torch can have one at a time: leave one of them out"):
        fit_epoch(one, two, folder=tmp_path)
