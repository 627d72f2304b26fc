"""Paths that callbacks write to: run-relative, checked, and written atomically."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from hookline.checkpoint.commit import sync_folder
from hookline.errors import SetupError
from hookline.records.file_names import check_links
from hookline.run.paths import in_run_folder, leaves_folder

if TYPE_CHECKING:
    from hookline.run import Run

MARK = ".tmp"


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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end of the ``with`` block.

    If the block fails, the temporary file is deleted and the file at ``path`` stays unchanged.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(target) as fresh:
        ...     size = fresh.write_text("all of it")
        >>> target.read_text(), [path.name for path in target.parent.iterdir()]
        ('all of it', ['notes.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.stem}{MARK}{path.suffix}")  # Some writers choose the format by the suffix.
    try:
        yield fresh
        _sync(fresh)
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)  # The file is missing after a successful rename.


@contextmanager
def replacing_with_others(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a writer that may write more files next to its own.

    These files refer to each other by name. They are moved into place together, ``path`` last.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "model.onnx"
        >>> with replacing_with_others(target) as fresh:
        ...     sizes = fresh.write_text("see model.data"), fresh.with_name("model.data").write_text("weights")
        >>> sorted(path.name for path in target.parent.iterdir())
        ['model.data', 'model.onnx']
    """
    folder = path.with_name(f".{path.stem}{MARK}")
    shutil.rmtree(folder, ignore_errors=True)  # A process that was killed may have left it.
    folder.mkdir(parents=True)
    try:
        yield folder / path.name
        for written in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
            _sync(written)
            written.replace(path.with_name(written.name))
        sync_folder(path.parent)
    finally:
        shutil.rmtree(folder)


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a sequence of bytes to a file and replace the one that exists."""
    with replacing(path) as fresh, fresh.open("wb") as file:
        for part in parts:
            file.write(part)


def _sync(path: Path) -> None:
    """Flush a file to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_own(run: Run, callback: Any, kind: type, paths: Callable[[Any], Iterable[Path]], option: str) -> None:
    """Raise if another callback of this class writes to one of the same paths.

    Args:
        run: The run.
        callback: The callback to check.
        kind: Class of the callbacks to compare.
        paths: Function that returns the paths of a callback.
        option: Argument with which the user gives another path, for the error.
    """
    mine = {path.resolve() for path in paths(callback)}
    for other in run.callbacks:
        if other is callback or not isinstance(other, kind):
            continue
        if shared := mine & {path.resolve() for path in paths(other)}:
            raise SetupError(
                f"two {kind.__name__} write to {str(min(shared))!r}, and each would replace what the other has "
                f"written; give one of them another {option}"
            )


def file_name(stage: str, loader: object = None) -> str:
    """Return the file name, without suffix, for a loader.

    Example:
        >>> file_name("val"), file_name("val", "news/2024")
        ('val', 'val-news-2024')
    """
    return stage if loader is None else f"{stage}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', str(loader))}"


def check_names(run: Run, stages: Iterable[str], who: str) -> None:
    """Raise if two loaders of a stage have the same file name."""
    for stage in stages:
        loaders = run.loaders.get(stage)
        found: dict[str, object] = {}
        for loader in loaders if isinstance(loaders, Mapping) else ():
            other = found.setdefault(file_name(stage, loader), loader)
            if other != loader:
                raise SetupError(
                    f"{who}: the {stage} loaders {other!r} and {loader!r} would both be written to "
                    f"{file_name(stage, loader)!r}; give one of them another name"
                )
