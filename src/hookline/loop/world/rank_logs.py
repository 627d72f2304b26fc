"""What several processes log: which rank says it, and not the same from all of them."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hookline.distributed import Group


class _OfRank(logging.Filter):
    """Rank zero says everything. Another says it with a mark, unless some rank has said the very same before it."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group, self._said = group, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        text = f"{record.levelname} {record.getMessage()}"
        digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).hexdigest()
        self._said[digest] += 1  # what is said again and again is counted on each rank
        first = self._is_first(f"said/{digest}/{self._said[digest]}")
        if self._group.rank:
            record.msg, record.args = f"[rank{self._group.rank}] {record.getMessage()}", None
        return first or not self._group.rank

    def _is_first(self, key: str) -> bool:
        try:
            return self._group.store.add(key, 1) == 1
        except RuntimeError:  # the store is gone, and others may be: nothing is to be lost
            return True


@contextmanager
def rank_logs(group: Group) -> Iterator[None]:
    """While a run is open: ``[rank1] …`` before each line of the logger, in all processes but the first."""
    logger, of_rank = logging.getLogger("hookline"), _OfRank(group)
    logger.addFilter(of_rank)
    try:
        yield
    finally:
        logger.removeFilter(of_rank)
