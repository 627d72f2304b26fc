"""Files that are written completely or not at all: temporary name, sync, rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hookline.checkpoint.commit import sync_folder

MARK = ".tmp"


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
