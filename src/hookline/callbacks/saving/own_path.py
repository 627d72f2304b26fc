"""Two callbacks that would write one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def check_own(run: Run, callback: Any, kind: type, paths: Callable[[Any], Iterable[Path]], option: str) -> None:
    """That no other callback of this kind has one of its paths; ``option`` is where the user gives another."""
    mine = {path.resolve() for path in paths(callback)}
    for other in run.callbacks:
        if other is callback or not isinstance(other, kind):
            continue
        if shared := mine & {path.resolve() for path in paths(other)}:
            raise SetupError(
                f"two {kind.__name__} write to {str(min(shared))!r}, and each would replace what the other has "
                f"written; give one of them another {option}"
            )
