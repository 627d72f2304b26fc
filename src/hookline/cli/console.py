"""Where commands print."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDEST = 100_000
"""More than any row of our tables takes, also one that compares many runs."""


def wide_console() -> Console:
    """As wide as the window; where there is none, in a pipe or a file, as wide as the text, so that no word is cut."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if has_width else Console(width=WIDEST)
