"""Compare the steps of a replay with those of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hookline.records.run_file import RunFile
from hookline.records.steps import StepRow

NOT_COMPARED = ("folder", "max_duration")
"""Settings that may differ without an effect on the steps."""
MAX_CHANGES = 8


def first_difference(recorded: Sequence[StepRow], made: Sequence[StepRow]) -> int | None:
    """Return the index of the first row that differs in any bit, of those that both have."""
    pairs = enumerate(zip(recorded, made, strict=False))
    return next((index for index, (one, other) in pairs if one.bits != other.bits), None)


def explain(one: StepRow, other: StepRow) -> str:
    """Return how two rows differ, the more telling difference first.

    Args:
        one: The row of the run.
        other: The row of the replay.
    """
    if one.step != other.step:
        return f"the run made step {one.step} next, the replay step {other.step}: only one of them rolled back here"
    if one.samples != other.samples:
        return (
            f"step {one.step} has other samples than in the run. The order of the data is not repeatable, or the data "
            f"set, its sampler or the batch size has changed"
        )
    return f"step {one.step} has the same samples, but the loss {_shown(other.loss)} instead of {_shown(one.loss)}"


def _shown(loss: float) -> str:
    return repr(loss) if math.isfinite(loss) else str(loss)


def changes(run: RunFile, replayed: RunFile) -> list[str]:
    """Return the settings, versions and other facts that differ between the run and its replay."""
    pairs = (
        ("seed", run.seed, replayed.seed),
        ("settings", run.settings, replayed.settings),
        ("model", run.model, replayed.model),
        ("versions", run.versions, replayed.versions),
        ("git", dict(run.git or {}), dict(replayed.git or {})),
        ("threads", run.platform.get("threads"), replayed.platform.get("threads")),
        ("device", run.platform.get("device"), replayed.platform.get("device")),
    )
    found = [line for name, one, other in pairs for line in _changes(name, one, other)]
    more = len(found) - MAX_CHANGES
    return found[:MAX_CHANGES] + ([f"and {more} more"] if more > 0 else [])


def _changes(name: str, one: Any, other: Any) -> list[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [key for key in {**one, **other} if key not in NOT_COMPARED]
        return [line for key in keys for line in _changes(f"{name}.{key}", one.get(key), other.get(key))]
    return [] if one == other else [f"{name}: {one} in the run, {other} in the replay"]
