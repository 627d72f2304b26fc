"""The console for the output of commands."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDEST = 100_000
"""Wider than any row of Hookline's tables, even in a comparison of many runs."""


def plain_text(text: str) -> str:
    """Return a string that a terminal shows as it is, without control codes.

    Args:
        text: An untrusted string.
    """
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def wide_console() -> Console:
    """Return a console with the width of the terminal, or of the content in a pipe or file."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if has_width else Console(width=WIDEST)
