"""The other processes of a run, as the loop meets them: in each step, at the edges, and when something fails.

What follows from counts alone is not voted on: all ranks compute it alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.distributed import Group
from hookline.distributed.connections import tells_of_lost_peer
from hookline.distributed.places import Places
from hookline.distributed.same import check_same_parameters
from hookline.distributed.stacks import words_for_others
from hookline.distributed.strategy import Strategy
from hookline.distributed.votes import Ballot, Votes
from hookline.distributed.watchdog import Watchdog
from hookline.errors import HooklineError, LossError, NotAvailableError, Preempted, SetupError, StopTraining
from hookline.loop.leaving import stop_between
from hookline.loop.wishes import Wishes
from hookline.progress import Clock
from hookline.run import BREAK, Requests, StopRequest

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hookline")

APART_IN_EVALUATION = 1.0
"""Seconds from one vote in an evaluation to the next, so long may a signal wait."""


class Ranks:
    """One for each time that a run is opened in several processes; a run in one process has none."""

    def __init__(self, group: Group, strategy: Strategy, requests: Requests, clock: Clock) -> None:
        self.group, self.strategy = group, strategy
        self._requests, self._clock = requests, clock
        self.watchdog = Watchdog(
            group, hang_after=strategy.hang_after, timeout=strategy.timeout, progress=lambda: progress_of(clock)
        )
        self._raised: tuple[BaseException, BaseException] | None = None  # the first error, and what it is called
        self._names: tuple[str, ...] = ()
        self._votes = Votes(group)
        self._votes_in_evaluation = Votes(group, apart=APART_IN_EVALUATION, long_step=APART_IN_EVALUATION)
        self._evaluated = 0  # batches of the loader under way
        self._weighted = self._counted = False
        self._known: float | None = 0.0  # samples of the window over all ranks, where counts alone tell
        self._samples = self._tokens = 0
        self.usual_weight: float | None = None
        """What the weight of a rank was in the last window, where there is a vote in every step."""
        self._synced: set[str] = set()  # optimizers whose gradients are averaged in this window
        self._wishes = Wishes(group, requests, clock)
        self.can_be_left = False
        """The loop is the user's own, whose body may be left on one rank alone: there is a vote in every step."""
        self.settle: Callable[[], None] = lambda: None
        """Where the body has left an evaluation or its training: what is still to be done for that, with the others."""
        self._hooks: list[Any] = []  # of the model
        self._called = False  # a sharded model, in training
        self.places: Places | None = None  # only where one that leaves cannot go along
        self.may_be_skipped = False
        """A callback that may ask for a step to be skipped hears its beginning: there is a vote in every step."""
        self.idle = False
        """The batch under way is there only so that this rank does what the others do: it counts nothing."""
        requests.vote_from_now_on()

    # -- opening and closing -------------------------------------------------------------------

    def spread(self, module: nn.Module, roots: list[nn.Module]) -> Mapping[Tensor, Tensor]:
        """By all: the model over the ranks, in place; the parameters that were replaced, with those in their place."""
        replaced = self.strategy.wrap(module, roots, self.group)
        if self.can_be_left and self.strategy.is_sharded:
            # Before the hooks that gather weights: they wait for ranks that may wait for this one, in what it has left.
            hook = torch.compiler.disable(lambda *_: self._before_forward())  # type: ignore[no-untyped-call]
            self._hooks.extend(root.register_forward_pre_hook(hook, prepend=True) for root in roots)
        return replaced

    def attach(self, optimizers: Mapping[str, Any]) -> None:
        """By all: the optimizers are there, and the model is loaded."""
        self._names = tuple(optimizers)
        self._votes = Votes(self.group)
        self._votes.always = self.can_be_left or self.may_be_skipped
        if self.can_be_left and (len(optimizers) > 1 or self.strategy.is_sharded) and self.places is None:
            self.places = Places(self.group)
        self.strategy.attach(optimizers)

    def _before_forward(self) -> None:
        """Of a sharded model: it waits for all ranks."""
        self.settle()
        if not self._called and torch.is_grad_enabled():
            self._called = True
            if self.places is not None and len(self._names) == 1:
                self.places.computes()

    @property
    def broken(self) -> bool:
        """A rank has failed: nothing more is agreed on."""
        return self.group.broken

    @property
    def shares(self) -> tuple[int, int]:
        """Into how many parts the data is split, and which of them is this rank's."""
        return self.strategy.shares()

    @property
    def copies(self) -> int:
        """How many ranks have the same data, as those of one tensor-parallel group."""
        return self.group.size // self.shares[0]

    def failed(self, error: BaseException) -> BaseException:
        """This rank ends with an error: tell the others, at once; or learn that it is another one's.

        It may be called several times on the way out. What is to be raised in the error's place is returned.
        """
        if self._raised is not None:
            return self._raised[1] if error is self._raised[0] else error
        if isinstance(error, Preempted) and self._requests.preempt is not None and self._requests.may_save:
            return error  # all have agreed on it
        found = error
        if isinstance(error, StopTraining):
            found = stop_between(error.reason, self._clock.step)
            found.__cause__ = error
        elif not self.broken and self._is_of_others(error):
            found = self.group.explain(error)
        if found is not error:
            for note in getattr(error, "__notes__", ()):
                found.add_note(note)
        if not self.broken:
            self.group.fail(words_for_others(found, self._clock.step))
        self._raised = error, found
        return found

    def _is_of_others(self, error: BaseException) -> bool:
        """Whether it comes from a collective of torch's own, as in the backward, whose other side has gone."""
        if not isinstance(error, RuntimeError) or isinstance(error, HooklineError):
            return False
        return tells_of_lost_peer(error)

    def close(self) -> None:
        """On every way out."""
        self._votes.forget()
        self._votes_in_evaluation.forget()
        self.watchdog.stop()
        for hook in self._hooks:
            hook.remove()
        self.strategy.unwrap()
        self._requests.vote_no_more()
        self._raised = None
        self.group.close()

    # -- a step --------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """By all, before the first forward of a step."""
        self._samples = self._tokens = 0
        self._known = 0.0
        self._synced.clear()
        self._votes.next_step()
        self._requests.skip_phase = "before vote" if self._votes.is_due else "no vote"
        if self.places is not None:
            self.places.begins()
        self.strategy.before_window()

    def unit(self, known: int | None, *, scaled: bool) -> float:
        """What weights are counted in in a window: the mean over all ranks, where counts alone tell it.

        Where all have as much, nothing is then to be divided. ``scaled``: in fp16 weights of the user's own could
        overflow in it; where there may be some, there is a vote in every step, and the last one is a better guess.
        """
        mean = known / self.shares[0] if known else 1.0
        return self.usual_weight or mean if scaled else mean

    def fetched(self, samples: int, tokens: int | None, *, counts: bool, known: int | None) -> None:
        """What this rank's batch holds, and where it can be told what all hold together (``known``).

        The clock counts what all have done, once the step is made.
        """
        self.watchdog.beat += 1
        self.idle = not counts
        self._known = None if known is None or self._known is None else self._known + known
        self._samples += samples
        if tokens is not None:
            self._tokens += tokens
            self._counted = True

    def before_backward(
        self, loss: Tensor, names: tuple[str, ...], weights: Mapping[str, Any], *, last: bool, weighted: bool
    ) -> None:
        """Before each backward; in the last of a window the vote is launched, and gradients are averaged."""
        self._weighted |= weighted
        if not last:
            if len(self._names) > 1 and self.strategy.is_sharded:
                raise SetupError("several optimizers of a sharded model cannot share windows: use accumulate=1")
            self.strategy.before_backward(loss, names, last=False)
            return
        if self.places is not None:
            self.places.computes()
        self._synced.update(names)
        if self._synced.issuperset(self._names) and not self._votes.under_way and self._due():
            self._begin_vote(weights)
        self.strategy.before_backward(loss, names, last=True)

    def _begin_vote(self, weights: Mapping[str, Any]) -> None:
        """The vote of a step. A wish to skip it that comes later is not in it, and must come to all ranks alike."""
        self._votes.begin(self._ballot(), [float(weights.get(name, 0)) for name in self._names])
        self._requests.skip_phase = "after vote"

    def complete_window(self, touched: dict[str, Any], driven: Iterable[str]) -> bool:
        """By all, when gradients are there: the vote, and the weights over all ranks that gradients are divided by.

        Whether there is a step: not where the body of the loop was left on all ranks.
        """
        if self._wishes.leaving is not None and not self.is_synced:
            return self._go_along(touched)
        if self.places is not None:
            self.places.computes()
        if not self._synced and not list(driven):  # it skips its batch, or has none, and the others wait for it
            self.strategy.idle_backward(self.strategy.idle_forward(), self._names, last=True)
            self._synced.update(self._names)
        if not self._votes.under_way and self._due():
            self._begin_vote(touched)
        self._requests.skip_phase = "after vote"
        if not self._votes.under_way:
            self._settle_by_count(touched)
        else:
            self._count_votes(touched)
        if self._called and len(self._names) == 1:
            self.places = None  # from now on a rank that leaves knows what the model is given
        return True

    def _count_votes(self, touched: dict[str, Any], between: Callable[[bool], None] | None = None) -> bool:
        """The end of the vote of a step. Whether anything was computed in it, on any rank."""
        found, weights = self._votes.end(self._clock.step)
        computed = any(weights)
        if self._votes.always:
            self.usual_weight = max(weights, default=0.0) / self.group.size or self.usual_weight
        if between is not None:
            between(computed)
        by_name = dict(zip(self._names, weights, strict=True))
        touched.update({name: by_name[name] / self.group.size for name in touched})
        self._clock.sample += round(found.samples / self.copies)
        self._clock.token += round(found.tokens / self.copies)
        self._apply(found)
        return computed

    @property
    def is_synced(self) -> bool:
        """The last backward of this window is done, and with it the gradients of all ranks are averaged."""
        return bool(self._synced)

    def idle_batch(self) -> None:
        """The body was left here: a batch of a window of several, of which the others do not know that."""
        self.strategy.idle_backward(self.strategy.idle_forward(), self._names, last=False)

    def _go_along(self, touched: dict[str, Any]) -> bool:
        """The body was left here. What the others compute they finish, with nothing from here; then all know."""
        forward = self.strategy.idle_forward()
        self._begin_vote(touched)
        touched.update({name: 0.0 for name in self._names if name not in touched})

        def join_in(computed: bool) -> None:  # before all else: the others are in their backward, and wait for this one
            if computed:
                self.strategy.idle_backward(forward, self._names, last=True)

        return self._count_votes(touched, between=join_in)

    def average_weight(self, weight: Any) -> float:
        """By all: of an optimizer that the body drives itself, which is stepped before the window ends."""
        import torch

        if self.places is not None:
            self.places.computes()
        return float(self.group.total(torch.tensor([float(weight)], dtype=torch.float64))) / self.group.size

    @property
    def can_go_along(self) -> bool:
        """Whether this rank can leave the body of its loop alone, and take part in what the others compute meanwhile.

        Not with several optimizers, nor before the first forward of a sharded model: nobody knows what it is given.
        """
        return self.places is None or (self._called and len(self._names) == 1)

    def have_all_left(self) -> bool:
        """By all who leave the body of their loop where a rank cannot go along alone: whether all do, here."""
        return self.places is not None and self.places.have_all_left(self.strategy.timeout)

    def undone(self) -> None:
        """Steps were taken back: as they must be on all ranks, which the next vote shows."""
        self._wishes.undone += 1

    def leaves(self) -> None:
        """The body of the own loop was left on this rank: the next vote tells the others."""
        self._wishes.leaving = StopRequest(BREAK, "the body of the loop", self._clock.step, left_body=True)

    def vote(self, *, logged: bool = False) -> bool:
        """By all, at an edge: an interval, an evaluation, an epoch or a save has ended. What was asked for counts.

        Whether any rank has ``logged`` something.
        """
        self.watchdog.beat += 1
        if self.places is not None:
            self.places.begins()
        self._votes.begin(self._ballot(counts=False, logged=logged), [0.0] * len(self._names))
        found = self._votes.end(self._clock.step)[0]
        self._apply(found)
        return found.logged > 0

    def compare_parameters(self) -> None:
        """By all, when the updates of an epoch are done: raise an error if replicas have drifted apart."""
        replicated: Callable[[], Mapping[str, Tensor]] = getattr(self.strategy, "replicated_parameters", dict)
        self.watchdog.beat += 1
        if self.places is not None:
            self.places.begins()
        check_same_parameters(self.group, replicated(), f"At step {self._clock.step}")

    def before_evaluation(self) -> None:
        """By all, before an evaluation or a prediction."""
        if self.places is not None:
            self.places.begins()
        self.strategy.before_evaluation()

    def begin_votes_of_evaluation(self) -> None:
        """By all, before the batches of a loader."""
        self._evaluated = 0
        self._votes_in_evaluation.always = self.can_be_left
        self._votes_in_evaluation.begin_anew()

    def vote_in_evaluation(self, *, leaving: bool = False, abandons: bool = False) -> Ballot | None:
        """By all, after each batch of an evaluation or prediction: what all say, where there is a vote after it.

        ``leaving``: the body of the loop was left here; ``abandons``: nothing of the evaluation is to stay.
        """
        votes = self._votes_in_evaluation
        self._evaluated += 1
        if not self._names:  # no step will come, as in evaluate and predict: its first batch is what may take long
            self.watchdog.stepped()
        votes.next_step()
        if not votes.is_due:
            return None
        votes.begin(replace(self._ballot(counts=False), leaving=leaving, abandons=abandons), [])
        found = votes.end(self._evaluated)[0]
        self._apply(found)
        return found

    def _due(self) -> bool:
        """Whether there is a vote in this step; a weight or a count that only this rank knows needs one."""
        alone = self._known is None or self._weighted or self._counted
        if alone and self._votes.held and not self._votes.always:
            what = "a weight of the loss" if self._weighted else "a number of tokens, or data that cannot be counted"
            if self._votes.every > 1:
                raise LossError(
                    f"{what} was given for the first time at step {self._clock.step}: in several processes "
                    f"it is to be given from the first step on"
                )
        self._votes.always |= alone
        return self._votes.is_due

    def _settle_by_count(self, touched: dict[str, Any]) -> None:
        known = self._known or 0.0
        touched.update(dict.fromkeys(touched, known / self.shares[0]))
        self._clock.sample += int(known)

    def _ballot(self, *, counts: bool = True, logged: bool = False) -> Ballot:
        samples, tokens = (self._samples, self._tokens) if counts else (0, 0)
        weighted = self._votes.always
        return self._wishes.ballot(skips=counts, samples=samples, tokens=tokens, logged=logged, weighted=weighted)

    def _apply(self, found: Ballot) -> None:
        self._votes.always |= found.weighted > 0
        self._wishes.grant(found)


def progress_of(clock: Clock) -> object:
    """What changes as long as a rank is at work: in training, and in an evaluation."""
    try:
        evaluated = clock.eval.batch
    except NotAvailableError:
        evaluated = -1
    return clock.epoch, clock.step, clock.batch, evaluated
