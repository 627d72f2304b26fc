"""The files of a run, and a disk that is full."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hookline.checkpoint import Store


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file such as ``metrics.jsonl``."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in the folder of a run."""
    return [checkpoint.about.step for checkpoint in Store(folder / "checkpoints").checkpoints()]


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount an empty file system of this size at the path. The test is skipped where that is not allowed."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
