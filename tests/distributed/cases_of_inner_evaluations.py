"""What ranks do in ``test_inner_evaluations.py``."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import hookline as hl
from hookline.testing import TinyModel, tiny_data

RANK = int(os.environ.get("RANK", "0"))


def left(place: str, stage: str, strategy: str, precision: str = "fp32") -> dict[str, Any]:
    """An own loop whose body evaluates or predicts in the middle of its second step; rank one leaves that by break."""
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"folder": False, "precision": precision}
    options["strategy"] = (hl.DDP if strategy == "ddp" else hl.FSDP)(hang_after="10s")
    ended: list[int] = []
    with hl.Loop(model, optimizer, max_duration="1ep", callbacks=[Ends(ended)], **options) as loop:

        def look() -> None:
            for x, y in loop.eval_batches(tiny_data(6)) if stage == "val" else loop.predict_batches(tiny_data(6)):
                found = model(x)
                if stage == "val":
                    loop.run.log({"val/loss": nn.functional.cross_entropy(found, y)})
                if RANK == 1:
                    break

        for x, y in loop.batches(tiny_data(12)):
            now = loop.run.clock.step == 1
            if now and place == "before backward":
                look()
            loss = nn.functional.cross_entropy(model(x), y)
            loop.backward(loss)
            if now and place == "before step":
                look()
            loop.step()
        return {
            "step": loop.run.clock.step,
            "ended": ended,
            "measured": len(loop.run.history["val/loss"]) if stage == "val" else 1,
            "reason": loop.stop_reason(),
            "weights": float(sum(parameter.detach().sum() for parameter in model.parameters())),
        }


class Ends(hl.Callback):
    """The step at which each evaluation or prediction has ended."""

    def __init__(self, ended: list[int]) -> None:
        self._ended = ended

    def on_eval_end(self, run: Any) -> None:
        self._ended.append(run.clock.step)

    def on_predict_end(self, run: Any) -> None:
        self._ended.append(run.clock.step)
