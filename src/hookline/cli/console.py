"""The console for the output of commands."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDEST = 100_000
"""Wider than any row of Hookline's tables, even in a comparison of many runs."""


def wide_console() -> Console:
    """Return a console with the width of the terminal, or of the content in a pipe or file."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if has_width else Console(width=WIDEST)
