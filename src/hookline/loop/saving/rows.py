"""Remove later rows from ``metrics.jsonl`` and the history after a resume or a rollback."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

from hookline.distributed.solo import AnyGroup
from hookline.errors import HooklineWarning
from hookline.loop.record.media import files_of, rewind_rows_and_media
from hookline.loop.record.records import Records
from hookline.loop.record.stream import METRICS
from hookline.records import MetricRow
from hookline.run import History, RunState
from hookline.run.paths import stays_inside
from hookline.sinks.jsonl import JsonLines

logger = logging.getLogger("hookline")


def drop_rows(records: Records, folder: Path | None) -> None:
    """Drop the rows of an earlier process that was killed before its first checkpoint.

    Args:
        records: The rows of the run.
        folder: The folder of the run.
    """
    rows = records.stream.rows
    records.steps.keep(0)
    if rows is not None and rows.size:
        logger.info("there is no checkpoint in %s: the run starts from scratch, and so do its metrics", folder)
        rewind_rows_and_media(rows, 0)


def restore_rows(
    records: Records, state: RunState, group: AnyGroup, source: Path, sizes: Mapping[str, int], *, is_own_run: bool
) -> None:
    """Restore the rows of a checkpoint. All ranks must call it.

    Args:
        records: The rows of the run.
        state: The state of the run.
        group: The processes of the run. Only rank zero writes rows.
        source: The folder of the run that saved the checkpoint.
        sizes: The sizes of ``metrics.jsonl`` (``"bytes"``) and ``steps.bin`` (``"steps"``) in bytes when the checkpoint
            was saved.
        is_own_run: True if the checkpoint is in the folder of this run. Otherwise rows and images are copied.
    """
    size = sizes["bytes"]
    if group.rank:
        group.barrier()  # Wait until rank zero has restored the file.
        if state.folder is not None:
            file = JsonLines((state.folder if is_own_run else source) / METRICS)
            _read_history(state.history, file, size, quietly=True)
        return
    if not is_own_run:
        records.steps.copy_from(source)
    records.steps.keep(sizes.get("steps", 0))  # Older checkpoints lack it.
    rows = records.stream.rows
    if rows is not None:
        theirs = source / rows.path.name
        if not is_own_run and theirs.is_file():
            rows.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(theirs, rows.path)
        if rows.size < size:
            warnings.warn(
                f"{rows.path} is shorter ({rows.size} bytes) than when the checkpoint was saved ({size}): rows are "
                f"lost",
                HooklineWarning,
                stacklevel=2,
            )
        if is_own_run:
            rewind_rows_and_media(rows, size)
        else:
            rows.rewind(size)
        _read_history(state.history, rows, size)
        if not is_own_run:
            for name in files_of(rows.read(size)):
                if stays_inside(name) and (source / name).is_file():
                    (rows.path.parent / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, rows.path.parent / name)
    group.barrier()


def rewind_rows(records: Records, state: RunState, size: int, run_id: str) -> None:
    """Remove the rows of undone steps in the middle of a run, and restart the sinks.

    Args:
        records: The rows of the run.
        state: The state of the run, at the step to return to.
        size: The size of ``metrics.jsonl`` in bytes to return to.
        run_id: The identity of the run.
    """
    rows = records.stream.rows
    if rows is None:
        state.history.go_back(state.clock.step)
    elif rows.size == size:
        return
    else:
        rewind_rows_and_media(rows, size)
        _read_history(state.history, rows, size)
    records.restart(run_id)


def _read_history(history: History, rows: JsonLines, size: int, *, quietly: bool = False) -> None:
    """Fill the history again from the first ``size`` bytes of the rows."""
    history.clear()
    for row in rows.read(size, quietly=quietly):
        if isinstance(row, MetricRow):
            history.record(row)
