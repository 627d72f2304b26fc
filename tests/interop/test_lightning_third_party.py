"""Callbacks for Lightning from other packages of the index run in Hookline, with the same effect."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.interop.test_lightning import in_hookline, in_lightning, same, weights

pytestmark = pytest.mark.filterwarnings("ignore")

CASES: dict[str, tuple[str, str, Callable[[Any], Any], Callable[[Any, Path], Any]]] = {
    "lightly": (
        "lightly.utils.benchmarking.metric_callback",
        "pytorch_lightning",
        lambda of: of.MetricCallback(),
        lambda its, folder: its.val_metrics["val_loss"],
    ),
    "pytorch-lightning-spells": (
        "pytorch_lightning_spells.callbacks",
        "pytorch_lightning",
        lambda of: of.MixUpCallback(),
        lambda its, folder: None,
    ),
    "minerva-ml": (
        "minerva.callback.specific_checkpoint_callback",
        "lightning.pytorch",
        lambda of: of.SpecificCheckpointCallback([-1, 0, 2], [3, 5]),
        lambda its, folder: [
            (path.name, torch.load(path)["state_dict"]) for path in sorted(its.checkpoint_path.iterdir())
        ],
    ),
    "darts": (
        "darts.utils.callbacks",
        "pytorch_lightning",
        lambda of: of.TFMProgressBar(enable_train_bar_only=True),
        lambda its, folder: (its.train_progress_bar.n, its.train_progress_bar.total),
    ),
}
"""By package: the module, the Lightning that it is for, a callback, and its effect."""
CHANGES_WEIGHTS = {"pytorch-lightning-spells"}


@pytest.mark.parametrize("name", CASES)
def test_a_callback_of_another_package_has_the_same_effect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, package, make, effect = CASES[name]
    of = pytest.importorskip(module, reason=f"{name} is not installed: `make interop` runs this test")
    pl = import_module(package)
    monkeypatch.setattr("tests.interop.test_lightning.cross_entropy", mixed_loss)
    monkeypatch.setattr("tests.interop.test_lightning.nn.CrossEntropyLoss", lambda: mixed_loss)
    (tmp_path / "there").mkdir()
    there, here = make(of), make(of)
    np.random.seed(0)
    logger = pl.loggers.CSVLogger(tmp_path / "there", name="", version="")
    trained, trainer = in_lightning(pl, [there], tmp_path / "there", logger=logger)
    np.random.seed(0)
    model, result = in_hookline([here], tmp_path / "here")
    assert result.clock.step == trainer.global_step
    assert same(weights(model), weights(trained))
    assert same(effect(here, tmp_path / "here"), effect(there, tmp_path / "there"))
    without, _ = in_hookline([], tmp_path / "without")
    assert same(weights(model), weights(without)) is (name not in CHANGES_WEIGHTS)


def mixed_loss(logits: Any, targets: Any) -> Any:
    """A loss that takes the targets of MixUp, which are between two classes."""
    return torch.nn.functional.mse_loss(logits.softmax(1)[:, 1], targets.float())
