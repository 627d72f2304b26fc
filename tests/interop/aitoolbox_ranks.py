"""What ranks do in ``test_aitoolbox.py``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tests.interop.test_aitoolbox import basic, evaluation, history, in_hookline, local, model_save, schedulers


def train(folder: str) -> dict[str, Any]:
    """Stop early, step a scheduler and save files, on two ranks."""
    warnings.simplefilter("ignore")
    seen: list[str] = []
    early = basic.EarlyStopping(min_delta=0.2)
    first = basic.FunctionOnTrainLoop(lambda loop: seen.append("first"), train_end=True, device_idx_execution=0)
    callbacks = [
        early,
        evaluation(),
        schedulers.StepLRScheduler(1, gamma=0.5),
        model_save.ModelCheckpoint(**{**local(Path(folder)), "local_model_result_folder_path": folder}),
        basic.FunctionOnTrainLoop(lambda loop: seen.append("everywhere"), train_end=True, execution_order=-1),
        first,
    ]
    model, result = in_hookline(callbacks, max_duration="9ep")
    return {
        "step": result.clock.step,
        "epochs": result.clock.epoch,
        "history": history(early),
        "ranks": [early.train_loop_obj.ddp_rank, *seen],
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
