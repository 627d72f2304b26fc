"""Warn about a callback that blocks a run.

A thread reads the stack of the loop every few seconds. It knows the code object of each hook, and finds the hook whose
code is on the stack. So a call of a hook costs nothing extra.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from hookline.distributed.stacks import is_in_collective, stack_of
from hookline.distributed.watchdog import looks
from hookline.events import Line, Member
from hookline.events.spec import SCOPES
from hookline.events.validate import overridden
from hookline.events.when import Gate
from hookline.loop.world.ranks import progress_of
from hookline.progress import Clock

logger = logging.getLogger("hookline")

BLOCKED_AFTER_S: Final = 30.0
LOOKS: Final = 6
"""Number of times that the thread reads the stack in ``BLOCKED_AFTER_S``."""
JOIN_S: Final = 5.0
"""Longest wait for the thread, which may hang in a warning that cannot be written."""
_LOOP: Final = str(Path(__file__).parents[1]) + os.sep
_EVENTS: Final = str(Path(__file__).parents[2] / "events") + os.sep


@contextmanager
def blocked_hooks_named(line: Line[Any], clock: Clock) -> Iterator[None]:
    """Warn about each hook call inside the block that blocks the calling thread, once per call.

    Args:
        line: The callbacks of the run.
        clock: The clock of the run.
    """
    end = threading.Event()
    watch = _Watch(line, clock, threading.get_ident(), BLOCKED_AFTER_S)
    thread = threading.Thread(target=watch.run, args=(end,), name="hookline-hooks", daemon=True)
    thread.start()
    process = os.getpid()
    try:
        yield
    finally:
        if process == os.getpid():  # A forked child has no such thread, and the lock of the event may be held.
            end.set()
            thread.join(JOIN_S)


class _Watch:
    """A thread's watch over another thread: it reads that thread's stack and finds hooks on it."""

    def __init__(self, line: Line[Any], clock: Clock, thread: int, limit: float) -> None:
        self._line, self._clock, self._thread, self._limit = line, clock, thread, limit
        self._known: tuple[int, ...] = ()
        self._hooks: dict[CodeType, list[tuple[Member[Any], str]]] = {}

    def run(self, end: threading.Event) -> None:
        call: object = None
        since, warned = 0.0, False
        for now, was_paused in looks(end, self._limit / LOOKS):
            found = self._look()
            if found is None or found[0] != call or was_paused:
                call, since, warned = None if found is None else found[0], now, False
            elif now - since >= self._limit and not warned:
                warned = True
                name, where = found[1:]
                logger.warning(
                    "%s blocks the run: it has been running for %.0f s at step %d, in %s",
                    name,
                    now - since,
                    self._clock.step,
                    where,
                )

    def _look(self) -> tuple[object, str, str] | None:
        """Return the hook call that the thread is in: its identity, its name and its position.

        Return ``None`` for a hook that waits for other ranks, or that has called the loop, for example for an
        evaluation. Such a hook does not block the run.
        """
        members = self._line.members
        # The main thread may compile the line at the same time, so the hooks may have changed since the last look.
        known = (id(members), *(len(member.calls) for member in members))
        if known != self._known:
            self._known, self._hooks = known, _hooks_by_code(members)
        stack = stack_of(self._thread)
        for depth, frame in enumerate(stack):
            if candidates := self._hooks.get(frame.f_code):
                if is_in_collective(stack[:depth]):
                    return None
                member, hook = candidates[0] if len(candidates) == 1 else _one_of(candidates, frame)
                where = _place(frame) if depth == 0 else f"{_place(frame)}, now in {_place(stack[0])}"
                # The id of the frame does not identify a call: Python reuses the memory for the next frame.
                return (id(frame), member.key, hook, progress_of(self._clock)), f"{member.name}.{hook}", where
            if frame.f_code.co_filename.startswith(_LOOP):
                return None
        return None


def _hooks_by_code(members: list[Member[Any]]) -> dict[CodeType, list[tuple[Member[Any], str]]]:
    found: dict[CodeType, list[tuple[Member[Any], str]]] = {}
    for member in members:
        any_event = _code_of(overridden(member.callback, "on_event"))
        hooks = [("on_event", any_event)]
        hooks += [(scope.hook, _code_of(overridden(member.callback, scope.hook))) for scope in SCOPES]
        for event, calls in list(member.calls.items()):
            hooks += [(f"on_{event}", code) for call in calls if (code := _code_of(call)) is not any_event]
        for name, code in hooks:
            if code is not None and not code.co_filename.startswith(_EVENTS):
                found.setdefault(code, []).append((member, name))
    return found


def _code_of(call: Any) -> CodeType | None:
    """Return the code that runs when an object is called, or ``None`` if it is not Python code."""
    if isinstance(call, Gate):
        call = call.call
    while isinstance(call, partial):
        call = call.func
    call = getattr(call, "__func__", call)
    code = getattr(call, "__code__", None)
    if code is None:
        code = getattr(getattr(type(call), "__call__", None), "__code__", None)  # noqa: B004 (the code is needed)
    return code if isinstance(code, CodeType) else None


def _one_of(candidates: list[tuple[Member[Any], str]], frame: FrameType) -> tuple[Member[Any], str]:
    """Return the callback, of several of one class, whose hook runs in the frame."""
    first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_varnames else None
    return next((found for found in candidates if found[0].callback is first), candidates[0])


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
