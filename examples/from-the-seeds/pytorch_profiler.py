"""A profiler as a callback of your own, for fit, train, evaluate and predict (hl.TorchProfiler does more).

python examples/from-the-seeds/pytorch_profiler.py traces
"""

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

import hookline as hl


class PyTorchProfiler(hl.Callback):
    def __init__(self, profiler):
        self.profiler = profiler

    def around_train(self, run):
        with self.profiler:  # left on every way out: a stop, an error, Ctrl-C
            yield

    def around_eval(self, run):
        with nullcontext() if run.entry_point == "fit" else self.profiler:  # in a fit it runs already
            yield

    def around_predict(self, run):
        with self.profiler:
            yield

    def on_train_step_end(self, run):
        self.profiler.step()

    def on_eval_batch_end(self, run):
        self.profiler.step()

    def on_predict_batch_end(self, run):
        self.profiler.step()


temporary = tempfile.TemporaryDirectory()
folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary.name)
model, data = nn.Linear(16, 4), [(torch.randn(32, 16), torch.randint(4, (32,))) for _ in range(12)]
loss = nn.CrossEntropyLoss()
how: dict[str, Any] = {"loss": loss, "optimizer": torch.optim.AdamW, "max_duration": "1ep", "folder": False}
entry_points = {
    "train": lambda callbacks: hl.train(model, data, callbacks=callbacks, **how),
    "fit": lambda callbacks: hl.fit(model, data[:6], data[6:], callbacks=callbacks, **how),
    "evaluate": lambda callbacks: hl.evaluate(model, data, loss=loss, callbacks=callbacks, folder=False),
    "predict": lambda callbacks: hl.predict(model, data, callbacks=callbacks, folder=False),
}
for name, call in entry_points.items():
    plan, keep = schedule(wait=2, warmup=2, active=6, repeat=1), tensorboard_trace_handler(str(folder / name))
    profiler = profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=keep, with_stack=True)
    call([PyTorchProfiler(profiler), hl.ProgressBar(style=None)])
    print(f"{name}: {profiler.step_num} steps, {len(list((folder / name).iterdir()))} trace")
