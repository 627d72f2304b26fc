"""A file of log lines in the public format of MLPerf: ``:::MLLOG {…}``, one JSON object a line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Literal

from hookline.errors import SetupError

EventType = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
TOKEN = ":::MLLOG"


def now_ms() -> int:
    return int(time.time() * 1000)


def line(kind: EventType, key: str, value: Any, metadata: dict[str, Any], time_ms: int) -> str:
    """One line; what is no finite number is ``null``.

    >>> line("POINT_IN_TIME", "seed", 1, {}, 5)
    ':::MLLOG {"namespace": "", "time_ms": 5, "event_type": "POINT_IN_TIME", "key": "seed", "value": 1, "metadata": {}}'
    """
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    parts = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f"{TOKEN} {json.dumps(parts, allow_nan=False)}"


def append(path: Path, text: str) -> None:
    """Each line is there at once: whoever is killed leaves what was done."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def cut(path: Path, lines: int) -> None:
    """Keep the first lines: the rest did not happen, because the run goes on from before it."""
    found = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if len(found) < lines:
        raise SetupError(
            f"MLPerfLog: {path} has {len(found)} lines, and the run that goes on had written {lines}: put the file of "
            f"that run back, or begin a new run"
        )
    if len(found) > lines or not path.exists():
        path.write_text("".join(found[:lines]), encoding="utf-8")
