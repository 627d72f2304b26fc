"""How much memory a long training grows by. Run as a script, it trains and prints what it used, as JSON."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from table import Figure, Section, verdict

LIMIT_MB = 20
EPOCH = 10_000
"""Steps of an epoch; the first is the warm-up."""


def memory_growth(epochs: int) -> Section:
    """In a process of its own: what the other benchmarks have freed would hide the growth."""
    command = [sys.executable, __file__, str(epochs)]
    used = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    growth, most = used[-1] - used[0], max(used) - used[0]
    steps = EPOCH * epochs
    return Section(
        "Memory (MB)",
        [
            Figure(
                f"growth from step {EPOCH:,} to {steps:,}",
                f"{growth:+.1f} MB",
                f"at most {most:+.1f}; {used[0]:.0f} MB at step {EPOCH:,}",
                f"< {LIMIT_MB} MB",
                verdict(growth < LIMIT_MB),
            )
        ],
        f"Resident memory of a fresh process that trains one weight for {epochs} epochs of {EPOCH:,} steps, with a "
        f"real backward and SGD, log_every='100st' and a folder; read after a collection at the end of each epoch.",
    )


def train(epochs: int) -> list[float]:
    """Resident megabytes at the end of each epoch."""
    import torch

    import hookline as hl
    from hookline.loop import Trainer

    torch.set_num_threads(1)
    used: list[float] = []

    class OneWeight(hl.Task[torch.Tensor]):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

        def train_batch(self, run: hl.Run, batch: torch.Tensor) -> Any:
            return self.weight.sum()

    class Memory(hl.Callback):
        def on_epoch_end(self, run: hl.Run) -> None:
            gc.collect()
            used.append(resident())

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            preflight=False, max_duration=f"{epochs}ep", log_every="100st", folder=folder, callbacks=[Memory()]
        )
        trainer.fit(OneWeight(), [torch.zeros(1)] * EPOCH)
    return used


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]))))
