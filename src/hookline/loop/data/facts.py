"""Facts about a training loader that determine its order, compared when a run resumes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hookline.errors import DataError
from hookline.loop.data.batches import length


class Facts(NamedTuple):
    """Facts about a plain ``DataLoader`` over a map-style data set. Empty for any other loader.

    >>> facts_of(DataLoader(list(range(6)), batch_size=2, shuffle=True))
    Facts(samples=6, sampler='RandomSampler', batch_size=2)
    """

    samples: int | None = None
    sampler: str | None = None
    batch_size: int | None = None

    def batches(self, taken: int, saved: Facts, epoch: int) -> int:
        """Convert a number of batches of the saved loader to batches of this loader.

        Args:
            taken: The number of batches of the saved loader that were read in the epoch.
            saved: The facts of the saved loader.
            epoch: The epoch, for the error.
        """
        if not taken or None in (self.batch_size, saved.batch_size) or self.batch_size == saved.batch_size:
            return taken
        samples = taken * (saved.batch_size or 1)
        whole, rest = divmod(samples, self.batch_size or 1)
        if rest:
            raise DataError(
                f"the run has had {samples} samples of epoch {epoch}, in batches of {saved.batch_size}, and "
                f"with batch_size={self.batch_size} no batch begins there: give a batch size that divides {samples}, "
                f"or resume from a checkpoint of the end of an epoch"
            )
        return whole

    def changes(self, saved: Facts) -> list[str]:
        """Return the differences that change the order of the data, in words."""
        pairs = (
            ("samples in the training data", self.samples, saved.samples),
            ("sampler", self.sampler, saved.sampler),
        )
        return [f"{what}: {then} → {now}" for what, now, then in pairs if None not in (now, then) and now != then]


def facts_of(loader: Any) -> Facts:
    """Return the facts about a loader."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return Facts()
    batched = type(loader.batch_sampler) is BatchSampler
    sampler = loader.sampler if batched or loader.batch_sampler is None else loader.batch_sampler
    return Facts(length(loader.dataset), type(sampler).__name__, loader.batch_size if batched else None)
