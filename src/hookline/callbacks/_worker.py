"""``BackgroundWorker``: a thread with a bounded queue, retries and a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundWorker(Generic[Item]):
    """Handle items one after another in a thread. Only ``close`` waits, up to a deadline.

    The thread starts with the first item. It is a daemon thread, so that a server that hangs does not keep the process
    alive.

    Args:
        name: Name of the thread.
        handle: Function of an item, called in the thread.
        finished: Function of an item and the error of its last attempt, or ``None``. Called in the thread.
        pauses: Seconds before each retry of a failed item.
        max_waiting: Number of waiting items. If there are more, the oldest are dropped.
        is_final: Function of an item and an error that returns True if a retry would fail as well.
        end_pause: Seconds before each retry after ``end``. ``None``: no retries then.

    Example:
        >>> done = []
        >>> worker = BackgroundWorker("square", lambda n: done.append(n * n), lambda n, error: None, pauses=())
        >>> _ = worker.put("first", 3)
        >>> worker.close(monotonic() + 10.0), done
        ([], [9])
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Item], None],
        finished: Callable[[Item, BaseException | None], None],
        *,
        pauses: Sequence[float],
        max_waiting: int = 100,
        is_final: Callable[[Item, BaseException], bool] = lambda item, error: False,
        end_pause: float | None = None,
    ) -> None:
        self._name, self._handle, self._finished, self._is_final = name, handle, finished, is_final
        self._pauses, self._max_waiting, self._end_pause = tuple(pauses), max_waiting, end_pause
        self._waiting: dict[Hashable, Item] = {}
        self._in_hand: list[Item] = []
        self._changed = threading.Condition()
        self._ended = self._abandoned = False
        self._thread: threading.Thread | None = None

    def put(self, key: Hashable, item: Item, *, limited: bool = True) -> list[Item]:
        """Add an item without waiting, and return the items that were dropped.

        Args:
            key: An item with the same key that still waits is replaced.
            item: The item.
            limited: False if ``max_waiting`` does not apply.
        """
        with self._changed:
            self._waiting.pop(key, None)
            self._waiting[key] = item
            dropped = []
            while limited and len(self._waiting) > self._max_waiting:
                dropped.append(self._waiting.pop(next(iter(self._waiting))))
            if self._thread is None:
                self._ended = False
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return dropped

    def end(self) -> None:
        """Announce that no item follows."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def close(self, deadline: float) -> list[Item]:
        """Wait until all items are finished, or until the deadline of the monotonic clock.

        Return the items that are not finished. The thread is abandoned with them. Otherwise ``put`` can start it again.
        """
        self.end()
        thread = self._thread
        if thread is None:
            return []
        thread.join(max(0.0, deadline - monotonic()))
        with self._changed:
            self._thread, self._abandoned = None, thread.is_alive()
            left = [*self._in_hand, *self._waiting.values()] if self._abandoned else []
            self._waiting.clear()
        return left

    # -- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        """Handle items until the queue is ended and empty."""
        while self._take():
            (item,) = self._in_hand
            error = self._try(item)
            with self._changed:
                if self._abandoned:  # ``close`` has already returned this item.
                    return
                self._in_hand.clear()
                self._finished(item, error)

    def _take(self) -> bool:
        """Wait for the next item and take it. Return False at the end."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            if self._waiting and not self._abandoned:
                self._in_hand.append(self._waiting.pop(next(iter(self._waiting))))
            return bool(self._in_hand)

    def _try(self, item: Item) -> BaseException | None:
        """Handle an item with retries. Return the last error, or ``None``."""
        for pause in (*self._pauses, None):
            try:
                self._handle(item)
                return None
            except BaseException as raised:  # SystemExit, for example, would end the thread silently.
                error = raised
            if pause is None or self._is_final(item, error) or not self._wait(pause):
                break
        return error

    def _wait(self, pause: float) -> bool:
        """Wait before a retry. Return False if the time is up."""
        end = monotonic() + pause
        with self._changed:
            while not self._ended and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            if self._ended and self._end_pause is not None:
                self._changed.wait(min(self._end_pause, max(0.0, end - monotonic())))
            return not self._abandoned and (not self._ended or self._end_pause is not None)
