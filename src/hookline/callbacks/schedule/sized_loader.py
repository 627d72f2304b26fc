"""The same data in batches of another size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hookline.errors import SetupError, kind_of


def check_can_resize(loader: Any, who: str) -> None:
    """Only what is known to the last detail can be made anew in another size."""
    why = _why_not(loader)
    if why:
        raise SetupError(
            f"{who} cannot make the training loader in another size: {why}; "
            f"say how with make_loader=lambda size: DataLoader(…, batch_size=size)"
        )


def _why_not(loader: Any) -> str:
    if type(loader) is not DataLoader:
        return f"it is {kind_of(loader)}, not a plain DataLoader"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "it has a batch sampler of its own, or none"
    return (
        "its data set is iterable, and may count batches itself" if isinstance(loader.dataset, IterableDataset) else ""
    )


def resized(loader: DataLoader[Any], size: int) -> DataLoader[Any]:
    """A loader like this one, sampler included, with batches of this size."""
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
    """The largest size that makes sense: no more than there are samples."""
    try:
        return max(1, min(limit, len(loader.sampler)))
    except (AttributeError, TypeError):
        return limit
