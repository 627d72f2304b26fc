"""The processes of a run, as the loop sees them: ``Alone`` for one process, ``Ranks`` for several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookline.distributed.same import Facts
from hookline.distributed.solo import AnyGroup, SoloGroup
from hookline.distributed.strategy import Strategy
from hookline.progress import Clock


class World(Protocol):
    """All processes of a run. A method "by all" must be called by all of them, in the same order."""

    @property
    def group(self) -> AnyGroup:
        """The collectives for small values."""

    @property
    def is_alone(self) -> bool:
        """True in a run of one process."""

    @property
    def is_sharded(self) -> bool:
        """True if each rank holds only a part of the weights."""

    @property
    def broken(self) -> bool:
        """True after a rank has failed: the ranks agree on nothing more."""

    @property
    def shares(self) -> tuple[int, int]:
        """Into how many shards the data is split, and the index of this rank's shard."""

    @property
    def copies(self) -> int:
        """How many ranks have the same shard of the data."""

    @property
    def is_padding(self) -> bool:
        """True in a batch that this rank computes only because the other ranks have one: it counts nothing."""

    usual_weight: float | None
    """The weight of this rank in the last step, if there is a vote in every step."""

    def restore_usual_weight(self, weight: float | None) -> None:
        """Continue with the ``usual_weight`` of a checkpoint or a snapshot."""

    # -- opening and closing

    @property
    def is_open(self) -> bool:
        """True while this process has joined the others."""

    def open(self, strategy: Strategy, device: torch.device, *, may_be_skipped: bool) -> None:
        """By all: join the other processes."""

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        """By all: distribute the model. Return the new parameter for each one that was replaced."""

    def attach(self, optimizers: Mapping[str, Any]) -> None:
        """By all: the optimizers are there, and the model is loaded."""

    def failed(self, error: BaseException) -> BaseException:
        """Tell the other ranks that this one ends with an error. Return the error to raise."""

    def compare(self, facts: Callable[[], Facts], fix: str) -> None:
        """By all: raise an error that says what to ``fix`` if facts differ between ranks."""

    def refuse(self, error: Exception) -> None:
        """Raise the error, unless this process is alone: the other ranks would wait for this one."""

    def patient(self) -> AbstractContextManager[None]:
        """Allow what runs inside the block to take long."""

    def close(self) -> None:
        """The run is over, with or without an error."""

    # -- a step

    def begin_window(self) -> None:
        """By all, before the first forward of a step."""

    def unit(self, known: int | None, *, scaled: bool) -> float:
        """The weight that the weights of a step are relative to."""

    def fetched(self, samples: int, tokens: int | None, *, counts: bool, known: int | None) -> None:
        """What this rank's batch holds, and the samples of all ranks if they are ``known``."""

    def count_batch(self, samples: int, tokens: int | None) -> None:
        """A batch is done: count its samples and tokens, if this rank alone knows them."""

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None:
        """By all, before each backward."""

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> None:
        """By all, when the gradients of a step are there: set the weights that they are divided by."""

    def drop_window(self) -> None:
        """By all: the step under way is not made."""

    def average_weight(self, weight: Any) -> Any:
        """By all: the mean weight of an optimizer that the body steps itself."""

    def stepped(self) -> None:
        """By all: a step is done."""

    def undone(self) -> None:
        """By all: steps were taken back."""

    # -- edges and evaluations

    def vote(self, *, logged: bool = False) -> bool:
        """By all, at an edge: agree on what was asked for. True if any rank has ``logged`` something."""

    def compare_parameters(self) -> None:
        """By all, at the end of an epoch: raise an error if replicas have drifted apart."""

    def before_evaluation(self) -> None:
        """By all, before an evaluation, a prediction or a checkpoint: share buffers."""

    def beat(self) -> None:
        """This rank makes progress."""

    def begin_votes_of_evaluation(self) -> None:
        """By all, before the batches of a loader."""

    def before_eval_batch(self) -> None:
        """Before each batch of an evaluation or prediction."""

    def make_up_batch(self) -> None:
        """Make the forward of a batch that was left before it: the ranks of a sharded model wait for it."""

    def vote_in_evaluation(self, *, abandons: bool) -> bool | None:
        """By all, after each batch: return whether any rank abandons the evaluation, or ``None`` without a vote."""

    def body_ended(self) -> None:
        """The body of a loop has asked for the next batch."""

    def body_left(self) -> None:
        """By all: the body was left by ``break`` or ``return``. ``leave_body`` follows with the next loop call."""

    def leave_body(self) -> None:
        """By all: the body was left by ``break`` or ``return``; an error unless all ranks have left it."""


class Alone:
    """A run of one process."""

    is_alone = is_open = True
    is_sharded = broken = is_padding = False
    shares, copies = (1, 0), 1

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.group = SoloGroup()
        self.usual_weight: float | None = None

    def restore_usual_weight(self, weight: float | None) -> None:
        self.usual_weight = weight

    def open(self, strategy: Strategy, device: torch.device, *, may_be_skipped: bool) -> None: ...

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        return {}

    def attach(self, optimizers: Mapping[str, Any]) -> None: ...

    def failed(self, error: BaseException) -> BaseException:
        return error

    def compare(self, facts: Callable[[], Facts], fix: str) -> None: ...

    def refuse(self, error: Exception) -> None: ...

    def patient(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...

    def begin_window(self) -> None: ...

    def unit(self, known: int | None, *, scaled: bool) -> float:
        return 1.0

    def fetched(self, samples: int, tokens: int | None, *, counts: bool, known: int | None) -> None: ...

    def count_batch(self, samples: int, tokens: int | None) -> None:
        self._clock.count_samples(samples, tokens)

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None: ...

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> None: ...

    def drop_window(self) -> None: ...

    def average_weight(self, weight: Any) -> Any:
        return weight

    def stepped(self) -> None: ...

    def undone(self) -> None: ...

    def vote(self, *, logged: bool = False) -> bool:
        return logged

    def compare_parameters(self) -> None: ...

    def before_evaluation(self) -> None: ...

    def beat(self) -> None: ...

    def begin_votes_of_evaluation(self) -> None: ...

    def before_eval_batch(self) -> None: ...

    def make_up_batch(self) -> None: ...

    def vote_in_evaluation(self, *, abandons: bool) -> bool | None:
        return abandons

    def body_ended(self) -> None: ...

    def body_left(self) -> None: ...

    def leave_body(self) -> None: ...
