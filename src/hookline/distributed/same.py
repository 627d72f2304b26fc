"""Comparison of arguments, callbacks, models, optimizers and schedulers between ranks.

Each rank describes them as a flat dict of strings. The ranks compare these dicts in one exchange, before the first
collective that would hang or mix up tensors if they differed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NoReturn

from torch import Tensor

from hookline.distributed.checksums import can_be_summed, checksums
from hookline.errors import HooklineError, RankError, SetupError

if TYPE_CHECKING:
    from hookline.distributed.group import Group

Facts = dict[str, str]
"""Facts of one rank: name and value."""

MAX_VALUE_CHARS: Final = 160
MAX_NAMES: Final = 4
"""Facts that an error names in addition to the first."""


def check_same(group: Group, facts: Mapping[str, str], fix: str) -> None:
    """Raise ``SetupError`` on all ranks if facts differ between ranks. All ranks must call it.

    The ranks send only a hash if nothing differs.

    Args:
        group: The processes of the run.
        facts: The facts of this rank.
        fix: The sentence of the error that says what to do.

    Raises:
        SetupError: If a fact differs, or the order of the facts.
    """
    mine = json.dumps(dict(facts))
    if len(set(group.exchange(sha256(mine.encode()).hexdigest()))) == 1:
        return
    theirs: list[Facts] = group.exchange(dict(facts))
    names = list(dict.fromkeys(name for its in theirs for name in its))
    odd = [name for name in names if len({its.get(name) for its in theirs}) > 1]
    if not odd:
        odd, theirs = ["order"], [{"order": ", ".join(its)} for its in theirs]
    # A fact that some ranks lack comes first: it often explains the others.
    odd.sort(key=lambda name: all(name in its for its in theirs))
    more = f" {len(odd) - 1} more differ: {_listed(odd[1:])}." if len(odd) > 1 else ""
    raise_on_all(group, SetupError(f"{odd[0]}: {_by_rank([its.get(odd[0]) for its in theirs])}.{more} {fix}"))


def check_same_parameters(group: Group, parameters: Mapping[str, Tensor], when: str) -> None:
    """Raise ``RankError`` on all ranks if parameters differ. All ranks must call it.

    The ranks send only a hash of the checksums if nothing differs.

    Args:
        group: The processes of the run.
        parameters: The parameters by name. Names and order must be the same on all ranks.
        when: The start of the error, for example ``"At step 100"``.

    Raises:
        RankError: If the bits of a parameter differ.
    """
    named = {name: tensor for name, tensor in parameters.items() if can_be_summed(tensor)}
    if not named:
        return
    mine = checksums(named.values())
    hashes: list[str] = group.exchange(sha256(json.dumps(mine).encode()).hexdigest())
    if len(set(hashes)) == 1:
        return
    theirs: list[list[int]] = group.exchange(mine)
    alike: dict[str, list[int]] = {}
    for rank, its in enumerate(hashes):
        alike.setdefault(its, []).append(rank)
    most, *others = sorted(alike.values(), key=lambda its: (-len(its), its))
    odd = [name for index, name in enumerate(named) if len({its[index] for its in theirs}) > 1]
    told = " and ".join(words_for_ranks(its, lambda several: "hold" if several else "holds") for its in others)
    raise_on_all(
        group,
        RankError(
            f"{when}, {told} other values than {words_for_ranks(most)} in {len(odd)} of {len(named)} parameters: "
            f"{_listed(odd)}. Gradients are averaged, so code that depends on the rank has changed the parameters: "
            f"a hook, a scheduler, or a backward that is not loop.backward(). Run it on all ranks; if the difference "
            f"is intended, pass strategy=hl.DDP(compare_parameters=False)."
        ),
    )


def raise_on_all(group: Group, error: HooklineError) -> NoReturn:
    """Raise the same error on all ranks. All ranks must call it.

    A rank that raises an error cuts its connections. So all ranks wait at a barrier first: another rank may still be
    reading the values for the error.
    """
    with suppress(RankError):  # The other ranks may have passed the barrier and cut their connections.
        group.barrier()
    raise error


def words_for_ranks(ranks: Sequence[int], verb: Callable[[bool], str] = lambda several: "") -> str:
    """Return a phrase such as ``rank 1 has`` or ``ranks 0, 2-7 have``.

    Args:
        ranks: The ranks, in ascending order.
        verb: Function that returns the verb. Its argument is True for several ranks.
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)
    several = len(ranks) > 1
    return f"rank{'s' if several else ''} {shown} {verb(several)}".rstrip()


def canonical(value: Any) -> str:
    """Return the value as a string that is the same in every process: no addresses, no devices.

    >>> canonical({"lr": 0.1, "decay": {"f": len}})
    "{'lr': 0.1, 'decay': {'f': builtin_function_or_method}}"
    """
    if isinstance(value, str):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)
    if isinstance(value, Tensor):
        # A single element is an argument, such as a learning rate. More elements may be an uninitialized buffer.
        return repr(value.item()) if value.numel() == 1 else f"tensor {value.dtype} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{canonical(key)}: {canonical(its)}" for key, its in value.items()) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(canonical, value))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return repr(value.item())
    return type(value).__qualname__


def flat(name: str, value: Any) -> Facts:
    """Return the values inside dicts and lists as facts, each with its path.

    >>> flat("scheduler 0", {"gamma": 0.1, "parts": [{"step_size": 3}]})
    {'scheduler 0, gamma': '0.1', 'scheduler 0, parts, 0, step_size': '3'}
    """
    if isinstance(value, Mapping):
        inside = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(its, Mapping) for its in value):
        inside = list(enumerate(value))
    else:
        return {name: canonical(value)}
    return {key: its for part, found in inside for key, its in flat(f"{name}, {part}", found).items()}


def _by_rank(values: Sequence[str | None]) -> str:
    """Return a phrase such as ``rank 0 has 1ep, ranks 1-3 have 2ep``."""
    by_value: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    return ", ".join(_has(value, its) for value, its in by_value.items())


def _has(value: str | None, ranks: Sequence[int]) -> str:
    if value is None:
        return f"{words_for_ranks(ranks, lambda several: 'do' if several else 'does')} not have it"
    shown = value if len(value) <= MAX_VALUE_CHARS else f"{value[:MAX_VALUE_CHARS]}…"
    return f"{words_for_ranks(ranks, lambda several: 'have' if several else 'has')} {shown}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
