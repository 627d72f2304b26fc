"""Hooks of seven other libraries, and the Hookline event that each corresponds to.

The error for an unknown hook names the Hookline event and the difference. The tables list hooks of callbacks, and
``on_checkpoint_save`` of TorchTNT's units, because that name has another meaning in Hookline.

The tables leave out methods that are not events: ``state_dict``, ``load_state_dict`` and ``state_key``, which Hookline
also has, and Composer's ``run_event``, which corresponds to ``on_event``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignHook:
    """Hook of another library, and the event that corresponds to it."""

    system: str
    hook: str
    event: str
    """Event at the same point of a run, or the nearest one if ``note`` says that there is none."""
    note: str = ""
    """Difference that a user must know to port a callback."""
    fired: tuple[str, ...] = ()
    """Events at which ``hookline.interop`` calls the hook of such a callback. Empty: never."""


_IN_INIT = "in Trainer.__init__ there; here when a run begins"
_ANY_STAGE = "one event for every stage here: see run.stage"
_EVAL_STAGES = "validation and test share it here: see run.stage"
_VALIDATION = "validation and test share it here: see run.stage; the sanity check does not send it"
_EACH_LOADER = "one loader there; here sent for each loader of an evaluation"
_PREDICTION = "a prediction is one pass here, without an epoch event"
_LOADER_BATCH = "one loader batch there; here a step is one update and may hold several batches"
_AFTER_UPDATE = "after the update there; here the update comes later: see on_train_step_end"
_ITERATOR = "iter(loader) has no separate event here; this is the nearest"
_MICROBATCH = "per microbatch there; here per loader batch"
_ITERATION = "a group of epochs or tokens there; here an epoch: filter with hl.on(…, every='2ep')"
_STANDALONE = "only for evaluate() there; here every evaluation: see run.entry_point"

_TORCHTNT: tuple[tuple[str, str, str], ...] = (
    ("on_train_start", "train_start", ""),
    ("on_train_epoch_start", "train_epoch_start", ""),
    ("on_train_dataloader_iter_creation_start", "train_epoch_start", _ITERATOR),
    ("on_train_dataloader_iter_creation_end", "batch_fetch_start", _ITERATOR),
    ("on_train_get_next_batch_start", "batch_fetch_start", _ANY_STAGE),
    ("on_train_get_next_batch_end", "batch_fetch_end", _ANY_STAGE),
    ("on_train_step_start", "train_batch_start", _LOADER_BATCH),
    ("on_train_step_end", "train_batch_end", f"one loader batch, {_AFTER_UPDATE}"),
    ("on_train_epoch_end", "train_epoch_end", ""),
    ("on_train_end", "train_end", ""),
    ("on_eval_start", "eval_start", ""),
    ("on_eval_epoch_start", "eval_loader_start", _EACH_LOADER),
    ("on_eval_dataloader_iter_creation_start", "eval_loader_start", _ITERATOR),
    ("on_eval_dataloader_iter_creation_end", "batch_fetch_start", _ITERATOR),
    ("on_eval_get_next_batch_start", "batch_fetch_start", _ANY_STAGE),
    ("on_eval_get_next_batch_end", "batch_fetch_end", _ANY_STAGE),
    ("on_eval_step_start", "eval_batch_start", ""),
    ("on_eval_step_end", "eval_batch_end", ""),
    ("on_eval_epoch_end", "eval_loader_end", _EACH_LOADER),
    ("on_eval_end", "eval_end", ""),
    ("on_predict_start", "predict_start", ""),
    ("on_predict_epoch_start", "predict_start", _PREDICTION),
    ("on_predict_dataloader_iter_creation_start", "predict_start", _ITERATOR),
    ("on_predict_dataloader_iter_creation_end", "batch_fetch_start", _ITERATOR),
    ("on_predict_get_next_batch_start", "batch_fetch_start", _ANY_STAGE),
    ("on_predict_get_next_batch_end", "batch_fetch_end", _ANY_STAGE),
    ("on_predict_step_start", "predict_batch_start", ""),
    ("on_predict_step_end", "predict_batch_end", ""),
    ("on_predict_epoch_end", "predict_end", _PREDICTION),
    ("on_predict_end", "predict_end", ""),
    ("on_checkpoint_save", "checkpoint_saved", "a unit's hook; here on_checkpoint_save is before the save"),
    ("on_exception", "exception", "not for KeyboardInterrupt there; here that is on_interrupt"),
)

_PYTORCH_ACCELERATED: tuple[tuple[str, str, str], ...] = (
    ("on_init_end", "setup", _IN_INIT),
    ("on_training_run_start", "train_start", ""),
    ("on_train_epoch_start", "train_epoch_start", ""),
    ("on_train_step_start", "train_batch_start", _LOADER_BATCH),
    ("on_train_step_end", "loss_ready", "before backward there; here on_train_step_end is after the update"),
    ("on_train_epoch_end", "train_epoch_end", ""),
    ("on_eval_epoch_start", "eval_loader_start", _EACH_LOADER),
    ("on_eval_step_start", "eval_batch_start", ""),
    ("on_eval_step_end", "eval_batch_end", ""),
    ("on_eval_epoch_end", "eval_loader_end", _EACH_LOADER),
    ("on_training_run_epoch_end", "epoch_end", ""),
    ("on_stop_training_error", "stop", "at once there; here when the step is settled, with run.stop_reason"),
    ("on_training_run_end", "train_end", ""),
    ("on_evaluation_run_start", "eval_start", _STANDALONE),
    ("on_evaluation_run_end", "eval_end", _STANDALONE),
)

_LIGHTNING: tuple[tuple[str, str, str], ...] = (
    ("on_init_start", "setup", _IN_INIT),
    ("on_init_end", "setup", _IN_INIT),
    ("on_before_accelerator_backend_setup", "setup", "before there are processes; here in each of them"),
    ("setup", "setup", "its stage argument is run.entry_point"),
    ("on_configure_sharded_model", "model_ready", "before wrapping there; here after it: or use on_setup"),
    ("on_fit_start", "fit_start", "optimizers are not restored yet there; here everything is"),
    ("on_pretrain_routine_start", "fit_start", ""),
    ("on_pretrain_routine_end", "fit_start", "it follows on_pretrain_routine_start at once there"),
    ("on_sanity_check_start", "sanity_check_start", "on_validation_* are sent inside it there, not here"),
    ("on_sanity_check_end", "sanity_check_end", "on_validation_* are sent inside it there, not here"),
    ("on_train_start", "train_start", ""),
    ("on_epoch_start", "train_epoch_start", "also for validation and test there: see on_eval_start"),
    ("on_train_epoch_start", "train_epoch_start", ""),
    ("on_batch_start", "train_batch_start", ""),
    ("on_train_batch_start", "train_batch_start", ""),
    ("on_before_zero_grad", "zero_grad", "before clearing there; here after it: see on_optimizer_step_end"),
    ("on_before_backward", "backward_start", "its loss argument is run.loss"),
    ("on_after_backward", "backward_end", "to change gradients use on_gradients_ready"),
    ("on_before_optimizer_step", "gradients_ready", "its optimizer argument is run.optimizer"),
    ("on_train_batch_end", "train_batch_end", _AFTER_UPDATE),
    ("on_batch_end", "train_batch_end", _AFTER_UPDATE),
    ("on_train_epoch_end", "epoch_end", "after validation there; here on_train_epoch_end comes before it"),
    ("on_epoch_end", "epoch_end", "also for validation and test there: see on_eval_end"),
    ("on_train_end", "train_end", ""),
    ("on_fit_end", "fit_end", "the model has left its device there, not here"),
    ("on_validation_start", "eval_start", _VALIDATION),
    ("on_validation_epoch_start", "eval_start", _VALIDATION),
    ("on_validation_batch_start", "eval_batch_start", _VALIDATION),
    ("on_validation_batch_end", "eval_batch_end", _VALIDATION),
    ("on_validation_epoch_end", "eval_end", _VALIDATION),
    ("on_validation_end", "eval_end", _VALIDATION),
    ("on_test_start", "eval_start", _EVAL_STAGES),
    ("on_test_epoch_start", "eval_start", _EVAL_STAGES),
    ("on_test_batch_start", "eval_batch_start", _EVAL_STAGES),
    ("on_test_batch_end", "eval_batch_end", _EVAL_STAGES),
    ("on_test_epoch_end", "eval_end", _EVAL_STAGES),
    ("on_test_end", "eval_end", _EVAL_STAGES),
    ("on_predict_start", "predict_start", ""),
    ("on_predict_epoch_start", "predict_start", _PREDICTION),
    ("on_predict_batch_start", "predict_batch_start", ""),
    ("on_predict_batch_end", "predict_batch_end", ""),
    ("on_predict_epoch_end", "predict_end", _PREDICTION),
    ("on_predict_end", "predict_end", ""),
    ("on_save_checkpoint", "checkpoint_save", "for state, name it in `state` or write state_dict()"),
    ("on_load_checkpoint", "checkpoint_loaded", "for state, name it in `state` or write load_state_dict()"),
    ("on_keyboard_interrupt", "interrupt", "at once there; here when the step is finished"),
    ("on_exception", "exception", "also for KeyboardInterrupt there; here that is on_interrupt"),
    ("teardown", "teardown", "not after an exception there; here on every way out"),
)

_COMPOSER: tuple[tuple[str, str, str], ...] = (
    ("init", "setup", _IN_INIT),
    ("before_load", "setup", "after sharding there; here before the model is wrapped"),
    ("after_load", "model_ready", "before DDP and compile there; here after"),
    ("fit_start", "fit_start", ""),
    ("iteration_start", "train_epoch_start", _ITERATION),
    ("epoch_start", "train_epoch_start", ""),
    ("before_dataloader", "batch_fetch_start", _ANY_STAGE),
    ("after_dataloader", "batch_fetch_end", _ANY_STAGE),
    ("batch_start", "train_step_start", _LOADER_BATCH),
    ("before_train_batch", "train_step_start", "on each run of the closure there; here once per step"),
    ("before_forward", "forward_start", _MICROBATCH),
    ("after_forward", "forward_end", _MICROBATCH),
    ("before_loss", "forward_end", _MICROBATCH),
    ("after_loss", "loss_ready", _MICROBATCH),
    ("before_backward", "backward_start", _MICROBATCH),
    ("after_backward", "backward_end", _MICROBATCH),
    ("after_train_batch", "gradients_ready", ""),
    ("batch_end", "train_step_end", _LOADER_BATCH),
    ("batch_checkpoint", "step_settled", _LOADER_BATCH),
    ("epoch_end", "train_epoch_end", "before the evaluation there; here on_epoch_end comes after it"),
    ("epoch_checkpoint", "epoch_end", ""),
    ("iteration_end", "epoch_end", _ITERATION),
    ("iteration_checkpoint", "epoch_end", _ITERATION),
    ("fit_end", "fit_end", "the last evaluation follows it there; here it comes before"),
    ("eval_before_all", "eval_start", "only inside fit there; here every evaluation"),
    ("eval_standalone_start", "eval_start", _STANDALONE),
    ("eval_start", "eval_loader_start", "per evaluator there; here on_eval_start is once for all loaders"),
    ("eval_batch_start", "eval_batch_start", ""),
    ("eval_before_forward", "forward_start", _ANY_STAGE),
    ("eval_after_forward", "forward_end", _ANY_STAGE),
    ("eval_batch_end", "eval_batch_end", ""),
    ("eval_end", "eval_loader_end", "per evaluator there; here on_eval_end is once for all loaders"),
    ("eval_standalone_end", "eval_end", _STANDALONE),
    ("eval_after_all", "eval_end", "only inside fit there; here every evaluation"),
    ("predict_start", "predict_start", ""),
    ("predict_batch_start", "predict_batch_start", ""),
    ("predict_before_forward", "forward_start", _ANY_STAGE),
    ("predict_after_forward", "forward_end", _ANY_STAGE),
    ("predict_batch_end", "predict_batch_end", ""),
    ("predict_end", "predict_end", ""),
    ("close", "teardown", "when the trainer is closed there; here at the end of each run, on every way out"),
    ("post_close", "teardown", "after every callback's close there; here one event"),
)

_AITOOLBOX: tuple[tuple[str, str, str], ...] = (
    ("register_train_loop_object", "setup", "train_loop_obj is the argument `run` here"),
    ("on_train_loop_registration", "setup", "train_loop_obj is the argument `run` here"),
    ("on_multiprocess_start", "setup", "only with several processes there; here always, in each one"),
    ("on_train_begin", "train_start", ""),
    ("on_epoch_begin", "train_epoch_start", ""),
    ("on_batch_begin", "train_batch_start", ""),
    ("on_after_gradient_update", "backward_end", "to clip or change gradients use on_gradients_ready"),
    ("on_after_optimizer_step", "optimizer_step_end", "also if AMP skipped it there; here on_step_skipped"),
    ("on_batch_end", "train_batch_end", _AFTER_UPDATE),
    ("on_epoch_end", "epoch_end", ""),
    ("on_train_end", "train_end", "after the final test there; here on_fit_end comes after it"),
    ("on_after_batch_prediction", "eval_batch_end", "in predict_on_*_set, when asked for, there"),
)

_HUGGING_FACE: tuple[tuple[str, str, str], ...] = (
    ("on_init_end", "setup", _IN_INIT),
    ("on_train_begin", "train_start", ""),
    ("on_epoch_begin", "train_epoch_start", ""),
    ("on_step_begin", "train_step_start", ""),
    ("on_pre_optimizer_step", "gradients_ready", ""),
    ("on_optimizer_step", "optimizer_step_end", ""),
    ("on_substep_end", "train_batch_end", "not for the last batch of a step there"),
    ("on_step_end", "train_step_end", ""),
    ("on_epoch_end", "train_epoch_end", "before the evaluation there; here on_epoch_end comes after it"),
    ("on_prediction_step", "eval_batch_end", "in evaluate and predict there; here on_predict_batch_end is its own"),
    ("on_log", "metrics_ready", "logs are run.metrics here"),
    ("on_evaluate", "eval_end", ""),
    ("on_predict", "predict_end", ""),
    ("on_save", "checkpoint_saved", ""),
    ("on_train_end", "train_end", ""),
)

_KERAS: tuple[tuple[str, str, str], ...] = (
    ("on_train_begin", "train_start", ""),
    ("on_epoch_begin", "train_epoch_start", ""),
    ("on_batch_begin", "train_batch_start", ""),
    ("on_train_batch_begin", "train_batch_start", ""),
    ("on_train_batch_end", "train_batch_end", _AFTER_UPDATE),
    ("on_batch_end", "train_batch_end", _AFTER_UPDATE),
    ("on_epoch_end", "epoch_end", ""),
    ("on_test_begin", "eval_start", _EVAL_STAGES),
    ("on_test_batch_begin", "eval_batch_start", _EVAL_STAGES),
    ("on_test_batch_end", "eval_batch_end", _EVAL_STAGES),
    ("on_test_end", "eval_end", _EVAL_STAGES),
    ("on_predict_begin", "predict_start", ""),
    ("on_predict_batch_begin", "predict_batch_start", ""),
    ("on_predict_batch_end", "predict_batch_end", ""),
    ("on_predict_end", "predict_end", ""),
    ("on_train_end", "train_end", ""),
)

_FIRED: dict[str, dict[str, tuple[str, ...]]] = {
    "Lightning": {
        **dict.fromkeys(("on_init_start", "on_init_end", "on_before_accelerator_backend_setup"), ()),
        **dict.fromkeys(("on_configure_sharded_model", "on_pretrain_routine_start", "on_pretrain_routine_end"), ()),
        **dict.fromkeys(("on_epoch_start", "on_batch_start", "on_batch_end", "on_epoch_end"), ()),
        **dict.fromkeys(("on_save_checkpoint", "on_load_checkpoint", "on_keyboard_interrupt"), ()),
        "on_before_zero_grad": ("optimizer_step_end",),
        "on_train_batch_end": ("train_batch_end", "train_step_end", "step_skipped"),
        "on_exception": ("exception", "interrupt"),
    },
    "TorchTNT": {
        "on_train_dataloader_iter_creation_end": ("train_epoch_start",),
        "on_train_step_end": ("train_batch_end", "train_step_end", "step_skipped"),
        "on_train_epoch_end": ("train_epoch_end", "epoch_end"),
        "on_eval_epoch_start": ("eval_start",),
        "on_eval_dataloader_iter_creation_start": ("eval_start",),
        "on_eval_dataloader_iter_creation_end": ("eval_start",),
        "on_eval_epoch_end": ("eval_end",),
        "on_predict_dataloader_iter_creation_end": ("predict_start",),
        "on_checkpoint_save": (),
    },
    "AIToolbox": {
        "register_train_loop_object": ("model_ready",),
        **dict.fromkeys(("on_train_loop_registration", "on_after_batch_prediction"), ()),
        "on_multiprocess_start": ("model_ready",),
        "on_after_gradient_update": ("backward_end", "gradients_ready"),
        "on_batch_end": ("train_batch_end", "train_step_end", "step_skipped"),
        "on_train_end": ("fit_end",),
    },
    "pytorch-accelerated": {
        "on_train_epoch_start": ("train_start", "train_epoch_start"),
        "on_stop_training_error": ("stop", "eval_end"),
    },
    "Composer": {
        **dict.fromkeys(("init", "before_load"), ("model_ready",)),
        **dict.fromkeys(("iteration_end", "iteration_checkpoint"), ()),
        "batch_end": ("train_step_end", "step_skipped"),
        "fit_end": ("train_end",),
    },
    "Keras": {
        **dict.fromkeys(("on_batch_begin", "on_batch_end"), ()),
        "on_train_batch_end": ("train_batch_end", "train_step_end", "step_skipped"),
    },
    "Hugging Face": {
        "on_pre_optimizer_step": ("optimizer_step_start",),
        "on_step_end": ("train_step_end", "step_skipped"),
        "on_prediction_step": ("eval_batch_end", "predict_batch_end"),
        "on_log": ("metrics_ready", "eval_end", "train_end"),
    },
}
"""Events at which an adapted callback gets a hook, if that is not the event to which a user moves the hook.

``on_train_batch_end`` of Lightning, for example, comes after the update. A user moves the code to ``train_batch_end``,
but an adapter calls the hook at ``train_step_end`` for the last batch of a step.
"""

FOREIGN_HOOKS: tuple[ForeignHook, ...] = tuple(
    ForeignHook(system, hook, event, note, _FIRED.get(system, {}).get(hook, (event,)))
    for system, rows in (
        ("TorchTNT", _TORCHTNT),
        ("pytorch-accelerated", _PYTORCH_ACCELERATED),
        ("Lightning", _LIGHTNING),
        ("Composer", _COMPOSER),
        ("AIToolbox", _AITOOLBOX),
        ("Hugging Face", _HUGGING_FACE),
        ("Keras", _KERAS),
    )
    for hook, event, note in rows
)


def our_name(hook: str) -> tuple[ForeignHook, ...]:
    """Return the rows of a hook for each library where Hookline uses another name.

    Args:
        hook: Name of the hook in the other library.

    Returns:
        The rows, empty if no library has such a hook.

    Example:
        >>> [(row.system, row.event) for row in our_name("on_train_epoch_end")]
        [('Lightning', 'epoch_end')]
    """
    return tuple(row for row in FOREIGN_HOOKS if row.hook == hook and hook != f"on_{row.event}")
