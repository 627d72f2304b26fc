"""``check_callback``: check a callback against the contract of all callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Final

from hookline.errors import SetupError, error_text
from hookline.events import Callback
from hookline.testing.rules import RULES
from hookline.testing.scenes import tried_out
from hookline.testing.states import RuleError

CALLBACK_RULES: Final = tuple(RULES)
"""Names of all rules, for a test that is parametrized by rule."""


def check_callback(
    factory: Callable[[], Callback], *, skip: Iterable[str] = (), rules: Iterable[str] = CALLBACK_RULES
) -> None:
    """Check that a callback keeps the contract, in about forty tiny runs.

    The runs log ``loss`` and ``acc`` of ``train``, ``val`` and ``test``. The rules are:

    - ``constructs``, ``declares``, ``registers``, ``docstring``, ``state_key``, ``copies``, ``pickles``: the
      constructor has no side effects, declared attributes have the right types, and the example in the docstring runs.
    - ``events``, ``fit``, ``accumulate``, ``stop``, ``second_fit``, ``evaluate``, ``predict``, ``own_loops``: the
      callback works with every event and every entry point.
    - ``optional``: an optional callback requests nothing.
    - ``files``: the callback writes to ``run.folder`` only.
    - ``fresh``, ``state``, ``reuse``: instances share no state, an instance can load the state of another one, and
      a second run starts without the state of the first.
    - ``interrupt``, ``resume``: the callback continues after Ctrl-C, and a resumed run ends like an uninterrupted one.
    - ``metrics``: a callback that declares which metrics it writes logs no others.
    - ``weights``, ``random``, ``modes``, ``leaves``: the callback changes nothing that it does not declare.
    - ``failure``: the callback does not raise a second error when the run fails.

    Args:
        factory: Function that returns a new callback: a class, or ``lambda: MyCallback(every="2st")``.
        skip: Names of rules to skip.
        rules: Names of rules to check. By default, all of them (``hookline.testing.CALLBACK_RULES``).

    Raises:
        AssertionError: If the callback breaks a rule. The message names the callback and the rule.
        SetupError: If ``skip`` or ``rules`` contains a name that is not a rule.

    Example:
        >>> from hookline.callbacks import EarlyStopping
        >>> check_callback(lambda: EarlyStopping("val/loss", patience=2), skip=("docstring",))
    """
    left_out, chosen = _names(skip, "skip"), _names(rules, "rules")
    maker = _Maker(factory)
    for name, check in RULES.items():
        if name in left_out or name not in chosen:
            continue
        try:
            with tried_out():
                check(maker)
        except RuleError as broken:
            raise AssertionError(f"{maker.name} breaks the rule {name!r}: {broken}") from broken.__cause__
        except Exception as error:
            raise AssertionError(f"{maker.name} breaks the rule {name!r}: it raised {error_text(error)}") from error


def _names(given: Iterable[str], argument: str) -> tuple[str, ...]:
    """Return the names of rules. An unknown name raises an error with a suggestion."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in RULES:
            close = get_close_matches(name, RULES, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"The rules are {', '.join(RULES)}."
            raise SetupError(f"check_callback({argument}={name!r}): no such rule. {hint}")
    return names


class _Maker:
    """The factory and the name of its latest callback.

    Another call only for the name could have side effects.
    """

    def __init__(self, factory: Callable[[], Callback]) -> None:
        self._factory = factory
        self.name: str = getattr(factory, "__qualname__", repr(factory))

    def __call__(self) -> Callback:
        callback = self._factory()
        with suppress(Exception):
            self.name = repr(callback)
        return callback
