"""``LogObject``: a sink for objects with ``log(dict, step)``, and ``as_sink``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.events.arguments import checked_init
from hookline.records import MetricRow, Record
from hookline.sinks.sink import RunInfo, Sink

METHODS = ("start", "write", "flush", "close")
BY_TEXT = {
    "console": "Console()",
    "csv": "CSV()",
    "json": "JSONL('copy.jsonl')",
    "jsonl": "JSONL('copy.jsonl')",
    "memory": "Memory()",
    "mlflow": "MLflow()",
    "stdout": "Console()",
    "tb": "TensorBoard()",
    "tensorboard": "TensorBoard()",
    "wandb": "WandB()",
}


class LogObject:
    """Pass metrics to an object with ``log(values, step)``, such as a ``wandb`` run.

    Hookline calls ``log`` once per group of metrics of a step, with ``{name: value}``. Other records are passed
    one by one to ``log_record(record)``, if the object has this method. ``flush`` and ``close`` are called if
    they exist. In ``sinks=[…]``, pass the object itself: Hookline wraps it.

    Args:
        target: The object. ``step`` is passed by keyword if ``log`` accepts it, else by position.

    Raises:
        ArgumentError: If ``log`` cannot be called with these two arguments.

    Example:
        >>> class Mine:
        ...     def log(self, values, step):
        ...         print(step, values)
        >>> sink = LogObject(Mine())
        >>> sink.write([MetricRow(name, 10, 1, 0.5, "eval", 2.5) for name in ("val/loss", "val/acc")])
        10 {'val/loss': 0.5, 'val/acc': 0.5}
    """

    @checked_init
    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = getattr(target, "__name__", None) or type(target).__name__
        self._by_name = _takes_step_by_name(target)
        self._batch: Sequence[Record] = ()
        self._taken = 0

    def start(self, info: RunInfo) -> None:
        """Do nothing: the user has created and started the object."""

    def write(self, records: Sequence[Record]) -> None:
        if records is not self._batch:  # On a retry, skip the records that the object already has.
            self._batch, self._taken = records, 0
        give_other = getattr(self.target, "log_record", None)
        for step, group in groupby(records[self._taken :], key=_step_of_metric):
            rows = list(group)
            if step is not None:
                self._log({row.name: row.value for row in rows if isinstance(row, MetricRow)}, step)
                self._taken += len(rows)
            else:
                self._give(rows, give_other)
        self._batch = ()

    def _log(self, values: dict[str, Any], step: int) -> None:
        """Pass the metrics of one step."""
        if self._by_name:
            self.target.log(values, step=step)
        else:
            self.target.log(values, step)

    def _give(self, rows: Sequence[Record], give: Callable[[Record], object] | None) -> None:
        """Pass other records one by one."""
        for row in rows:
            if give is not None:
                give(row)
            self._taken += 1

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str) -> None:
        """Call a method of the object, if it exists."""
        method = getattr(self.target, name, None)
        if callable(method):
            method()


def as_sink(given: Any, of: str = "Trainer") -> Sink:
    """Return an element of ``sinks=[…]`` as a sink.

    Args:
        given: The element: a sink, or an object with ``log(values, step)``.
        of: Class or function that takes the sinks, for the error.

    Raises:
        ArgumentError: If the element is not a sink. The message says what to write instead.

    Example:
        >>> class Mine:
        ...     def log(self, values, step): ...
        >>> type(as_sink(Mine())).__name__
        'LogObject'
    """
    if isinstance(given, type):
        raise ArgumentError(f"{of}(sinks=[{given.__name__}]): is a class. Write sinks=[{given.__name__}(…)].")
    if isinstance(given, str):
        raise ArgumentError(f"{of}(sinks=[{given!r}]): is a string. {_for_text(given)}.")
    if isinstance(given, Callback):
        raise ArgumentError(f"{of}(sinks=[{given!r:.80}]): is a callback. Write callbacks=[…].")
    if isinstance(given, logging.Logger):
        raise ArgumentError(
            f"{of}(sinks=[{given!r:.80}]): is a logger of messages. For lines of text write sinks=[hl.sinks.Console()]."
        )
    if isinstance(given, Sink):
        return given
    if callable(getattr(given, "log", None)):
        return LogObject(given)
    raise ArgumentError(f"{of}(sinks=[{given!r:.80}]): {_what_lacks(given)}.")


def _for_text(text: str) -> str:
    """Return the advice for a string."""
    call = BY_TEXT.get(text.lower().replace("-", "").replace("_", ""))
    if call is None:
        return f"Give the object: sinks=[hl.sinks.TensorBoard()], or one of {', '.join(sorted(set(BY_TEXT.values())))}"
    return f"Write sinks=[hl.sinks.{call}]"


def _what_lacks(given: Any) -> str:
    """Return what an object lacks to be a sink."""
    there = [name for name in METHODS if callable(getattr(given, name, None))]
    missing = ", ".join(name for name in METHODS if name not in there)
    if hasattr(given, "write") and hasattr(given, "flush") and "start" not in there:
        return "is a stream. To print lines to it, write sinks=[hl.sinks.Console(stream)]"
    if there:
        return f"a {type(given).__name__} has {', '.join(there)} but no {missing}. A sink needs them all"
    return (
        f"a {type(given).__name__} is not a sink. It needs {', '.join(METHODS)}, or log(values, step), "
        f"for example sinks=[hl.sinks.TensorBoard()]"
    )


def _takes_step_by_name(target: Any) -> bool:
    """True to call ``log(values, step=…)``, False to call ``log(values, step)``."""
    try:
        signature = inspect.signature(target.log)
    except (TypeError, ValueError):  # Functions written in C may have no signature.
        return False
    for by_name in (True, False):
        try:
            signature.bind({}, step=0) if by_name else signature.bind({}, 0)
        except TypeError:
            continue
        return by_name
    raise ArgumentError(
        f"LogObject(target={target!r:.80}): its log{signature} cannot be called as log(values, step). "
        f"Give it these two arguments, or wrap it in an object that has such a method."
    )


def _step_of_metric(row: Record) -> int | None:
    """Return the step of a metric, or ``None`` for other records."""
    return row.step if isinstance(row, MetricRow) else None
