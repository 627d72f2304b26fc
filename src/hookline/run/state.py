"""The state of a run at this moment: the engine writes it, ``Run`` reads it."""

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
    """Stands for a field that has no value at this moment."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<no value now>"


MISSING = Missing()


class Metrics(Protocol):
    """What ``run.log`` and ``run.metrics`` need of the engine's metric book."""

    def log(self, values: Any, weight: Any, reduce: str, step: int | None, by: Run) -> None: ...
    def value(self, name: str) -> Any: ...
    def names(self) -> Iterator[str]: ...


class Media(Protocol):
    """What ``run.log_image`` and its siblings need of the engine."""

    def image(self, name: str, image: Any, caption: str, step: int | None) -> None: ...
    def figure(self, name: str, figure: Any, step: int | None) -> None: ...
    def text(self, name: str, text: str, step: int | None) -> None: ...
    def table(self, name: str, rows: Any, columns: Sequence[str] | None, step: int | None) -> None: ...
    def histogram(self, name: str, values: Any, bins: int, step: int | None) -> None: ...
    def file(self, name: str, path: str | Path, step: int | None) -> None: ...


class Answers(Protocol):
    """What the answers of ``Run`` need of the loop."""

    def evaluate(self, what: Any) -> dict[str, Any]: ...
    def predict(self, what: Any) -> Any: ...
    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]: ...
    def snapshot(self, member: Any) -> dict[str, Any]: ...
    def replace_loader(self, stage: str, loader: Any) -> None: ...


@dataclass(slots=True)
class RunState:
    """Every field that ``Run`` shows; ``MISSING`` where a field has no value now."""

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
    """What hooks see of the clock."""

    def __post_init__(self) -> None:
        self.clock_view = ClockView(self.clock)
