"""The leaderboard: one row per run with its state, progress, metrics, and the settings that differ between runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.records.direction import known_direction
from hookline.records.run_file import RunFile
from hookline.report.about import config_settings, facts_of, status_of, trainer_settings
from hookline.report.charts import MACHINE, is_epoch
from hookline.report.fit import cut
from hookline.report.numbers import exact, whole
from hookline.report.read import RunData

MAX_METRICS = 200
MAX_SETTINGS = 8
_STAGES = ("val/", "test/", "train/")


@dataclass(frozen=True, slots=True)
class Standing:
    """One run in the leaderboard."""

    status: str
    label: str
    """The status for display."""
    step: int
    epoch: int
    seconds: float
    """Seconds of training so far."""
    progress: float | None
    """Fraction of the target of the run. ``None`` if that is unknown."""
    left: float | None
    """Estimated seconds until the target, for a run that trains."""
    values: Mapping[str, float]
    """The newest value of each metric."""
    settings: Mapping[str, Any]
    """Hyperparameters and options of the trainer."""


def standing_of(run: RunData) -> Standing:
    """Return a run that was read completely as a row of the leaderboard.

    Args:
        run: The run.
    """
    status, facts = status_of(run), facts_of(run)
    values = {name: series.ordered().values[-1] for name, series in run.series.items() if matters(name, run.series)}
    progress = progress_of(facts["goal"], facts, status["key"])
    return Standing(
        status["key"],
        status["label"],
        facts["steps"],
        facts["epochs"],
        facts["seconds"],
        progress,
        time_left(progress, facts["seconds"], status["key"]),
        values,
        settings_of_file(run.file),
    )


def matters(name: str, names: Container[str]) -> bool:
    """True unless the metric repeats another one or is about the hardware.

    Args:
        name: The metric.
        names: All metrics of the run.
    """
    return name.partition("/")[0] not in MACHINE and not is_epoch(name, names)


def progress_of(goal: Mapping[str, Any] | None, reached: Mapping[str, Any], status: str) -> float | None:
    """Return how much of its target a run has reached, as a fraction.

    >>> progress_of({"unit": "epochs", "value": 8}, {"epochs": 2}, "running")
    0.25

    Args:
        goal: The target: see ``goal_of``.
        reached: Epochs, steps and seconds so far.
        status: The status of the run.
    """
    if status in ("finished", "nan"):
        return 1.0
    if goal is None or not goal["value"] or goal["unit"] not in reached:
        return None
    return min(1.0, float(reached[goal["unit"]]) / float(goal["value"]))


def time_left(progress: float | None, seconds: float, status: str) -> float | None:
    """Return the estimated seconds until a run reaches its target, if it trains.

    >>> time_left(0.25, 60.0, "running")
    180.0

    Args:
        progress: The fraction that it has reached.
        seconds: Seconds of training so far.
        status: The status of the run.
    """
    return seconds * (1 - progress) / progress if progress and status == "running" else None


def settings_of_file(file: RunFile | None) -> dict[str, Any]:
    """Return the hyperparameters and the options of the trainer by name, with settings that were changed live.

    Args:
        file: Content of ``run.json``.
    """
    if file is None:
        return {}
    config = dict(config_settings(file))
    trainer = {f"trainer.{name}" if name in config else name: value for name, value in trainer_settings(file)}
    live: dict[str, Any] = {}
    for entry in file.control:
        if entry.command == "set" and not entry.refused:
            live |= {name: value for name, value in entry.settings.items() if name != "max_duration"}
    return config | trainer | {f"live {name}": value for name, value in live.items()}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings whose values differ between runs, or that not all runs have.

    >>> differing([{"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1}])
    ['lr']

    Args:
        settings: The settings of each run.
    """
    counts: Counter[str] = Counter()
    values: dict[str, set[Any]] = {}
    for its in settings:
        counts.update(its.keys())
        for name, value in its.items():
            found = values.setdefault(name, set())
            if len(found) < 2:
                found.add(str(value) if isinstance(value, bool) else value)
    return [name for name, found in values.items() if len(found) > 1 or counts[name] < len(settings)]


def metrics_by_rank(values: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the metrics of all runs: those of most runs first, then validation, test and training.

    Args:
        values: The values of each run.
    """
    counts: Counter[str] = Counter()
    for its in values:
        counts.update(its.keys())
    half = len(values) / 2

    def key(name: str) -> tuple[bool, int, bool, str]:
        stage = next((place for place, stage in enumerate(_STAGES) if name.startswith(stage)), len(_STAGES))
        return counts[name] < half, stage, name.rpartition("/")[2] != "loss", name

    return sorted(counts, key=key)


def board_of(values: Sequence[Mapping[str, float]], settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of the leaderboard for a page.

    Args:
        values: The newest values of the metrics of each run.
        settings: The settings of each run.
    """
    metrics, differ = metrics_by_rank(values), differing(settings)
    return {
        "metrics": [{"name": name, "mode": known_direction(name)} for name in metrics[:MAX_METRICS]],
        "settings": differ[:MAX_SETTINGS],
        "more": max(0, len(differ) - MAX_SETTINGS),
    }


def row_of(standing: Standing, board: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as a row of a page, with the columns of the board.

    Args:
        standing: The run.
        board: What ``board_of`` returned.
    """
    names = [metric["name"] for metric in board["metrics"]]
    return {
        "progress": standing.progress,
        "left": standing.left,
        "values": {name: exact(standing.values[name]) for name in names if name in standing.values},
        "settings": {name: _shown(standing.settings[name]) for name in board["settings"] if name in standing.settings},
    }


def in_order(standings: Sequence[Standing], by: str) -> list[int]:
    """Return the positions of the runs, the best first. Runs without a value come last.

    Args:
        standings: The runs.
        by: A metric, a setting, ``"progress"``, ``"left"``, ``"step"`` or ``"seconds"``.
    """
    is_metric = any(by in standing.values for standing in standings)
    largest_first = by in ("progress", "step", "seconds") or (is_metric and known_direction(by) == "max")

    def key(place: int) -> tuple[int, float, str]:
        standing = standings[place]
        fields = {"progress": standing.progress, "left": standing.left, "step": standing.step}
        known = {**standing.settings, **fields, "seconds": standing.seconds, **standing.values}
        value = known.get(by)
        if isinstance(value, int | float) and not math.isnan(value):
            return 0, -value if largest_first else value, ""
        return (2, 0.0, "") if value is None or isinstance(value, float) else (1, 0.0, str(value))

    return sorted(range(len(standings)), key=key)


def _shown(value: Any) -> Any:
    return cut(value) if isinstance(value, str) else exact(value) if isinstance(value, float) else whole(value)
