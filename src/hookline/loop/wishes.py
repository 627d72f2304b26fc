"""What this rank wishes, for the vote that tells the others; and what any rank wishes, once it is everybody's."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from hookline.distributed import Group
from hookline.distributed.votes import Ballot
from hookline.errors import RankError
from hookline.progress import Clock
from hookline.run import Requests, StopRequest


class Wishes:
    """The requests of this rank wait for the vote that makes them everybody's."""

    def __init__(self, group: Group, requests: Requests, clock: Clock) -> None:
        self._group, self._requests, self._clock = group, requests, clock
        self.undone = 0
        """How often steps were taken back since the last vote."""
        self.leaving: StopRequest | None = None
        """The body of the own loop was left on this rank, and the others do not know yet."""

    def ballot(self, *, skips: bool, **counts: float) -> Ballot:
        """What this rank says. ``skips``: the vote is one of a step, which may be skipped."""
        requests = self._requests
        return Ballot(
            **counts,
            stop=requests.wished_stop is not None,
            save=requests.wished_save,
            plan=requests.wished_plan,
            evaluate=requests.wished_eval,
            skip=skips and requests.wished_skip is not None,
            signal=requests.wished_preempt is not None,
            leaving=self.leaving is not None,
            undone=self.undone,
            undone_squared=self.undone**2,
            seconds=self._clock.seconds if self._group.rank == 0 else 0.0,
        )

    def grant(self, found: Ballot) -> None:
        """By all: what one rank has asked for becomes everybody's."""
        requests = self._requests
        self._clock.agree_seconds(found.seconds)
        if found.undone_squared * self._group.size != found.undone**2:
            raise RankError(
                f"before step {self._clock.step} some ranks have taken steps back and others have not: run.roll_back() "
                f"must be called on all ranks alike"
            )
        self.undone = 0
        if found.save:
            requests.save = requests.attention = True
            requests.wished_save = False
        if found.plan:
            requests.plan = requests.attention = True
            requests.wished_plan = False
        if found.evaluate:
            requests.evaluate = requests.attention = True
            requests.wished_eval = False
        if found.stop or found.skip or found.signal or found.leaving:
            self._learn_whose(found)

    def _learn_whose(self, found: Ballot) -> None:
        """Rare, so it may cost an exchange: who has asked, and why."""
        requests, asked = self._requests, self._requests.wished_stop
        stop = asked or self.leaving
        mine = None if stop is None else asdict(stop)
        said = self._group.exchange({"stop": mine, "skip": requests.wished_skip, "signal": requests.wished_preempt})
        for rank, its in enumerate(said):
            if its["stop"] is not None and requests.stop is None:
                asked_there = StopRequest(**its["stop"])
                if rank != self._group.rank and not _all_say(said, "stop"):
                    asked_there = replace(asked_there, by=f"{asked_there.by} on rank {rank}")
                requests.ask_stop(asked_there, agreed=True)
            if its["skip"] is not None and requests.skip is None and found.skip:
                requests.skip = f"{its['skip']} on rank {rank}"
            if its["signal"] is not None and requests.preempt is None:
                requests.preempt, requests.attention = its["signal"], True
        self.leaving = None
        if requests.wished_stop is asked:  # else Ctrl-C came while the ranks told one another, and nobody knows of it
            requests.wished_stop = None
        requests.wished_skip = None if found.skip else requests.wished_skip


def _all_say(said: list[dict[str, Any]], what: str) -> bool:
    return all(its[what] == said[0][what] for its in said)
