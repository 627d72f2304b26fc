"""Which handlers of ignite are tested, and when they are called. ``docs/interop/ignite.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "0.5.5"
"""The versions that the tests run."""

NEEDS: Final = "an `Engine` to which the handlers are attached before the run"
"""The argument that a user must pass."""

TESTED: Final = {
    "EarlyStopping": "on an evaluator, or with metrics of Hookline",
    "Checkpoint": "writes the same files as in ignite; a run resumes from its own checkpoints",
    "TerminateOnNan": "",
    "Timer": "",
    "RunningAverage": "",
}
"""Handlers that have the same effect as in ignite, with a note."""

FIRED: Final = {
    "STARTED": ("train_start",),
    "EPOCH_STARTED": ("train_epoch_start",),
    "GET_BATCH_STARTED": ("batch_fetch_start",),
    "GET_BATCH_COMPLETED": ("batch_fetch_end",),
    "ITERATION_STARTED": ("train_batch_start",),
    "ITERATION_COMPLETED": ("train_batch_end", "train_step_end", "step_skipped"),
    "EPOCH_COMPLETED": ("epoch_end",),
    "TERMINATE": ("train_end",),
    "COMPLETED": ("train_end",),
    "EXCEPTION_RAISED": ("exception", "interrupt"),
}
"""Events of ignite, and the events of Hookline at which an engine fires them."""

NEVER_FIRED: Final = ("DATALOADER_STOP_ITERATION", "INTERRUPT", "TERMINATE_SINGLE_EPOCH")
"""Events of ignite that Hookline cannot fire."""
