"""Checks of a user's paths, before the system refuses them in the middle of a run."""

from __future__ import annotations

import os
from pathlib import Path

from hookline.errors import ArgumentError, SetupError

MAX_NAME_BYTES = 255
"""Limit for one part of a path on common file systems."""
MAX_PATH_BYTES = 3_840
"""Limit for a path, below the limit of Linux (4,095 bytes).

The difference is for the files that Hookline writes below the path.
"""


def check_path(argument: str, path: str | Path, of: str) -> None:
    """Raise ``ArgumentError`` for a path that no file system accepts.

    Args:
        argument: Name of the argument, for the error.
        path: The path to check.
        of: Class or function that takes the argument, for the error.

    Raises:
        ArgumentError: If the path or a part of it is too long, or has an invalid character.

    Example:
        >>> check_path("name", "digits/first", "Trainer")
        >>> check_path("name", "a" * 300, "Trainer")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hookline.errors.ArgumentError: Trainer(name='aaaaaaaaaaaa...…): a part of it has 300 bytes, ...
    """
    shown = f"{argument}={str(path)!r}"
    shown = f"{of}({shown if len(shown) <= 80 else f'{shown[:45]}…'})"
    try:
        longest = max(map(len, os.fsencode(path).split(b"/")))
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{shown}: {error.object[error.start]!r} is not a character of a file's name") from None
    if "\0" in str(path):
        raise ArgumentError(f"{shown}: a path cannot contain a null character")
    if longest > MAX_NAME_BYTES:
        raise ArgumentError(f"{shown}: a part of it has {longest} bytes, and {MAX_NAME_BYTES} is the limit; shorten it")
    if (total := len(os.fsencode(path))) > MAX_PATH_BYTES:
        raise ArgumentError(f"{shown}: it has {total:,} bytes, and {MAX_PATH_BYTES:,} is the limit; shorten it")


def check_links(path: Path) -> None:
    """Raise ``SetupError`` if the path, or a folder above it, is a broken link."""
    for part in (path, *path.parents):
        if os.path.islink(part) and not os.path.exists(part):  # pathlib raises if a path is too long.
            raise SetupError(
                f"{str(part)!r} is a link to {os.readlink(part)!r}, which does not exist. Create that folder (is its "
                f"disk mounted?), or remove the link."
            )
