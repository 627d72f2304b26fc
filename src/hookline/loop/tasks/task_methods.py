"""Check the methods of a task before the first step: their signatures and names."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from torch import nn

from hookline.errors import SetupError, kind_of
from hookline.events.validate import FOREIGN_PARAMETERS
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.tasks.task import Task

logger = logging.getLogger("hookline")

TAKES = {
    "train_batch": ("run", "batch"),
    "eval_batch": ("run", "batch"),
    "predict_batch": ("run", "batch"),
    "configure_optimizers": ("run",),
    "count": ("batch",),
}
"""The methods that a task may have, and their arguments."""

FOREIGN_METHODS = {
    **dict.fromkeys(("training_step", "train_step", "training_batch", "forward_step"), "train_batch"),
    **dict.fromkeys(("calculate_train_batch_loss", "get_loss", "compute_loss", "loss"), "train_batch"),
    **dict.fromkeys(("validation_step", "val_step", "eval_step", "evaluation_step", "test_step"), "eval_batch"),
    **dict.fromkeys(("validation_batch", "val_batch", "test_batch"), "eval_batch"),
    **dict.fromkeys(("calculate_eval_batch_loss", "eval_forward", "get_loss_eval"), "eval_batch"),
    **dict.fromkeys(("predict_step", "prediction_step", "predict", "get_predictions"), "predict_batch"),
    **dict.fromkeys(("configure_optimizer", "create_optimizer", "configure_optimizers_and_lr"), "configure_optimizers"),
}
"""Methods of other frameworks, and the method of Hookline for each."""

STEPS = ("training_step", "train_step", "validation_step", "val_step", "eval_step", "test_step")
"""Methods of other frameworks whose names are not used for helper methods."""


def check_task(task: Task[Any], loss: object = None, weight: object = None, optimizer: object = None) -> None:
    """Check the signatures of a task's methods, and warn about arguments that it does not use.

    Args:
        task: The task.
        loss: The argument ``loss`` that was passed with the task, which does not use it.
        weight: The argument ``weight`` that was passed with the task, which does not use it.
        optimizer: The argument ``optimizer``, which replaces ``configure_optimizers``.

    Raises:
        SetupError: If a method has other parameters, or the name that another framework gives it.
    """
    kind = type(task)
    if loss is not None:
        logger.warning("loss= is not used: %s is a task, which computes its own; leave loss= out", kind.__name__)
    if weight is not None:
        logger.warning(
            "weight= is not used: %s is a task; let its train_batch return {'loss': …, 'weight': …}", kind.__name__
        )
    if optimizer is not None and _has_optimizers(task):
        logger.warning(
            "optimizer= is used, and what %s.configure_optimizers returns is not, schedulers included; "
            "leave one of the two out",
            kind.__name__,
        )
    for name, takes in TAKES.items():
        method = getattr(task, name, None)
        if callable(method):
            _check_takes(f"{kind.__name__}.{name}", name, method, takes)
    if not isinstance(task, SupervisedTask):
        return  # A missing method raises when it is needed.
    for theirs in STEPS:
        ours = FOREIGN_METHODS[theirs]
        is_inherited = getattr(kind, ours, None) is getattr(SupervisedTask, ours)
        if is_inherited and callable(getattr(kind, theirs, None)):
            raise SetupError(
                f"{kind.__name__}.{theirs} is not called, and {ours} is that of SupervisedTask; {_rename(theirs, ours)}"
            )


def _has_optimizers(task: Any) -> bool:
    """True if a task has optimizers. ``SupervisedTask`` has those that were passed to it."""
    own = getattr(type(task), "configure_optimizers", None)
    return task.optimizer is not None if own is SupervisedTask.configure_optimizers else own is not None


def no_model(given: object) -> SetupError:
    """Return the error for a model that is not a module."""
    if inspect.isclass(given) and issubclass(given, nn.Module):
        return SetupError(f"{given.__name__} is a class, not a model; write {given.__name__}(…)")
    return SetupError(f"the model is {kind_of(given)}, not a torch.nn.Module")


def missing_method(task: object, method: str, verb: str) -> SetupError:
    """Return the error for a method that a task needs and does not have.

    Args:
        task: The task.
        method: Name of the method.
        verb: Name of the call that needs the method.
    """
    theirs = [name for name, ours in FOREIGN_METHODS.items() if ours == method and callable(getattr(task, name, None))]
    hint = f"; {_rename(theirs[0], method)}" if theirs else ""
    return SetupError(f"{type(task).__name__} has no {_called(method)}, which {verb} needs{hint}")


def _check_takes(where: str, name: str, method: Any, takes: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # Some callables have no signature. A wrong one fails when it is called.
        return
    first = next(iter(signature.parameters), "")
    try:
        signature.bind(*takes)
    except TypeError:
        pass
    else:
        if takes[0] != "run" or first not in FOREIGN_PARAMETERS:  # (batch, batch_idx) would bind as well.
            return
    given = ", ".join(map(str, signature.parameters.values())) or "nothing"
    raise SetupError(
        f"{where} takes ({given}) and is called with ({', '.join(takes)}); write def {name}(self, {', '.join(takes)})"
    )


def _called(method: str) -> str:
    return f"{method}({', '.join(TAKES[method])})"


def _rename(theirs: str, ours: str) -> str:
    return f"{theirs} is {ours} here: write def {ours}(self, {', '.join(TAKES[ours])})"
