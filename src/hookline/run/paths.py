"""Paths that a user gives: checks, and the base folder of relative paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hookline.errors import ArgumentError, SetupError
from hookline.records.redact import redact_text

_ADDRESS: Final = re.compile(r"(?:^|/|::)([A-Za-z][A-Za-z0-9+.-]+):/")
"""Pattern of an address.

The scheme has at least two characters, so ``c:/data`` is a path. One slash is enough, because pathlib turns
``s3://bucket`` into ``s3:/bucket``.
"""


def is_address(path: str | os.PathLike[str]) -> bool:
    """True for an address such as ``s3://bucket``, also after pathlib has changed it.

    Args:
        path: The path or address.

    >>> is_address("s3://bucket/run"), is_address(Path("s3://bucket").absolute()), is_address("runs/2024-01-01T10:00")
    (True, True, False)
    """
    return _ADDRESS.search(os.fspath(path)) is not None


def path_to_write(path: str | os.PathLike[str], argument: str, of: str) -> Path:
    """Check a path to write to and return it, with ``~`` expanded.

    Constructors call this function for each argument that names a file or folder to write.

    Args:
        path: The path that the user gave.
        argument: Name of the argument, for the error.
        of: Class that takes the argument, for the error.

    Raises:
        ArgumentError: If the path is an address, because pathlib would create a local folder named ``s3:``.
    """
    return _local(path, argument, of, "writes", "Give a local path, and copy the run with hl.Upload('s3://…').")


def path_to_read(path: str | os.PathLike[str], argument: str, of: str) -> Path:
    """Check a path to read from and return it, with ``~`` expanded.

    Args:
        path: The path that the user gave.
        argument: Name of the argument, for the error.
        of: Class that takes the argument, for the error.

    Raises:
        ArgumentError: If the path is an address.
    """
    return _local(path, argument, of, "reads", "Give a local path: download it first.")


def leaves_folder(path: Path) -> bool:
    """True if a relative path leads out of the folder that it is relative to.

    Args:
        path: The path.

    >>> leaves_folder(Path("../other")), leaves_folder(Path("plots/../loss.png")), leaves_folder(Path("/tmp"))
    (True, False, False)
    """
    return os.path.normpath(path).split(os.sep)[0] == os.pardir


def stays_inside(name: str) -> bool:
    """True if the name of a file, relative to any folder, is a file below that folder.

    Check the names that come from the files of a run, before a file is written under such a name.

    Args:
        name: The name, with slashes.

    >>> stays_inside("media/loss.png"), stays_inside("../loss.png"), stays_inside("/tmp/loss.png"), stays_inside("")
    (True, False, False, False)
    """
    return {"", ".", ".."}.isdisjoint(name.split("/"))


def in_run_folder(path: Path, folder: Path | None, argument: str, of: str) -> Path:
    """Return the absolute path to which a callback or sink writes.

    Args:
        path: The path that the user gave. A relative path is inside the run's folder.
        folder: The run's folder, or ``None`` with ``folder=False``.
        argument: Name of the argument, for the error.
        of: Class that takes the argument, for the error.

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
        where = f"{of}({argument}={shown!r})"
        if found[1].lower() == "file":
            plain = "/" + given[found.end() :].lstrip("/")
            raise ArgumentError(f"{where}: Hookline takes paths, not addresses. Write {plain!r}.")
        raise ArgumentError(f"{where}: Hookline {verb} local files only, and this is an address. {advice}")
    return Path(given).expanduser()
