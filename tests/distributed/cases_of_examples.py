"""What ranks do in ``test_examples.py``."""

from __future__ import annotations

import runpy
import sys


def run(path: str, arguments: list[str]) -> None:
    """Run a script as ``python path *arguments`` does."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")
