"""Evaluation and prediction over several ranks: each sample once, on one of them, and as many batches on all.

A rank that has one batch less than others computes one more, because others may need it: a sharded model gathers its
weights in each forward. Nobody hears of that batch, and what is logged, measured or predicted in it counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from hookline.checkpoint.packing import pack, unpack
from hookline.errors import DataError, StateError
from hookline.loop.data import SharedFeed, shared_feed_of
from hookline.loop.data.batches import END, LEFT, begun, first_tensor, to_device
from hookline.loop.data.seeding import mix
from hookline.loop.data.stripes import Share
from hookline.run import MISSING

if TYPE_CHECKING:
    from hookline.loop.loop import Loop
    from hookline.loop.world.world import World

EVALUATION = 4
"""Keeps the seeds of evaluations apart from those of training."""
_LENGTH = 8


def open_parts(loop: Loop, world: World, loader: Any, limit: int | None) -> SharedFeed:
    """This rank's part of a loader. Its order is the same on all ranks, also of one that shuffles."""
    seed, stage = mix(loop.session.data.seed, EVALUATION), loop.state.stage
    share = Share(*world.shares)
    feed = shared_feed_of(loader, seed=seed, circle=world.group, share=share, evaluates=stage, count=loop.count)
    feed.limit = min(limit or math.inf, loop.data.limit(stage))
    return feed


def fetched_parts(loop: Loop, world: World, feed: SharedFeed, fetch: Callable[[Iterator[Any]], Any]) -> Iterator[Any]:
    """The batches of this rank between the events of their fetch; of one that does not count there are none."""
    line, move, before = loop.line, loop.move, loop.part
    try:
        parts = begun(lambda: feed.iterate(loop.clock.step, 0))
        idle, ends = feed.begins_idle, False
        while not ends:
            if line.hooks.batch_fetch_start and not idle:
                line.emit(line.hooks.batch_fetch_start)
            part = fetch(parts)
            if part is LEFT or part is END:
                return
            world.beat()
            loop.part = part
            loop.state.batch = part.batch if move is None else move(part.batch)
            if line.hooks.batch_fetch_end and part.counts:
                line.emit(line.hooks.batch_fetch_end)
            yield loop.state.batch
            ends, idle = part.is_last, part.then_idle or not part.counts
    finally:
        loop.part = before
        feed.close()


def idle_batch(loop: Loop, batch: Any) -> Generator[Any, None, None]:
    """One that is computed only because the others compute one."""
    state, book = loop.state, loop.session.book
    state.outputs = MISSING
    loop.state.samples, loop.state.tokens = loop.count(batch)
    book.mute()
    try:
        with loop.precision.autocast(enabled=loop.precision.dtype is not None):
            yield batch
    finally:
        book.unmute()
        state.batch = state.outputs = MISSING


def all_predictions(loop: Loop, world: World, mine: list[Any]) -> list[Any]:
    """By all: the predictions of all ranks for each batch, in the loader's order, from those of this one."""
    said = [_opened(data) for data in world.group.gather(_sealed(world.shares[1], mine))]
    by_share = dict(reversed(said))  # ranks with the same data have the same
    each = [by_share[part] for part in sorted(by_share)]
    rounds = range(max(map(len, each)))
    found = [batches[index] for index in rounds for batches in each if index < len(batches)]
    return [to_device(its["found"], loop.state.device) if its["on_device"] else its["found"] for its in found]


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
