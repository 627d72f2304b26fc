"""Alert conditions on metrics: ``"val/loss > 2"``, ``"train/loss is not finite"``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from hookline.callbacks._monitor import check_metric_name
from hookline.errors import RegistrationError

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
NOT_FINITE = "is not finite"
_COMPARISON = re.compile(r"(?P<metric>\S+)\s*(?P<sign>>=|<=|>|<)\s*(?P<value>\S+)")


@dataclass(frozen=True, slots=True)
class Alert:
    """One condition. ``text`` is the condition as the user wrote it."""

    text: str
    metric: str
    sign: str
    value: float = math.nan

    def holds(self, value: float) -> bool:
        """True if the value meets the condition. NaN meets no comparison.

        Example:
            >>> Alert.parse("val/loss > 2").holds(2.5), Alert.parse("val/loss is not finite").holds(math.nan)
            (True, True)
        """
        return not math.isfinite(value) if self.sign == NOT_FINITE else SIGNS[self.sign](value, self.value)

    @classmethod
    def parse(cls, text: str) -> Alert:
        """Return the condition that a string describes."""
        alert = cls._read(text.strip() if isinstance(text, str) else "")
        if alert is not None:
            check_metric_name(f"Notify(alerts={text!r})", alert.metric)
            return alert
        raise RegistrationError(
            f"Notify(alerts={text!r}): write a metric, one of {', '.join(SIGNS)} and a number, such as 'val/loss > 2'; "
            f"or 'train/loss {NOT_FINITE}'"
        )

    @classmethod
    def _read(cls, words: str) -> Alert | None:
        """Return the condition, or ``None`` if the string is not one."""
        if words.endswith(NOT_FINITE) and len(words.split()) == 4:
            return cls(words, words.split()[0], NOT_FINITE)
        found = _COMPARISON.fullmatch(words)
        try:
            if found is not None and not math.isnan(value := float(found["value"])):
                return cls(words, found["metric"], found["sign"], value)
        except ValueError:
            pass
        return None
