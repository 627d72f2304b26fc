"""What torchrun shows last: a table of the processes that have failed, in which each may say why.

It gives each process a file for that; the first of them to write is called the root cause.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path


def leave_last_words(words: str, *, is_cause: bool = True) -> None:
    """Why this process ends, for the table; nothing where torchrun has not started it.

    ``is_cause``: not because of another. Seconds are whole ones there, so that of another is never the earlier.
    """
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not place:
        return
    when = (math.floor if is_cause else math.ceil)(time.time())
    told = {"message": {"message": words, "extraInfo": {"py_callstack": words, "timestamp": str(when)}}}
    part = Path(f"{place}.part")
    with suppress(OSError):
        part.write_text(json.dumps(told))
        part.replace(place)  # torchrun itself fails where it finds half a file
