"""Order of the callbacks: a stable topological sort by their declarations, with reasons."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, permutations

from hookline.errors import OrderError, RegistrationError
from hookline.events.arguments import parameters_of
from hookline.events.callback import Callback, callback_name, names_of

EVERYTHING = "*"
EVERYTHING_WORD = "everything"
ROLES = {
    "load": "puts weights into the model before training",
    "plan": "decides before the first step how large batches, accumulation windows or learning rates are",
    "structure": "freezes layers or adds parameter groups",
    "schedule": "schedules the learning rate",
    "guard": "leaves out bad steps",
    "average": "averages weights, and puts the average into the model",
    "restore": "restores earlier weights when training ends",
    "constrain": "keeps the weights in a form, such as sparse",
    "select": "puts the best weights into the model at the end",
    "convert": "replaces layers by others",
    "plot": "draws figures, and writes them to the run's folder",
    "send": "sends metrics and files of the run to a person",
}
"""Effects on the model, the optimizers or the run's folder. Callbacks with a role run in this order."""

BY_PHASE = ("reads ", "role ")
"""Reasons that need no mention where the second callback reads everything and the first does not: it is last anyway."""

PHASES = (
    "reads nothing: before those that monitor, in list order",
    "reads what others write",
    "reads everything: last",
)


@dataclass(frozen=True, slots=True)
class Order:
    """Callbacks in the order in which they run, with the reasons."""

    callbacks: tuple[Callback, ...]
    reasons: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """By ``id`` of a callback: the ``id`` of each callback that runs earlier, and the reason."""

    def why(self, callback: Callback) -> str:
        place = {id(other): index for index, other in enumerate(self.callbacks)}
        reasons = sorted((place[first], why) for first, why in self.reasons.get(id(callback), ()) if first in place)
        return "; ".join(why for _, why in reasons) or PHASES[phase(callback)]

    def without(self, callback: Callback) -> Order:
        """Return the order without a callback. The order of the others stays valid."""
        return Order(tuple(other for other in self.callbacks if other is not callback), self.reasons)


def phase(callback: Callback) -> int:
    """Return 0 if a callback reads nothing, 2 if it reads everything (``"*"``), otherwise 1."""
    if EVERYTHING in callback.reads:
        return 2
    return 1 if callback.reads else 0


def sort(callbacks: Sequence[Callback], *, raw_gradients: bool = False) -> Order:
    """Sort callbacks by their declarations.

    Writers run before readers. ``before`` and ``after`` apply as declared, and roles run in the order of ``ROLES``.
    Callbacks that are still tied keep the order of their phases, then list order.

    Args:
        callbacks: The callbacks in list order.
        raw_gradients: Sort for ``gradients_ready``. Readers of the gradients then run before writers such as
            clipping or noise, so that they see the raw gradients.

    Returns:
        The order with the reasons.

    Raises:
        OrderError: If the declarations form a cycle, or two callbacks write the same name in no declared order.
        RegistrationError: If ``before`` or ``after`` contains a misspelt name.
    """
    position = {id(callback): index for index, callback in enumerate(callbacks)}
    reasons: dict[int, list[tuple[int, str]]] = {}
    edges: dict[tuple[int, int], str] = {}  # The keys are positions: (first, second).

    def put(first: Callback, second: Callback, why: str) -> None:
        if first is not second:
            edges.setdefault((position[id(first)], position[id(second)]), why)
            if not (phase(second) == 2 and phase(first) < 2 and why.startswith(BY_PHASE)):
                reasons.setdefault(id(second), []).append((id(first), f"after {callback_name(first)}: {why}"))

    for first, second, why in _by_name(callbacks):
        put(first, second, why)
    for first, second in _by_role(callbacks):
        if (position[id(second)], position[id(first)]) not in edges:  # A declared order has precedence.
            put(first, second, f"role {first.role} before {second.role}")
    declared = set(edges)
    for writer in callbacks:
        for reader in callbacks:
            for thing in _shared(writer, reader):
                raw = thing == "gradients" and raw_gradients
                first, second = (reader, writer) if raw else (writer, reader)
                if (position[id(second)], position[id(first)]) not in declared:  # A declared order has precedence.
                    put(first, second, "changes the gradients that it reads raw" if raw else f"reads {thing}")
    ordered = _stable_topological([phase(callback) for callback in callbacks], edges, callbacks)
    _refuse_two_writers(callbacks, edges)
    return Order(tuple(callbacks[index] for index in ordered), reasons)


def _shared(writer: Callback, reader: Callback) -> list[str]:
    """Return the names that one callback writes and another callback reads."""
    if writer is reader:
        return []
    if EVERYTHING in reader.reads:
        return [] if EVERYTHING in writer.reads else [EVERYTHING_WORD]
    if EVERYTHING in writer.reads:  # A callback that reads everything runs last, even if it also writes.
        return []
    shared = [read for read in reader.reads if any(overlaps(read, written) for written in writer.writes)]
    # A name that both callbacks read and write does not order them: they are two writers.
    return [read for read in shared if not (read in reader.writes and read in writer.reads)]


def declares_writes(member: object) -> bool:
    """True if a callback or task declares what it logs.

    A class that sets ``writes = ()`` declares that it logs no metric.
    """
    owners = (member, *type(member).__mro__)
    return any("writes" in vars(owner) for owner in owners if owner not in (Callback, object))


def overlaps(one: str, other: str) -> bool:
    """True if two names or patterns of metrics or resources can match the same name.

    Args:
        one: Name or pattern with ``*``.
        other: Name or pattern with ``*``.

    Example:
        >>> overlaps("val/*", "val/loss"), overlaps("val/*", "*/loss"), overlaps("val/*", "train/loss")
        (True, True, False)
    """
    if "*" not in one and "*" not in other:
        return one == other
    open_, seen = [(0, 0)], {(0, 0)}  # Each pair holds a position in either string.
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
    """Yield the pairs that ``before`` and ``after`` order, with the reason."""
    for callback in callbacks:
        for other in _named(callback, callback.after, callbacks):
            yield other, callback, "declared with after"
        for other in _named(callback, callback.before, callbacks):
            yield callback, other, f"declared with before by {callback_name(callback)}"


def _by_role(callbacks: Sequence[Callback]) -> list[tuple[Callback, Callback]]:
    """Return the pairs of callbacks that are ordered by their roles."""
    numbers = {role: number for number, role in enumerate(ROLES)}
    with_role = [callback for callback in callbacks if callback.role]
    return [pair for pair in permutations(with_role, 2) if numbers[pair[0].role] < numbers[pair[1].role]]


def _named(callback: Callback, names: Sequence[str | type], callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks that match ``before`` or ``after``: by class, class name or name."""
    if isinstance(names, str | type):
        names = (names,)
    found: list[Callback] = []
    for name in names:
        if isinstance(name, type):
            # Two callbacks of one class would otherwise wait for each other.
            alike = type(callback) if isinstance(callback, name) else None
            found += [other for other in callbacks if isinstance(other, name) and type(other) is not alike]
            continue
        hits = [other for other in callbacks if name in names_of(other)]
        if not hits:
            _refuse_misspelt(callback, name, callbacks)
        found += hits
    return found


def _refuse_misspelt(callback: Callback, name: str, callbacks: Sequence[Callback]) -> None:
    """Raise if an unknown name resembles a known one. Any other unknown name has no effect."""
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
    """Raise if two callbacks write the same name in no declared order.

    The result would depend on their positions in the list.
    """
    following: dict[int, set[int]] = {}
    for first, second in edges:
        following.setdefault(first, set()).add(second)
    for one, callback in enumerate(callbacks):
        for two in range(one + 1, len(callbacks)):
            other = callbacks[two]
            shared = [w for w in callback.writes if any(overlaps(w, v) for v in other.writes)]
            if type(callback) is type(other):  # In each of them, 'parameters/*' may match different metrics.
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
    """Return the option that makes a callback write a name, or an empty string."""
    for name, parameter in parameters_of(type(callback)).items():
        if callback._arguments.get(name, parameter.default) is True:
            try:
                other = type(callback)(**{**callback._arguments, name: False})
            except Exception:  # Arguments that are not plain are missing, and the class may require them.
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
