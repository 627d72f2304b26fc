"""Checkpoints in Lightning's format: files that ``trainer.save_checkpoint`` writes, and states of callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch

from hookline.errors import SetupError
from hookline.run import Run

SAME = "same"
"""Key of the parts of a callback's state that are a part of the checkpoint itself, such as the weights."""


def checkpoint_of(trainer: Any, run: Run) -> dict[str, Any]:
    """Return the weights and the progress of a run, as a checkpoint of Lightning has them."""
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": trainer._version,
        "state_dict": run.model.state_dict(),
    }


def save_checkpoint(trainer: Any, run: Run, path: str, *, weights_only: bool) -> None:
    """Write a checkpoint in Lightning's format. A run of Hookline resumes from its own checkpoints.

    Args:
        trainer: The trainer that callbacks see.
        run: The run.
        path: Path of the file.
        weights_only: True to leave out optimizers, schedulers and callbacks.

    Raises:
        SetupError: If the weights are sharded over the processes.
    """
    if run.is_sharded:
        raise SetupError(f"{run.member.name} saves a checkpoint, but the weights are sharded. Use hl.Checkpointer.")
    checkpoint, module = checkpoint_of(trainer, run), trainer.lightning_module
    if module.hparams:
        checkpoint["hyper_parameters"] = dict(module.hparams)
    if not weights_only:
        checkpoint |= {
            "optimizer_states": [optimizer.state_dict() for optimizer in run.optimizers.values()],
            "lr_schedulers": [scheduler.scheduler.state_dict() for scheduler in run.schedulers],
            "callbacks": {callback.state_key: state_of(callback) for callback in trainer.callbacks},
        }
        for callback in trainer.callbacks:
            callback.on_save_checkpoint(trainer, module, checkpoint)
        if module is run.model:
            module.on_save_checkpoint(checkpoint)
    if run.rank == 0:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        torch.save(plain(checkpoint), f"{path}.part")
        os.replace(f"{path}.part", path)
    trainer.strategy.barrier()


def state_of(callback: Any) -> dict[str, Any]:
    """Return the state of a callback of Lightning, with plain values and tensors only."""
    found: dict[str, Any] = plain(callback.state_dict())
    return found


def added_state(save: Callable[[dict[str, Any]], object], trainer: Any, run: Run) -> dict[str, Any]:
    """Return what ``on_save_checkpoint`` of a callback or module adds to a checkpoint.

    Args:
        save: The hook, as a function of the checkpoint.
        trainer: The trainer that it sees.
        run: The run.

    Returns:
        The added parts. ``"same"`` names those that are parts of the checkpoint itself: Hookline saves the weights.
    """
    given = checkpoint_of(trainer, run)
    checkpoint = {**given, "callbacks": {}}
    save(checkpoint)
    added = {name: value for name, value in checkpoint.items() if value is not given.get(name) and name != "callbacks"}
    origin = {id(value): name for name, value in given.items() if isinstance(value, dict)}
    same = {name: origin[id(value)] for name, value in added.items() if id(value) in origin}
    return {SAME: same, **{name: plain(value) for name, value in added.items() if name not in same}}


def load_added_state(
    load: Callable[[dict[str, Any]], object], trainer: Any, run: Run, added: Mapping[str, Any]
) -> None:
    """Give ``on_load_checkpoint`` the checkpoint that was added to. The run has loaded its own part of it."""
    given = checkpoint_of(trainer, run)
    parts = {name: given[origin] for name, origin in added[SAME].items()}
    rest = {name: value for name, value in added.items() if name != SAME}
    load({**given, **parts, **rest})


def plain(value: Any) -> Any:
    """Return a value with plain keys and values in place of enums and paths, so that ``torch.load`` reads it."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    if isinstance(value, Enum):
        return value.value
    return os.fspath(value) if isinstance(value, os.PathLike) else value
