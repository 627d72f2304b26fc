"""Resume from an address: download one checkpoint and the rows of its run, and read them as local files."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hookline.checkpoint.agreement import agreed, by_zero
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.remote import RemoteCheckpoint, RemoteFolder, RemoteRun, no_checkpoint, reading
from hookline.checkpoint.request import Resume
from hookline.distributed.solo import AnyGroup
from hookline.errors import CheckpointError, CheckpointMismatchError, HooklineError, HooklineWarning
from hookline.loop.record.media import files_of
from hookline.loop.record.stream import METRICS
from hookline.records.redact import redact_text
from hookline.records.steps import FILE as STEPS
from hookline.run.paths import stays_inside
from hookline.sinks.jsonl import JsonLines

DOWNLOAD = ".download"
"""Folder inside the run's folder for what is downloaded. It is removed when the run has resumed."""


@contextmanager
def local_copy(resume: Resume, folder: Path | None, group: AnyGroup) -> Iterator[Resume]:
    """Give the request with a local path in place of an address. All ranks must call it.

    The files are removed at the end of the context.

    Args:
        resume: The checkpoint, or the folder to look in.
        folder: The folder of the run.
        group: The processes of the run.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint at the address.
        CheckpointCorruptError: If its files differ from the manifest.
        CheckpointError: If the address cannot be read.
    """
    if not resume.is_remote:
        yield resume
        return
    address = str(resume.path)
    target = Path(by_zero(group, lambda: str(_empty(folder))))
    try:
        name = on_each_machine(group, lambda chosen: _download(address, resume, target, chosen))
        yield replace(resume, path=target / FOLDER / name)
        group.barrier()  # All ranks have read it.
    except HooklineError as error:
        if redact_text(address) not in str(error):
            error.add_note(f"downloaded from {redact_text(address)}")
        raise
    finally:
        shutil.rmtree(target, ignore_errors=True)


def on_each_machine(group: AnyGroup, act: Callable[[str | None], str]) -> str:
    """Call ``act`` on rank zero, then with its result on one rank of each other machine. Return the result.

    The machines need not share a disk. All ranks must call it.

    Args:
        group: The processes of the run.
        act: Function of the result of rank zero. On rank zero it gets ``None``.
    """
    chosen: str = by_zero(group, lambda: act(None))
    agreed(group, lambda: act(chosen) if group.rank and not group.local_rank else chosen)
    return chosen


def _empty(folder: Path | None) -> Path:
    """Return an empty folder to download into. A killed process may have left its files."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="hookline-"))
    shutil.rmtree(folder / DOWNLOAD, ignore_errors=True)
    return folder / DOWNLOAD


def _download(address: str, resume: Resume, target: Path, chosen: str | None) -> str:
    """Download a checkpoint and the rows of its run, and return the name of the checkpoint."""
    run = RemoteRun(address)
    is_one = bool(run.checkpoints) and not run.checkpoints[0].where

    def download(checkpoint: RemoteCheckpoint) -> Path:
        return run.download(checkpoint, target / FOLDER / (checkpoint.where or address).rpartition("/")[2])

    def is_usable(checkpoint: RemoteCheckpoint) -> bool:
        return is_one or (checkpoint.is_resumable if chosen is None else checkpoint.where.rpartition("/")[2] == chosen)

    path = run.newest(download, is_usable, strict=resume.strict)
    if path is None and run.checkpoints:
        raise CheckpointMismatchError(
            f"{run.shown} holds weights only, so a run cannot resume from there; start a new run with "
            f"callbacks=[hl.LoadWeights({run.shown!r})]"
        )
    if path is None:
        raise no_checkpoint(address)
    # A checkpoint is two folders below its run: s3://bucket/run/checkpoints/step-00000400.
    depth = 2 if is_one else 2 - run.checkpoints[-1].where.count("/") - 1
    _download_rows(RemoteFolder(address.rsplit("/", depth)[0], {}), target)
    return path.name


def _download_rows(run: RemoteFolder, target: Path) -> None:
    """Download the metrics of a run, and the media that they name."""
    for name in (METRICS, STEPS):
        _download_file(run, name, target / name)
    rows = JsonLines(target / METRICS)
    outside = []
    for name in files_of(rows.read(rows.size, quietly=True)):
        if stays_inside(name):
            _download_file(run, name, target / name)
        elif name:  # An image that could not be written has no file.
            outside.append(name[:200])
    if outside:
        warnings.warn(
            f"{run.shown}: {METRICS} names files outside of the run's folder, which are not downloaded: "
            f"{', '.join(map(repr, sorted(outside)[:5]))}",
            HooklineWarning,
            stacklevel=2,
        )


def _download_file(run: RemoteFolder, name: str, target: Path) -> None:
    """Download a file, if the run has it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with reading(run.address):
            run.get(name, target)
    except CheckpointError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        target.unlink(missing_ok=True)
