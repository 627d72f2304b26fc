"""Where a callback writes: inside the run's folder, or at a place that the user has named in full."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def place(run: Run, path: str | os.PathLike[str], who: str) -> Path:
    """The path below the run's folder; an absolute one as it is."""
    found = Path(path).expanduser()
    if found.is_absolute():
        return found
    if run.folder is None:
        raise SetupError(
            f"{who}: {str(found)!r} is a place in the run's folder, and this run has none (folder=False); give the "
            f"run a folder, or give an absolute path"
        )
    return run.folder / found


def check_writable(path: Path, who: str) -> None:
    """That a file can be written there, before the work whose result it is to hold."""
    folder = next(parent for parent in path.parents if parent.exists())
    if path.is_dir():
        raise SetupError(f"{who}: {str(path)!r} is a folder; give the path of a file")
    if not folder.is_dir():
        raise SetupError(f"{who}: {str(folder)!r} is a file, so nothing can be written below it; give another path")
    try:
        TemporaryFile(dir=folder).close()  # rights alone do not say it: not to root, nor on a system of files in /proc
    except OSError as error:
        raise SetupError(
            f"{who}: {str(folder)!r} cannot be written to ({error.strerror}); change its rights, or give another path"
        ) from error
