"""Options that tests have by default."""

from __future__ import annotations

import inspect

import hookline as hl
from hookline.loop import Loop, Trainer


def set_preflight(default: bool) -> None:
    """Set the default of ``preflight``.

    Examples, pages and the tests of the pre-flight train with it. Most other tests train with what it reports: they
    evaluate on the training data, or have a learning rate of 0.
    """
    for call in (hl.fit, hl.train, hl.Trainer.__init__, Trainer.__init__, Loop.__init__):
        function = inspect.unwrap(call)
        assert function.__kwdefaults__ is not None
        function.__kwdefaults__["preflight"] = default
