"""The first look at a run: how far it is, which weights it has, and its seed to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.records.run_file import RunFile, Status
from hookline.report import write_report
from hookline.testing import TinyModel, tiny_data

Browse = Callable[..., Any]

SCORES = [0.5, 0.2, 0.3, 0.4]


def facts(page: Any) -> dict[str, str]:
    return {
        fact.locator("dt").inner_text(): fact.locator("dd").inner_text() for fact in page.locator(".facts > div").all()
    }


def test_a_seed_of_64_bits_is_shown_to_its_last_digit(browse: Browse, samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", 60, media=False, config={"id": -(2**60) - 1})
    replace(RunFile.read(folder), seed=9938647860722010304).write(folder)
    page = browse(write_report(folder).as_uri()).page
    assert facts(page)["Seed"] == "9938647860722010304"
    settings = page.locator("#settings").inner_text()
    assert "9938647860722010304" in settings
    assert "-1152921504606846977" in settings


@pytest.mark.parametrize(
    ("status", "duration", "told"),
    [
        ("running", "60ep", {"Epochs": "10 of 60", "Steps": "100"}),
        ("stopped", "5000st", {"Epochs": "10", "Steps": "100 of 5,000"}),
        ("failed", "2h", {"Time": "26.7 s of 2 h"}),
        ("running", "1e6tok", {"Planned": "1,000,000 tokens"}),
        ("running", "3ep", {"Epochs": "10"}),  # it went on beyond
        ("running", "soon", {"Epochs": "10", "Steps": "100"}),  # somebody else wrote it
        ("finished", "10ep", {"Epochs": "10"}),
    ],
)
def test_the_head_says_how_far_a_run_is(
    browse: Browse, samples: ModuleType, tmp_path: Path, status: Status, duration: str, told: dict[str, str]
) -> None:
    folder = samples.make_run(tmp_path / "run", 60, status=status, media=False)
    replace(RunFile.read(folder), settings={"max_duration": duration}).write(folder)
    found = facts(browse(write_report(folder).as_uri()).page)
    assert {name: found[name] for name in told} == told


def test_the_key_numbers_say_which_weights_they_are_of(browse: Browse, tmp_path: Path) -> None:
    class Score(hl.Callback):
        def on_eval_batch_end(self, run: hl.Run) -> None:
            if run.stage == "val":
                run.log({"score_loss": SCORES[run.clock.epoch - 1]})

    result = hl.fit(
        TinyModel(),
        tiny_data(4),
        tiny_data(1),
        tiny_data(1, seed=2),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        max_duration="9ep",
        folder=tmp_path / "run",
        callbacks=[Score(), hl.EarlyStopping("val/score_loss", patience=2, restore_best=True)],
    )
    page = browse((tmp_path / "run" / "report.html").as_uri()).page
    assert result.clock.step == 16
    assert "The weights of step 8 are restored" in page.locator(".reason").inner_text()
    tiles = {
        tile.locator("h3").inner_text(): tile.inner_text().splitlines()[1:] for tile in page.locator(".tile").all()
    }
    assert tiles["val/score_loss"][:3] == ["0.2", "best, at step 8, whose weights were kept", "last 0.4 at step 16"]
    assert tiles["test/loss"][1:3] == ["at step 16", "with the weights of step 8"]
    assert facts(page)["Epochs"] == "4 of 9"
