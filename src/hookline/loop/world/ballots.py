"""Requests of this rank for the next vote, and requests on which all ranks have agreed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from hookline.distributed import Group
from hookline.distributed.same import check_same
from hookline.distributed.votes import Ballot
from hookline.progress import Clock
from hookline.run import Requests, StopRequest


class Ballots:
    """Convert requests to ballots, and the result of a vote to agreed requests.

    Args:
        group: The group of all ranks.
        requests: The requests of the run.
        clock: The clock of the run.
    """

    def __init__(self, group: Group, requests: Requests, clock: Clock) -> None:
        self._group, self._requests, self._clock = group, requests, clock

    def ballot(self, *, skips: bool, **counts: float) -> Ballot:
        """Return the ballot of this rank.

        Args:
            skips: True in the vote of a step, which may be skipped.
            counts: Other fields of the ballot.
        """
        asked = self._requests.asked
        return Ballot(
            **counts,
            stop=asked.stop is not None,
            save=asked.save,
            plan=asked.plan,
            evaluate=asked.evaluate,
            control=asked.control,
            skip=skips and asked.skip is not None,
            signal=asked.preempt is not None,
            changes=bool(self._requests.changes),
            seconds=self._clock.seconds if self._group.rank == 0 else 0.0,
        )

    def grant(self, found: Ballot) -> None:
        """Agree on the requests of all ranks after a vote. All ranks must call it."""
        requests = self._requests
        self._clock.agree_seconds(found.seconds)
        if found.changes:
            fix = f"Do it on all ranks, in the same hook (before the vote at step {self._clock.step})."
            check_same(self._group, requests.changes, fix)
            requests.agree_on_changes()
        requests.agree(evaluate=found.evaluate > 0, save=found.save > 0, plan=found.plan > 0, control=found.control > 0)
        if found.stop or found.skip or found.signal:
            self._learn_whose(found)

    def _learn_whose(self, found: Ballot) -> None:
        """Exchange which rank has made a request, and why. Such requests are rare."""
        requests, asked, agreed = self._requests, self._requests.asked, self._requests.agreed
        stop = asked.stop
        mine = None if stop is None else asdict(stop)
        said = self._group.exchange({"stop": mine, "skip": asked.skip, "signal": asked.preempt})
        for rank, its in enumerate(said):
            if its["stop"] is not None and agreed.stop is None:
                asked_there = StopRequest(**its["stop"])
                if rank != self._group.rank and not _all_say(said, "stop"):
                    asked_there = replace(asked_there, by=f"{asked_there.by} on rank {rank}")
                requests.agree_on_stop(asked_there)
            if its["skip"] is not None and agreed.skip is None and found.skip:
                requests.grant_skip(f"{its['skip']} on rank {rank}")
            if its["signal"] is not None:
                requests.agree_on_signal(its["signal"])
        requests.forget_asked(stop, skip=found.skip > 0)


def _all_say(said: list[dict[str, Any]], what: str) -> bool:
    return all(its[what] == said[0][what] for its in said)
