"""Measure one library and Hookline against the bare loop, all in this process: ``peers.py`` starts it.

It runs in the environment of the library and writes what it finds as JSON: raw values, one per round.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from contenders import Problem, bare_step, mlp, wide_mlp
from measure import Batches, Contender, InTurn, compare_steps, on_one_core

BARE, HOOKLINE = "bare loop", "hookline"
STEPS, WIDE_STEPS, WIDE_WARM_UP, SAVES = 200, 30, 10, 3

Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("distribution")
    parser.add_argument("code", help="what a user imports")
    parser.add_argument("result", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--no-imports", action="store_true", help="leave out the imports, which take long")
    options = parser.parse_args()
    sides = [import_module(f"peer_trainers.{name}") for name in (HOOKLINE, options.library)]
    names = [HOOKLINE, options.library]
    few = max(2, options.rounds // 4)
    found: Found = {
        "version": version(options.distribution),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "logs": {name: side.LOGS for name, side in zip(names, sides, strict=True)},
        "saves_with": {name: side.SAVES for name, side in zip(names, sides, strict=True)},
    }
    start = time.perf_counter()
    with on_one_core(), _quiet():
        found |= _steps(dict(zip(names, sides, strict=True)), options.rounds)
        found["wide"] = _wide(dict(zip(names, sides, strict=True)), few)
        found["evaluation"] = _evaluation(dict(zip(names, sides, strict=True)), max(2, options.rounds // 2))
        found["save"] = _saves(dict(zip(names, sides, strict=True)), few)
    codes = {HOOKLINE: "import hookline; hookline.Trainer", options.library: options.code}
    found["import"] = _imports(codes, 0 if options.no_imports else few)
    found["seconds"] = round(time.perf_counter() - start, 1)
    options.result.write_text(json.dumps(found))


# -- steps -------------------------------------------------------------------------------------------------


def _steps(sides: dict[str, Any], rounds: int) -> Found:
    """Training and logging take turns in the same rounds."""
    problem = mlp()
    bare = _each_step(partial(bare_step, problem))
    contenders: dict[str, Contender] = {BARE: bare, "bare loop, log": partial(_bare_with_csv, problem)}
    for name, side in sides.items():
        contenders[name] = partial(side.train, problem)
        contenders[f"{name}, log"] = partial(side.train_and_log, problem)
    turns = AllThreads(problem.batches, STEPS, partial(bare_step, problem))
    found = _compare(contenders, bare, turns, rounds)
    added = found["added"]
    return {
        "step": {"bare": found["bare"], "added": {name: added[name] for name in [BARE, *sides]}},
        "log": {"bare": found["bare"], "added": {name: added[f"{name}, log"] for name in [BARE, *sides]}},
    }


def _wide(sides: dict[str, Any], rounds: int) -> Found:
    problem = wide_mlp()
    bare = _each_step(partial(bare_step, problem))
    contenders = {BARE: bare} | {name: partial(side.train, problem) for name, side in sides.items()}
    turns = AllThreads(problem.batches, WIDE_STEPS, partial(bare_step, problem), WIDE_WARM_UP)
    return _compare(contenders, bare, turns, rounds)


def _evaluation(sides: dict[str, Any], rounds: int) -> Found:
    problem = mlp()
    bare = _each_step(partial(_bare_evaluation, problem))
    contenders = {BARE: bare} | {name: partial(side.evaluate, problem) for name, side in sides.items()}
    turns = AllThreads(problem.batches, STEPS, partial(_bare_evaluation, problem))
    return _compare(contenders, bare, turns, rounds)


class AllThreads(InTurn):
    """Also counts the CPU time of the threads that are not the loop's, such as those that write logs."""

    others: float
    """Microseconds per step of the contender."""

    def __iter__(self) -> Iterator[Any]:
        start, last = 0, len(self) - 1
        for index, batch in enumerate(super().__iter__()):
            if index == self.warm_up:
                start = _of_other_threads()
            elif index == last:
                self.others = (_of_other_threads() - start) / (last - self.warm_up) / 1e3
            yield batch


def _of_other_threads() -> int:
    return time.process_time_ns() - time.thread_time_ns()


def _compare(contenders: dict[str, Contender], bare: Contender, turns: AllThreads, rounds: int) -> Found:
    """Microseconds of a bare step, and what each contender added to it, in each round."""
    others: dict[str, list[float]] = {name: [] for name in contenders}

    def noting(name: str, contender: Contender) -> Contender:
        def run(batches: Batches) -> None:
            contender(batches)
            others[name].append(turns.others)

        return run

    noted = {name: noting(name, contender) for name, contender in contenders.items()}
    steps, bare_steps = compare_steps(noted, bare, turns, range(rounds))
    added = {name: _rounded(rows.nanmean(1).tolist(), others[name][1:]) for name, rows in steps.items()}
    return {"bare": statistics.median(bare_steps), "added": added}


def _rounded(own: list[float], others: list[float]) -> list[float]:
    return [round(first + second, 2) for first, second in zip(own, others, strict=True)]


def _each_step(make: Callable[[], Callable[[Any], None]]) -> Contender:
    def run(batches: Batches) -> None:
        step = make()
        for batch in batches:
            step(batch)

    return run


def _bare_with_csv(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    with tempfile.TemporaryFile("w", newline="") as file:
        writer = csv.writer(file)
        for index, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            loss = problem.loss(model(x), y)
            loss.backward()
            optimizer.step()
            writer.writerow([index, loss.item()])


def _bare_evaluation(problem: Problem) -> Callable[[Any], None]:
    model, _ = problem.make()
    model.eval()
    total = torch.zeros(())

    def step(batch: Any) -> None:
        x, y = batch
        with torch.no_grad():
            total.add_(problem.loss(model(x), y))

    return step


# -- saves and imports -----------------------------------------------------------------------------------------


class FewBatches(Batches):
    warm_up = 0


def _saves(sides: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each save. ``torch.save`` writes the same weights and moments in the same rounds."""
    problem = wide_mlp()
    batches = FewBatches(problem.batches, SAVES - 1)
    found: dict[str, list[float]] = {"torch.save": [], **{name: [] for name in sides}}
    for round_ in range(rounds + 1):  # the first is the warm-up
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            place = Path(folder)
            for name in list(found)[:: 1 if round_ % 2 else -1]:
                (place / name).mkdir()
                save = sides[name].saves if name in sides else _plain_saves
                found[name] += [1e3 * value for value in save(problem, batches, place / name)[1:]]
    return {name: [round(value, 2) for value in values[SAVES - 1 :]] for name, values in found.items()}


def _plain_saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    model, optimizer = problem.make()
    found = []
    for index, (x, y) in enumerate(batches):
        problem.loss(model(x), y).backward()
        optimizer.step()
        start = time.perf_counter()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"{index}.pt")
        found.append(time.perf_counter() - start)
    return found


def _imports(codes: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of whole processes, which take turns."""
    all_codes = {"nothing": "", "torch": "import torch", **codes}
    found: dict[str, list[float]] = {name: [] for name in all_codes}
    for round_ in range(rounds + (rounds > 0)):  # the first writes byte code and fills the file cache
        for name, code in all_codes.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                check=True,
                env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
                cwd=tempfile.gettempdir(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if round_:
                found[name].append(round(1e3 * (time.perf_counter() - start), 1))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what libraries print to a file, which is shown after an error."""
    with tempfile.TemporaryFile() as log:
        saved = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in saved:
            os.dup2(log.fileno(), number)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(saved[1][1], log.read()[-4000:])
            raise
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)


if __name__ == "__main__":
    main()
