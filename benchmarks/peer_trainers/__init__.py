"""The same training by each library, with its own usual means. One module per library, all with the same names.

A module imports its library, so ``peer_worker.py`` imports it by name, in the environment of that library.

``LOGS`` and ``SAVES`` name what ``train_and_log`` and ``saves`` use. Progress bars are off where the library can do so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader


class Loader(DataLoader[Any]):
    """A ``DataLoader`` for libraries that take nothing else. It gives the batches as they are, at no cost."""

    def __init__(self, batches: Any) -> None:
        super().__init__(batches, batch_size=32)  # Composer makes micro-batches of this size
        self._given = batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def seconds(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start
