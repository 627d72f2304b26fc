"""Models and data of other libraries: the task of such a model, and the loaders of such data."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookline.events.foreign_classes import DATA, MODELS, adapter_module
from hookline.loop.model.schedulers import Scheduler
from hookline.loop.tasks.task import Task

STAGES = {"fit": "fit", "train": "fit", "evaluate": "validate", "test": "test", "predict": "predict"}
"""Entry points, and the names of the stages in other libraries."""


def foreign_task(model: Any) -> Any:
    """Return the task of a model of another library, such as a ``LightningModule``. ``None`` for any other model.

    Args:
        model: The model, or an object that has it, such as an ``AutoUnit``. The ``model`` of the task is the module.
    """
    module = adapter_module(type(model), MODELS)
    if module is None:
        return None
    steps = import_module(module).MODEL_STEPS
    return type(type(model).__name__, (steps, Task), {"scheduler": Scheduler})(model)


def foreign_loaders(data: Any, entry: str, task: Any) -> dict[str, Any]:
    """Return the loaders of an object of another library, by stage. Empty for a loader.

    Args:
        data: A loader, or an object such as a ``LightningDataModule``.
        entry: The entry point.
        task: The task of the run, which may show the object to its callbacks.
    """
    module = adapter_module(type(data), DATA)
    if module is None:
        return {}
    if hasattr(task, "use_data"):
        task.use_data(data)
    found: dict[str, Any] = import_module(module).loaders_of(data, STAGES[entry])
    return found
