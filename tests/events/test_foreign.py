"""The map from the hooks of five other systems to our events."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

from hookline.events.foreign import FOREIGN_HOOKS, ForeignHook, our_name
from hookline.events.spec import BY_NAME

# By path: the data is no test module, and how tests are put on sys.path is the runner's business.
_DATA = runpy.run_path(str(Path(__file__).with_name("seed_hooks.py")))
SEED_HOOKS: dict[str, tuple[str, ...]] = _DATA["SEED_HOOKS"]
GENERATED_HOOKS: dict[str, tuple[str, ...]] = _DATA["GENERATED_HOOKS"]
OTHER_HOOKS: dict[str, tuple[str, ...]] = _DATA["OTHER_HOOKS"]

TNT = "TorchTNT"
PA = "pytorch-accelerated"
PL = "Lightning"
CO = "Composer"
AI = "AIToolbox"

ROWS: dict[tuple[str, str], ForeignHook] = {(row.system, row.hook): row for row in FOREIGN_HOOKS}

FEATURES: tuple[tuple[tuple[str, ...], dict[str, tuple[str, ...]]], ...] = (
    (
        ("setup",),
        {
            PA: ("on_init_end",),
            PL: ("on_init_start", "on_init_end", "setup"),
            CO: ("init",),
            AI: ("on_train_loop_registration", "on_multiprocess_start"),
        },
    ),
    (("model_ready",), {PL: ("on_configure_sharded_model",), CO: ("after_load",)}),
    (("teardown",), {PL: ("teardown",), CO: ("close",)}),
    (
        ("fit_start",),
        {
            PL: ("on_fit_start", "on_pretrain_routine_start", "on_pretrain_routine_end"),
            CO: ("fit_start",),
        },
    ),
    (("fit_end",), {PL: ("on_fit_end",), CO: ("fit_end",)}),
    (("sanity_check_start",), {PL: ("on_sanity_check_start",)}),
    (("sanity_check_end",), {PL: ("on_sanity_check_end",)}),
    (
        ("train_start",),
        {
            TNT: ("on_train_start",),
            PA: ("on_training_run_start",),
            PL: ("on_train_start",),
            AI: ("on_train_begin",),
        },
    ),
    (
        ("train_end",),
        {TNT: ("on_train_end",), PA: ("on_training_run_end",), PL: ("on_train_end",), AI: ("on_train_end",)},
    ),
    (
        ("train_epoch_start",),
        {
            TNT: ("on_train_epoch_start",),
            PA: ("on_train_epoch_start",),
            PL: ("on_train_epoch_start",),
            CO: ("epoch_start",),
            AI: ("on_epoch_begin",),
        },
    ),
    (
        ("train_epoch_end",),
        {TNT: ("on_train_epoch_end",), PA: ("on_train_epoch_end",), CO: ("epoch_end",)},
    ),
    (
        ("epoch_end",),
        {PL: ("on_train_epoch_end", "on_epoch_end"), CO: ("epoch_checkpoint",), AI: ("on_epoch_end",)},
    ),
    (
        ("batch_fetch_start",),
        {
            TNT: (
                "on_train_get_next_batch_start",
                "on_eval_get_next_batch_start",
                "on_predict_get_next_batch_start",
            ),
            CO: ("before_dataloader",),
        },
    ),
    (
        ("batch_fetch_end",),
        {
            TNT: (
                "on_train_get_next_batch_end",
                "on_eval_get_next_batch_end",
                "on_predict_get_next_batch_end",
            ),
            CO: ("after_dataloader",),
        },
    ),
    (("train_step_start",), {CO: ("batch_start",)}),
    (("train_step_end",), {CO: ("batch_end",)}),
    (
        ("train_batch_start",),
        {
            TNT: ("on_train_step_start",),
            PA: ("on_train_step_start",),
            PL: ("on_train_batch_start",),
            AI: ("on_batch_begin",),
        },
    ),
    (
        ("train_batch_end",),
        {TNT: ("on_train_step_end",), PL: ("on_train_batch_end",), AI: ("on_batch_end",)},
    ),
    (
        ("forward_start", "forward_end", "loss_ready"),
        {
            PA: ("on_train_step_end",),
            CO: ("before_forward", "after_forward", "before_loss", "after_loss"),
        },
    ),
    (("backward_start",), {PL: ("on_before_backward",), CO: ("before_backward",)}),
    (
        ("backward_end",),
        {PL: ("on_after_backward",), CO: ("after_backward",), AI: ("on_after_gradient_update",)},
    ),
    (
        ("gradients_ready", "optimizer_step_start", "optimizer_step_end", "zero_grad"),
        {
            PL: ("on_before_optimizer_step", "on_before_zero_grad"),
            CO: ("after_train_batch",),
            AI: ("on_after_optimizer_step",),
        },
    ),
    (
        (
            "eval_start",
            "eval_loader_start",
            "eval_batch_start",
            "eval_batch_end",
            "eval_loader_end",
            "eval_end",
        ),
        {
            TNT: (
                "on_eval_start",
                "on_eval_epoch_start",
                "on_eval_step_start",
                "on_eval_step_end",
                "on_eval_epoch_end",
                "on_eval_end",
            ),
            PA: (
                "on_evaluation_run_start",
                "on_eval_epoch_start",
                "on_eval_step_start",
                "on_eval_step_end",
                "on_eval_epoch_end",
            ),
            PL: (
                "on_validation_start",
                "on_validation_epoch_start",
                "on_validation_batch_start",
                "on_validation_batch_end",
                "on_validation_epoch_end",
                "on_validation_end",
                "on_test_start",
                "on_test_epoch_start",
                "on_test_batch_start",
                "on_test_batch_end",
                "on_test_epoch_end",
                "on_test_end",
            ),
            CO: ("eval_start", "eval_batch_start", "eval_batch_end", "eval_end"),
            AI: ("on_after_batch_prediction",),
        },
    ),
    (
        ("predict_start", "predict_batch_start", "predict_batch_end", "predict_end"),
        {
            TNT: ("on_predict_start", "on_predict_step_start", "on_predict_step_end", "on_predict_end"),
            PL: (
                "on_predict_start",
                "on_predict_epoch_start",
                "on_predict_batch_start",
                "on_predict_batch_end",
                "on_predict_epoch_end",
                "on_predict_end",
            ),
            CO: ("predict_start", "predict_batch_start", "predict_batch_end", "predict_end"),
        },
    ),
    (("checkpoint_save",), {PL: ("on_save_checkpoint",)}),
    (("checkpoint_loaded",), {PL: ("on_load_checkpoint",)}),
    (("step_settled",), {CO: ("batch_checkpoint",)}),
    (("stop",), {PA: ("on_stop_training_error",)}),
    (("interrupt",), {PL: ("on_keyboard_interrupt",)}),
    (("exception",), {TNT: ("on_exception",), PL: ("on_exception",)}),
)
"""The map of hooks in the list of what Hookline covers, with its shorthands written out."""


def event_of(system: str, hook: str) -> str:
    return ROWS[system, hook].event


def hooks_named(tables: tuple[dict[str, tuple[str, ...]], ...]) -> list[tuple[str, str]]:
    return [(system, hook) for table in tables for system, hooks in table.items() for hook in hooks]


def test_a_user_who_brings_a_hook_from_the_seed_documents_is_told_our_name() -> None:
    assert [row for row in hooks_named((SEED_HOOKS, GENERATED_HOOKS)) if row not in ROWS] == []


def test_a_user_who_brings_a_hook_of_a_later_version_is_told_our_name() -> None:
    assert [row for row in hooks_named((OTHER_HOOKS,)) if row not in ROWS] == []


def test_no_row_has_a_misspelt_hook_that_no_system_ever_had() -> None:
    assert set(ROWS) == set(hooks_named((SEED_HOOKS, GENERATED_HOOKS, OTHER_HOOKS)))


def test_no_message_sends_the_user_to_an_event_that_does_not_exist() -> None:
    assert [row for row in FOREIGN_HOOKS if row.event not in BY_NAME] == []


def test_no_message_gives_two_answers_for_one_hook_of_one_system() -> None:
    counts = Counter((row.system, row.hook) for row in FOREIGN_HOOKS)
    assert [key for key, count in counts.items() if count > 1] == []


def test_a_note_can_stand_in_brackets_inside_an_error_message() -> None:
    assert [row for row in FOREIGN_HOOKS if row.note != row.note.strip(" .\n") or "\n" in row.note] == []


def test_every_system_that_has_the_moment_is_mapped_to_it() -> None:
    astray = [
        (system, hook, event_of(system, hook), events)
        for events, hooks in FEATURES
        for system, names in hooks.items()
        for hook in names
        if event_of(system, hook) not in events
    ]
    assert astray == []


def test_every_moment_of_the_map_has_a_foreign_name_but_the_one_that_no_other_system_knows() -> None:
    promised = {event for events, _ in FEATURES for event in events} | {"checkpoint_saved"}
    assert promised - {row.event for row in FOREIGN_HOOKS} == {"optimizer_step_start"}


def test_a_nan_check_from_pytorch_accelerated_still_comes_before_backward() -> None:
    assert event_of(PA, "on_train_step_end") == "loss_ready"


def test_a_torchtnt_step_is_one_loader_batch_so_a_profiler_still_counts_batches() -> None:
    assert event_of(TNT, "on_train_step_end") == "train_batch_end"


def test_a_lightning_epoch_end_still_sees_the_validation_metrics() -> None:
    assert event_of(PL, "on_train_epoch_end") == "epoch_end"


def test_a_composer_epoch_end_comes_before_the_evaluation_and_epoch_checkpoint_after_it() -> None:
    assert event_of(CO, "epoch_end") == "train_epoch_end"
    assert event_of(CO, "epoch_checkpoint") == "epoch_end"


def test_a_composer_batch_end_comes_after_the_update_and_batch_checkpoint_after_the_evaluation() -> None:
    assert event_of(CO, "batch_end") == "train_step_end"
    assert event_of(CO, "batch_checkpoint") == "step_settled"


def test_gradients_are_complete_and_unscaled_where_lightning_and_composer_clip_them() -> None:
    assert event_of(PL, "on_before_optimizer_step") == "gradients_ready"
    assert event_of(CO, "after_train_batch") == "gradients_ready"


def test_an_aitoolbox_gradient_hook_sees_every_accumulated_batch_not_only_the_updates() -> None:
    assert event_of(AI, "on_after_gradient_update") == "backward_end"


def test_gradients_can_still_be_read_where_aitoolbox_has_just_stepped() -> None:
    assert event_of(AI, "on_after_optimizer_step") == "optimizer_step_end"


def test_a_lightning_validation_epoch_spans_all_loaders_so_it_is_not_sent_for_each() -> None:
    assert event_of(PL, "on_validation_epoch_start") == "eval_start"
    assert event_of(PL, "on_validation_epoch_end") == "eval_end"


def test_a_composer_eval_start_is_sent_for_each_evaluator() -> None:
    assert event_of(CO, "eval_start") == "eval_loader_start"
    assert event_of(CO, "eval_before_all") == "eval_start"


def test_a_composer_forward_hook_in_evaluation_is_the_forward_not_the_batch() -> None:
    assert event_of(CO, "eval_before_forward") == "forward_start"
    assert event_of(CO, "predict_after_forward") == "forward_end"


def test_a_torchtnt_unit_hears_of_a_checkpoint_once_it_is_written() -> None:
    assert event_of(TNT, "on_checkpoint_save") == "checkpoint_saved"


def test_reading_gradients_before_lightning_clears_them_is_warned_about() -> None:
    row = ROWS[PL, "on_before_zero_grad"]
    assert row.event == "zero_grad"
    assert "on_optimizer_step_end" in row.note


@pytest.mark.parametrize(
    ("system", "hook"), [(TNT, "on_train_step_end"), (PL, "on_train_batch_end"), (AI, "on_batch_end")]
)
def test_a_batch_end_that_used_to_see_the_moved_weights_says_where_they_have_moved(system: str, hook: str) -> None:
    assert "on_train_step_end" in ROWS[system, hook].note


def test_a_name_that_two_systems_use_for_two_moments_gives_both() -> None:
    assert {(row.system, row.event) for row in our_name("on_train_step_end")} == {
        (TNT, "train_batch_end"),
        (PA, "loss_ready"),
    }


def test_a_hook_that_has_the_same_name_here_is_not_called_foreign() -> None:
    assert our_name("on_train_start") == ()
    assert [row.system for row in our_name("on_train_epoch_end")] == [PL]


def test_a_hook_without_its_prefix_is_told_to_take_one() -> None:
    assert [(row.system, row.event) for row in our_name("setup")] == [(PL, "setup")]
    assert [(row.system, row.event) for row in our_name("fit_start")] == [(CO, "fit_start")]


def test_a_misspelt_name_that_no_system_has_gives_nothing() -> None:
    assert our_name("on_train_stepend") == ()
