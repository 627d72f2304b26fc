"""What ranks do in ``test_links.py``."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from array import array
from datetime import timedelta
from typing import Any

import torch
from torch import nn

import hookline as hl
from hookline.distributed import Group, this_process
from hookline.distributed import group as group_module
from hookline.distributed import links as links_module
from hookline.testing import TinyModel, tiny_data
from tests.support.inside import votes_kept

RANK = int(os.environ.get("RANK", 0))
SIZE = int(os.environ.get("WORLD_SIZE", 1))

# On a busy machine a rank may not run for a second between its knock and its word; then all would vote over gloo.
links_module.TO_CONNECT, links_module.TO_SPEAK = 60.0, 5.0  # type: ignore[misc]


def new_group(timeout: float = 30.0) -> Group:
    return Group(this_process(), torch.device("cpu"), timedelta(seconds=timeout))


def sums(rounds: int) -> dict[str, Any]:
    """Numbers of many sizes, over all ranks; and whether the ranks are connected, each two of them."""
    group, found = new_group(), []
    for number in range(rounds):
        numbers = random.Random(1000 * number + RANK)
        values = [numbers.uniform(-1, 1) * 10 ** numbers.randrange(-9, 9) for _ in range(1 + number)]
        end = group.add_up(values)
        time.sleep(0.002 * numbers.random())  # some are late
        found.append(end())
    direct = group._links is not None
    group.close()
    return {"sums": found, "direct": direct}


def on_two_machines() -> dict[str, Any]:
    links_module._this_machine = lambda: [f"machine {RANK}"]
    return sums(3)


def without_loopback() -> dict[str, Any]:
    """On one rank only: all must do without."""
    if RANK == 1:
        links_module._door = lambda: None
    return sums(3)


def with_strangers() -> dict[str, Any]:
    """Others knock at the door: one says something wrong, one says nothing, one leaves at once."""
    real, left = links_module._door, []

    def known_to_strangers() -> socket.socket | None:
        door = real()
        assert door is not None
        for words in (b"GET / HTTP/1.1\r\nHost: hookline\r\n\r\n", b"x"):
            stranger = socket.create_connection(door.getsockname())
            stranger.sendall(words)
            left.append(stranger)
        socket.create_connection(door.getsockname()).close()
        return door

    links_module._door = known_to_strangers
    return sums(3)


def held_up() -> dict[str, Any]:
    """So many strangers who say nothing knock before the others that it takes too long to turn them all away."""
    real, left = links_module._door, []
    links_module.TO_CONNECT = 1.0  # type: ignore[misc]

    def besieged() -> socket.socket | None:
        door = real()
        assert door is not None
        left.extend(socket.create_connection(door.getsockname()) for _ in range(12))
        return door

    links_module._door = besieged
    return sums(3)


def one_ends(how: str) -> list[float]:
    """Rank one does not come to the second vote."""
    group = new_group()
    group.add_up([1.0])()
    if RANK == 1:
        if how == "dies":
            os._exit(9)
        group.fail("failed with a reason")
        raise SystemExit(3)
    return group.add_up([1.0])()


def one_is_elsewhere(by: str) -> list[float]:
    """Ranks that are not at the same vote: no sums of what does not belong together."""
    group = new_group()
    if by == "number" and RANK == 1:
        assert group._links is not None
        group._links.send([1.0])
        group._links._heard[0][1] = array("d", [1.0])
        return group._links.receive(group._links.send([1.0]), [1.0])  # the second, and rank zero holds the first
    if by == "number":
        assert group._links is not None
        group._links._said = 4
    return group.add_up([1.0] if RANK or by == "number" else [1.0, 2.0])()


def one_inside_another() -> list[list[float]]:
    """Two votes under way at once, and the first is read last."""
    group = new_group()
    first = group.add_up([1.0, RANK])
    second = group.add_up([10.0])
    third = group.add_up([100, True, 0.5])  # whole numbers, too
    return [second(), third(), first()]


def in_a_hook_of_rank_zero() -> str:
    """A vote there is refused at once, though torch does not see it."""
    from hookline.distributed.guard import NoCollectives
    from hookline.errors import CollectiveError

    group = new_group()
    try:
        with NoCollectives("Zero", "on_train_step_end", "zero"):
            group.add_up([1.0])
    except CollectiveError as error:
        return str(error)
    return ""


def one_is_late() -> list[float]:
    group_module.AFTER_WATCHDOG = timedelta()  # type: ignore[misc]  # it has no watchdog to wait for
    group = new_group(timeout=5.0)
    if RANK == 1:
        time.sleep(60)
    return group.add_up([1.0])()


def woken_by_a_thread() -> list[float]:
    """As the watchdog does where another rank has said that it failed."""
    group = new_group()
    if RANK == 1:
        time.sleep(20)
    threading.Timer(0.5, group.wake).start()
    return group.add_up([1.0])()


def closed() -> int:
    """How many sockets a run leaves open."""
    kept = [new_group()]  # as a run does that is looked at later: nothing is closed because nobody holds it
    kept[0].close()
    before = len(group_module.open_sockets())  # those of the process group itself
    for _ in range(3):
        kept.append(new_group())
        assert kept[-1]._links is not None
        kept[-1].close()
    return len(group_module.open_sockets()) - before


def evaluated_before_the_step(how: str) -> dict[str, Any]:
    """In an own loop, after the backward, when the vote of the step is under way; or the same in one process."""
    data = tiny_data(4)
    pairs = zip(data[::2], data[1::2], strict=True)
    whole = [tuple(torch.cat(parts) for parts in zip(*pair, strict=True)) for pair in pairs]  # what two ranks have
    torch.manual_seed(0)
    model = TinyModel()
    model.drop.p = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    predicted = []
    with hl.Loop(model, optimizer, max_duration="4st", folder=False) as loop:
        for x, y in loop.batches(data if SIZE > 1 else whole):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            for batch in loop.eval_batches(data) if how == "evaluated" else loop.predict_batches(data):
                found = model(batch[0])
                if how == "evaluated":
                    loop.run.log({"val/loss": nn.functional.cross_entropy(found, batch[1])})
                else:
                    predicted.append(float(found.sum()))
            loop.step()
        return {
            "step": loop.run.clock.step,
            "weights": [float(value) for parameter in model.parameters() for value in parameter.detach().reshape(-1)],
            "losses": list(loop.run.history["val/loss"]) if how == "evaluated" else [],
            "predicted": predicted,
            "kept": votes_kept(loop.run),
        }


def left_by_a_handler(of: str) -> list[float]:
    """A signal handler of the user's raises while this rank waits for the other."""

    def late(*_: object) -> None:
        kinds = {"TimeoutError": TimeoutError, "ConnectionError": ConnectionError, "RuntimeError": RuntimeError}
        raise kinds[of]("my own limit")

    group = new_group()
    if RANK == 1:
        time.sleep(3)
    else:
        signal.signal(signal.SIGALRM, late)
        signal.alarm(1)
    try:
        group.add_up([1.0])()
        return group.add_up([1.0])()  # what was said for the first is there
    except BaseException as error:
        group.fail(f"failed with {error}")
        raise


def agreement_fails() -> int:
    """Of the two exchanges the second fails, when the connections are there: how many sockets stay open."""
    group, kept = new_group(), []
    before = len(group_module.open_sockets())

    def exchange(value: Any) -> list[Any]:
        if isinstance(value, bool):
            kept.append(len(group_module.open_sockets()))
            raise ValueError("in the second")
        return group.exchange(value)

    try:
        links_module.connect(RANK, SIZE, timedelta(seconds=5), exchange)
    except ValueError:
        assert kept[0] > before
        return len(group_module.open_sockets()) - before
    raise AssertionError


def gone_while_signals_end_the_process() -> None:
    """As in scripts for a pipe: a send to one who has gone is an error all the same, and not the end."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    group = new_group()
    group.add_up([1.0])()
    if RANK == 1:
        group.fail("failed with a reason")
        raise SystemExit(3)
    time.sleep(1.0)
    for _ in range(2):
        group.add_up([1.0])()
