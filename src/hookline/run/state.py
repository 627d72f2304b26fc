"""Current state of a run. The engine writes it, and ``Run`` reads it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hookline.events import Line, Messages
from hookline.progress import Clock, Duration
from hookline.progress.clock import ClockView
from hookline.run.audience import Audience
from hookline.run.history import History
from hookline.run.requests import Requests, StopRequest

if TYPE_CHECKING:
    from datetime import datetime

    import torch

    from hookline.checkpoint.plan import SavePlan
    from hookline.run.ending import Ending
    from hookline.run.run import Run


logger = logging.getLogger("hookline")

FIT = ("fit", "train")
"""The entry points that train."""


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
    def measured_at(self, name: str) -> int | None: ...
    def measured_now(self, *, pending: bool = False) -> dict[str, float]: ...
    def rename(self, old: str, new: str, *, keep: bool = False) -> None: ...


class Media(Protocol):
    """Methods of the engine that ``run.log_image`` and similar methods call."""

    def image(self, name: str, image: Any, caption: str, step: int | None) -> None: ...
    def figure(self, name: str, figure: Any, step: int | None) -> None: ...
    def text(self, name: str, text: str, step: int | None) -> None: ...
    def table(self, name: str, rows: Any, columns: Sequence[str] | None, step: int | None) -> None: ...
    def histogram(self, name: str, values: Any, bins: int, step: int | None) -> None: ...
    def file(self, name: str, path: str | Path, step: int | None) -> None: ...


class EvalShard(NamedTuple):
    """Position of a batch in an evaluation or prediction that several processes share."""

    first: int | None
    """Position of the batch's first sample in the loader's order. ``None`` if it is not known."""
    is_last: bool
    """True if this process gets no further batch of the loader."""


class Trial(Protocol):
    """Training steps that leave no trace, as ``run.trial()`` gives them."""

    def batches(self, count: int, loader: Any = None, *, whole: bool = False) -> Iterator[Any]:
        """Iterate over the first batches of a loader, and again from its start if it has fewer.

        Args:
            count: Number of batches.
            loader: The loader. ``None``: the training loader.
            whole: True to give the same batches to all ranks, in place of a shard of them to each.
        """

    def step(self, batch: Any) -> torch.Tensor:
        """Make one training step and return its loss.

        Args:
            batch: A batch of ``batches``.
        """


class Answers(Protocol):
    """Methods of the loop that the methods of ``Run`` call.

    Another engine that implements them can run the same callbacks.
    """

    def evaluate(self, what: Any) -> dict[str, Any]: ...
    def predict(self, what: Any, *, targets: bool) -> Any: ...
    def trial(self) -> AbstractContextManager[Trial]: ...

    # -- weights
    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]: ...
    def prediction_weights(self) -> AbstractContextManager[None]: ...
    def raw_weights(self) -> dict[str, Any]: ...
    def snapshot(self, member: Any) -> dict[str, Any]: ...

    # -- data
    def replace_loader(self, stage: str, loader: Any) -> None: ...
    def limit_batches(self, stage: str, count: int | None, by: object, *, repeat: bool) -> int | None: ...
    def num_batches(self, stage: str, loader: Any) -> int | None: ...
    def batches_read(self) -> int: ...
    def batch_size(self, batch: Any) -> int: ...
    def to_device(self, batch: Any) -> Any: ...
    def sample_indices(self, batch: int) -> list[int] | None: ...
    def eval_shard(self) -> EvalShard | None: ...

    # -- steps and settings
    def accumulate(self) -> int: ...
    def set_accumulate(self, batches: int) -> None: ...
    def check_max_duration(self, duration: Duration | None) -> None: ...
    def window_is_full(self) -> bool: ...
    def interval_may_end(self) -> bool: ...
    def eval_every(self) -> Duration | None: ...
    def log_every(self) -> Duration | None: ...
    def precision(self) -> str: ...

    # -- ranks
    def gather(self, value: Any) -> list[Any]: ...
    def reduce(self, value: Any, op: str) -> Any: ...
    def broadcast(self, tensors: Sequence[Any]) -> None: ...
    def is_sharded(self) -> bool: ...
    def data_parallel_size(self) -> int: ...
    def is_padding(self) -> bool: ...
    def padding_counts(self) -> AbstractContextManager[None]: ...

    # -- beginning, saving and ending
    def ending(self) -> Ending | None: ...
    def will_resume(self) -> bool: ...
    def add_save_plan(self, plan: SavePlan) -> None: ...
    def request_plan(self, plan: SavePlan) -> None: ...
    def listen_to_signals(self, signals: Iterable[int]) -> None: ...
    def when_written(self, call: Callable[[Path], None]) -> None: ...
    def log_event(self, name: str, text: str) -> None: ...


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
    failure: BaseException | None = None
    """The error that ends the run, also for a signal. It is set when it leaves the loop."""
    checkpoint: Any = MISSING
    samples: int = 0
    """The number of samples in ``batch``."""
    tokens: int | None = None
    """The number of tokens in ``batch``, if they are counted."""
    audience: Audience = Audience.ALL
    """The callbacks that hear events now."""
    rank: int = 0
    world_size: int = 1
    remote_folder: str | None = None
    """The address of the run's folder."""
    is_training: bool = False
    """True from the start of training until the run is closed, also in ``on_train_end`` and ``on_fit_end``."""
    failed_in: tuple[int, str] = (0, "")
    """The id of the error that has left an evaluation, and the stage of that evaluation."""
    clock_view: Clock = field(init=False)
    """Read-only view of the clock, for hooks."""

    def __post_init__(self) -> None:
        self.clock_view = ClockView(self.clock)

    @property
    def module(self) -> Any:
        """The task, or the model of a custom loop."""
        return self.model if self.task is MISSING else self.task

    @property
    def in_fit(self) -> bool:
        """True in ``fit`` and ``train``, and in a custom loop."""
        return self.entry_point in FIT

    def where(self) -> str:
        """Return the current step, epoch and stage, for messages."""
        return f"step {self.clock.step}, epoch {self.clock.epoch} ({self.stage})"

    def connect(self, metrics: Metrics, media: Media) -> None:
        """Set the parts of the engine that need the state themselves."""
        self.metrics, self.media = metrics, media

    def answer_with(self, answers: Answers) -> None:
        """Set the object that answers the methods of ``run``."""
        self.answers = answers

    def open(self, entry_point: str, stage: str) -> None:
        """Reset the state when a run is opened.

        Args:
            entry_point: The method that was called, such as ``"fit"``.
            stage: The stage of the run at its start.
        """
        self.entry_point, self.stage = entry_point, stage
        self.exception, self.failure, self.failed_in = MISSING, None, (0, "")

    def set_folder(self, name: str, folder: Path | None) -> None:
        """Set the name of the run and its folder, on which all ranks agree."""
        self.name, self.folder = name, folder

    def start_training(self) -> None:
        """Set the stage for the steps of training."""
        self.is_training, self.stage = True, "train"
        self.clear_batch()

    def close(self) -> None:
        """Record that the run is closed."""
        self.is_training = False

    def set_max_duration(self, duration: Duration | None) -> None:
        """Change how long the run trains."""
        self.max_duration = duration

    def fail(self, error: BaseException) -> None:
        """Set the error that ends the run."""
        self.failure = error

    @contextmanager
    def failed_at(self, error: BaseException, stage: str) -> Iterator[None]:
        """Show ``on_exception`` the error that ends the run, and the stage in which it was raised."""
        self.exception = self.failure = error
        earlier, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = earlier

    def show_batch(self, batch: Any) -> None:
        """Show the next batch on ``run``."""
        self.batch = batch
        self.outputs = self.loss = MISSING

    def show_outputs(self, outputs: Any) -> None:
        """Show the outputs of the model on ``run``."""
        self.outputs = outputs

    def show_loss(self, loss: Any) -> None:
        """Show the loss of the batch on ``run``."""
        self.loss = loss

    def hide_batch(self) -> tuple[Any, Any, Any]:
        """Show no batch. Return what ``show_again`` needs."""
        shown = self.batch, self.outputs, self.loss
        self.batch = self.outputs = self.loss = MISSING
        return shown

    def show_again(self, shown: tuple[Any, Any, Any]) -> None:
        """Show the batch that ``hide_batch`` has hidden."""
        self.batch, self.outputs, self.loss = shown

    def show_loader(self, name: Any) -> None:
        """Show the name of the loader that is evaluated, or ``MISSING``."""
        self.loader_name = name

    def count_batch(self, samples: int, tokens: int | None) -> None:
        """Set the number of samples and tokens in the batch."""
        self.samples, self.tokens = samples, tokens

    def clear_batch(self) -> None:
        """Remove the batch, its outputs, its loss and the optimizer from ``run``."""
        self.batch = self.outputs = self.loss = self.optimizer = MISSING

    @contextmanager
    def aside(self, stage: str, audience: Audience) -> Iterator[None]:
        """Set the current batch aside for another stage. Restore it after the block, also after an error.

        Args:
            stage: The stage inside the block.
            audience: The callbacks that hear events inside the block.
        """
        kept = (self.stage, self.audience, self.loader_name, self.samples, self.tokens)
        shown = (self.batch, self.outputs, self.loss)
        self.stage, self.audience, self.loader_name = stage, audience, MISSING
        self.show_batch(MISSING)
        try:
            yield
        except BaseException as error:
            self.note_failure(error)
            raise
        finally:
            self.stage, self.audience, self.loader_name, self.samples, self.tokens = kept
            self.batch, self.outputs, self.loss = shown

    @contextmanager
    def showing_checkpoint(self, path: Path) -> Iterator[None]:
        """Show a checkpoint as ``run.checkpoint`` to the hooks that run inside the block."""
        self.checkpoint = path
        try:
            yield
        finally:
            self.checkpoint = MISSING

    @contextmanager
    def showing_exception(self, error: Exception) -> Iterator[None]:
        """Show an error as ``run.exception`` to the hooks that run inside the block."""
        earlier, self.exception = self.exception, error
        try:
            yield
        finally:
            self.exception = earlier

    def note_failure(self, error: BaseException) -> None:
        """Note the stage in which an error was raised, for ``on_exception``.

        The innermost stage counts.
        """
        if self.failed_in[0] != id(error):
            self.failed_in = id(error), self.stage

    def ask_stop(
        self,
        reason: str,
        by: str,
        *,
        interrupt: bool = False,
        left_body: bool = False,
        by_user: bool = False,
        asker: str = "",
    ) -> None:
        """Ask to stop training, for any reason other than a callback's ``run.stop``.

        Args:
            reason: Why the run stops.
            by: The name of the part that asks.
            interrupt: True if a resume continues the run, as after Ctrl-C.
            left_body: True if the body of a custom loop was left by ``break`` or ``return``.
            by_user: True after Ctrl-C.
            asker: The key of the callback that asks.
        """
        self.requests.ask_stop(StopRequest(reason, by, self.clock.step, interrupt, left_body, by_user, asker))
        if self.requests.is_trained and not interrupt and self.stage in ("val", "test"):
            logger.warning("the evaluation that %s left has no metrics", by)

    def stop_at_once(self, reason: str, by: str, asker: str = "") -> None:
        """Ask to stop because of ``StopTraining``, and leave an evaluation at its next batch."""
        self.ask_stop(reason, by, asker=asker)
        self.requests.set_leave_evaluation(self.stage in ("val", "test"))
