"""``check_callback``: the contract that every callback keeps, and that yours can be held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Final

from hookline.errors import SetupError, words_of
from hookline.events import Callback
from hookline.testing.rules import RULES
from hookline.testing.scenes import tried_out
from hookline.testing.states import RuleError

CALLBACK_RULES: Final = tuple(RULES)
"""The names of all rules, for a test that is parametrized by rule."""


def check_callback(
    factory: Callable[[], Callback], *, skip: Iterable[str] = (), rules: Iterable[str] = CALLBACK_RULES
) -> None:
    """Check that a callback keeps the contract, in about forty tiny runs.

    The runs log ``loss`` and ``acc`` of ``train``, ``val`` and ``test``. The rules:

    - ``constructs``, ``declares``, ``registers``, ``docstring``, ``state_key``, ``copies``, ``pickles``: what it is. To
      make one has no side effects, what it declares has the right types, its docstring has an example that runs;
    - ``events``, ``fit``, ``accumulate``, ``stop``, ``second_fit``, ``evaluate``, ``predict``, ``own_loops``: it
      survives every event and every way to run;
    - ``optional``: an optional callback requests nothing; ``files``: it writes to ``run.folder`` only;
    - ``fresh``, ``state``: instances share nothing; what one saves another can load;
    - ``interrupt``, ``resume``: it goes on after Ctrl-C; and in a new process it ends as if nothing had been;
    - ``metrics``: one that declares which metrics it writes logs no others;
    - ``weights``, ``random``, ``modes``, ``leaves``: what it does not declare it does not change, in the run or after;
    - ``failure``: when the run fails, it does not fail on top of that.

    Args:
        factory: Makes a new callback at each call: a class, or ``lambda: MyCallback(every="2st")``.
        skip: Names of rules to leave out.
        rules: Names of rules to check. By default, all of them (``hookline.testing.CALLBACK_RULES``).

    Raises:
        AssertionError: If the callback breaks a rule. The message names the callback and the rule.
        SetupError: If ``skip`` or ``rules`` contains a name that is not a rule.

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
            raise AssertionError(f"{maker.name} breaks the rule {name!r}: it raised {words_of(error)}") from error


def _names(given: Iterable[str], argument: str) -> tuple[str, ...]:
    """The rules that are named, or an error that suggests the right name."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in RULES:
            close = get_close_matches(name, RULES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the rules are {', '.join(RULES)}"
            raise SetupError(f"check_callback({argument}=…): no rule {name!r}; {hint}")
    return names


class _Maker:
    """The factory, and the name of what it made: to make one more for its name alone could do harm."""

    def __init__(self, factory: Callable[[], Callback]) -> None:
        self._factory = factory
        self.name: str = getattr(factory, "__qualname__", repr(factory))

    def __call__(self) -> Callback:
        callback = self._factory()
        with suppress(Exception):
            self.name = repr(callback)
        return callback
