"""A line without an engine: the smallest view that the dispatcher and the filters need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hookline.events import Callback, Line, Member, Scopes
from hookline.progress import Clock, Duration


class View:
    """Stands for ``Run``: ``line.py`` needs ``member``, ``when.py`` needs the clock, the stage and the end."""

    def __init__(self, world: World, member: Member[View]) -> None:
        self.world = world
        self.member = member

    @property
    def clock(self) -> Clock:
        return self.world.clock

    @property
    def stage(self) -> str:
        return self.world.stage

    @property
    def max_duration(self) -> Duration | None:
        return self.world.max_duration

    def emit(self, event: str, **payload: object) -> None:
        self.world.line.emit_custom(event, payload)


class World:
    """A line, its scopes and a clock that stands still. ``log`` is free for the callbacks of a test."""

    def __init__(self, *callbacks: object, task: object = None, rank: int = 0, local_rank: int = 0) -> None:
        self.log: list[Any] = []
        self.stops: list[tuple[str, str]] = []
        self.now = 0.0
        self.clock = Clock(lambda: self.now)
        self.clock.start()
        self.stage = "train"
        self.max_duration: Duration | None = None
        self.line: Line[View] = Line(
            lambda member: View(self, member),
            where=lambda: f"step {self.clock.step}",
            stop=lambda reason, by: self.stops.append((reason, by.name)),
            rank=rank,
            local_rank=local_rank,
        )
        self.scopes = Scopes(self.line)
        self.line.add(callbacks, task=task)

    def emit(self, *events: str) -> None:
        for event in events:
            self.line.emit(getattr(self.line.hooks, event))

    def heard(self, event: str) -> list[str]:
        """The names of those who hear an event, in order."""
        return [run.member.name for _, run in getattr(self.line.hooks, event)]

    def member(self, callback: object) -> Member[View]:
        return next(member for member in self.line.members if member.callback is callback)

    def remove(self, callback: object) -> None:
        self.line.remove(self.member(callback))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """As the loop does it: enter, the body, leave, also on an error."""
        mark = len(self.scopes)
        try:
            self.scopes.enter(getattr(self.line.hooks, f"around_{name}"))
            yield
        except BaseException as error:
            self.scopes.leave(mark, because=error)
            raise
        self.scopes.leave(mark)


@pytest.fixture(scope="session")
def world() -> Callable[..., World]:
    return World


@pytest.fixture(scope="session")
def hearing() -> Callable[..., Callback]:
    """``hearing("train_start", name="a", reads=(...))``: a callback that writes its name and the event into the log."""

    def make(*hooks: str, **declared: Any) -> Callback:
        def hook(event: str) -> Callable[..., None]:
            return lambda self, run: run.world.log.append((self.name or type(self).__name__, event))

        cls = type("Hearing", (Callback,), {f"on_{event}": hook(event) for event in hooks})
        callback: Callback = cls()
        for key, value in declared.items():
            setattr(callback, key, value)
        return callback

    return make
