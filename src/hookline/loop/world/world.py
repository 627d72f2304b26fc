"""The processes of a run: ``Alone`` for one process, ``Ranks`` for several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookline.distributed.same import Facts
from hookline.distributed.solo import AnyGroup, SoloGroup
from hookline.distributed.strategy import Strategy


class World(Protocol):
    """All processes of a run.

    Where a docstring says "all ranks must call it", they must do so in the same order: the method is a collective, or
    the ranks would differ after it.
    """

    @property
    def group(self) -> AnyGroup:
        """The collectives for small values."""

    @property
    def is_alone(self) -> bool:
        """True in a run of one process."""

    @property
    def is_sharded(self) -> bool:
        """True if the weights are sharded over ranks."""

    @property
    def broken(self) -> bool:
        """True after a rank has failed: there are no further votes."""

    @property
    def shares(self) -> tuple[int, int]:
        """The number of shards of the data, and the index of this rank's shard."""

    @property
    def copies(self) -> int:
        """The number of ranks with the same shard of the data."""

    @property
    def is_padding(self) -> bool:
        """True in a padding batch, which this rank computes only because other ranks have a batch."""

    usual_weight: float | None
    """The weight of this rank in the last step, if every step has a vote."""

    def restore_usual_weight(self, weight: float | None) -> None:
        """Continue with the ``usual_weight`` of a checkpoint or a snapshot."""

    # -- opening and closing

    @property
    def is_open(self) -> bool:
        """True while this process has joined the others."""

    def open(self, strategy: Strategy, device: torch.device, *, may_be_skipped: bool) -> None:
        """Join the other processes. All ranks must call it.

        Args:
            strategy: How the model is distributed.
            device: The device of this rank.
            may_be_skipped: True if a callback hears the start of a step and may skip it.
        """

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        """Distribute the model. Return the new parameter for each one that was replaced.

        All ranks must call it.

        Args:
            module: The task, or the model of a custom loop.
            roots: The modules whose ``forward`` is called.
        """

    def attach(self, optimizers: Mapping[str, Any]) -> None:
        """Set the optimizers, after the model is loaded. All ranks must call it."""

    def expect_skips(self) -> None:
        """Note that a callback was added that may skip a step."""

    def failed(self, error: BaseException) -> BaseException:
        """Tell the other ranks that this one ends with an error. Return the error to raise."""

    def compare(self, facts: Callable[[], Facts], fix: str) -> None:
        """Raise an error if facts differ between ranks. All ranks must call it.

        Args:
            facts: Returns the facts of this rank.
            fix: End of the error message: what to do.
        """

    def refuse(self, error: Exception) -> None:
        """Raise the error, unless this process is alone: the other ranks would wait for it."""

    def patient(self) -> AbstractContextManager[None]:
        """Allow the block to take long."""

    def close(self) -> None:
        """Leave the other processes, with or without an error."""

    # -- a step

    def begin_window(self) -> None:
        """Start a step, before its first forward. All ranks must call it."""

    def unit(self, known: int | None, *, scaled: bool) -> float:
        """Return the unit of the weights of a step.

        Args:
            known: Number of samples of all ranks, if it is known without a vote.
            scaled: True in fp16.
        """

    def fetched(self, samples: int, tokens: int | None, *, counts: bool, known: int | None) -> None:
        """Note the size of the batch on this rank.

        Args:
            samples: Number of samples.
            tokens: Number of tokens, if they are counted.
            counts: False for a padding batch.
            known: Number of samples of all ranks, if it is known without a vote.
        """

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None:
        """Prepare a backward. All ranks must call it.

        Args:
            loss: The loss.
            names: Optimizers of the loss.
            weights: Sum of weights of each optimizer, including this loss.
            last: True for the last backward of the step.
            weighted: True if the user has given a weight.
        """

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> None:
        """Set the weights by which the gradients of a step are divided, after its last backward.

        All ranks must call it.

        Args:
            touched: Sum of weights by optimizer. This method changes it.
            driven: Optimizers that the body of the loop has stepped itself.
        """

    def drop_window(self) -> None:
        """Drop the current step. All ranks must call it."""

    def average_weight(self, weight: Any) -> Any:
        """Return the mean weight of an optimizer that the body steps itself. All ranks must call it."""

    def stepped(self) -> None:
        """Note that a step is done. All ranks must call it."""

    # -- edges and evaluations

    def vote(self, *, logged: bool = False) -> bool:
        """Agree on requests at the end of an interval, evaluation, epoch or save.

        All ranks must call it.

        Args:
            logged: True if this rank has logged a value that has no row yet.

        Returns:
            True if any rank has.
        """

    def compare_parameters(self) -> None:
        """Raise an error at the end of an epoch if replicas differ. All ranks must call it."""

    def before_evaluation(self) -> None:
        """Synchronize buffers before an evaluation, prediction or save. All ranks must call it."""

    def beat(self) -> None:
        """Note that this rank makes progress."""

    def begin_votes_of_evaluation(self) -> None:
        """Reset the votes before the batches of an evaluation loader. All ranks must call it."""

    def before_eval_batch(self) -> None:
        """Prepare a batch of an evaluation or prediction."""

    def make_up_batch(self) -> None:
        """Run the forward of a batch that was left before it.

        The ranks of a sharded model wait for it.
        """

    def vote_in_evaluation(self, *, abandons: bool) -> bool | None:
        """Vote after a batch of an evaluation. All ranks must call it.

        Args:
            abandons: True if this rank requests to leave the evaluation.

        Returns:
            True if any rank does. ``None`` if this batch has no vote.
        """

    def body_ended(self) -> None:
        """Note that the body of a custom loop has requested the next batch."""

    def body_left(self) -> None:
        """Note that ``break`` or ``return`` has left the body. ``leave_body`` follows.

        All ranks must call it.
        """

    def leave_body(self) -> None:
        """Raise an error unless ``break`` or ``return`` has left the body on all ranks.

        All ranks must call it.
        """


class Alone:
    """A run of one process."""

    is_alone = is_open = True
    is_sharded = broken = is_padding = False
    shares, copies = (1, 0), 1

    def __init__(self) -> None:
        self.group = SoloGroup()
        self.usual_weight: float | None = None

    def restore_usual_weight(self, weight: float | None) -> None:
        self.usual_weight = weight

    def open(self, strategy: Strategy, device: torch.device, *, may_be_skipped: bool) -> None: ...

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        return {}

    def attach(self, optimizers: Mapping[str, Any]) -> None: ...

    def expect_skips(self) -> None: ...

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

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None: ...

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> None: ...

    def drop_window(self) -> None: ...

    def average_weight(self, weight: Any) -> Any:
        return weight

    def stepped(self) -> None: ...

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
