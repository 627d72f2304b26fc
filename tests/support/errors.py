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
    failures, number = [], 0
    for label, call, pattern in rows:
        number += 1
        try:
            call()
        except Exception as error:
            if not isinstance(error, kind) or not re.search(pattern, str(error)):
                failures.append(f"{label}: {type(error).__name__}: {error}")
        else:
            failures.append(f"{label}: no error")
    assert number, "there are no rows"
    return failures
