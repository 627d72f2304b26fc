"""Every place where a run calls a callback, and what is tried there on one of several ranks.

No case is imported here: the tests read it as well as the processes that they start.
"""

from __future__ import annotations

from hookline.events.spec import BY_NAME, SCOPES

HOOKS = [f"on_{name}" for name in BY_NAME]
AROUND = [f"{part}around_{scope.name}" for scope in SCOPES for part in ("", "after ")]
"""A scope is entered and left: what follows its ``yield`` is ``after`` it."""
PLACES = [*HOOKS, *AROUND]

PREDICTS = {place for place in PLACES if "predict" in place}
"""In a prediction, which has no steps."""
BEFORE_STEPS = {
    *("on_setup", "on_model_ready", "on_checkpoint_loaded", "on_checkpoint_rejected"),
    *("on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start", "around_fit", "around_train"),
}
"""Once, before the first step."""
AFTER_TRAINING = {
    *("on_train_end", "on_fit_end", "on_teardown", "on_exception", "after around_train", "after around_fit"),
}
"""Training has come to its end: nothing is left to stop, to leave or to read."""
LONG_LIMIT = {*BEFORE_STEPS, *PREDICTS, "on_exception", "on_teardown"}
"""Before the first step or batch, and after the last: a rank hangs after ``timeout``, not after ``hang_after``."""
ENDS_ALREADY = {"on_stop", "on_interrupt", "on_preempt"}
"""The end is decided on: whatever is asked for now comes too late."""
SAVES = {"around_save", "after around_save", *(place for place in HOOKS if "checkpoint" in place)}
"""Comes only where checkpoints are saved."""

ONE_PER_SCOPE = {
    "fit": "on_fit_start",
    "train": "on_step_settled",
    "epoch": "on_epoch_end",
    "step": "on_train_step_end",
    "batch": "on_backward_end",
    "eval": "on_eval_batch_end",
    "predict": "on_predict_batch_end",
    "save": "on_checkpoint_save",
}
"""Where there is no time for all."""

NO_LOOP = {
    **dict.fromkeys(("on_sanity_check_start", "on_sanity_check_end"), "a custom loop has no sanity check"),
    **dict.fromkeys(("on_forward_start", "on_forward_end"), "a custom loop calls the model itself"),
    "on_exception": "what raises leaves the loop already",
}
"""Does not come in a custom loop, out of which a rank could break."""
NO_DATA = {
    "on_exception": "nothing more is read after an error",
}
NOT_TRIED: dict[str, dict[str, str]] = {
    "raise": {},
    "stop": {},
    "sleep": {},
    "SIGTERM": {},
    "break": NO_LOOP,
    "out of data": NO_DATA,
}
"""By trouble: the places where it cannot come, and why."""


def places(trouble: str) -> list[str]:
    """Where it is tried."""
    return [place for place in PLACES if place not in NOT_TRIED[trouble]]
