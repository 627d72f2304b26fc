"""Checks the paths that a user gives, before the system refuses them in the middle of a run."""

from __future__ import annotations

import os
from pathlib import Path

from hookline.errors import SetupError

MAX_NAME_BYTES = 255
"""Of one part of a path, on every usual file system."""


def check_path(argument: str, path: str | Path) -> None:
    """Raise ``SetupError`` for a path that no file system takes.

    >>> check_path("name", "digits/first")
    >>> check_path("name", "a" * 300)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hookline.errors.SetupError: name='aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…: a part of it has 300 bytes, ...
    """
    shown = f"{argument}={str(path)!r}"
    shown = shown if len(shown) <= 80 else f"{shown[:45]}…"
    try:
        longest = max(map(len, os.fsencode(path).split(b"/")))
    except UnicodeEncodeError as error:
        raise SetupError(f"{shown}: {error.object[error.start]!r} is not a character of a file's name") from None
    if "\0" in str(path):
        raise SetupError(f"{shown}: a path cannot contain a null character")
    if longest > MAX_NAME_BYTES:
        raise SetupError(f"{shown}: a part of it has {longest} bytes, and {MAX_NAME_BYTES} is the limit; shorten it")
