"""What each callback costs: the time of its own hooks as a share of a step, and what it reads from the device."""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from contenders import Problem, mlp
from logging_cost import Reads
from measure import on_one_core
from table import MISSED, Figure, Section
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode

import hookline as hl
from hookline.cli.callbacks_table import CallbackRow, callback_rows
from hookline.loop import Trainer  # without the progress bar

SHARE = 0.02
"""Of a step of the transformer: monitors and stoppers at their defaults take less."""
LIMITED = ("stopping", "watch", "gradients")
MAY_READ = ("SpikeGuard", "StopOnNaN")
NO_MONITORS = {
    "GradientClip": "it changes the gradients, as torch's clip_grad_norm_ does: see the last lines",
    "GradientPlot": "two pictures, at the first step and at the end of the epoch, however long that is",
}
"""Of the limited families, but neither a monitor nor a stopper."""
CLIP_RATIO = 1.2
EMA_RATIO = 1.2
ONCE = ("setup", "model_ready", "fit_start", "train_start", "train_end", "fit_end", "teardown", "checkpoint_loaded")
WAITING = {
    torch.equal,
    torch.masked_select,
    torch.nonzero,
    Tensor.__array__,
    Tensor.cpu,
    Tensor.equal,
    Tensor.masked_select,
    Tensor.nonzero,
    Tensor.numpy,
    Tensor.tolist,
}
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}

ARGUMENTS: dict[str, Callable[[str], Any]] = {
    "AccumulationSchedule": lambda folder: hl.AccumulationSchedule({0: 1}),
    "BackboneFinetuning": lambda folder: hl.BackboneFinetuning(1, backbone="0"),
    "DerivedMetric": lambda folder: hl.DerivedMetric("train/double", _double, reads=("train/loss",)),
    "Freeze": lambda folder: hl.Freeze("0*"),
    "GradientClip": lambda folder: hl.GradientClip(1.0),
    "LimitBatches": lambda folder: hl.LimitBatches(train=10_000),
    "MLPerfLog": lambda folder: hl.MLPerfLog("mine", organization="me", monitor="val/loss", target=0.0),
    "Metrics": lambda folder: hl.Metrics({"hits": _hits}, stages=("train",)),
    "Notify": lambda folder: hl.Notify(webhook="http://127.0.0.1:9/"),
    "RenameMetric": lambda folder: hl.RenameMetric({"train/loss": "train/nll"}),
    "StopAtThreshold": lambda folder: hl.StopAtThreshold("val/loss", 0.0),
    "TimeLimit": lambda folder: hl.TimeLimit("1h"),
    "Upload": lambda folder: hl.Upload(f"file://{folder}/there"),
}
LEFT_OUT = {
    "BatchSizeFinder": "it needs a DataLoader, and nothing in a step",
    "CutMix": "there are no images",
    "DryRun": "it is the run",
    "ImageSamples": "there are no pictures",
    "LoadWeights": "nothing in a step",
    "MixUp": "the small data has integers",
    "OverfitBatches": "it is the data",
    "QuantizationAwareTraining": "it is the model",
    "StopOnSignal": "nothing in a step",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """One thing that is trained: for how many steps, and what a bare one takes."""

    problem: Problem
    steps: int
    bare: float

    @classmethod
    def of(cls, problem: Problem, steps: int) -> Bench:
        return cls(problem, steps, _bare_step(problem, steps))


def callback_cost(steps: int, bar: Callable[[str, int], Iterator[int]]) -> Section:
    """``steps`` of the small model, and a tenth of them of the large one."""
    logging.getLogger("hookline").setLevel(logging.ERROR)
    names = [row for row in callback_rows() if row.name not in LEFT_OUT]
    with on_one_core(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small, large = Bench.of(mlp(), steps), Bench.of(transformer(), max(2, steps // 10))
        nothing = _reads(None)
        figures = [_figure(names[index], small, large, nothing) for index in bar("callbacks", len(names))]
        figures += [_ema(large), _clip(large)]
    left = "; ".join(f"{name}: {why}" for name, why in LEFT_OUT.items())
    return Section(
        "Callbacks (their own hooks, as a share of a step of a transformer)",
        figures,
        f"10 million parameters on 4 x 64 tokens, {large.steps} steps of {large.bare * 1e3:.0f} ms; beside it a "
        f"32-64-10 MLP, {small.steps} steps of {small.bare * 1e6:.0f} µs; one thread. All hooks are timed at every "
        f"step, with those of an interval, an evaluation and the end of the epoch; what happens once in a run (setup, "
        f"the first and the last hooks) is told apart. Reads: what would wait for a device (item, tolist, numpy, cpu, "
        f"equal, nonzero, a mask as index), a step between two intervals, more than without it. Left out: {left}.",
    )


# -- what is trained -----------------------------------------------------------------------------------


class ClassesSecond(nn.Module):
    """As the loss wants them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def transformer() -> Problem:
    """A language model of 10 million parameters, and 4 x 64 tokens a step."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(320, 8, 1280, dropout=0.0, batch_first=True, norm_first=True)
        body = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(256, 320), body, nn.Linear(320, 256), ClassesSecond())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randint(256, (4, 64), generator=generator), torch.randint(256, (4, 64), generator=generator))
        for _ in range(4)
    ]
    return Problem(make, nn.CrossEntropyLoss(), batches)


# -- time ----------------------------------------------------------------------------------------------


class EveryStep(hl.Callback):
    """Has the hooks of the others timed at every step, not at one in 64."""

    def on_train_start(self, run: Any) -> None:
        line = run.loop.engine.line
        line._fill(line.fast, line.ordered(line.order), timed=True)
        line.hooks = line.fast


def _fit(problem: Problem, steps: int, callbacks: list[Any], folder: str, log_every: str) -> Any:
    model, optimizer = problem.make()
    batches = [problem.batches[index % len(problem.batches)] for index in range(steps)]
    trainer = Trainer(
        preflight=False, max_duration="1ep", folder=f"{folder}/run", log_every=log_every, callbacks=callbacks
    )
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # some print
        trainer.fit(model, batches, batches[:1], loss=problem.loss, optimizer=optimizer)
    return trainer._loop


def _made(name: str, folder: str) -> Any:
    return ARGUMENTS[name](folder) if name in ARGUMENTS else getattr(hl, name)()


def _hook_time(name: str, bench: Bench) -> tuple[float, float]:
    """Seconds a step, and seconds once in a run."""
    with tempfile.TemporaryDirectory() as folder:
        callback = _made(name, folder)
        loop = _fit(bench.problem, bench.steps, [callback, EveryStep()], folder, "100st")
        own = {hook: cost.ns / 1e9 for (whose, _, hook), cost in loop.engine.line._costs.items() if whose == name}
        failures = [str(failure) for failure in loop.engine.line.failures]
    if failures:
        raise RuntimeError(f"{name} failed: {failures[0]}")
    once = sum(seconds for hook, seconds in own.items() if hook.removeprefix("on_") in ONCE)
    return (sum(own.values()) - once) / max(1, loop.engine.clock.step), once


def _bare_step(problem: Problem, steps: int) -> float:
    model, optimizer = problem.make()
    times = []
    for index in range(steps):
        x, y = problem.batches[index % len(problem.batches)]
        began = time.perf_counter()
        problem.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


class OtherReads(TorchFunctionMode):
    """Counts what reads from a device by other ways than number by number (those are of ``Reads``).

    On the CPU, where this is measured, they copy nothing; on a device each of them would wait. What the loop itself
    reads is left out: it takes numbers at once only if they are on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING or (func in INDEXING and _has_mask(args[1])):
            self.count += not sys._getframe(1).f_globals.get("__name__", "").startswith("hookline.loop.")
        return func(*args, **(kwargs or {}))


def _has_mask(index: Any) -> bool:
    """Whether the size of what is taken depends on the numbers in a tensor."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def _reads(name: str | None) -> float:
    """Reads from the device a step, between two intervals."""
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [] if name is None else [_made(name, folder)]
        reads, others = Reads(), OtherReads()
        counts: list[int] = []
        # From the second step on and without the last: what is done once, or as an epoch ends, is no read of each step.
        counting = hl.on("train_step_end")(lambda run: counts.append(reads.count + others.count))
        with reads, others:
            _fit(mlp(), 40, [*callbacks, counting], folder, "1000st")
    return (counts[-2] - counts[1]) / max(1, len(counts) - 3)


def _figure(row: CallbackRow, small: Bench, large: Bench, nothing: float) -> Figure:
    name = row.name
    limited = row.family in LIMITED and name not in NO_MONITORS
    little, _ = _hook_time(name, small)
    much, once = _hook_time(name, large)
    read = max(0.0, _reads(name) - nothing)
    share = much / large.bare
    well = share <= SHARE and (read == 0 or name in MAY_READ)
    limit = f"≤ {SHARE:.0%}" if name in MAY_READ else f"≤ {SHARE:.0%}, no reads"
    return Figure(
        f"{name} ({row.family})",
        f"{share:.2%}",
        NO_MONITORS.get(name, "")
        or f"MLP {little / small.bare:.1%} ({little * 1e6:.1f} µs a step); once {once * 1e3:.0f} ms; reads {read:.2f}",
        limit if limited else "",
        ("met" if well else MISSED) if limited else "",
    )


def _ema(large: Bench) -> Figure:
    """The average of Hookline against torch's own of another copy of the model, in the same run."""
    other, _ = large.problem.make()
    theirs = AveragedModel(other, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    theirs.update_parameters(other)
    return _against("EMA", "AveragedModel", hl.EMA(), lambda run: theirs.update_parameters(other), large, EMA_RATIO)


def _clip(large: Bench) -> Figure:
    """The same for clipping, of the same gradients: those that are clipped already cost the same once more."""
    return _against(
        "GradientClip",
        "clip_grad_norm_",
        hl.GradientClip(1.0),
        lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), 1.0),
        large,
        CLIP_RATIO,
    )


def _against(name: str, what: str, ours: Any, theirs: Callable[[Any], Any], large: Bench, most: float) -> Figure:
    taken: list[float] = []

    def timed(run: Any) -> None:
        began = time.perf_counter()
        theirs(run)
        taken.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder:
        callbacks = [ours, hl.on("optimizer_step_start")(timed), EveryStep()]
        loop = _fit(large.problem, large.steps, callbacks, folder, "100st")
        costs = {hook: cost for (whose, _, hook), cost in loop.engine.line._costs.items() if whose == name}
    own = (
        sum(cost.ns / 1e9 for hook, cost in costs.items() if "step" in hook or "gradients" in hook)
        / loop.engine.clock.step
    )
    ratio = own / statistics.mean(taken)
    return Figure(
        f"{name}, to torch's {what} alone", f"{ratio:.2f}", "", f"≤ {most}", "met" if ratio <= most else MISSED
    )


def _double(metrics: Any) -> Any:
    return metrics["train/loss"] * 2


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()
