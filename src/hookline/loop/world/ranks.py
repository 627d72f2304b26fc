"""``Ranks``: the world of a run in several processes.

Ranks vote only on values that differ between them. All ranks compute the same from counters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.distributed import Group, Place
from hookline.distributed.connections import tells_of_lost_peer
from hookline.distributed.exits import BodyExits
from hookline.distributed.same import Facts, check_same, check_same_parameters
from hookline.distributed.solo import AnyGroup, SoloGroup
from hookline.distributed.stacks import words_for_others
from hookline.distributed.strategy import Strategy
from hookline.distributed.votes import Ballot, Votes
from hookline.distributed.watchdog import Watchdog
from hookline.errors import HooklineError, LossError, NotAvailableError, Preempted, SetupError, StopTraining
from hookline.loop.world.ballots import Ballots
from hookline.loop.world.leaving import stop_between
from hookline.loop.world.rank_logs import rank_logs
from hookline.progress import Clock
from hookline.run import Requests

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hookline")

APART_IN_EVALUATION = 1.0
"""Seconds from one vote in an evaluation to the next. A signal may wait as long."""


class Ranks:
    """The ``World`` of a run in several processes.

    Until it is opened, this process is alone in its group.

    Args:
        place: The rank of this process, and the number of processes.
        requests: The requests of the run.
        clock: The clock of the run.
        is_custom_loop: True if the body of the loop is the user's. It may skip a step or give a weight in any step.
    """

    is_alone = False
    is_open = False

    def __init__(self, place: Place, requests: Requests, clock: Clock, *, is_custom_loop: bool = False) -> None:
        self._place, self._requests, self._clock, self._is_custom_loop = place, requests, clock, is_custom_loop
        self._logs = ExitStack()
        self.usual_weight: float | None = None
        """The weight of a rank in the last step, if every step has a vote."""

    def restore_usual_weight(self, weight: float | None) -> None:
        """Continue with the ``usual_weight`` of a checkpoint or a snapshot."""
        self.usual_weight = weight

    @property
    def group(self) -> AnyGroup:
        """The collectives for small values."""
        return self._group if self.is_open else SoloGroup()

    def open(self, strategy: Strategy, device: torch.device, *, may_be_skipped: bool) -> None:
        """Join the other processes. All ranks must call it.

        Args:
            strategy: How the model is distributed.
            device: The device of this rank.
            may_be_skipped: True if a callback hears the start of a step and may skip it. Then every step has a vote.
        """
        self._group = group = Group(self._place, device, strategy.timeout)
        self.strategy, self._may_be_skipped = strategy, may_be_skipped
        self.exits = BodyExits(group)
        self.watchdog = Watchdog(
            group,
            hang_after=strategy.hang_after,
            timeout=strategy.timeout,
            progress=lambda: progress_of(self._clock),
            exits=self.exits if self._is_custom_loop else None,
        )
        # The first error of this rank, and the error that replaces it.
        self._raised: tuple[BaseException, BaseException] | None = None
        self._names: tuple[str, ...] = ()
        self._votes = Votes(group)
        self._votes_in_evaluation = Votes(group, apart=APART_IN_EVALUATION, long_step=APART_IN_EVALUATION)
        self._evaluated = 0  # batches of the current evaluation loader
        self._weighted = self._counted = False
        self._known: float | None = 0.0  # samples of all ranks in this step, if they are known without a vote
        self._samples = self._tokens = 0
        self.usual_weight = None
        self._synced: set[str] = set()  # optimizers whose gradients are averaged in this step
        self._ballots = Ballots(group, self._requests, self._clock)
        self.is_padding = False
        """True in a padding batch, which this rank computes only because other ranks have a batch."""
        self._requests.join()
        self.is_open = True
        self.watchdog.start()
        self._logs.enter_context(rank_logs(group))

    # -- opening and closing -------------------------------------------------------------------

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        """Distribute the model in place. Return the new parameter for each one that was replaced."""
        return self.strategy.wrap(module, roots, self._group)

    def attach(self, optimizers: Mapping[str, Any]) -> None:
        """Set the optimizers, after the model is loaded. All ranks must call it."""
        self._names = tuple(optimizers)
        self._votes = Votes(self._group)
        if self._may_be_skipped or self._is_custom_loop:
            self._votes.hold_always()
        self.strategy.attach(optimizers)

    def expect_skips(self) -> None:
        """Hold a vote in every step after the next vote: a callback was added that may skip a step."""
        self._may_be_skipped = True

    @property
    def broken(self) -> bool:
        """True after a rank has failed, and while the world is closed: the ranks agree on nothing."""
        return not self.is_open or self._group.broken

    @property
    def shares(self) -> tuple[int, int]:
        """The number of shards of the data, and the index of this rank's shard."""
        return self.strategy.shares()

    @property
    def copies(self) -> int:
        """The number of ranks with the same shard of the data, as in a tensor-parallel group."""
        return self._group.size // self.shares[0]

    @property
    def is_sharded(self) -> bool:
        """True if the weights are sharded over ranks."""
        return self.is_open and self.strategy.is_sharded

    def compare(self, facts: Callable[[], Facts], fix: str) -> None:
        """Raise an error if facts differ between ranks. All ranks must call it."""
        check_same(self._group, facts(), fix)

    def refuse(self, error: Exception) -> None:
        """Raise the error, because the other ranks would wait for this rank."""
        raise error

    def patient(self) -> AbstractContextManager[None]:
        """Allow what runs inside the block to take long."""
        return self.watchdog.patient() if self.is_open else nullcontext()

    def failed(self, error: BaseException) -> BaseException:
        """Tell the other ranks that this rank ends with an error, and return the error to raise.

        If another rank has caused the error, the returned error names it. The method may be called several times.
        """
        if not self.is_open:
            return error
        if self._raised is not None:
            return self._raised[1] if error is self._raised[0] else error
        if isinstance(error, Preempted) and self._requests.agreed.preempt is not None and self._requests.may_save:
            return error  # All ranks have agreed on the signal.
        found = error
        if isinstance(error, StopTraining):
            found = stop_between(error.reason, self._clock.step)
            found.__cause__ = error
        elif not self.broken and self._is_of_others(error):
            found = self._group.explain(error)
        if found is not error:
            for note in getattr(error, "__notes__", ()):
                found.add_note(note)
        if not self.broken:
            self._group.fail(words_for_others(found, self._clock.step))
        self._raised = error, found
        return found

    def _is_of_others(self, error: BaseException) -> bool:
        """True if a collective of torch has failed because another rank is gone."""
        if not isinstance(error, RuntimeError) or isinstance(error, HooklineError):
            return False
        return tells_of_lost_peer(error)

    def close(self) -> None:
        """Close the run on this rank, also after an error."""
        if not self.is_open:
            return
        self._votes.drop()
        self._votes_in_evaluation.drop()
        self.watchdog.stop()
        self.strategy.unwrap()
        self._requests.leave()
        self._raised, self.is_open = None, False
        self._group.close()
        self._logs.close()

    # -- a step --------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """Start a step. All ranks must call it before its first forward."""
        self._samples = self._tokens = 0
        self._known = 0.0
        self._synced.clear()
        self._votes.next_step()
        self._requests.set_skip_phase("before vote" if self._votes.is_due else "no vote")
        self.strategy.before_window()

    def unit(self, known: int | None, *, scaled: bool) -> float:
        """Return the unit of the weights of a step: the mean weight over all ranks, if it is known.

        If all ranks have the same weight, gradients then need no division.

        Args:
            known: Number of samples of all ranks, if it is known without a vote.
            scaled: True in fp16. Then the weight of the last step is a better unit, because a user's weights in units
                of samples could overflow.
        """
        mean = known / self.shares[0] if known else 1.0
        return self.usual_weight or mean if scaled else mean

    def fetched(self, samples: int, tokens: int | None, *, counts: bool, known: int | None) -> None:
        """Note the size of this rank's batch.

        The clock counts the batches of all ranks after the step.

        Args:
            samples: Number of samples.
            tokens: Number of tokens, if they are counted.
            counts: False for a padding batch.
            known: Number of samples of all ranks, if it is known without a vote.
        """
        self.beat()
        self.is_padding = not counts
        self._known = None if known is None or self._known is None else self._known + known
        self._samples += samples
        if tokens is not None:
            self._tokens += tokens
            self._counted = True

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None:
        """Prepare a backward. All ranks must call it.

        The vote of a step starts before its last backward, which averages the gradients.

        Args:
            loss: The loss.
            names: Optimizers of the loss.
            weights: Sum of weights of each optimizer, including this loss.
            last: True for the last backward of the step.
            weighted: True if the user has given a weight.
        """
        self._weighted |= weighted
        if not last:
            if len(self._names) > 1 and self.strategy.is_sharded:
                raise SetupError("several optimizers of a sharded model cannot share windows: use accumulate=1")
            self.strategy.before_backward(loss, names, last=False)
            return
        self._synced.update(names)
        if self._synced.issuperset(self._names) and not self._votes.under_way and self._due():
            self._begin_vote(weights)
        self.strategy.before_backward(loss, names, last=True)

    def _begin_vote(self, weights: Mapping[str, Any]) -> None:
        """Start the vote of a step. Later, all ranks must request a skip at the same step."""
        self._votes.begin(self._ballot(), [float(weights.get(name, 0)) for name in self._names])
        self._requests.set_skip_phase("after vote")

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> None:
        """End the vote of a step, and set the weights by which gradients are divided.

        All ranks must call it.

        Args:
            touched: Sum of weights by optimizer. It is set to the mean over all ranks.
            driven: Optimizers that the body of the loop has stepped itself.
        """
        if not self._synced and not list(driven):  # This rank had no backward, and the other ranks wait for one.
            self.strategy.idle_backward(self.strategy.idle_forward(), self._names, last=True)
            self._synced.update(self._names)
        if not self._votes.under_way and self._due():
            self._begin_vote(touched)
        self._requests.set_skip_phase("after vote")
        if not self._votes.under_way:
            self._settle_by_count(touched)
        else:
            self._count_votes(touched)

    def drop_window(self) -> None:
        """Drop the current step. All ranks must call it."""
        if self.is_open:
            self._votes.drop()
            self._synced.clear()

    def _count_votes(self, touched: dict[str, Any]) -> None:
        """Apply the result of the vote of a step."""
        found, weights = self._votes.end(self._clock.step)
        if self._votes.always:
            self.usual_weight = max(weights, default=0.0) / self._group.size or self.usual_weight
        by_name = dict(zip(self._names, weights, strict=True))
        touched.update({name: by_name[name] / self._group.size for name in touched})
        self._clock.count_samples(round(found.samples / self.copies), round(found.tokens / self.copies))
        self._apply(found)

    def average_weight(self, weight: Any) -> float:
        """Return the mean weight of an optimizer that the body steps itself. All ranks must call it."""
        return float(self._group.total(torch.tensor([float(weight)], dtype=torch.float64))) / self._group.size

    def body_left(self) -> None:
        """Note that ``break`` or ``return`` has left the body. ``leave_body`` follows."""
        self.exits.body_left()

    def leave_body(self) -> None:
        """Raise an error unless ``break`` or ``return`` has left the body on all ranks."""
        if not self.broken:
            with self.watchdog.patient():
                self.exits.leave(self._clock.step, timeout=self.strategy.timeout)

    def stepped(self) -> None:
        """Note that a step is done. All ranks must call it."""
        self.watchdog.stepped()

    def beat(self) -> None:
        """Note that this rank makes progress."""
        self.watchdog.count_beat()

    def body_ended(self) -> None:
        """Note that the body of a custom loop has requested the next batch."""
        self.exits.body_ended()

    def before_eval_batch(self) -> None:
        """Prepare a batch of an evaluation or prediction."""
        self.strategy.before_batch()

    def make_up_batch(self) -> None:
        """Run the forward of a batch that was left before it. Ranks of a sharded model wait for it."""
        self.strategy.idle_batch()

    def vote(self, *, logged: bool = False) -> bool:
        """Agree on requests at the end of an interval, evaluation, epoch or save.

        All ranks must call it.

        Args:
            logged: True if this rank has logged a value that has no row yet.

        Returns:
            True if any rank has.
        """
        self.beat()
        self._votes.begin(self._ballot(counts=False, logged=logged), [0.0] * len(self._names))
        found = self._votes.end(self._clock.step)[0]
        self._apply(found)
        return found.logged > 0

    def compare_parameters(self) -> None:
        """Raise an error at the end of an epoch if replicas differ. All ranks must call it."""
        replicated: Callable[[], Mapping[str, Tensor]] = getattr(self.strategy, "replicated_parameters", dict)
        self.beat()
        check_same_parameters(self._group, replicated(), f"At step {self._clock.step}")

    def before_evaluation(self) -> None:
        """Synchronize buffers before an evaluation, prediction or save. All ranks must call it."""
        self.strategy.before_evaluation()

    def begin_votes_of_evaluation(self) -> None:
        """Reset the votes before an evaluation loader. All ranks must call it."""
        self._evaluated = 0
        self._votes_in_evaluation.reset_interval()

    def vote_in_evaluation(self, *, abandons: bool) -> bool | None:
        """Vote after a batch of an evaluation. All ranks must call it.

        Args:
            abandons: True if this rank requests to leave the evaluation.

        Returns:
            True if any rank does. ``None`` if this batch has no vote.
        """
        votes = self._votes_in_evaluation
        self._evaluated += 1
        if not self._names:  # Without training steps, the first batch is the one that may take long.
            self.watchdog.stepped()
        votes.next_step()
        if not votes.is_due:
            return None
        votes.begin(replace(self._ballot(counts=False), abandons=abandons), [])
        found = votes.end(self._evaluated)[0]
        self._apply(found)
        return found.abandons > 0

    def _due(self) -> bool:
        """Return whether this step has a vote.

        A value that only this rank knows requires one in all steps.
        """
        alone = self._known is None or self._weighted or self._counted
        if alone and self._votes.held and not self._votes.always:
            what = "a weight of the loss" if self._weighted else "a number of tokens, or data that cannot be counted"
            if self._votes.every > 1:
                raise LossError(
                    f"{what} was given for the first time at step {self._clock.step}: in several processes "
                    f"it is to be given from the first step on"
                )
        if alone:
            self._votes.hold_always()
        return self._votes.is_due

    def _settle_by_count(self, touched: dict[str, Any]) -> None:
        known = self._known or 0.0
        touched.update(dict.fromkeys(touched, known / self.shares[0]))
        self._clock.count_samples(int(known), None)

    def _ballot(self, *, counts: bool = True, logged: bool = False) -> Ballot:
        samples, tokens = (self._samples, self._tokens) if counts else (0, 0)
        weighted = self._votes.always or self._may_be_skipped
        return self._ballots.ballot(skips=counts, samples=samples, tokens=tokens, logged=logged, weighted=weighted)

    def _apply(self, found: Ballot) -> None:
        if found.weighted > 0:
            self._votes.hold_always()
        self._ballots.grant(found)


def progress_of(clock: Clock) -> object:
    """Return the counters that change while a rank trains or evaluates."""
    try:
        evaluated = clock.eval.batch
    except NotAvailableError:
        evaluated = -1
    return clock.epoch, clock.step, clock.batch, evaluated
