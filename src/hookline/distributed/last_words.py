"""The reason of a failure, for the table of failed processes that torchrun prints.

torchrun gives each process a file for its reason. It calls the earliest failure the root cause.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path


def leave_last_words(words: str, *, is_cause: bool = True) -> None:
    """Write to torchrun's file why this process ends. Do nothing if torchrun has not started it.

    Args:
        words: The reason.
        is_cause: False if this process ends because another one has failed. torchrun compares times in whole seconds,
            so the time of a cause is rounded down and that of a consequence up: a consequence is never the earlier one.
    """
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not place:
        return
    when = (math.floor if is_cause else math.ceil)(time.time())
    told = {"message": {"message": words, "extraInfo": {"py_callstack": words, "timestamp": str(when)}}}
    part = Path(f"{place}.part")
    with suppress(OSError):
        part.write_text(json.dumps(told))
        part.replace(place)  # torchrun itself fails if it finds an incomplete file.
