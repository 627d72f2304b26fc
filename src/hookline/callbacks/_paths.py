"""Paths that callbacks write to, and whether they can be written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from hookline.errors import SetupError
from hookline.records.file_names import check_links
from hookline.run.paths import in_run_folder, leaves_folder

if TYPE_CHECKING:
    from hookline.run import Run


def written_path(run: Run, path: Path, argument: str, of: str) -> Path:
    """Return the path that a callback writes to. A relative path is inside the run's folder.

    Raises:
        SetupError: If the path is relative, and the run has no folder or the path leaves the folder.
    """
    if leaves_folder(path):
        raise SetupError(
            f"{of}({argument}={str(path)!r}): this path leaves the run's folder. Give a path inside the folder, or an "
            f"absolute path."
        )
    return in_run_folder(path, run.folder if run.has_folder else None, argument, of)


def output_folder(run: Run, folder: Path | None, default: str, of: str) -> Path | None:
    """Return the folder that a callback writes to.

    Return ``None`` if ``folder`` is ``None`` and the run has no folder.
    """
    if folder is not None:
        return written_path(run, folder, "folder", of)
    return run.folder / default if run.has_folder else None


def check_folder(run: Run, folder: Path | None, of: str) -> None:
    """Raise in ``on_setup`` if ``folder`` is given and cannot be written to."""
    if folder is not None:
        check_writable(written_path(run, folder, "folder", of) / "file", f"{of}(folder=…)")


def check_writable(path: Path, who: str) -> None:
    """Raise if a file cannot be written to this path, before the work to create its content."""
    check_links(path.parent)
    folder = next(parent for parent in path.parents if parent.exists())
    if path.is_dir():
        raise SetupError(f"{who}: {str(path)!r} is a folder; give the path of a file")
    if not folder.is_dir():
        raise SetupError(f"{who}: {str(folder)!r} is a file, so nothing can be written below it; give another path")
    try:
        # Permissions are not enough: root passes every check, and a file system such as /proc takes no files.
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SetupError(
            f"{who}: {str(folder)!r} cannot be written to ({error.strerror}); change its rights, or give another path"
        ) from error
