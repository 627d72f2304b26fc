"""Name the callback that blocks a run: a thread looks at the stack of the loop every few seconds.

Nothing is done per hook. The thread knows the code objects of all hooks and finds the one that is on the stack.
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
"""In that time."""
JOIN_S: Final = 5.0
"""The thread may be in the middle of a warning that cannot be written."""
_LOOP: Final = str(Path(__file__).parent) + os.sep
_EVENTS: Final = str(Path(__file__).parents[1] / "events") + os.sep


@contextmanager
def blocked_hooks_named(line: Line[Any], clock: Clock) -> Iterator[None]:
    """While it is open, a hook that blocks the calling thread is named on the console, once per call."""
    end = threading.Event()
    watch = _Watch(line, clock, threading.get_ident(), BLOCKED_AFTER_S)
    thread = threading.Thread(target=watch.run, args=(end,), name="hookline-hooks", daemon=True)
    thread.start()
    process = os.getpid()
    try:
        yield
    finally:
        if process == os.getpid():  # a child that was forked has no such thread, and its lock may be held
            end.set()
            thread.join(JOIN_S)


class _Watch:
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
        """The call of a hook that the thread is in: its identity, its name, and where it is.

        A hook that waits for other ranks, or that has asked the loop for something, such as an evaluation, is not the
        one that blocks.
        """
        members = self._line.members
        known = (id(members), *(len(member.calls) for member in members))  # the line may be compiled at this moment
        if known != self._known:
            self._known, self._hooks = known, _hooks_by_code(members)
        stack = stack_of(self._thread)
        for depth, frame in enumerate(stack):
            if candidates := self._hooks.get(frame.f_code):
                if is_in_collective(stack[:depth]):
                    return None
                member, hook = candidates[0] if len(candidates) == 1 else _one_of(candidates, frame)
                where = _place(frame) if depth == 0 else f"{_place(frame)}, now in {_place(stack[0])}"
                # The frame alone does not tell two calls apart: Python gives its memory to the next one.
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
    """The code that runs when it is called; nothing for what is not written in Python."""
    if isinstance(call, Gate):
        call = call.call
    while isinstance(call, partial):
        call = call.func
    call = getattr(call, "__func__", call)
    code = getattr(call, "__code__", None)
    if code is None:
        code = getattr(getattr(type(call), "__call__", None), "__code__", None)  # noqa: B004 (its code is asked for)
    return code if isinstance(code, CodeType) else None


def _one_of(candidates: list[tuple[Member[Any], str]], frame: FrameType) -> tuple[Member[Any], str]:
    """Of several callbacks of one class, the one whose hook this is."""
    first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_varnames else None
    return next((found for found in candidates if found[0].callback is first), candidates[0])


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
