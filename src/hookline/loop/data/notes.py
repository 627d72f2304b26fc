"""Notes about a loader: what is slow or not exact after a resume, and what to do."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

INSIDE = ("dataset", "datasets", "transform", "transforms", "target_transform")
"""Attributes in which data sets hold other data sets and transforms."""
DEPTH = 4


def map_notes(loader: DataLoader[Any]) -> tuple[str, ...]:
    """Return the notes about a plain loader over a map-style data set."""
    notes = [
        f"{where} is a random generator of the data set's own, whose state is not saved, so that what is drawn "
        f"from it will differ after a resume: draw from torch, random or numpy.random, which are seeded for each batch"
        for where, _ in own_generators(loader.dataset, "dataset")
    ]
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    for name, part in (("sampler", sampler), ("sampler.sampler", getattr(sampler, "sampler", None))):
        notes += [
            f"{where} is a random generator of the sampler's own, whose state is not saved, so that the order will "
            f"differ after a resume: use a torch.Generator, or draw from torch, random or numpy.random"
            for where, generator in own_generators(part, name, depth=1)
            if not isinstance(generator, torch.Generator)
        ]
        if isinstance(part, Iterator):
            notes.append(
                f"the {name} is an iterator, which is used up after one epoch: give an object with __iter__ instead"
            )
    if not loader.in_order and loader.num_workers > 1:
        notes.append(
            "in_order=False: which batch comes next depends on the speed of the workers, so that some are trained on "
            "twice and others not at all after a resume: leave it out"
        )
    return tuple(notes)


def stream_notes(loader: Any) -> tuple[str, ...]:
    """Return the notes about a loader that can be read only from its start."""
    what = type(loader).__name__
    if not isinstance(loader, DataLoader):
        return (
            f"the loader ({what}) can only be read from its beginning: a resume reads and drops the batches of the "
            f"epoch up to the saved one; give it state_dict() and load_state_dict(), or pass a DataLoader over a data "
            f"set with __getitem__",
        )
    if isinstance(loader.dataset, IterableDataset):
        why = f"its data set ({type(loader.dataset).__name__}) is iterable"
        fix = "give a data set with __getitem__, or a loader with state_dict() and load_state_dict()"
    else:
        why, fix = f"{what} is a class of its own", "give a plain torch.utils.data.DataLoader"
    notes = [
        f"the loader can only be read from its beginning, because {why}: a resume reads and drops the batches of the "
        f"epoch up to the saved one; {fix}"
    ]
    if loader.num_workers:
        notes.append(
            f"num_workers={loader.num_workers} must be the same after a resume: each worker draws random numbers, and "
            f"reads data, of its own"
        )
    if loader.num_workers and loader.persistent_workers:
        notes.append(
            "persistent_workers=True: random numbers that are drawn in the workers continue from epoch to epoch, and "
            "will differ after a resume; set it to False if there are any"
        )
    return tuple(notes)


def sequence_notes(loader: Any) -> tuple[str, ...]:
    """Return the note about a sequence that defines ``__iter__``."""
    return (
        f"{type(loader).__name__} is a sequence with a custom __iter__: a resume reads and drops the batches of "
        f"the epoch up to the saved one, and what is drawn at random in it will differ; leave __iter__ out, so that "
        f"batches are read by index",
    )


def one_shot_notes(loader: Any) -> tuple[str, ...]:
    """Return the note about an iterator."""
    return (
        f"the loader is an iterator ({type(loader).__name__}): a resume reads and drops all batches that were trained "
        f"on, and is exact only if the new process makes one that gives the same batches from the first; pass "
        f"something that can be iterated over again",
    )


def stateful_notes(loader: Any) -> tuple[str, ...]:
    """Return the notes about a loader with ``state_dict``."""
    if not getattr(loader, "num_workers", 0):
        return ()
    return (
        f"{type(loader).__name__} restores its position by itself; random numbers that are drawn in its workers "
        f"(num_workers={loader.num_workers}) may differ after a resume, unless its state_dict() holds them",
    )


def own_generators(thing: Any, where: str, depth: int = DEPTH) -> list[tuple[str, Any]]:
    """Return the random generators in a data set and its parts, each with its path.

    Hookline cannot seed them.

    >>> from types import SimpleNamespace as Thing
    >>> [where for where, _ in own_generators(Thing(transform=Thing(rng=random.Random(0))), "dataset")]
    ['dataset.transform.rng']
    """
    if depth == 0 or isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return []
    found = []
    for name, value in vars(thing).items():
        path = f"{where}.{name}"
        if _is_generator(value):
            found.append((path, value))
        elif name in INSIDE:
            many = isinstance(value, list | tuple)
            items = value.values() if isinstance(value, Mapping) else value if many else (value,)
            for index, item in enumerate(items):
                found += own_generators(item, f"{path}[{index}]" if many else path, depth - 1)
    return found


def data_parts(loader: Any, depth: int = DEPTH) -> list[object]:
    """Return a loader, its sampler, its data set, and the data sets and transforms in it."""
    found: list[object] = []
    parts = [loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)]
    for _ in range(depth):
        parts = [part for part in parts if hasattr(part, "__dict__") and not isinstance(part, type)]
        found += [part for part in parts if not any(part is other for other in found)]
        inner = [vars(part)[name] for part in parts for name in INSIDE if name in vars(part)]
        parts = [item for value in inner for item in (value if isinstance(value, list | tuple) else (value,))][:64]
    return found


def _is_generator(value: Any) -> bool:
    if isinstance(value, torch.Generator | random.Random):
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)
