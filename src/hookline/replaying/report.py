"""The report of the steps of a replay, as one HTML file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hookline.records import MetricRow, Record
from hookline.records.run_file import FILE
from hookline.report import page
from hookline.sinks.jsonl import JsonLines

if TYPE_CHECKING:
    from hookline.replaying.start import Replay

STEPS = "steps"
"""Folder inside that of the replay with the rows of the steps that were asked for."""


def write_report(replay: Replay) -> Path:
    """Write the report of the steps of a replay, and return its path.

    Args:
        replay: The result of the replay.
    """
    folder = replay.folder / STEPS
    folder.mkdir(exist_ok=True)
    shutil.copyfile(replay.folder / FILE, folder / FILE)
    logged = JsonLines(replay.folder / "metrics.jsonl")
    rows: list[Record] = [row for row in logged.read(logged.size, quietly=True) if row.step > replay.first_step]
    losses = {row.step: row.loss for row in replay.made if row.step > replay.first_step}  # The last time counts.
    recorded = {row.step: row.loss for row in replay.recorded if row.step > replay.first_step}
    for name, values in (("loss/replay", losses), ("loss/run", recorded)):
        rows += [MetricRow(name, step, 0, loss, "step", 0.0) for step, loss in values.items()]
    file = JsonLines(folder / logged.path.name)
    file.write(rows)
    file.close()
    found = page.write_report(folder)
    return found.replace(replay.folder / "report.html")
