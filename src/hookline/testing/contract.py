"""``check_callback``: the contract that every callback keeps, and that yours can be held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches

from hookline.errors import SetupError, words_of
from hookline.events import Callback
from hookline.testing.rules import RULES
from hookline.testing.scenes import tried_out
from hookline.testing.states import RuleError


def check_callback(factory: Callable[[], Callback], *, skip: Iterable[str] = ()) -> None:
    """Hold a callback to the contract, in some forty tiny runs; an ``AssertionError`` names callback and rule.

    ``factory`` makes a new callback each time: a class, or ``lambda: MyCallback(every="2st")``. Metrics that the runs
    know: ``loss`` and ``acc`` of ``train``, ``val`` and ``test``. ``skip`` leaves out rules by name:

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

    >>> from hookline.callbacks import EarlyStopping
    >>> check_callback(lambda: EarlyStopping("val/loss", patience=2), skip=("docstring",))
    """
    skip = (skip,) if isinstance(skip, str) else tuple(skip)
    for name in skip:
        if name not in RULES:
            close = get_close_matches(name, RULES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the rules are {', '.join(RULES)}"
            raise SetupError(f"check_callback(skip=…): no rule {name!r}; {hint}")
    maker = _Maker(factory)
    for name, check in RULES.items():
        if name in skip:
            continue
        try:
            with tried_out():
                check(maker)
        except RuleError as broken:
            raise AssertionError(f"{maker.name} breaks the rule {name!r}: {broken}") from broken.__cause__
        except Exception as error:
            raise AssertionError(f"{maker.name} breaks the rule {name!r}: it raised {words_of(error)}") from error


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
