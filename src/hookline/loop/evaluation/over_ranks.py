"""Evaluation and prediction on several ranks.

Each sample is used once, on one rank, and all ranks compute the same number of batches. A rank that has one batch less
than the others computes a padding batch, because a sharded model gathers its weights in each forward. No hook is called
for a padding batch, and nothing that is logged, measured or predicted in it counts.
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
"""Number in the seeds of evaluations, so that they differ from the seeds of training."""
_LENGTH = 8
"""Bytes of an integer in the data that ranks exchange."""


def open_shard(loader: Any, world: World, seed: int, stage: str, count: Count, limit: float) -> SharedFeed:
    """Return the shard of a loader for this rank.

    The order of the samples is the same on all ranks, also if the loader shuffles.

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
    """Return the predictions of all ranks, batch by batch, in the loader's order.

    All ranks must call it.

    Args:
        world: The processes of the run.
        device: The device of this rank. Predictions that were on a device move to it.
        mine: The predictions of this rank, batch by batch.

    Raises:
        DataError: If a prediction cannot be sent to other ranks.
    """
    said = [_opened(data) for data in world.group.gather(_sealed(world.shares[1], mine))]
    by_share = dict(reversed(said))  # Ranks with the same data have the same predictions.
    each = [by_share[part] for part in sorted(by_share)]
    rounds = range(max(map(len, each)))
    found = [batches[index] for index in rounds for batches in each if index < len(batches)]
    return [to_device(its["found"], device) if its["on_device"] else its["found"] for its in found]


def _sealed(part: int, predictions: list[Any]) -> bytes:
    """Pack the shard's index, then each batch on its own: a packed value has a maximum size."""
    pieces = [part.to_bytes(_LENGTH, "little")]
    for prediction in predictions:
        tensor = first_tensor([prediction])
        on_device = tensor is not None and tensor.device.type != "cpu"
        try:
            piece = pack({"on_device": on_device, "found": prediction})
        except StateError as error:
            raise DataError(
                f"predictions go from rank to rank, and one cannot be sent ({error}): let predict_batch return "
                f"tensors, numbers and texts, in dicts, lists and tuples; or predict in a custom loop "
                f"(loop.predict_batches) with PredictionWriter(columns=…), which writes on each rank"
            ) from error
        pieces += [len(piece).to_bytes(_LENGTH, "little"), piece]
    return b"".join(pieces)


def _opened(data: bytes) -> tuple[int, list[Any]]:
    """Unpack the bytes that ``_sealed`` returns."""
    part, at, found = int.from_bytes(data[:_LENGTH], "little"), _LENGTH, []
    while at < len(data):
        start = at + _LENGTH
        at = start + int.from_bytes(data[at:start], "little")
        found.append(unpack(data[start:at]))
    return part, found
