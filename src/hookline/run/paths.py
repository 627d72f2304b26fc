"""Paths that a user gives: what Hookline refuses, and where a relative path is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hookline.errors import SetupError
from hookline.records.redact import redact_text

_ADDRESS: Final = re.compile(r"(?:^|/|::)([A-Za-z][A-Za-z0-9+.-]+):/")
"""A scheme of two or more characters, so ``c:/data`` is a path. ``Path("s3://bucket")`` has one slash left."""


def is_address(path: str | os.PathLike[str]) -> bool:
    """True for ``s3://bucket``, also for what pathlib makes of it.

    >>> is_address("s3://bucket/run"), is_address(Path("s3://bucket").absolute()), is_address("runs/2024-01-01T10:00")
    (True, True, False)
    """
    return _ADDRESS.search(os.fspath(path)) is not None


def path_to_write(path: str | os.PathLike[str], argument: str, of: str = "") -> Path:
    """Return the path that a user gave as ``argument`` of the class ``of``.

    Every argument that names a file or folder to write goes through this function when the object is made.

    Raises:
        SetupError: If the path is an address: pathlib would make a local folder named ``s3:``.
    """
    return _local(path, argument, of, "writes", "Give a local path, and copy the run with hl.Upload('s3://…').")


def path_to_read(path: str | os.PathLike[str], argument: str, of: str = "") -> Path:
    """Return the path that a user gave as ``argument`` of the class ``of``, of something that Hookline reads.

    Raises:
        SetupError: If the path is an address.
    """
    return _local(path, argument, of, "reads", "Give a local path: download it first.")


def in_run_folder(path: Path, folder: Path | None, argument: str, of: str) -> Path:
    """Return where a callback or sink writes: a relative path is in the run's folder, an absolute path is kept.

    Raises:
        SetupError: If the path is relative and the run has no folder.
    """
    if path.is_absolute():
        return path
    if folder is None:
        raise SetupError(
            f"{of}({argument}={str(path)!r}): a relative path is in the run's folder, and this run has none "
            f"(folder=False). Give an absolute path, or give the run a folder."
        )
    return folder / path


def _local(path: str | os.PathLike[str], argument: str, of: str, verb: str, advice: str) -> Path:
    given = os.fspath(path)
    if found := _ADDRESS.search(given):
        shown = redact_text(given)
        where = f"{of}({argument}={shown!r})" if of else f"{argument}={shown!r}"
        if found[1].lower() == "file":
            plain = "/" + given[found.end() :].lstrip("/")
            raise SetupError(f"{where}: Hookline takes paths, not addresses. Write {plain!r}.")
        raise SetupError(f"{where}: Hookline {verb} local files only, and this is an address. {advice}")
    return Path(given).expanduser()
