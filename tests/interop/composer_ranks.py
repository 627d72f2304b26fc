"""What other processes do in ``test_composer.py``."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any


def train(folder: str) -> dict[str, Any]:
    """Stop early and measure the speed, on two ranks."""
    warnings.simplefilter("ignore")
    from composer import callbacks as of

    from tests.interop.test_composer import Model, in_hookline

    early, speed = of.EarlyStopper("loss", "eval", min_delta=0.15), of.SpeedMonitor(2)
    callbacks = [early, speed, of.SystemMetricsMonitor(), of.LRMonitor()]
    model, result = in_hookline(callbacks, Path(folder) / "run", make=Model, max_duration="9ep")
    return {
        "step": result.clock.step,
        "best": float(early.best),
        "samples": speed.history_samples[-1],
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }


def send_signal(folder: str, number: int) -> None:
    """Send a signal to this process in the middle of a run."""
    from composer import callbacks as of

    import hookline as hl
    from tests.interop.test_composer import in_hookline

    send = hl.on("train_step_end", at="6st")(lambda run: os.kill(os.getpid(), number))
    in_hookline([of.LRMonitor(), send, hl.Checkpointer()], Path(folder))


if __name__ == "__main__":
    send_signal(sys.argv[1], int(sys.argv[2]))
