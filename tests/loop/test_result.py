"""``Result`` as a notebook shows it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import torch

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import fit


class Odd(hl.Callback):
    def on_train_step_end(self, run: hl.Run) -> None:
        run.log({"train/<b>": run.clock.step if run.clock.step > 1 else float("nan"), "own/x": 1.0})
        run.log({"train/many": torch.ones(3, 3)}, reduce="sum")


def shown(result: hl.Result) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{result._repr_html_()}</div>".replace("<br>", "<br/>"))


def test_a_notebook_shows_the_metrics_with_their_curves(tmp_path: Path) -> None:
    result = fit(Odd(), train=tiny_data(4), val=tiny_data(), max_duration="3ep", log_every="1st", folder=tmp_path)
    page = shown(result)
    rows = {row[0].text: row for row in page.findall("./table/tbody/tr")}
    assert "val/loss" in rows
    assert "train/many" not in rows
    assert [cell.text for cell in rows["train/<b>"]][1:4] == ["12", "2", "12"]
    assert rows["train/<b>"].find(".//polyline") is not None
    assert [row[0].text for row in page.findall("./details/table/tbody/tr")] == ["own/x", "own/x_epoch"]
    text = "".join(page.itertext())
    assert "12 steps, 3 epochs" in text
    assert str(tmp_path) in text


def test_a_result_without_metrics_and_folder_is_shown(tmp_path: Path) -> None:
    result = hl.fit(
        TinyModel(),
        tiny_data(),
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD,
        max_duration="1st",
        log_every=None,
        folder=False,
        progress=False,
    )
    assert "1 step" in "".join(shown(result).itertext())
