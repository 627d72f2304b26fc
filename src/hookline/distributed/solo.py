"""A group of one process: every collective gives back what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from hookline.distributed.group import Group

T = TypeVar("T")


class SoloGroup:
    """The collectives of ``Group`` for a run in one process, so that callers need not ask how many there are."""

    rank = local_rank = 0
    size = 1
    broken = False

    def exchange(self, value: Any) -> list[Any]:
        """The value of each rank."""
        return [value]

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of each rank."""
        return [data]

    def from_zero(self, value: T) -> T:
        """Rank zero's value."""
        return value

    def total(self, values: Tensor) -> Tensor:
        """The sums over all ranks."""
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The largest of each value over all ranks."""
        return values

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the values of rank zero."""

    def barrier(self) -> None:
        """Wait for all ranks."""


AnyGroup = Group | SoloGroup
