"""A run whose ``folder=`` is an address: bring it into its local folder before it starts. ``Upload`` copies it back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from hookline.checkpoint import FolderLock, Store
from hookline.checkpoint.lock import NAME as LOCK
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.remote import RemoteRun
from hookline.checkpoint.request import Resume
from hookline.distributed.solo import AnyGroup
from hookline.errors import ArgumentError, SetupError
from hookline.loop.record.stream import METRICS
from hookline.loop.saving.remote import on_each_machine
from hookline.records.control import FOLDER as CONTROL
from hookline.records.redact import redact_text

logger = logging.getLogger("hookline")


def checked_mirror(callbacks: list[object], asked: str | None, remote: str | None) -> list[object]:
    """Return the callbacks of a run whose ``folder=`` may be an address.

    Args:
        callbacks: The callbacks of the user.
        asked: The address that the user gave, or ``None``.
        remote: The address to copy the run to. ``hookline check``, ``replay`` and ``verify-resume`` copy nothing.

    Raises:
        ArgumentError: If no callback copies the run to its address.
    """
    if asked is None:
        return callbacks
    others = [callback for callback in callbacks if not getattr(callback, "is_mirror", False)]
    if remote is None:
        return others
    if len(others) == len(callbacks):
        raise ArgumentError(
            f"folder={redact_text(remote)!r}: this is an address, and no callback copies the run there. Add "
            f"hl.Upload() to callbacks. hl.Trainer and hl.fit add it themselves."
        )
    return callbacks


def bring_run(address: str, folder: Path, resume: Resume | None, group: AnyGroup) -> None:
    """Download what a resume needs, if the run at the address is further than the local folder.

    It is the newest checkpoint, and all files of the run outside of checkpoints. All ranks must call it.

    Args:
        address: The address of the run's folder.
        folder: The local folder.
        resume: The checkpoint to resume from.
        group: The processes of the run.

    Raises:
        SetupError: If there is a run at the address that is not resumed, or the local folder holds another run.
        CheckpointError: If the address cannot be read.
    """
    if not group.rank:
        logger.warning("folder=%r: the run works in %s, and Upload copies it", redact_text(address), folder)

    def bring(chosen: str | None) -> str:
        run = RemoteRun(address)
        if chosen is None:
            with FolderLock(folder):
                return _bring_newest(run, folder, resume)
        folder.mkdir(parents=True, exist_ok=True)
        found = next((checkpoint for checkpoint in run.checkpoints if checkpoint.where == chosen), None)
        if found is not None:
            run.download(found, folder / found.where)
            # If the machines share a disk, rank zero has already brought the files.
            _download_files(run, folder, lambda name: _size(folder / name) < run.files[name])
        return chosen

    on_each_machine(group, bring)


def _bring_newest(run: RemoteRun, folder: Path, resume: Resume | None) -> str:
    """Download the newest checkpoint, if it is newer than those in the folder.

    Returns:
        The name of the checkpoint at the address from which the run resumes. Empty if there is none.
    """
    if resume is None or resume.path != "auto":
        if run.checkpoints or METRICS in run.files:
            raise SetupError(
                f"folder={run.shown!r} holds a run already; give another, remove it, or resume it: resume='auto'"
            )
        return ""
    own = Store(folder / FOLDER).latest()
    content = b"" if own is None else (own.path / MANIFEST).read_bytes()
    newer = [item for item in run.checkpoints if own is None or item.age > (own.about.generation, own.about.step)]
    if own is not None and any(item.manifest.about.run != own.about.run for item in newer):
        raise SetupError(
            f"folder={run.shown!r}: its local folder {str(folder)!r} holds another run. Remove that folder, or give "
            f"another address."
        )
    path = run.newest(
        lambda checkpoint: run.download(checkpoint, folder / checkpoint.where),
        # The run's own checkpoint is downloaded again if the local copy is damaged.
        lambda checkpoint: checkpoint.is_resumable and (checkpoint in newer or checkpoint.content == content),
        strict=resume.strict,
    )
    if path is None:
        return ""
    if (path / MANIFEST).read_bytes() != content:
        _download_files(run, folder, lambda name: True)
    return path.relative_to(folder).as_posix()


def _download_files(run: RemoteRun, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    """Download the files of a run that are not in a checkpoint, such as its metrics and its log."""
    checkpoints = (name.removesuffix(MANIFEST) for name in run.files if name.endswith(f"/{MANIFEST}"))
    # A request to control the run belongs to the process that ran when it was made.
    inside = (f"{FOLDER}/", f"{CONTROL}/", *checkpoints)
    for name in run.files:
        if not name.startswith(inside) and name != LOCK and is_wanted(name):
            run.download_file(name, folder / name)


def _size(path: Path) -> int:
    """Return the size of a file. -1 if it does not exist."""
    return path.stat().st_size if path.exists() else -1
