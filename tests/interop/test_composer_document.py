"""The code that the document about callbacks of Composer prints runs in Composer and in Hookline."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.loop import Trainer
from tests.interop.printed import run_printed

composer = pytest.importorskip("composer", reason="composer is not installed: `make interop` runs these tests")

from tests.interop.test_composer import Model, data, optimizer_of, same, weights  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Composer warns about the CPU, versions and closed trainers.

SET_UP = """
    from composer import Trainer
    from composer.callbacks import SpeedMonitor, LRMonitor
    from composer.loggers import WandBLogger

    Trainer(
        model=model,
        train_dataloader=train_dataloader,
        eval_dataloader=None,
        max_duration='1ep',
        callbacks=[SpeedMonitor(window_size=100), LRMonitor()],
        loggers=[WandBLogger()],
    )
"""

BY_HOOK = """
    from composer import Callback, State, Logger

    class EpochMonitor(Callback):

        def epoch_start(self, state: State, logger: Logger):
            print(f'Epoch: {state.timestamp.epoch}')
"""

BY_EVENT = """
    from composer import Callback, Event, Logger, State

    class EpochMonitor(Callback):

        def run_event(self, event: Event, state: State, logger: Logger):
            if event == Event.EPOCH_START:
                print(f'Epoch: {state.timestamp.epoch}')
"""

GIVEN = """
    from composer import Trainer

    trainer = Trainer(
        ...,
        callbacks=[EpochMonitor()]
    )
"""

KEPT = {"\n    Trainer(": "\n    trainer = Trainer("}
"""The document does not name the trainer that it makes."""
OPEN = {"...,": "**given,"}
"""The document leaves the other arguments open."""
OURS = {"from composer import Trainer": "Trainer = HooklineTrainer"}
"""The one line that changes when a run moves to Hookline."""


LOGGER = {"import WandBLogger": "import InMemoryLogger", "WandBLogger()": "InMemoryLogger()"}
"""``WandBLogger`` of Composer 0.32 calls a method that current versions of wandb do not have."""


class HooklineTrainer:
    """``Trainer(…)`` of the printed set-ups, in Hookline."""

    def __init__(
        self, model: Any, train_dataloader: Any, max_duration: str, callbacks: list[Any], optimizers: Any, **more: Any
    ) -> None:
        self.trainer = Trainer(
            max_duration=max_duration, callbacks=callbacks, device="cpu", folder=False, log_every="1st"
        )
        self.given = model, train_dataloader, optimizers

    def fit(self) -> Any:
        model, loader, optimizer = self.given
        return self.trainer.fit(model, loader, optimizer=optimizer)


def test_the_printed_set_up_does_the_same() -> None:
    there, here = Model(), Model()
    trainer = run_printed(SET_UP, {"model": there, "train_dataloader": data(120)}, {**KEPT, **LOGGER})["trainer"]
    default = trainer.state.optimizers[0]
    optimizer = type(default)(here.parameters(), lr=default.param_groups[0]["lr"])  # The document gives none.
    logged = trainer.logger.destinations[0].data
    trainer.fit()
    trainer.close()
    ours = {"HooklineTrainer": HooklineTrainer, "model": here, "train_dataloader": data(120), "optimizer": optimizer}
    changes = {**KEPT, **LOGGER, **OURS, "model=model": "model=model, optimizers=optimizer"}
    result = run_printed(SET_UP, ours, changes)["trainer"].fit()
    assert same(weights(here), weights(there))
    names = {name for name in logged if name.startswith(("throughput/", "lr-"))}
    assert {"throughput/samples_per_sec", "lr-DecoupledSGDW/group0"} <= names
    assert names <= {*result.history}


@pytest.mark.parametrize("code", [BY_HOOK, BY_EVENT])
def test_the_printed_callbacks_print_the_same(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    there, here = Model(), Model()
    given = {"train_dataloader": data(), "max_duration": "3ep"}
    theirs = {"model": there, "optimizers": optimizer_of(there), "device": "cpu", "progress_bar": False, **given}
    trainer = run_printed(code + GIVEN, {"given": theirs}, OPEN)["trainer"]
    trainer.fit()
    trainer.close()
    expected = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch")]
    names = {"given": {"model": here, "optimizers": optimizer_of(here), **given}, "HooklineTrainer": HooklineTrainer}
    run_printed(code + GIVEN, names, {**OPEN, **OURS})["trainer"].fit()
    assert capsys.readouterr().out.splitlines() == expected == ["Epoch: 0ep", "Epoch: 1ep", "Epoch: 2ep"]
    assert same(weights(here), weights(there))
