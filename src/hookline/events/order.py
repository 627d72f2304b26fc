"""Declared order: who runs before whom, and why. A stable topological sort over declarations."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, permutations

from hookline.errors import OrderError, RegistrationError
from hookline.events.callback import Callback, callback_name, names_of, parameters_of

EVERYTHING = "*"
EVERYTHING_WORD = "everything"
ROLES = {
    "load": "puts weights into the model before training",
    "plan": "decides before the first step how large batches, accumulation windows or learning rates are",
    "structure": "freezes layers or adds parameter groups",
    "schedule": "schedules the learning rate",
    "guard": "leaves out bad steps",
    "average": "averages weights, and puts the average into the model",
    "restore": "puts earlier weights back when training ends",
    "constrain": "keeps the weights in a form, such as sparse",
    "select": "puts the best weights into the model at the very end",
    "convert": "replaces layers by others",
}
"""Effects of a callback on the model or the optimizers. Callbacks with a role run in this order."""

PHASES = (
    "reads nothing: before those that monitor, in list order",
    "reads what others write",
    "reads everything: last",
)


@dataclass(frozen=True, slots=True)
class Order:
    """The callbacks in the order in which they run, with the reasons."""

    callbacks: tuple[Callback, ...]
    reasons: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """By ``id`` of a callback: after the ``id`` of which other it stands, and why."""

    def why(self, callback: Callback) -> str:
        place = {id(other): index for index, other in enumerate(self.callbacks)}
        reasons = sorted((place[first], why) for first, why in self.reasons.get(id(callback), ()) if first in place)
        return "; ".join(why for _, why in reasons) or PHASES[phase(callback)]

    def without(self, callback: Callback) -> Order:
        """The order of the others stays as it is: that one leaves can make no order wrong."""
        return Order(tuple(other for other in self.callbacks if other is not callback), self.reasons)


def phase(callback: Callback) -> int:
    """0: declares nothing or only writes; 1: monitors; 2: reads everything, such as a checkpoint."""
    if EVERYTHING in callback.reads:
        return 2
    return 1 if callback.reads else 0


def sort(callbacks: Sequence[Callback], *, raw_gradients: bool = False) -> Order:
    """Writers before readers, ``before`` / ``after`` as declared, roles in their order; ties keep phase and list order.

    At ``gradients_ready`` (``raw_gradients``) the readers of the gradients see them raw, so they run
    before the writers (clipping, noise).
    """
    position = {id(callback): index for index, callback in enumerate(callbacks)}
    reasons: dict[int, list[tuple[int, str]]] = {}
    edges: dict[tuple[int, int], str] = {}  # (first, second) -> why; by position

    def put(first: Callback, second: Callback, why: str) -> None:
        if first is not second:
            edges.setdefault((position[id(first)], position[id(second)]), why)
            if why != f"reads {EVERYTHING_WORD}":  # said once, of its phase
                reasons.setdefault(id(second), []).append((id(first), f"after {callback_name(first)}: {why}"))

    for first, second, why in _by_name(callbacks):
        put(first, second, why)
    for first, second in _by_role(callbacks):
        if (position[id(second)], position[id(first)]) not in edges:  # else the user said so
            put(first, second, f"role {first.role} before {second.role}")
    declared = set(edges)
    for writer in callbacks:
        for reader in callbacks:
            for thing in _shared(writer, reader):
                raw = thing == "gradients" and raw_gradients
                first, second = (reader, writer) if raw else (writer, reader)
                if (position[id(second)], position[id(first)]) not in declared:  # else the user said so
                    put(first, second, "changes the gradients that it reads raw" if raw else f"reads {thing}")
    ordered = _stable_topological([phase(callback) for callback in callbacks], edges, callbacks)
    _refuse_two_writers(callbacks, edges)
    return Order(tuple(callbacks[index] for index in ordered), reasons)


def _shared(writer: Callback, reader: Callback) -> list[str]:
    """What one writes and the other reads. Its own read and write of one thing is no edge."""
    if writer is reader:
        return []
    if EVERYTHING in reader.reads:
        return [] if EVERYTHING in writer.reads else [EVERYTHING_WORD]
    if EVERYTHING in writer.reads:  # it runs last, also if it writes something at the end
        return []
    shared = [read for read in reader.reads if any(overlaps(read, written) for written in writer.writes)]
    # Two callbacks that both read and write one thing have no order by it: they are two writers.
    return [read for read in shared if not (read in reader.writes and read in writer.reads)]


def declares_writes(member: object) -> bool:
    """Whether it says what it logs. A class that sets ``writes = ()`` says that it logs no metric."""
    owners = (member, *type(member).__mro__)
    return any("writes" in vars(owner) for owner in owners if owner not in (Callback, object))


def overlaps(one: str, other: str) -> bool:
    """Whether two names of metrics or resources, with ``*`` in either or both, can mean the same thing.

    >>> overlaps("val/*", "val/loss"), overlaps("val/*", "*/loss"), overlaps("val/*", "train/loss")
    (True, True, False)
    """
    if "*" not in one and "*" not in other:
        return one == other
    open_, seen = [(0, 0)], {(0, 0)}  # how far both have been read
    while open_:
        i, j = open_.pop()
        if i == len(one) and j == len(other):
            return True
        star, other_star = one[i : i + 1] == "*", other[j : j + 1] == "*"
        ways = [(i + 1, j)] if star or (other_star and i < len(one)) else []
        ways += [(i, j + 1)] if other_star or (star and j < len(other)) else []
        ways += [(i + 1, j + 1)] if one[i : i + 1] == other[j : j + 1] != "" else []
        open_ += [way for way in ways if way not in seen]
        seen.update(ways)
    return False


def _by_name(callbacks: Sequence[Callback]) -> Iterator[tuple[Callback, Callback, str]]:
    """All pairs that ``before`` and ``after`` order, and why."""
    for callback in callbacks:
        for other in _named(callback, callback.after, callbacks):
            yield other, callback, "declared with after"
        for other in _named(callback, callback.before, callbacks):
            yield callback, other, f"declared with before by {callback_name(callback)}"


def _by_role(callbacks: Sequence[Callback]) -> list[tuple[Callback, Callback]]:
    """All pairs of callbacks whose roles say which runs first."""
    numbers = {role: number for number, role in enumerate(ROLES)}
    with_role = [callback for callback in callbacks if callback.role]
    return [pair for pair in permutations(with_role, 2) if numbers[pair[0].role] < numbers[pair[1].role]]


def _named(callback: Callback, names: Sequence[str | type], callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks that ``before`` / ``after`` mean: by class, class name or name."""
    if isinstance(names, str | type):
        names = (names,)
    found: list[Callback] = []
    for name in names:
        if isinstance(name, type):
            found += [other for other in callbacks if isinstance(other, name)]
            continue
        hits = [other for other in callbacks if name in names_of(other)]
        if not hits:
            _refuse_misspelt(callback, name, callbacks)
        found += hits
    return found


def _refuse_misspelt(callback: Callback, name: str, callbacks: Sequence[Callback]) -> None:
    """A name that is not there orders nothing; one that almost is there is a typing error."""
    close = get_close_matches(name, [known for other in callbacks for known in names_of(other)], n=1, cutoff=0.8)
    if close:
        raise RegistrationError(
            f"{callback_name(callback)}: before/after {name!r} is not registered; did you mean {close[0]!r}?"
        )


def _stable_topological(
    phases: list[int], edges: dict[tuple[int, int], str], callbacks: Sequence[Callback]
) -> list[int]:
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(phases)), ()))
    for first, second in edges:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        steps = [
            f"{callback_name(callbacks[first])} before {callback_name(callbacks[second])} "
            f"({edges.get((first, second), 'declared')})"
            for first, second in pairwise(cycle)
        ]
        raise OrderError(
            f"the declared order is a cycle: {'; '.join(steps)}. Remove one of them, or add before/after"
        ) from None
    ready = [(phases[index], index) for index in sorter.get_ready()]
    heapq.heapify(ready)
    ordered = []
    while ready:
        index = heapq.heappop(ready)[1]
        ordered.append(index)
        sorter.done(index)
        for following in sorter.get_ready():
            heapq.heappush(ready, (phases[following], following))
    return ordered


def _refuse_two_writers(callbacks: Sequence[Callback], edges: dict[tuple[int, int], str]) -> None:
    """Two that write one thing in no declared order would give a result that depends on the list."""
    following: dict[int, set[int]] = {}
    for first, second in edges:
        following.setdefault(first, set()).add(second)
    for one, callback in enumerate(callbacks):
        for two in range(one + 1, len(callbacks)):
            other = callbacks[two]
            shared = [w for w in callback.writes if any(overlaps(w, v) for v in other.writes)]
            if type(callback) is type(other):  # a pattern such as 'parameters/*' may mean other metrics in each of them
                shared = [] if callback.commutes else [written for written in shared if "*" not in written]
            if shared and not (_reaches(one, two, following) or _reaches(two, one, following)):
                names = callback_name(callback), callback_name(other)
                if names[0] == names[1]:
                    option = _option_to_write(callback, shared[0])
                    remedy = f"give one of them {option}=False" if option else "leave one of them out"
                    raise OrderError(
                        f"two {names[0]} both write {shared[0]!r}: {remedy}; or give each a name, and say which comes "
                        f"first with before or after on one of them"
                    )
                raise OrderError(
                    f"{names[0]} and {names[1]} both write {shared[0]!r}; say which comes first: "
                    f"before or after on one of them, e.g. after = ({names[0]!r},) on {names[1]}"
                )


def _option_to_write(callback: Callback, thing: str) -> str:
    """Return the name of an option without which such a callback does not write it, or an empty string."""
    for name, parameter in parameters_of(type(callback)).items():
        if callback._arguments.get(name, parameter.default) is True:
            try:
                other = type(callback)(**{**callback._arguments, name: False})
            except Exception:  # an argument that is not plain is missing
                continue
            if thing not in other.writes:
                return name
    return ""


def _reaches(start: int, goal: int, following: dict[int, set[int]]) -> bool:
    open_, seen = [start], {start}
    while open_:
        for following_one in following.get(open_.pop(), ()):
            if following_one == goal:
                return True
            if following_one not in seen:
                seen.add(following_one)
                open_.append(following_one)
    return False
