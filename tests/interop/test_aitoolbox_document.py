"""The code that the document about callbacks of AIToolbox prints runs in AIToolbox and in Hookline."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils import data
from torch.utils.data import TensorDataset

from hookline.loop import Trainer
from tests.interop.printed import run_printed

pytest.importorskip("aitoolbox", reason="aitoolbox is not installed: `make interop` runs these tests")

from aitoolbox.torchtrain import train_loop
from aitoolbox.torchtrain.model import TTModel

pytestmark = pytest.mark.filterwarnings("ignore")

IMPORTS = """
    from aitoolbox.torchtrain.train_loop import *
    from aitoolbox.torchtrain.callbacks.basic import EarlyStopping, TerminateOnNaN, AllPredictionsSame
"""

SET_UP = """
    model = CNNModel()  # TTModel based neural model
    train_loader = DataLoader(...)
    val_loader = DataLoader(...)
    test_loader = DataLoader(...)

    optimizer = optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.999))
    criterion = nn.NLLLoss()
"""

SEVERAL = """
    callbacks = [
        EarlyStopping(patience=3),
        TerminateOnNaN(),
        AllPredictionsSame(value=0.)
    ]
"""

FIT = """
    tl = TrainLoop(model,
                   train_loader, val_loader, test_loader,
                   optimizer, criterion)

    model = tl.fit(num_epochs=10, callbacks=callbacks)
"""

REPORT = """
    from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback


    class MyDemoTrainingReportCallback(AbstractCallback):
        def __init__(self):
            super().__init__('simple callback example')

        def on_train_begin(self):
            experiment_start_time = self.train_loop_obj.experiment_timestamp
            print(f'Starting the training! Experiment started at: {experiment_start_time}')

        def on_epoch_begin(self):
            current_epoch = self.train_loop_obj.epoch
            print(f'Starting new epoch num {current_epoch}')

        def on_epoch_end(self):
            val_predictions = self.train_loop_obj.predict_on_validation_set()
            print('Model predictions:')
            print(val_predictions)

        def on_train_end(self):
            print(f'End of training! Stopped at epoch {self.train_loop_obj.epoch}')

            test_predictions = self.train_loop_obj.predict_on_test_set()
            print('Model predictions:')
            print(test_predictions)
"""

REPORTED = """
    callbacks = [
        MyDemoTrainingReportCallback(),
        EarlyStopping(patience=3),
        TerminateOnNaN(),
        AllPredictionsSame(value=0.)
    ]
"""

FIRST_GPU = """
    from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback


    class DemoFirstGPUCallback(AbstractCallback):
        def __init__(self):
            super().__init__('first GPU callback example',
                             device_idx_execution=0)

        def on_train_begin(self):
            ..... Some logic .....
"""

LOGIC = {"..... Some logic .....": "print('Some logic')"}
"""The document leaves the logic open."""


class CNNModel(TTModel):  # type: ignore[misc]
    """The model of the document: digits of 8 by 8 pixels."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10), nn.LogSoftmax(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)

    def get_loss(self, batch_data: Any, criterion: Any, device: Any) -> Any:
        return criterion(self(batch_data[0].to(device)), batch_data[1].to(device))

    def get_predictions(self, batch_data: Any, device: Any) -> Any:
        return self(batch_data[0].to(device)).argmax(1), batch_data[1], {}


def names(train_loop_class: Any) -> dict[str, Any]:
    """What the document leaves open: three loaders of digits, one after the other, and the modules of torch."""
    digits = load_digits()
    x, y = torch.tensor(digits.images[:240], dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target[:240])
    parts = iter([slice(0, 160), slice(160, 200), slice(200, 240)])

    def loader(*given: Any) -> Any:
        part = next(parts)
        return data.DataLoader(TensorDataset(x[part], y[part]), batch_size=20)

    torchs = {"nn": nn, "optim": optim, "DataLoader": loader, "CNNModel": CNNModel}
    return {**torchs, "TrainLoop": train_loop_class}


class HooklineLoop:
    """``TrainLoop(…)`` and ``fit(…)`` of the printed set-up, in Hookline."""

    def __init__(self, model: Any, train: Any, val: Any, test: Any, optimizer: Any, criterion: Any) -> None:
        self.given = model, train, val
        self.more = {"test": test, "optimizer": optimizer, "loss": criterion}

    def fit(self, num_epochs: int, callbacks: list[Any]) -> Any:
        Trainer(max_duration=f"{num_epochs}ep", callbacks=callbacks, folder=False, device="cpu").fit(
            *self.given, **self.more
        )
        return self.given[0]


OWN_LINES = re.compile(r"^(=+|Epoch: \d+|.* LOSS: .*|Getting .* from store|.* prediction store at .*|)$")
"""Lines that the train loop of AIToolbox prints itself."""


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", "…", capsys.readouterr().out)
    return [line for line in text.splitlines() if not OWN_LINES.match(line)]


def same(one: nn.Module, other: nn.Module) -> bool:
    """True if the weights are bitwise the same."""
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("code", [IMPORTS + SET_UP + SEVERAL, IMPORTS + REPORT + SET_UP + REPORTED])
def test_the_printed_set_ups_do_the_same(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    there = run_printed(code + FIT, names(train_loop.TrainLoop))["model"]
    expected = lines(capsys)
    setting = run_printed(code, names(train_loop.TrainLoop))
    here = run_printed(FIT, {**setting, "TrainLoop": HooklineLoop})["model"]
    assert lines(capsys) == expected
    assert same(here, there)
    if code.endswith(REPORTED):
        assert expected[0] == "Starting the training! Experiment started at: …"
        assert sum(line.startswith("Starting new epoch num") for line in expected) == 10
        assert "End of training! Stopped at epoch 9" in expected
        assert expected.count("Model predictions:") == 11


def test_the_printed_callback_of_the_first_process_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """``test_aitoolbox.py`` runs a callback of the first process on two."""
    callback = run_printed(FIRST_GPU, {}, LOGIC)["DemoFirstGPUCallback"]
    run_printed(SET_UP + FIT, {**names(train_loop.TrainLoop), "callbacks": [callback()]})
    expected = lines(capsys)
    run_printed(SET_UP + FIT, {**names(HooklineLoop), "callbacks": [callback()]})
    assert lines(capsys) == expected == ["Some logic"]
