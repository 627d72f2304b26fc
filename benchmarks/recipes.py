"""The cost of callbacks that real recipes combine, over loops by hand that do the same work."""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from contenders import Problem, mlp
from measure import Batches, TimedRun, compare_runs, on_one_core
from table import Figure, Section, quartiles, verdict
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import hookline as hl
from hookline.loop import Trainer  # Without the progress bar.

Rounds = Callable[[str], Iterable[int]]

STEPS, TRANSFORMER_STEPS = 400, 8
LOG_EVERY = 100
DECAY, MAX_NORM = 0.999, 1.0
CLIP_LIMIT_US, EMA_LIMIT_US, RECIPE_LIMIT_US = 10.0, 8.0, 40.0
TRANSFORMER_LIMIT_PERCENT = 1.0
METRICS = ("accuracy", "confidence", "entropy", "margin", "norm")


def recipe_cost(rounds: Rounds) -> Section:
    """Measure all rows."""
    problem = mlp()
    rows: list[tuple[str, Callable[[Batches], None], Callable[[Batches], None], float]] = [
        (
            "GradientClip",
            partial(_fit, problem, lambda: [hl.GradientClip(MAX_NORM)]),
            partial(_clip, problem),
            CLIP_LIMIT_US,
        ),
        ("EMA", partial(_fit, problem, lambda: [hl.EMA(DECAY)]), partial(_average, problem), EMA_LIMIT_US),
        ("the whole recipe", partial(_recipe, problem), partial(_recipe_by_hand, problem), RECIPE_LIMIT_US),
    ]
    figures = []
    with on_one_core():
        for name, ours, by_hand, limit in rows:
            figures.append(_row(name, ours, by_hand, limit, TimedRun(problem.batches, STEPS), rounds(name)))
        large = transformer()
        figures.append(_share_of_transformer(large, rounds("the recipe with a transformer")))
    return Section(
        "Recipes over loops by hand that do the same (µs added per step)",
        figures,
        "The recipe: LRSchedule, GradientClip, EMA, Checkpointer, progress, five metrics per step and a CSV file. By "
        "hand: CosineAnnealingLR, clip_grad_norm_, torch._foreach_lerp_, five numbers per step, a row of means and a "
        f"printed line every {LOG_EVERY} steps, a checkpoint at the end of the epoch. 32-64-10 MLP, SGD, batch 32; the "
        "transformer has 10 million parameters, AdamW, 8 sequences of 64 tokens. One thread on one core, CPU time of "
        "the thread.",
    )


def _row(name: str, ours: Any, by_hand: Any, limit: float, batches: TimedRun, rounds: Iterable[int]) -> Figure:
    added, bare = compare_runs({name: ours}, by_hand, batches, rounds)
    value, (low, high) = statistics.median(added[name].by_mean), quartiles(added[name].by_mean)
    detail = f"quartiles {low:+.1f} to {high:+.1f}; by hand a step takes {statistics.median(bare):.0f} µs"
    return Figure(name, f"{value:+.1f} µs", detail, f"≤ {limit:g} µs", verdict(value <= limit))


class _LongSteps(TimedRun):
    warm_up = 3


def _share_of_transformer(problem: Problem, rounds: Iterable[int]) -> Figure:
    name, batches = "the whole recipe, of a transformer's step", _LongSteps(problem.batches, TRANSFORMER_STEPS)
    ours, by_hand = partial(_recipe, problem), partial(_recipe_by_hand, problem)
    added, bare = compare_runs({name: ours}, by_hand, batches, rounds)
    step = statistics.median(bare)
    shares = [value / step * 100 for value in added[name].by_mean]
    value, (low, high) = statistics.median(shares), quartiles(shares)
    detail = f"quartiles {low:+.2f} to {high:+.2f}; by hand a step takes {step / 1e3:.0f} ms"
    limit = TRANSFORMER_LIMIT_PERCENT
    return Figure(name, f"{value:+.2f} %", detail, f"≤ {limit:g} %", verdict(value <= limit))


# -- one callback ------------------------------------------------------------------------------------


def _fit(problem: Problem, callbacks: Callable[[], list[object]], batches: Batches) -> None:
    model, optimizer = problem.make()
    trainer = Trainer(
        preflight=False,
        max_duration="1ep",
        callbacks=callbacks(),
        folder=False,
        device="cpu",
        log_every=f"{LOG_EVERY}st",
    )
    trainer.fit(model, batches, loss=problem.loss, optimizer=optimizer)


def _clip(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    norms, clipped = 0.0, 0
    for x, y in batches:
        problem.loss(model(x), y).backward()
        norm = clip_grad_norm_(model.parameters(), MAX_NORM).item()
        norms, clipped = norms + norm, clipped + (norm > MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _average(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    weights = [*model.parameters()]
    averages = [weight.detach().clone() for weight in weights]
    for x, y in batches:
        problem.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - DECAY)


# -- the recipe --------------------------------------------------------------------------------------


def _numbers(outputs: Tensor, loss: Tensor) -> list[float]:
    """Five numbers of a step that cost little: what they are does not matter."""
    value = loss.item()
    return [value, value / 2, value * 2, float(outputs.shape[0]), -value]


class _FiveMetrics(hl.Callback):
    def on_train_step_end(self, run: hl.Run) -> None:
        run.log(dict(zip(METRICS, _numbers(run.outputs, run.loss), strict=True)))


def _recipe(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        trainer = hl.Trainer(
            preflight=False,
            max_duration="1ep",
            callbacks=[
                hl.LRSchedule("cosine"),
                hl.GradientClip(MAX_NORM),
                hl.EMA(DECAY),
                hl.Checkpointer("1ep"),
                _FiveMetrics(),
            ],
            sinks=[hl.sinks.CSV()],
            folder=f"{folder}/run",
            device="cpu",
            log_every=f"{LOG_EVERY}st",
        )
        trainer.fit(model, batches, loss=problem.loss, optimizer=optimizer)


def _recipe_by_hand(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    weights = [*model.parameters()]
    averages = [weight.detach().clone() for weight in weights]
    sums, norms, clipped, losses = [0.0] * len(METRICS), 0.0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "metrics.csv").open("w") as file:
        rows, console = csv.writer(file), StringIO()
        for step, (x, y) in enumerate(batches, 1):
            outputs = model(x)
            loss = problem.loss(outputs, y)
            loss.backward()
            norm = clip_grad_norm_(weights, MAX_NORM).item()
            norms, clipped, losses = norms + norm, clipped + (norm > MAX_NORM), losses + loss.item()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_lerp_(averages, weights, 1 - DECAY)
            sums = [total + value for total, value in zip(sums, _numbers(outputs, loss), strict=True)]
            if step % LOG_EVERY == 0:
                means = [total / LOG_EVERY for total in (*sums, losses, norms, clipped)]
                rows.writerow([step, *means, scheduler.get_last_lr()[0]])
                print(step, losses / LOG_EVERY, file=console)
                sums, norms, clipped, losses = [0.0] * len(METRICS), 0.0, 0, 0.0
        torch.save([model.state_dict(), optimizer.state_dict(), averages], Path(folder) / "checkpoint.pt")


class _Transformer(nn.Module):
    def __init__(self, words: int = 4096, width: int = 320, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.embed(tokens)).mean(1))
        return out


def transformer() -> Problem:
    """A transformer of 10 million parameters on 8 sequences of 64 tokens."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = _Transformer()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randint(4096, (8, 64), generator=generator), torch.randint(4096, (8,), generator=generator))
        for _ in range(4)
    ]
    return Problem(make, nn.CrossEntropyLoss(), batches)
