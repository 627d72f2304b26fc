"""Match weights with a model: list names and shapes that differ, and suggest a fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.nn.parameter import is_lazy

from hookline.checkpoint.tensor_bytes import identity
from hookline.errors import CheckpointMismatchError

SHOWN: Final = 20
"""Maximum number of names per kind in an error."""


@dataclass(frozen=True, slots=True)
class Match:
    """The result of comparing the weights found with the weights wanted."""

    fitting: tuple[str, ...]
    missing: tuple[str, ...]
    """Names wanted but not found. Names tied to a name that was found do not count."""
    unexpected: tuple[str, ...]
    """Names found but not wanted."""
    misshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    """Name, wanted shape and found shape of each weight with a wrong shape."""
    hint: str = ""
    """Suggested fix, if the names differ by one prefix."""
    clashing: tuple[str, ...] = ()
    """Names that share one tensor in the model but were found with different values."""

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.misshaped or self.clashing)

    def __str__(self) -> str:
        if self.complete:
            return f"all {len(self.fitting):,} fit"
        shapes = [f"{name} (wanted {list(wanted)}, found {list(found)})" for name, wanted, found in self.misshaped]
        parts = [
            _listed("missing", self.missing),
            _listed("unexpected", self.unexpected),
            _listed("of another shape", shapes),
            _listed("tied in the model, but with different values here", self.clashing),
        ]
        wanted = sum(map(len, (self.fitting, self.missing, self.misshaped, self.clashing)))
        fit = f"{len(self.fitting):,} of {wanted:,} fit"
        return "; ".join([fit, *filter(None, parts), *filter(None, [self.hint])])


def match(wanted: Mapping[str, Any], found: Mapping[str, Any], *, strict: bool) -> Match:
    """Compare the state dict of a model with weights from a file.

    Args:
        wanted: State dict of the model.
        found: The weights, by name.
        strict: Raise an error for any difference. Otherwise raise one only if no weight matches.

    Raises:
        CheckpointMismatchError: If the weights differ and ``strict`` is set, or if no weight matches.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> print(match(model.state_dict(), {"bias": torch.ones(2), "weight": torch.ones(2, 4)}, strict=False))
        1 of 2 fit; of another shape 1: weight (wanted [2, 3], found [2, 4])
        >>> match(model.state_dict(), model.state_dict(), strict=True).fitting
        ('weight', 'bias')
    """
    both = [name for name in wanted if name in found]
    shapes = {name: (_shape(wanted[name]), _shape(found[name])) for name in both}
    wrong = {name for name, (own, other) in shapes.items() if own is not None and own != other}
    fitting = tuple(name for name in both if name not in wrong)
    clashing = _clashing(wanted, found, fitting)
    fitting = tuple(name for name in fitting if name not in clashing)
    result = Match(
        fitting=fitting,
        missing=_missing(wanted, found, fitting),
        unexpected=tuple(name for name in found if name not in wanted),
        misshaped=tuple((name, shapes[name][0] or (), shapes[name][1] or ()) for name in both if name in wrong),
        hint=_hint(wanted, found),
        clashing=clashing,
    )
    if (strict and not result.complete) or (wanted and not result.fitting):
        raise CheckpointMismatchError(f"The weights do not fit the model: {result}.")
    return result


def _missing(wanted: Mapping[str, Any], found: Mapping[str, Any], fitting: Iterable[str]) -> tuple[str, ...]:
    absent = [name for name in wanted if name not in found]
    if not absent:
        return ()
    loaded = {_memory(wanted[name]) for name in fitting} - {None}
    return tuple(name for name in absent if _memory(wanted[name]) not in loaded)


def _clashing(wanted: Mapping[str, Any], found: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of tied weights that were found with different values."""
    tied: dict[object, list[str]] = {}
    for name in names:
        if (memory := _memory(wanted[name])) is not None:
            tied.setdefault(memory, []).append(name)
    groups = [group for group in tied.values() if any(not _same(found[group[0]], found[name]) for name in group[1:])]
    return tuple(name for group in groups for name in group)


def _same(one: Any, other: Any) -> bool:
    if one is other or (_memory(one) is not None and _memory(one) == _memory(other)):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())  # Here NaN equals NaN.


def _memory(value: Any) -> tuple[object, ...] | None:
    """Return a key that is equal for tied weights, or ``None`` for a tensor without memory."""
    if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
        return None
    return identity(value)


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape, or ``None`` for a lazy parameter, which accepts any shape."""
    return None if is_lazy(value) else tuple(getattr(value, "shape", ()))


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{what} {len(names):,}: {', '.join(names[:SHOWN])}{more}"


def _hint(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if not wanted or not found or any(name in found for name in wanted):
        return ""
    if (prefix := _prefix(long=found, short=wanted)) is not None and all(
        _shape(value) in (None, _shape(found[prefix + name])) for name, value in wanted.items()
    ):
        return f"give prefix={prefix!r}: without the prefix, the names fit"
    if (prefix := _prefix(long=wanted, short=found)) is not None:
        return f"only the model's names start with {prefix!r}: load the weights into that part of the model"
    return ""


def _prefix(long: Iterable[str], short: Mapping[str, Any]) -> str | None:
    """Return the prefix that turns every short name into a long name, or ``None``."""
    names = set(long)
    probe = max(short, key=len)  # The longest name is the least likely to match the end of another name by chance.
    for name in sorted(names):
        prefix = name.removesuffix(probe)
        if prefix and prefix != name and all(prefix + other in names for other in short):
            return prefix
    return None
