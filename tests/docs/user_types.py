"""What type checkers must say about the code of a user. `make check` runs mypy and pyright over it.

A line that must be an error is marked for both checkers. Each reports a mark that is not needed, so that a mistake that
a checker no longer finds fails the check.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import torch
from torch import nn

import hookline as hl
from hookline.testing import TinyModel, tiny_data


class WithoutInit(hl.Callback):
    def on_epoch_end(self, run: hl.Run) -> None:
        assert_type(run.folder / "notes.txt", Path)
        if run.metrics["val/loss"] < 0.5:
            run.stop("good enough")
        run.log_histogram("weights/first", run.model.hidden.weight)
        run.logg({"x": 1.0})  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        run.epoch  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


class WithInit(hl.Callback):
    def __init__(self, every: int) -> None:
        self.every = every


WithInit("1ep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
WithoutInit(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
hl.EarlyStoping()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
hl.Trainer(max_epochs=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
hl.Trainer(precision="fp8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
hl.Trainer(10)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]

trainer = hl.Trainer(
    max_duration="2ep", callbacks=[WithoutInit(), WithInit(1), hl.EarlyStopping("val/loss", patience=3)]
)
result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
trainer.fit(TinyModel(), tiny_data(), epochs=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(result, hl.Result)
assert_type(result.folder / "report.html", Path)
assert_type(hl.fit(TinyModel(), tiny_data(), max_duration="1ep"), hl.Result)
print(round(result.metrics["val/loss"], 3), result.model.out.weight)
