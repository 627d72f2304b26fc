"""A file that is there whole or not at all: written under another name, synced, renamed."""

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
    """Write to the path that this gives; at the end of the ``with`` it takes the place of ``path``.

    When the writing fails, nothing of it stays, and what was at ``path`` before is untouched.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(target) as fresh:
    ...     size = fresh.write_text("all of it")
    >>> target.read_text(), [path.name for path in target.parent.iterdir()]
    ('all of it', ['notes.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.stem}{MARK}{path.suffix}")  # some writers look at the suffix
    try:
        yield fresh
        _sync(fresh)
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)  # after the rename it is not there any more


@contextmanager
def replacing_with_others(path: Path) -> Iterator[Path]:
    """The same for a writer that may put more files beside its own, which name one another: ``path`` comes last.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "model.onnx"
    >>> with replacing_with_others(target) as fresh:
    ...     sizes = fresh.write_text("see model.data"), fresh.with_name("model.data").write_text("weights")
    >>> sorted(path.name for path in target.parent.iterdir())
    ['model.data', 'model.onnx']
    """
    folder = path.with_name(f".{path.stem}{MARK}")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
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
    """Write bytes, one piece after the other, in the place of what was there."""
    with replacing(path) as fresh, fresh.open("wb") as file:
        for part in parts:
            file.write(part)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
