"""Copy a loader with another batch size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hookline.errors import SetupError, kind_of


def check_can_resize(loader: Any, who: str) -> None:
    """Raise if the loader cannot be copied. Only a plain ``DataLoader`` can."""
    why = _why_not(loader)
    if why:
        raise SetupError(
            f"{who} cannot make the training loader in another size: {why}; "
            f"say how with make_loader=lambda size: DataLoader(…, batch_size=size)"
        )


def _why_not(loader: Any) -> str:
    """Return why a loader cannot be copied, or an empty string."""
    if type(loader) is not DataLoader:
        return f"it is {kind_of(loader)}, not a plain DataLoader"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "it has a batch sampler of its own, or none"
    return (
        "its data set is iterable, and may count batches itself" if isinstance(loader.dataset, IterableDataset) else ""
    )


def resized(loader: DataLoader[Any], size: int) -> DataLoader[Any]:
    """Return a copy of the loader with this batch size and the same sampler."""
    extra: dict[str, Any] = {}
    if loader.num_workers:
        extra = {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        **extra,
    )


def most(loader: Any, limit: int) -> int:
    """Return the limit, or the number of samples if it is smaller."""
    try:
        return max(1, min(limit, len(loader.sampler)))
    except (AttributeError, TypeError):
        return limit
