"""The settings of a run for ``run.json``: options, loss, optimizers, schedulers, loaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, IterableDataset

from hookline.loop.data.batches import length
from hookline.loop.settings import Settings
from hookline.run import RunState

STAGES = ("train", "val", "test")
OF_PROGRESS = frozenset(
    ("last_epoch", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "mode_worse")
)
"""Attributes of torch schedulers that hold their progress and not an argument."""


def run_settings(state: RunState, settings: Settings, loss: Any, schedulers: Iterable[Any]) -> dict[str, Any]:
    """Return the settings of a run. Its folder, name and sinks are not settings.

    Args:
        state: The state of the run.
        settings: The options.
        loss: The loss function that was passed. ``None`` if there is none.
        schedulers: The schedulers that were passed, each an ``hl.Scheduler``.
    """
    fields = settings.__dataclass_fields__
    left_out = ("config", "folder", "name", "sinks", "resume")
    found = {name: getattr(settings, name) for name in fields if name not in left_out}
    processes = {} if state.world_size == 1 else {"processes": state.world_size}
    found["strategy"] = found["strategy"] if isinstance(found["strategy"], str) else type(found["strategy"]).__name__
    found |= {**processes, "max_duration": state.max_duration, "device": str(state.device)}
    return {
        **found,
        **_loss(loss),
        "optimizers": {name: _optimizer(its) for name, its in state.optimizers.items()},
        **_schedulers(schedulers),
        **loader_settings(state.loaders),
    }


def loader_settings(loaders: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the loaders of each stage.

    A custom loop passes a loader when it needs its batches.
    """
    found = {stage: _loaders(loaders[stage]) for stage in STAGES if stage in loaders}
    return {"loaders": found} if found else {}


def _loaders(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return {str(name): _loader(its) for name, its in given.items()}
    return _loader(given)


def _loader(loader: Any) -> dict[str, Any]:
    """Return the settings of a loader. Only ``DataLoader`` has more than a class and a length."""
    its_class = {"class": type(loader).__qualname__}
    try:
        return _cut(loader) if isinstance(loader, DataLoader) else its_class | _said({"batches": length(loader)})
    except Exception:  # An error in a user's loader class must not end the run because of its record.
        return its_class


def _cut(loader: DataLoader[Any]) -> dict[str, Any]:
    iterable = isinstance(loader.dataset, IterableDataset)
    of_own = loader.batch_sampler is not None and loader.batch_size is None
    sampler = loader.batch_sampler if of_own else loader.sampler
    found = {
        "dataset": type(loader.dataset).__qualname__,
        "samples": None if iterable else length(loader.dataset),
        "batch_size": loader.batch_size,
        "sampler": None if iterable else type(sampler).__qualname__,
        "drop_last": loader.drop_last,
        "num_workers": loader.num_workers,
    }
    return _said(found)


def _loss(loss: Any) -> dict[str, Any]:
    if loss is None:
        return {}
    if not isinstance(loss, nn.Module):
        return {"loss": getattr(loss, "__qualname__", type(loss).__qualname__)}
    given = {name: value for name, value in vars(loss).items() if not name.startswith("_") and name != "training"}
    return {"loss": {"class": type(loss).__qualname__, **_said(given)}}


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of an optimizer.

    A learning rate that a scheduler has set is not an argument.
    """
    defaults: Mapping[str, Any] = getattr(optimizer, "defaults", {})
    found = {"class": type(optimizer).__qualname__, **_said(defaults)}
    groups = [_of_group(group, defaults) for group in getattr(optimizer, "param_groups", ())]
    return found | ({"groups": groups} if len(groups) > 1 and any(groups) else {})


def _of_group(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a parameter group that differ from the defaults of its optimizer."""
    # A scheduler keeps the initial learning rate in `initial_lr`.
    given = {**group, "lr": group.get("initial_lr", group.get("lr"))}
    return {name: given[name] for name, usual in defaults.items() if name in given and _differ(given[name], usual)}


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except (RuntimeError, TypeError, ValueError):  # Arrays compare element by element.
        return True


def _schedulers(schedulers: Iterable[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for its in schedulers:
        when = {"monitor": its.monitor} if its.unit == "eval" else {"every": str(its.every)}
        name = type(its.scheduler).__qualname__
        number = sum(known.partition(" ")[0] == name for known in named) + 1
        named[name if number == 1 else f"{name} ({number})"] = when | _scheduler(its.scheduler)
    return {"schedulers": named} if named else {}


def _scheduler(scheduler: Any) -> dict[str, Any]:
    """Return the arguments of a scheduler that are plain values, and its inner schedulers."""
    kept = {name: value for name, value in vars(scheduler).items() if name[0] != "_" and name not in OF_PROGRESS}
    if isinstance(kept.get("milestones"), Counter):  # MultiStepLR
        kept["milestones"] = sorted(kept["milestones"].elements())
    if type(scheduler) is OneCycleLR:  # It keeps its highest learning rate only in the parameter groups.
        kept["max_lr"] = [group["max_lr"] for group in scheduler.optimizer.param_groups]
    parts = [{"class": type(part).__qualname__, **_scheduler(part)} for part in getattr(scheduler, "_schedulers", ())]
    made_of = {"parts": parts, "milestones": getattr(scheduler, "_milestones", None)} if parts else {}
    return _said({name: value for name, value in kept.items() if _is_plain(value)} | made_of)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out arguments that are ``None`` or False, as most are."""
    return {name: value for name, value in given.items() if value is not None and value is not False}
