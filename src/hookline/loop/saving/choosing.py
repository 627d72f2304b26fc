"""Find the weights that ``ckpt="best"``, ``"last"`` or a path names, for an evaluation or a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hookline.checkpoint import Checkpoint, Store
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.foreign_weights import read_weights
from hookline.checkpoint.matching import match
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.remote import path_or_address
from hookline.checkpoint.retention import best
from hookline.distributed.solo import AnyGroup
from hookline.errors import ArgumentError, CheckpointError, CheckpointNotFoundError
from hookline.loop.saving.placing import placed_weights
from hookline.records.redact import redact_text
from hookline.records.run_file import MonitorEntry, RunFile
from hookline.run import RunState


def check_ckpt(ckpt: object, entry: str) -> None:
    """Raise ``ArgumentError`` unless ``ckpt`` is ``None``, a string or a path.

    Args:
        ckpt: The argument of the user.
        entry: The method that takes it, for the error.
    """
    if ckpt is None:
        return
    if not isinstance(ckpt, str | Path) or not str(ckpt):
        raise ArgumentError(f"{entry}(ckpt={ckpt!r:.80}): must be 'best', 'last', or the path of a checkpoint.")
    if ckpt not in ("best", "last"):
        path_or_address(ckpt, "ckpt", entry)


def weights_of(ckpt: str | Path, folder: Path | None, state: RunState, group: AnyGroup) -> Mapping[str, Tensor]:
    """Return the parameters and buffers of a checkpoint, placed like those of the model. All ranks must call it.

    Args:
        ckpt: ``"best"``, ``"last"``, or a path or address of weights.
        folder: The folder of the run that saved the checkpoint.
        state: The state of the run that evaluates.
        group: The processes of the run.

    Raises:
        CheckpointNotFoundError: If there is no such checkpoint.
        CheckpointMismatchError: If the weights do not fit the model.
    """
    if ckpt in ("best", "last"):
        where = f"{state.entry_point}(ckpt={ckpt!r})"
        ckpt = by_zero(group, lambda: str(_found(str(ckpt), folder, where).path))
    model = state.model
    held = {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers(remove_duplicate=False))}
    wanted = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    try:
        found = read_weights(ckpt)
        match(wanted, found, strict=True)
    except CheckpointError as error:
        error.add_note(f"while {redact_text(str(ckpt))} was loaded")
        raise
    return {name: tensor for name, tensor in placed_weights(wanted, found).items() if name in held}


def _found(ckpt: str, folder: Path | None, where: str) -> Checkpoint:
    if folder is None:
        raise CheckpointNotFoundError(
            f"{where}: the run has no folder, so it has no checkpoints. Give folder= and train with "
            f"callbacks=[hl.Checkpointer(monitor='val/loss')]."
        )
    if ckpt == "last":
        last = Store(folder / FOLDER).newest_valid()
        if last is None:
            raise CheckpointNotFoundError(
                f"{where}: there is no checkpoint in {str(folder / FOLDER)!r}. Train with "
                f"callbacks=[hl.Checkpointer()], or give folder= of a run that has."
            )
        return last
    monitors = _monitors(folder)
    for monitor in monitors:
        ranked = best(Store(folder / monitor.folder).checkpoints(), monitor.metric, monitor.mode, 1)
        if ranked:
            return ranked[0]
    if monitors:
        names = ", ".join(repr(monitor.metric) for monitor in monitors)
        raise CheckpointNotFoundError(
            f"{where}: no checkpoint in {str(folder)!r} has a value of {names}. Evaluate at the steps that "
            f"hl.Checkpointer saves: give it on_eval=True."
        )
    raise CheckpointNotFoundError(
        f"{where}: no callback has chosen a best checkpoint in {str(folder)!r}. Train with "
        f"callbacks=[hl.Checkpointer(monitor='val/loss')], or give the path of a checkpoint, such as the file of "
        f"hl.SaveBest."
    )


def _monitors(folder: Path) -> tuple[MonitorEntry, ...]:
    """Return the metrics that choose the best checkpoints of a run. Empty if the folder holds no run."""
    try:
        return RunFile.read(folder).monitors
    except (OSError, ValueError):
        return ()
