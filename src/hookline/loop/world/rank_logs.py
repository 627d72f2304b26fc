"""Log messages of several processes: each shows its rank, and equal messages appear once."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hookline.distributed import Group


class _OfRank(logging.Filter):
    """Filter for messages that another rank has logged. All messages of rank zero stay."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group, self._said = group, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        text = f"{record.levelname} {record.getMessage()}"
        digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).hexdigest()
        self._said[digest] += 1  # The n-th message of a rank is compared with the n-th of other ranks.
        first = self._is_first(f"said/{digest}/{self._said[digest]}")
        if self._group.rank:
            record.msg, record.args = f"[rank{self._group.rank}] {record.getMessage()}", None
        return first or not self._group.rank

    def _is_first(self, key: str) -> bool:
        try:
            return self._group.store.add(key, 1) == 1
        except RuntimeError:  # The store and other ranks may be gone. Keep the message.
            return True


@contextmanager
def rank_logs(group: Group) -> Iterator[None]:
    """Add ``[rank1]`` and so on to log messages inside the block, on all ranks but zero."""
    logger, of_rank = logging.getLogger("hookline"), _OfRank(group)
    logger.addFilter(of_rank)
    try:
        yield
    finally:
        logger.removeFilter(of_rank)
