"""Check the types in the state of a checkpoint before it is loaded.

A value of a wrong type would fail later, in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hookline.distributed.random_states import random_states, set_random_states
from hookline.errors import CheckpointCorruptError, CheckpointMismatchError, HooklineError, StopTraining, error_text

_SERIES = {"reduce": "mean", "values": [0.0], "weights": [0.0], "weight": 0.0}


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Add the file to each error that is raised inside the block, while its state is loaded.

    An error that is not one of Hookline becomes a ``CheckpointMismatchError``.

    Args:
        path: The file that the state was read from.

    Raises:
        CheckpointMismatchError: If the state does not fit this run.
    """
    try:
        yield
    except (HooklineError, StopTraining) as error:
        if str(path) not in str(error):
            error.add_note(f"while {path} was loaded")
        raise
    except Exception as error:
        raise CheckpointMismatchError(
            f"{path}: the state does not fit this run ({error_text(error)}). Use another checkpoint, or resume "
            f"with the version of Hookline, the model and the callbacks that wrote it."
        ) from error


def check_shape(
    saved: Mapping[str, Any],
    counted: Mapping[str, Any],
    optimizers: Mapping[str, Optimizer],
    schedulers: Sequence[Any],
    path: Path,
) -> None:
    """Compare the kinds of the saved values with those of this run.

    Args:
        saved: The state of a checkpoint, for this rank.
        counted: The counters of this run: ``clock``, ``course``, ``data`` and ``history``.
        optimizers: The optimizers of this run.
        schedulers: The schedulers of this run.
        path: The file that the state was read from.

    Raises:
        CheckpointCorruptError: If a value is of another kind. The error names the first such value.
    """
    metrics = saved["metrics"]
    if isinstance(saved["clock"], Mapping) and saved["clock"].get("epoch_batches") is not None:
        # This run does not know the length of its epochs yet.
        counted = {**counted, "clock": {**counted["clock"], "epoch_batches": 0}}
    expected = {
        "optimizers": {name: {"param_groups": _groups(optimizer)} for name, optimizer in optimizers.items()},
        "schedulers": [_own_values(scheduler.scheduler) for scheduler in schedulers],
        "model": {"frozen": [""], "evaluating": [""], "extra": {}, "task": {}},
        "messages": _each(saved["messages"], []),
        "callbacks": _each(saved["callbacks"], {"state": {}, "held": {}, "gates": {}}),
        "metrics": {
            "objects": {},
            "pending": _series(metrics["pending"]),
            "epoch": _series(metrics["epoch"]),
            "before": _each(metrics.get("before", {}), (0.0, 0.0)),
            "measured": _each(metrics["measured"], 0),
        },
    }
    problem = _difference(saved, counted, whole=True) or _difference(saved, expected, whole=False)
    if not problem and saved["optimizers"].keys() == optimizers.keys() != saved["clock"]["updates"].keys():
        problem = "clock/updates does not have a number for each optimizer"
    if problem:
        raise CheckpointCorruptError(str(path), problem, "use another checkpoint")
    now = random_states()
    set_random_states(saved["random"])  # Training sets them again when it starts, but there an error names no file.
    set_random_states(now)


def _own_values(scheduler: LRScheduler) -> dict[str, Any]:
    """Return the state of a torch scheduler. Values of other schedulers may change their type."""
    is_of_torch = type(scheduler).__module__ == LRScheduler.__module__
    return scheduler.state_dict() if is_of_torch else {"last_epoch": 0}


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the arguments of each parameter group, without keys that the user has added."""
    return [
        {key: group[key] for key in ("params", *optimizer.defaults)} for group in optimizer.state_dict()["param_groups"]
    ]


def _each(saved: Any, shape: Any) -> Any:
    """Return the same shape for each saved name, because only the checkpoint has the names."""
    return dict.fromkeys(saved, shape) if isinstance(saved, Mapping) else {}


def _series(saved: Any) -> Any:
    """Return the shape of the logged values by name. ``total`` is ``None`` before a sum."""
    found = _each(saved, _SERIES)
    has_total = [name for name in found if isinstance(saved[name], Mapping) and saved[name].get("total") is not None]
    return found | {name: {**_SERIES, "total": 0.0} for name in has_total}


def _difference(saved: Any, expected: Any, at: str = "", *, whole: bool) -> str:
    """Return the first value that has another type than expected, or an empty string.

    Where one of the two is ``None``, any type is right, except ``None`` in place of a number or a tuple.

    Args:
        saved: The saved value.
        expected: A value of the expected type.
        at: The path of the value in the state.
        whole: True if a float in place of an integer is wrong. False for options such as a weight decay of 0 or 0.1.
    """
    is_fixed = _is_number(expected) or isinstance(expected, tuple)
    if expected is None or (saved is None and not is_fixed):
        return ""
    is_other = _kind(saved) != _kind(expected) or (isinstance(expected, tuple) and len(saved) != len(expected))
    if is_other or (whole and type(expected) is int and type(saved) is not int):
        return f"{at or 'the state'}: expected {_kind(expected)}, found {str(saved)[:50]!r}"
    if isinstance(expected, Mapping):
        parts = ((str(key), saved[key], its) for key, its in expected.items() if key in saved)
    elif isinstance(expected, list | tuple):
        shapes = [expected[0]] * len(saved) if len(expected) == 1 else expected
        parts = ((str(index), one, its) for index, (one, its) in enumerate(zip(saved, shapes, strict=False)))
    else:
        return ""
    found = (_difference(one, its, f"{at}/{name}".lstrip("/"), whole=whole) for name, one, its in parts)
    return next(filter(None, found), "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Tensor) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if _is_number(value):
        return "a number"
    for kind, name in ((bool, "a bool"), (str, "a string"), (Mapping, "a dict"), (Sequence, "a list")):
        if isinstance(value, kind):
            return name
    return type(value).__name__
