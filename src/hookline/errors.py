"""Every exception and warning of Hookline. A message says what, where and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_DESCRIBED: Final = 8
"""Parts of a batch that an error describes."""


class HooklineError(Exception):
    """The base of every error that Hookline itself raises."""


class RegistrationError(HooklineError, ValueError):
    """A callback, task or filter is wrong in itself: a misspelt hook, a wrong arity, a double."""


class OrderError(RegistrationError):
    """The declared order of the callbacks cannot be had: a cycle, or two writers of one thing."""


class ArgumentError(HooklineError, ValueError):
    """An argument of a callback, a sink, ``Trainer`` or ``Loop`` has a wrong name, type or value."""


class DurationError(ArgumentError):
    """A duration that cannot be read, or two that cannot be compared."""


class SetupError(HooklineError, ValueError):
    """The pieces of a run do not fit: model, optimizer, loader, duration or an argument."""


class DataError(HooklineError):
    """A loader did not give what it promised: nothing at all, or fewer batches than its length."""


class LossError(HooklineError, ValueError):
    """What was to be differentiated is not a scalar tensor with a gradient."""


class MetricError(HooklineError, ValueError):
    """A value that cannot be logged, or a metric that nobody logs."""


class NotAvailableError(HooklineError, AttributeError):
    """A field of ``run`` was read at an event at which it has no value, or was written where it cannot be."""


class RoleError(HooklineError):
    """An optional callback asked for something that only a required one may ask for."""


class ScopeError(HooklineError, RuntimeError):
    """A scope, or a verb of ``loop``, was used at the wrong moment."""


class RankError(HooklineError, RuntimeError):
    """Another process of the run has failed, or the processes do not do the same."""


class CollectiveError(RankError):
    """A callback that runs on some ranks only has asked for something that all ranks must take part in."""


class CheckpointError(HooklineError):
    """The base of every error about a checkpoint."""


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint where one was asked for, or none that is valid."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint, or one of its files, is damaged, incomplete or not what its manifest says."""

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{path}: {reason}" + (f"; {hint}" if hint else ""))
        self.path = path
        self.reason = reason
        self._hint = hint

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return type(self), (self.path, self.reason, self._hint)


class CheckpointMismatchError(CheckpointError):
    """A valid checkpoint that does not fit this run: other keys, shapes, optimizers or callbacks."""


class CheckpointLockedError(CheckpointError):
    """Another run is using the folder."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written; the earlier ones are untouched."""

    def __init__(self, path: str, cause: OSError, *, needed: int, free: int | None) -> None:
        have = "unknown" if free is None else f"{free:,} bytes"
        super().__init__(
            f"{path}: {cause.strerror or cause} (errno {cause.errno}); needed {needed:,} bytes, free {have}; "
            f"the earlier checkpoints are untouched: make room or give another folder"
        )
        self.path, self.errno, self.needed, self.free = path, cause.errno, needed, free
        self._cause = cause

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:  # an error is copied, and sent between processes
        return partial(type(self), needed=self.needed, free=self.free), (self.path, self._cause)


class RecordWriteError(HooklineError):
    """A file of a run's record (``metrics.jsonl``, an image) could not be written."""

    def __init__(self, path: str, cause: OSError, *, free: int | None) -> None:
        have = "unknown" if free is None else f"{free:,} bytes"
        self.problem = f"{path}: {cause.strerror or cause} (errno {cause.errno}); free {have}"
        super().__init__(
            f"{self.problem}. Make room, or use Checkpointer(on_error='warn') to continue while the disk is full."
        )
        self.path, self.errno, self.free = path, cause.errno, free
        self._cause = cause

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return partial(type(self), free=self.free), (self.path, self._cause)


class StateError(HooklineError, ValueError):
    """A value in the state of a callback, task or optimizer that cannot be saved without running code."""


class StopTraining(Exception):  # noqa: N818 (a request, not an error)
    """Raise it in a hook, a task or a loader to end training: the same vote as ``run.stop(reason)``.

    An evaluation under way ends with it, and leaves no metric. ``evaluate``, ``test`` and ``predict`` raise it: half an
    answer is a wrong one. In several processes only hooks and ``eval_batch`` may: others would wait for this one.
    """

    def __init__(self, reason: str = "StopTraining was raised") -> None:
        super().__init__(reason)
        self.reason = reason


class Preempted(SystemExit):
    """A signal asked the run to leave: what was done is saved, and the process exits with 128 + the signal.

    ``result`` is what ``fit`` would have returned, ``checkpoint`` the path of what was saved, if anything was.
    """

    def __init__(self, signal: int, *, checkpoint: Path | None = None) -> None:
        super().__init__(128 + signal)
        self.signal = signal
        self.checkpoint = checkpoint
        self.result: Any = None

    def __str__(self) -> str:
        return f"signal {self.signal} asked the run to leave (exit code {self.code})"


class LeaveWait(BaseException):
    """A signal handler raises it to leave a wait for data at once."""


class HooklineWarning(UserWarning):
    """Something is not as good as it could be, and the run goes on."""


def first_of(error: BaseException | None, later: Iterable[BaseException]) -> BaseException | None:
    """The first error stays the one that is raised; the later ones become notes on it."""
    for other in later:
        if error is None:
            error = other
        else:
            add_secondary(error, other)
    return error


def add_secondary(error: BaseException, other: BaseException) -> None:
    """The first error is the one that is raised; a later one becomes a note on it, with its own notes."""
    notes = getattr(other, "__notes__", ())
    where = notes[0].removeprefix("in ").partition(" at ")[0] if notes else "the run"
    error.add_note(f"then {where} failed too: {words_of(other)}")


def add_place(error: BaseException, where: str) -> None:
    """Note where a run was when the user's own code raised. Hooks and loaders have said it already."""
    is_told = any(" at step " in note for note in getattr(error, "__notes__", ()))
    if isinstance(error, Exception) and not isinstance(error, HooklineError | StopTraining) and not is_told:
        error.add_note(f"raised at {where}")


def kind_of(value: object) -> str:
    """Its class with the article that it has in a sentence.

    >>> kind_of(3), kind_of([])
    ('an int', 'a list')
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"  # a U is spoken as in "a UNet" more often than not


def describe(value: object) -> str:
    """Describe a value in a few words: tensors and arrays by shape and dtype, and by device if not on the CPU.

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
    """Describe what was passed by name."""
    return ", ".join(_cut([f"{name}: {describe(value)}" for name, value in given.items()]))


def _cut(parts: list[str]) -> list[str]:
    return parts if len(parts) <= MAX_DESCRIBED else [*parts[:MAX_DESCRIBED], "…"]


def words_of(error: BaseException) -> str:
    """Its class and its text, whatever it is: one of the user's must not bring about another.

    >>> words_of(ValueError("no luck")), words_of(KeyboardInterrupt())
    ('ValueError: no luck', 'KeyboardInterrupt')
    """
    try:
        text = str(error)
    except Exception as raised:
        text = f"(its text raises {type(raised).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
