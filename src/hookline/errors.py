"""All exceptions and warnings of Hookline.

A message says what is wrong, where, and how to fix it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_DESCRIBED: Final = 8
"""Maximum number of parts of a batch in an error."""


class HooklineError(Exception):
    """Base class of all errors that Hookline raises."""


class RegistrationError(HooklineError, ValueError):
    """A callback, task or filter is invalid: a misspelt hook, a wrong arity, a duplicate."""


class OrderError(RegistrationError):
    """The declared order of the callbacks is impossible: a cycle, or two writers."""


class ArgumentError(HooklineError, ValueError):
    """An argument of a callback, a sink, ``Trainer`` or ``Loop`` is invalid."""


class DurationError(ArgumentError):
    """A duration cannot be parsed, or two durations cannot be compared."""


class SetupError(HooklineError, ValueError):
    """The parts of a run do not fit together: model, optimizer, loader, duration or an argument."""


class DataError(HooklineError):
    """A loader is empty, or has fewer batches than its length."""


class LossError(HooklineError, ValueError):
    """The loss is not a scalar tensor with a gradient."""


class MetricError(HooklineError, ValueError):
    """A value cannot be logged, or a metric does not exist."""


class NotAvailableError(HooklineError, AttributeError):
    """A field of ``run`` was read at an event without a value for it, or cannot be set there."""


class RoleError(HooklineError):
    """An optional callback made a request that only required callbacks may make."""


class ScopeError(HooklineError, RuntimeError):
    """A scope or a method of ``loop`` was used at the wrong time."""


class RankError(HooklineError, RuntimeError):
    """Another rank has failed, or the ranks do not run the same steps."""


class CollectiveError(RankError):
    """A callback that runs on some ranks only called a method that all ranks must call."""


class CheckpointError(HooklineError):
    """Base class of all errors about checkpoints."""


class CheckpointNotFoundError(CheckpointError):
    """The checkpoint does not exist, or none in the folder is valid."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint or one of its files is damaged, incomplete, or differs from the manifest.

    Args:
        path: Path of the file or folder.
        reason: What is wrong with it.
        hint: What to do.
    """

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{path}: {reason}." + (f" {hint[0].upper()}{hint[1:]}." if hint else ""))
        self.path = path
        self.reason = reason
        self._hint = hint

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return type(self), (self.path, self.reason, self._hint)


class CheckpointMismatchError(CheckpointError):
    """A valid checkpoint does not fit the run: other keys, shapes, optimizers or callbacks."""


class CheckpointLockedError(CheckpointError):
    """Another run uses the folder."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written. Earlier checkpoints are unchanged.

    Args:
        path: Path of the file or folder.
        cause: The error of the operating system.
        needed: Number of bytes that the checkpoint needs.
        free: Number of free bytes, or ``None`` if unknown.
    """

    def __init__(self, path: str, cause: OSError, *, needed: int, free: int | None) -> None:
        have = "unknown" if free is None else f"{free:,} bytes"
        super().__init__(
            f"{path}: {cause.strerror or cause} (errno {cause.errno}). Needed: {needed:,} bytes, free: {have}. "
            f"Earlier checkpoints are unchanged. Free some space or give another folder."
        )
        self.path, self.errno, self.needed, self.free = path, cause.errno, needed, free
        self._cause = cause

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:  # Errors are copied and sent between processes.
        return partial(type(self), needed=self.needed, free=self.free), (self.path, self._cause)


class RecordWriteError(HooklineError):
    """A file of a run's record (``metrics.jsonl``, an image) could not be written.

    Args:
        path: Path of the file.
        cause: The error of the operating system.
        free: Number of free bytes, or ``None`` if unknown.
    """

    def __init__(self, path: str, cause: OSError, *, free: int | None) -> None:
        have = "unknown" if free is None else f"{free:,} bytes"
        self.problem = f"{path}: {cause.strerror or cause} (errno {cause.errno}). Free: {have}"
        super().__init__(
            f"{self.problem}. Free some space, or use Checkpointer(on_error='warn') to continue while the disk is full."
        )
        self.path, self.errno, self.free = path, cause.errno, free
        self._cause = cause

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return partial(type(self), free=self.free), (self.path, self._cause)


class StateError(HooklineError, ValueError):
    """The state of a callback, task or optimizer has a value that cannot be saved."""


class StopTraining(Exception):  # noqa: N818 (a request, not an error)
    """Raise it in a hook, a task or a loader to end training, like ``run.stop(reason)``.

    It also ends an evaluation, whose metrics are dropped. ``evaluate``, ``test`` and ``predict`` raise it, because a
    partial result would be wrong. With several processes, raise it only in hooks and in ``eval_batch``: elsewhere the
    other ranks would wait for this one.

    Args:
        reason: Why training stops.
    """

    def __init__(self, reason: str = "StopTraining was raised") -> None:
        super().__init__(reason)
        self.reason = reason


class Preempted(SystemExit):
    """A signal ended the run.

    The progress is saved, and the process exits with 128 + the signal.

    ``result`` is what ``fit`` would have returned.

    Args:
        signal: Number of the signal.
        checkpoint: Path of the checkpoint that was saved, if any.
    """

    def __init__(self, signal: int, *, checkpoint: Path | None = None) -> None:
        super().__init__(128 + signal)
        self.signal = signal
        self.checkpoint = checkpoint
        self.result: Any = None

    def __str__(self) -> str:
        return f"signal {self.signal} ended the run (exit code {self.code})"


class LeaveWait(BaseException):
    """Raised by a signal handler to end a wait for data at once."""


class HooklineWarning(UserWarning):
    """A problem that does not stop the run."""


class HooklineDeprecationWarning(HooklineWarning):
    """A name or an argument that a later version removes. It works until then."""


def warn_deprecated(old: str, *, instead: str, removed_in: str) -> None:
    """Warn that a later version removes a name or an argument, at the line outside Hookline that uses it.

    Args:
        old: The name or argument, as the user writes it, such as ``"EMA(rate=…)"``.
        instead: The replacement, as the user writes it.
        removed_in: The version without the old name, such as ``"0.3"``. A test fails when it is reached.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hookline":
        frame, level = frame.f_back, level + 1
    text = f"{old} is deprecated, and Hookline {removed_in} removes it. Use {instead}."
    warnings.warn(text, HooklineDeprecationWarning, stacklevel=level)


def first_of(error: BaseException | None, later: Iterable[BaseException]) -> BaseException | None:
    """Return the first error, with the later errors as notes."""
    for other in later:
        if error is None:
            error = other
        else:
            add_secondary(error, other)
    return error


def add_secondary(error: BaseException, other: BaseException) -> None:
    """Add a later error, with its own notes, as a note to the error that is raised."""
    notes = getattr(other, "__notes__", ())
    where = notes[0].removeprefix("in ").partition(" at ")[0] if notes else "the run"
    error.add_note(f"then {where} also failed: {error_text(other)}")


def add_place(error: BaseException, where: str) -> None:
    """Add a note about the position in the run, unless a hook or loader has already done so."""
    is_told = any(" at step " in note for note in getattr(error, "__notes__", ()))
    if isinstance(error, Exception) and not isinstance(error, HooklineError | StopTraining) and not is_told:
        error.add_note(f"raised at {where}")


def kind_of(value: object) -> str:
    """Return the class name of a value with its article.

    >>> kind_of(3), kind_of([])
    ('an int', 'a list')
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"  # "a" for U, as in "a UNet".


def describe(value: object) -> str:
    """Describe a value: tensors and arrays by shape, dtype, and device if it is not the CPU.

    >>> describe([3, {"x": None}])
    '[an int, {x: a NoneType}]'
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and not isinstance(value, type):
        kind = "a tensor" if hasattr(value, "requires_grad") else kind_of(value)
        device = str(getattr(value, "device", "cpu"))
        where = "" if device == "cpu" else f", {device}"
        return f"{kind} of {tuple(shape)} ({str(dtype).removeprefix('torch.')}{where})"
    if isinstance(value, Mapping):
        return f"{{{describe_arguments(value)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_cut([describe(item) for item in value[: MAX_DESCRIBED + 1]]))}]"
    return kind_of(value)


def describe_arguments(given: Mapping[str, object]) -> str:
    """Describe arguments that were passed by name."""
    return ", ".join(_cut([f"{name}: {describe(value)}" for name, value in given.items()]))


def _cut(parts: list[str]) -> list[str]:
    return parts if len(parts) <= MAX_DESCRIBED else [*parts[:MAX_DESCRIBED], "…"]


def error_text(error: BaseException) -> str:
    """Format an error as its class and message, even if its ``__str__`` raises.

    >>> error_text(ValueError("no luck")), error_text(KeyboardInterrupt())
    ('ValueError: no luck', 'KeyboardInterrupt')
    """
    try:
        text = str(error)
    except Exception as raised:
        text = f"(its __str__ raises {type(raised).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
