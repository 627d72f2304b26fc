from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hookline.records import Record
from hookline.sinks import RunInfo


@pytest.fixture
def begin() -> Callable[..., RunInfo]:
    """What a sink is told when a run begins, or goes on."""

    def make(folder: Path | None = None, *, step: int = 0, earlier: Sequence[Record] = ()) -> RunInfo:
        def rows() -> Iterator[Record]:
            return iter(earlier)

        return RunInfo("digits", "first", "a1b2", folder, {"lr": 0.1}, datetime.now(UTC), step, rows)

    return make
