"""The table of events is consistent: everything else is generated from it or checked against it."""

from __future__ import annotations

import inspect

from hookline.events import EVENTS, SCOPES, Event, Hooks
from hookline.events.spec import ANY, BY_NAME, RESOURCES, moments
from hookline.run import Run

CONDITIONAL = ("batch", "outputs", "loss", "optimizer", "loader_name", "exception", "checkpoint", "stop_reason")


def test_no_event_is_declared_twice() -> None:
    assert len(BY_NAME) == len(EVENTS)
    assert len({scope.name for scope in SCOPES}) == len(SCOPES)


def test_a_row_names_only_what_there_is() -> None:
    scopes = {"", *(scope.name for scope in SCOPES)}
    for event in EVENTS:
        assert event.name.isidentifier()
        assert event.when, event
        assert event.gives == (), event
        assert event.scope in scopes, event
        assert event.stages, event
        assert set(event.stages) <= set(ANY), event
        assert set(event.valid) <= set(CONDITIONAL), event


def test_every_field_that_is_not_always_there_is_in_the_table_and_on_run() -> None:
    assert {field for event in EVENTS for field in event.valid} == set(CONDITIONAL)
    for field in CONDITIONAL:
        assert isinstance(inspect.getattr_static(Run, field), property)
        assert moments(field)


def test_the_moments_of_a_field_are_in_the_order_of_a_run() -> None:
    assert moments("stop_reason") == ("interrupt", "preempt", "stop")
    in_evaluation = ("eval_loader_start", "eval_batch_start", "eval_batch_end", "eval_loader_end")
    in_prediction = ("predict_start", "predict_batch_start", "predict_batch_end", "predict_end")
    assert moments("loader_name") == (*in_evaluation, *in_prediction)
    assert moments("no such field") == ()


def test_the_base_class_has_one_hook_per_event_and_one_generator_per_scope_and_nothing_else() -> None:
    hooks = {name for name in vars(Hooks) if not name.startswith("__")}
    assert hooks == {"on_event", *(event.hook for event in EVENTS), *(scope.hook for scope in SCOPES)}


def test_the_events_are_those_that_were_promised() -> None:
    promised = """
        setup model_ready teardown fit_start fit_end sanity_check_start sanity_check_end train_start train_end
        train_epoch_start train_epoch_end epoch_end train_step_start train_step_end step_settled batch_fetch_start
        batch_fetch_end train_batch_start train_batch_end forward_start forward_end loss_ready backward_start
        backward_end gradients_ready optimizer_step_start optimizer_step_end scheduler_step zero_grad step_skipped
        rollback eval_start eval_loader_start eval_batch_start eval_batch_end eval_loader_end eval_end predict_start
        predict_batch_start predict_batch_end predict_end checkpoint_save checkpoint_saved checkpoint_failed
        checkpoint_rejected checkpoint_loaded metrics_ready stop interrupt preempt exception callback_disabled
    """
    assert set(promised.split()) == set(BY_NAME)
    assert [scope.name for scope in SCOPES] == ["fit", "train", "epoch", "step", "batch", "eval", "predict", "save"]


def test_the_things_that_are_no_metrics_are_those_of_the_design() -> None:
    assert set(RESOURCES) == {"weights", "gradients", "optimizer", "batch", "loss"}


def test_an_event_is_a_frozen_value() -> None:
    assert Event("verify", gives=("x",)) == Event("verify", gives=("x",))
    assert hash(Event("verify")) == hash(Event("verify"))
    assert Event("verify").hook == "on_verify"
