"""The cost of the engine over loops that are written by hand: steps with listeners, evaluations, one short fit."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from contenders import Problem, mlp
from measure import Batches, Contender, TimedRun, compare_runs, on_one_core
from table import Figure, Section, quartiles, verdict

import hookline as hl
from hookline.events.spec import STEP_EVENTS
from hookline.loop import Trainer  # Without the progress bar.

Rounds = Callable[[str], Iterable[int]]

STEPS = 400
STEP_LIMITS_US = {
    "no callback": 2.0,
    "ten callbacks on step start and end": 5.0,
    "one callback on gradients_ready": 4.0,
    "one callback on every event of a step": 8.0,
    "a task with its own train_batch": 6.0,
    "hl.Loop": 5.0,
}
ACCUMULATION_LIMIT_US, EVALUATION_LIMIT_US, PREDICTION_LIMIT_US = 8.0, 4.3, 5.5
FIT_LIMIT_MS, FIT_WITH_FOLDER_LIMIT_MS = 3.0, 10.0


def engine_cost(rounds: Rounds) -> Section:
    """Measure all rows."""
    problem = mlp()
    with on_one_core():
        figures = [
            *_compared(_steps(problem), partial(_bare, problem), STEP_LIMITS_US, rounds("steps")),
            *_compared(
                {"accumulate=2, per batch": partial(_fit, problem, accumulate=2)},
                partial(_bare, problem, accumulate=2),
                {"accumulate=2, per batch": ACCUMULATION_LIMIT_US},
                rounds("accumulation"),
            ),
            *_compared(
                {"evaluation, per batch": partial(_evaluate, problem)},
                partial(_bare_evaluation, problem),
                {"evaluation, per batch": EVALUATION_LIMIT_US},
                rounds("evaluation"),
            ),
            *_compared(
                {"prediction, per batch": partial(_predict, problem)},
                partial(_bare_prediction, problem),
                {"prediction, per batch": PREDICTION_LIMIT_US},
                rounds("prediction"),
            ),
            *_fixed_cost(problem, rounds("one step")),
        ]
    return Section(
        "The engine over loops by hand (µs added per step or batch; ms of a fit of one step)",
        figures,
        f"32-64-10 MLP, SGD, batch 32, batches in memory, one thread on one core, log_every='100st', folder=False. "
        f"Each run of {STEPS} steps against the mean of the bare runs before and after, in CPU time of the thread: "
        f"the median and the quartiles of the differences. The bare loop calls optimizer.zero_grad(set_to_none=True).",
    )


def _compared(
    rows: dict[str, Contender], bare: Contender, limits: dict[str, float], rounds: Iterable[int]
) -> list[Figure]:
    added, bare_steps = compare_runs({"the bare loop": bare, **rows}, bare, TimedRun(mlp().batches, STEPS), rounds)
    usual = statistics.median(bare_steps)
    figures = []
    for name, its in added.items():
        value, (low, high) = statistics.median(its.by_mean), quartiles(its.by_mean)
        limit = limits.get(name)
        figures.append(
            Figure(
                name,
                f"{value:+.1f} µs",
                f"quartiles {low:+.1f} to {high:+.1f}; a bare one takes {usual:.0f} µs",
                "" if limit is None else f"≤ {limit:g} µs",
                "" if limit is None else verdict(value <= limit),
            )
        )
    return figures


# -- steps ------------------------------------------------------------------------------------------


def _bare(problem: Problem, batches: Batches, accumulate: int = 1) -> None:
    model, optimizer = problem.make()
    model.train()
    for index, (x, y) in enumerate(batches, 1):
        loss = problem.loss(model(x), y)
        (loss if accumulate == 1 else loss / accumulate).backward()
        if index % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _steps(problem: Problem) -> dict[str, Contender]:
    def hearing(events: Iterable[str], times: int = 1) -> list[object]:
        return [hl.on(event)(lambda run: None) for event in events for _ in range(times)]

    ends = ("train_step_start", "train_step_end")
    return {
        "no callback": partial(_fit, problem),
        "ten callbacks on step start and end": partial(_fit, problem, callbacks=hearing(ends, 10)),
        "one callback on gradients_ready": partial(_fit, problem, callbacks=hearing(["gradients_ready"])),
        "one callback on every event of a step": partial(_fit, problem, callbacks=hearing(sorted(STEP_EVENTS))),
        "a task with its own train_batch": partial(_fit_task, problem),
        "hl.Loop": partial(_loop, problem),
    }


def _fit(problem: Problem, batches: Batches, callbacks: Iterable[object] = (), accumulate: int = 1) -> None:
    model, optimizer = problem.make()
    trainer = Trainer(
        preflight=False,
        max_duration="1ep",
        callbacks=callbacks,
        accumulate=accumulate,
        folder=False,
        device="cpu",
        log_every="100st",
    )
    trainer.fit(model, batches, loss=problem.loss, optimizer=optimizer)


class _OwnTask(hl.Task[Any]):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.net, self._optimizer = problem.make()
        self._loss = problem.loss

    def configure_optimizers(self, run: hl.Run) -> Any:
        return self._optimizer

    def train_batch(self, run: hl.Run, batch: Any, /) -> Any:
        x, y = batch
        return self._loss(self.net(x), y)


def _fit_task(problem: Problem, batches: Batches) -> None:
    trainer = Trainer(preflight=False, max_duration="1ep", folder=False, device="cpu", log_every="100st")
    trainer.fit(_OwnTask(problem), batches)


def _loop(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    with hl.Loop(
        model, optimizer, max_duration="1ep", folder=False, device="cpu", log_every="100st", preflight=False
    ) as loop:
        for x, y in loop.batches(batches):
            loop.backward(problem.loss(model(x), y))
            loop.step()


# -- evaluation and prediction ------------------------------------------------------------------------


def _bare_evaluation(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    model.eval()
    total = samples = 0.0
    with torch.no_grad():
        for x, y in batches:
            total += problem.loss(model(x), y).item() * len(x)
            samples += len(x)


def _evaluate(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    Trainer(folder=False, device="cpu").evaluate(model, batches, loss=problem.loss)


def _bare_prediction(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    model.eval()
    with torch.no_grad():
        torch.cat([model(x) for x, _ in batches])


def _predict(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    Trainer(folder=False, device="cpu").predict(model, batches)


# -- one short fit -------------------------------------------------------------------------------------


def _fixed_cost(problem: Problem, rounds: Iterable[int]) -> list[Figure]:
    def took(folder: Any, *, preflight: bool = False) -> float:
        model, optimizer = problem.make()
        start = time.thread_time()
        trainer = Trainer(preflight=preflight, max_duration="1st", folder=folder, device="cpu")
        trainer.fit(model, problem.batches[:1], loss=problem.loss, optimizer=optimizer)
        return (time.thread_time() - start) * 1e3

    without, within, checked = [], [], []
    with tempfile.TemporaryDirectory() as parent:
        for _ in range(3):
            took(False)
        for round_ in rounds:
            without.append(took(False))
            within.append(took(f"{parent}/{round_}"))
            checked.append(took(False, preflight=True))
    rows = (("folder=False", without, FIT_LIMIT_MS), ("with a folder", within, FIT_WITH_FOLDER_LIMIT_MS))
    preflight = Figure(
        "a fit of one step, with the pre-flight",
        f"{statistics.median(checked):.1f} ms",
        "quartiles {:.1f} to {:.1f}, CPU time of the thread".format(*quartiles(checked)),
    )
    figures = [
        Figure(
            f"a fit of one step, {name}",
            f"{statistics.median(its):.1f} ms",
            "quartiles {:.1f} to {:.1f}, CPU time of the thread".format(*quartiles(its)),
            f"≤ {limit:g} ms",
            verdict(statistics.median(its) <= limit),
        )
        for name, its, limit in rows
    ]
    return [*figures, preflight]
