"""Evaluation and prediction over several ranks: each sample once, on one of them, and as many batches on all.

A rank that has one batch less than others computes one more, because others may need it: a sharded model gathers its
weights in each forward. Nobody hears of that batch, and what is logged, measured or predicted in it counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hookline.checkpoint.packing import pack, unpack
from hookline.errors import DataError, StateError
from hookline.loop.data import SharedFeed, shared_feed_of
from hookline.loop.data.batches import first_tensor, to_device
from hookline.loop.data.seeding import mix
from hookline.loop.data.stripes import Share
from hookline.loop.world.world import World

Count = Callable[[Any], tuple[int, int | None]]
EVALUATION = 4
"""Keeps the seeds of evaluations apart from those of training."""
_LENGTH = 8


def open_shard(loader: Any, world: World, seed: int, stage: str, count: Count, limit: float) -> SharedFeed:
    """Return the shard of a loader for this rank. Its order is the same on all ranks, also of one that shuffles.

    Args:
        loader: The loader.
        world: The processes of the run.
        seed: The seed of the run.
        stage: The stage of the run.
        count: Counts the samples and tokens of a batch.
        limit: The largest number of batches.
    """
    share = Share(*world.shares)
    feed = shared_feed_of(
        loader, seed=mix(seed, EVALUATION), circle=world.group, share=share, evaluates=stage, count=count
    )
    feed.set_limit(limit)
    return feed


def shards_of_predictions(world: World, device: torch.device, mine: list[Any]) -> list[Any]:
    """By all: the predictions of all ranks for each batch, in the loader's order, from those of this rank."""
    said = [_opened(data) for data in world.group.gather(_sealed(world.shares[1], mine))]
    by_share = dict(reversed(said))  # ranks with the same data have the same
    each = [by_share[part] for part in sorted(by_share)]
    rounds = range(max(map(len, each)))
    found = [batches[index] for index in rounds for batches in each if index < len(batches)]
    return [to_device(its["found"], device) if its["on_device"] else its["found"] for its in found]


def _sealed(part: int, predictions: list[Any]) -> bytes:
    """The share, then each batch on its own: what is packed at once has a largest size."""
    pieces = [part.to_bytes(_LENGTH, "little")]
    for prediction in predictions:
        tensor = first_tensor([prediction])
        on_device = tensor is not None and tensor.device.type != "cpu"
        try:
            piece = pack({"on_device": on_device, "found": prediction})
        except StateError as error:
            raise DataError(
                f"predictions go from rank to rank, and one cannot be sent ({error}): let predict_batch return "
                f"tensors, numbers and texts, in dicts, lists and tuples; or predict in your own loop "
                f"(loop.predict_batches) with PredictionWriter(columns=…), which writes on each rank"
            ) from error
        pieces += [len(piece).to_bytes(_LENGTH, "little"), piece]
    return b"".join(pieces)


def _opened(data: bytes) -> tuple[int, list[Any]]:
    part, at, found = int.from_bytes(data[:_LENGTH], "little"), _LENGTH, []
    while at < len(data):
        start = at + _LENGTH
        at = start + int.from_bytes(data[at:start], "little")
        found.append(unpack(data[start:at]))
    return part, found
