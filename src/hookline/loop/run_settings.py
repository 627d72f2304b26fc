"""The settings of a run, for its record: the options, and what the user has given in objects instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.loop.supervised import SupervisedTask

if TYPE_CHECKING:
    from hookline.loop.loop import Loop


def run_settings(loop: Loop) -> dict[str, Any]:
    """The options as they were read; where the run writes is no property of it."""
    fields = loop.settings.__dataclass_fields__
    left_out = ("config", "folder", "name", "sinks", "resume")
    found = {name: getattr(loop.settings, name) for name in fields if name not in left_out}
    processes = {} if loop.state.world_size == 1 else {"processes": loop.state.world_size}
    found["strategy"] = found["strategy"] if isinstance(found["strategy"], str) else type(found["strategy"]).__name__
    found |= {**processes, "max_duration": loop.state.max_duration, "device": str(loop.state.device)}
    return {
        **found,
        **_loss(loop),
        "optimizers": {name: _optimizer(its) for name, its in loop.state.optimizers.items()},
    }


def _loss(loop: Loop) -> dict[str, Any]:
    task = loop.session.task
    if not isinstance(task, SupervisedTask) or task.loss is None:
        return {}
    loss: Any = task.loss
    if not isinstance(loss, nn.Module):
        return {"loss": getattr(loss, "__qualname__", type(loss).__qualname__)}
    given = {name: value for name, value in vars(loss).items() if not name.startswith("_") and name != "training"}
    return {"loss": {"class": type(loss).__qualname__, **_said(given)}}


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """As it was made: what a schedule has made of it since is no setting."""
    return {"class": type(optimizer).__qualname__, **_said(getattr(optimizer, "defaults", {}))}


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is off, which most arguments are."""
    return {name: value for name, value in given.items() if value is not None and value is not False}
