"""Messages of errors, checked as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def wrong_messages(kind: type[BaseException], rows: Iterable[tuple[object, Callable[[], object], str]]) -> list[str]:
    """Call each function, and return the rows that do not raise this kind of error with a message like this pattern.

    Args:
        kind: Class of the error.
        rows: A label, a function to call, and a pattern for the message.
    """
    failures = []
    for label, call, pattern in rows:
        try:
            call()
        except kind as error:
            if not re.search(pattern, str(error)):
                failures.append(f"{label}: {error}")
        else:
            failures.append(f"{label}: no error")
    return failures
