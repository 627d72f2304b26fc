"""Current state of a run. The engine writes it, and ``Run`` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hookline.events import Line, Messages
from hookline.progress import Clock, Duration
from hookline.progress.clock import ClockView
from hookline.run.history import History
from hookline.run.requests import Requests

if TYPE_CHECKING:
    from datetime import datetime

    import torch

    from hookline.run.run import Run


class Missing:
    """Marker of a field that has no value at the current event."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<no value now>"


MISSING = Missing()


class Metrics(Protocol):
    """Methods of the engine's metric book that ``run.log`` and ``run.metrics`` call."""

    def log(self, values: Any, weight: Any, reduce: str, step: int | None, by: Run) -> None: ...
    def value(self, name: str) -> Any: ...
    def names(self) -> Iterator[str]: ...


class Media(Protocol):
    """Methods of the engine that ``run.log_image`` and similar methods call."""

    def image(self, name: str, image: Any, caption: str, step: int | None) -> None: ...
    def figure(self, name: str, figure: Any, step: int | None) -> None: ...
    def text(self, name: str, text: str, step: int | None) -> None: ...
    def table(self, name: str, rows: Any, columns: Sequence[str] | None, step: int | None) -> None: ...
    def histogram(self, name: str, values: Any, bins: int, step: int | None) -> None: ...
    def file(self, name: str, path: str | Path, step: int | None) -> None: ...


class Answers(Protocol):
    """Methods of the loop that ``run.evaluate`` and similar methods of ``Run`` call."""

    def evaluate(self, what: Any) -> dict[str, Any]: ...
    def predict(self, what: Any) -> Any: ...
    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]: ...
    def snapshot(self, member: Any) -> dict[str, Any]: ...
    def replace_loader(self, stage: str, loader: Any) -> None: ...
    def gather(self, value: Any) -> list[Any]: ...
    def is_sharded(self) -> bool: ...


@dataclass(slots=True)
class RunState:
    """Fields that ``Run`` shows. A field without a current value is ``MISSING``."""

    line: Line[Run]
    requests: Requests
    metrics: Metrics
    answers: Answers
    media: Media
    loop: Any
    model: torch.nn.Module
    device: torch.device
    project: str
    name: str
    folder: Path | None
    started: datetime
    config: dict[str, Any]
    max_duration: Duration | None
    clock: Clock
    history: History
    messages: Messages
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: list[Any]
    loaders: dict[str, Any]
    task: Any = MISSING
    stage: str = "train"
    entry_point: str = "fit"
    loader_name: Any = MISSING
    batch: Any = MISSING
    outputs: Any = MISSING
    loss: Any = MISSING
    optimizer: Any = MISSING
    exception: Any = MISSING
    checkpoint: Any = MISSING
    rank: int = 0
    world_size: int = 1
    clock_view: Clock = field(init=False)
    """Read-only view of the clock, for hooks."""

    def __post_init__(self) -> None:
        self.clock_view = ClockView(self.clock)
