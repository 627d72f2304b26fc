"""``Duration``: a length of training such as ``"10ep"`` or ``"1h30m"``."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from hookline.errors import DurationError

COUNTS: Final = ("ep", "st", "sp", "tok")
UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {"ep": "epochs", "st": "steps", "sp": "samples", "tok": "tokens", "s": "seconds", "dur": "fraction"}
)
PASSES: Final = "pass"
"""Internal unit of a fractional number of epochs."""
# The units are in the order in which strings such as "1d12h" and "1h30m" join them.
_SECONDS_IN: Final[Mapping[str, int]] = MappingProxyType({"d": 86400, "h": 3600, "m": 60, "s": 1})
_NAMES: Final[Mapping[str, str]] = MappingProxyType({"d": "days", "h": "hours", "m": "minutes", **UNITS})
_HELP: Final = (
    "The units: ep (epochs), st (steps: updates of the weights), sp (samples), tok (tokens), "
    "s, m, h, d (seconds, minutes, hours, days; '1h30m' joins them), dur (a fraction of max_duration, up to 1)."
)
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {word: unit for unit, words in (
        ("ep", "e epoch epochs"),
        ("st", "ba batch batches it its iter iters iteration iterations step steps update updates"),
        ("sp", "sample samples"),
        ("tok", "token tokens"),
        ("s", "sec secs second seconds"),
        ("m", "min mins minute minutes"),
        ("h", "hr hrs hour hours"),
        ("d", "day days"),
        ("dur", "duration share"),
    ) for word in words.split()}
)  # fmt: skip
_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ms": "write milliseconds as a part of a second, such as '0.25s'",
        "%": "write a percentage as a fraction of max_duration, such as '0.5dur'",
    }
)

# Checkpoints save counts as 64-bit integers, and no clock measures less than a nanosecond.
_LARGEST: Final = 2**63 - 1
_SHORTEST: Final = 1e-9

_DIGITS = "[0-9]+(?:_[0-9]+)*"
# The pattern accepts "nan", "inf" and "-" so that the error can explain the problem.
_PART: Final = re.compile(
    rf"\s*(?P<number>-?(?:(?:{_DIGITS}(?:\.{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?|nan|inf))"
    r"\s*(?P<unit>[^\s\d.+_-]*)\s*"
)


@dataclass(frozen=True, slots=True, repr=False)
class Duration:
    """Length of training: epochs, steps, samples, tokens, seconds, or a fraction of the run.

    Example:
        >>> Duration.parse("1h30m")
        Duration.parse('1h30m')
        >>> Duration.parse("1e6tok").value
        1000000
        >>> str(Duration.parse("90s") + Duration.parse("30m"))
        '31m30s'
        >>> Duration.parse("5ep") < Duration.parse("10ep")
        True
        >>> Duration.parse("0.5dur").of(Duration.parse("6ep"))
        Duration.parse('3ep')
    """

    value: int | float
    """Positive number: an integer for ``ep``, ``st``, ``sp`` and ``tok``, at most 1 for ``dur``.

    Times are in seconds.
    """
    unit: str
    """``ep``, ``st``, ``sp``, ``tok``, ``s``, ``dur``, or ``PASSES`` for fractional epochs."""

    def __post_init__(self) -> None:
        if problem := _problem(self.value, self.unit):
            shown = f"Duration({reprlib.repr(self.value)}, {reprlib.repr(self.unit)})"
            raise DurationError(f"{shown}: {problem}. {_HELP}")
        # Each value has one form, also for subclasses of int and float, so that equal durations print alike.
        whole = self.unit != "dur" and self.value == int(self.value)
        object.__setattr__(self, "value", int(self.value) if whole else float(self.value))

    @classmethod
    def parse(cls, text: Duration | str, where: str = "") -> Duration:
        """Parse a string such as ``"10ep"``, ``"500st"``, ``"1e6tok"``, ``"1h30m"`` or ``"0.5dur"``.

        Args:
            text: A number and a unit, such as ``"1_000sp"`` or ``"90s"``. A ``Duration`` is returned unchanged.
            where: Argument that holds the string, such as ``"Checkpointer(every=…)"``. Errors begin with it.

        Raises:
            DurationError: If the string is not a duration.

        Example:
            >>> Duration.parse("1d 12h").value
            129600
        """
        if isinstance(text, Duration):
            return text
        try:
            if not isinstance(text, str):
                raise _not_text(text)
            value, unit = _read(text)
            if problem := _problem(value, unit):
                raise _unreadable(text, problem)
        except DurationError as error:
            raise DurationError(f"{where}: {error}" if where else str(error)) from None
        return cls(value, unit)

    @classmethod
    def from_state(cls, text: str) -> Duration:
        """Parse ``str(duration)``, also for a fraction of an epoch.

        Args:
            text: The string.

        Example:
            >>> Duration.from_state(str(Duration.parse("0.25dur").of(Duration.parse("1ep")))).value
            0.25
        """
        number = text.removesuffix(PASSES)
        return cls.parse(text) if number == text else cls(float(number), PASSES)

    @property
    def counts(self) -> bool:
        """True for epochs, steps, samples and tokens. False for time and fractions."""
        return self.unit in COUNTS

    def of(self, max_duration: Duration | None) -> Duration:
        """Resolve a fraction of ``max_duration``. Return any other duration unchanged.

        Steps, samples and tokens are rounded up, so that the smallest fraction is still one step. Epochs can stay
        fractional: see ``Clock.passes``.

        Args:
            max_duration: Length of the run.

        Raises:
            DurationError: If this is a fraction and ``max_duration`` is ``None`` or also a fraction.

        Example:
            >>> Duration.parse("0.1dur").of(Duration.parse("95st"))
            Duration.parse('10st')
        """
        if self.unit != "dur":
            return self
        if max_duration is None:
            raise DurationError(f"'{self}' is a fraction of max_duration, and the run has none: give max_duration.")
        if max_duration.unit == "dur":
            raise DurationError(
                f"'{self}' is a fraction of max_duration, which is itself a fraction ('{max_duration}'): "
                "give max_duration in another unit, such as '10ep'."
            )
        # The fraction is exact, because with floats 0.07 * 100 is above 7 and would be rounded up to 8.
        part = Fraction(repr(self.value)) * Fraction(max_duration.value)
        if max_duration.unit == "ep" and part.denominator > 1:
            return Duration(float(part), PASSES)
        return Duration(math.ceil(part) if max_duration.counts else float(part), max_duration.unit)

    def __str__(self) -> str:
        if self.unit == "s":
            return _print_seconds(self.value)
        return f"{1 if self.value == 1 else self.value}{self.unit}"

    def __repr__(self) -> str:
        return f"Duration.parse('{self}')"

    def __add__(self, other: Duration) -> Duration:
        if not isinstance(other, Duration):
            return NotImplemented
        self._require_same_unit(other, "add")
        return Duration(self.value + other.value, self.unit)

    # The comparisons are written out, because functools.total_ordering splits "<=" into two comparisons.
    def __lt__(self, other: Duration) -> bool:
        if not isinstance(other, Duration):
            return NotImplemented
        self._require_same_unit(other, "compare")
        return self.value < other.value

    def __le__(self, other: Duration) -> bool:
        if not isinstance(other, Duration):
            return NotImplemented
        self._require_same_unit(other, "compare")
        return self.value <= other.value

    def __gt__(self, other: Duration) -> bool:
        if not isinstance(other, Duration):
            return NotImplemented
        self._require_same_unit(other, "compare")
        return self.value > other.value

    def __ge__(self, other: Duration) -> bool:
        if not isinstance(other, Duration):
            return NotImplemented
        self._require_same_unit(other, "compare")
        return self.value >= other.value

    def _require_same_unit(self, other: Duration, verb: str) -> None:
        if self.unit == other.unit:
            return
        advice = "write both in one unit"
        if "dur" in (self.unit, other.unit):
            advice = "resolve the fraction first with .of(max_duration)"
        raise DurationError(
            f"cannot {verb} '{self}' ({_unit_name(self)}) and '{other}' ({_unit_name(other)}): {advice}."
        )


def same_scale(one: str, other: str) -> bool:
    """True if numbers in two units can be compared, as epochs and fractions of epochs can."""
    return one == other or {one, other} == {"ep", PASSES}


def _unit_name(duration: Duration) -> str:
    return UNITS.get(duration.unit, "epochs and parts of them")


def _problem(value: int | float, unit: str) -> str | None:
    """Return why a value and a unit are not a duration, or ``None``."""
    if unit not in (*UNITS, PASSES):
        return f"the unit must be one of {', '.join(UNITS)}; Duration.parse('30m') reads the others"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"the value must be an int or a float, not {type(value).__name__}"
    if problem := _out_of_range(value):
        return problem
    if unit in COUNTS and value != int(value):
        return f"{UNITS[unit]} are integers: write '{math.ceil(value)}{unit}' or another unit"
    if unit == "s" and value < _SHORTEST:
        return "it is less than a nanosecond, which no clock can measure"
    if unit == "dur" and value > 1:
        return f"a fraction of max_duration is at most 1, and {value} is more"
    return None


def _out_of_range(value: int | float) -> str | None:
    # Comparisons work for an int of any size, where math.isfinite would overflow.
    if value != value or value in (math.inf, -math.inf):
        return "it must be a finite number"
    if value <= 0:
        return "a duration must be more than zero"
    return f"it is too large: at most {_LARGEST}" if value > _LARGEST else None


def _read(text: str) -> tuple[int | float, str]:
    """Return the number and the unit of a string. Minutes, hours and days become seconds."""
    parts = _split(text)
    units = [unit for _, unit in parts]
    if len(units) > 1 and units != [unit for unit in _SECONDS_IN if unit in units]:
        raise _unreadable(text, "only d, h, m and s can be joined, in this order and each once, as in '1d12h'")
    # With floats, '1h0.1s' would not be 3600.1. The context is separate, because the user's context may round or raise.
    # It overflows to infinity, which is then refused, so '1e999999999st' costs nothing.
    with localcontext(Context(prec=40, traps=[])):
        total = sum((Decimal(number) * _SECONDS_IN.get(unit, 1) for number, unit in parts), Decimal(0))
        whole = total.is_finite() and abs(total) <= _LARGEST and total == total.to_integral_value()
        value = int(total) if whole else float(total)
    return value, "s" if units[0] in _SECONDS_IN else units[0]


def _split(text: str) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise _unreadable(text, "it must be a number and a unit, such as '10ep' or '1h30m'")
        number, unit = match["number"], match["unit"]
        if not unit:
            raise _without_unit(number, float(number))
        if unit not in _NAMES:
            raise _unreadable(text, _unknown_unit(number, unit))
        parts.append((number, unit))
        position = match.end()
    if not parts:
        raise _unreadable(text, "it is empty: write a number and a unit, such as '10ep'")
    return parts


def _print_seconds(value: int | float) -> str:
    if value < 60:
        return f"{value}s"
    # A float of at least 60 that is not an integer prints as digits, a point and digits, without an exponent.
    digits, _, fraction = str(value).partition(".")
    rest, printed = int(digits), ""
    for unit in ("d", "h", "m"):
        amount, rest = divmod(rest, _SECONDS_IN[unit])
        printed += f"{amount}{unit}" if amount else ""
    if fraction:
        return f"{printed}{rest}.{fraction}s"
    return f"{printed}{rest}s" if rest else printed


def _unreadable(text: str, problem: str) -> DurationError:
    return DurationError(f"{reprlib.repr(text)} is not a duration: {problem}. {_HELP}")


def _unknown_unit(number: str, unit: str) -> str:
    word = unit.lower()
    problem = f"{reprlib.repr(unit)} is not a unit"
    if word in _ADVICE:
        return f"{problem}: {_ADVICE[word]}"
    meant = word if word in _NAMES else _WORDS.get(word)
    return f"{problem}: write '{number}{meant}' ({_NAMES[meant]})" if meant else problem


def _not_text(given: object) -> DurationError:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        # NumPy numbers would print with their type.
        given = float(given) if isinstance(given, float) else int(given)
        return _without_unit(reprlib.repr(given), given)
    shown = f"{reprlib.repr(given)} ({type(given).__name__})"
    return DurationError(f"{shown} is not a duration: write a text such as '10ep' or '1h30m'. {_HELP}")


def _without_unit(shown: str, number: int | float) -> DurationError:
    if _out_of_range(number):
        advice = "write a positive number and a unit, such as '5ep' (epochs)"
    elif number == int(number):
        advice = f"write '{shown}ep' (epochs) or '{shown}st' (steps)"
    elif number < 1:
        advice = f"write '{shown}dur' (a fraction of max_duration) or '{shown}s' (seconds)"
    else:
        advice = f"write '{shown}h' (hours) or '{shown}s' (seconds)"
    return DurationError(f"{shown} has no unit: {advice}. {_HELP}")
