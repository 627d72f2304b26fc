from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import RegistrationError
from hookline.testing import Recorder, TinyModel, drive, tiny_data
from tests.support import fit


def one_epoch(*callbacks: hl.Callback, **options: Any) -> hl.Result:
    """An epoch of two steps with dropout, and an evaluation."""
    options = {"max_duration": "1ep", "train": tiny_data(batches=2), "val": tiny_data(batches=1), **options}
    return fit(*callbacks, model=TinyModel(dropout=0.5), **options)


STEP = [
    "batch_fetch_start",
    "batch_fetch_end",
    "train_step_start",
    "train_batch_start",
    "forward_start",
    "forward_end",
    "loss_ready",
    "backward_start",
    "backward_end",
    "train_batch_end",
    "gradients_ready",
    "optimizer_step_start",
    "optimizer_step_end",
    "zero_grad",
    "train_step_end",
]


def test_every_event_is_recorded_in_order() -> None:
    recorder = Recorder()
    one_epoch(recorder)
    start = recorder.names.index("train_epoch_start")
    assert recorder.names[start + 1 : start + 1 + len(STEP)] == STEP
    assert recorder.names[0] == "setup"
    assert recorder.names[-1] == "teardown"
    assert recorder.rows == []


def test_count_without_and_clear() -> None:
    recorder = Recorder()
    one_epoch(recorder)
    assert recorder.count("train_step_end") == 2
    assert recorder.count("rollback") == 0
    inner = {name for name in recorder.names if name not in ("setup", "train_start", "train_end", "teardown")}
    assert recorder.without(*inner) == ["setup", "train_start", "train_end", "teardown"]
    recorder.clear()
    assert (recorder.names, recorder.rows) == ([], [])


def test_only_keeps_a_few_events() -> None:
    recorder = Recorder(only=("train_step_end", "eval_end", "fit_end"))
    one_epoch(recorder)
    assert recorder.names == ["train_step_end", "train_step_end", "eval_end", "fit_end"]


def test_fields_are_recorded_and_what_has_no_value_is_absent() -> None:
    recorder = Recorder(fields=("clock.step", "stage", "loss"), only=("train_start", "train_step_end"))
    result = one_epoch(recorder, log_every="1st")
    first, second, third = recorder.rows
    assert first == {"event": "train_start", "clock.step": 0, "stage": "train"}
    assert list(second) == ["event", "clock.step", "stage", "loss"]
    assert [row["clock.step"] for row in (second, third)] == [1, 2]
    assert [row["loss"] for row in (second, third)] == result.history["train/loss"]


def test_a_path_can_go_into_metrics_and_a_wrong_one_is_absent() -> None:
    recorder = Recorder(
        fields=("metrics.val/loss", "metrics.no/such", "clock.eval.batch", "wrong", "clock.wrong.deeper"),
        only=("eval_end", "train_start"),
    )
    result = one_epoch(recorder)
    assert recorder.rows == [
        {"event": "train_start"},
        {"event": "eval_end", "metrics.val/loss": result.metrics["val/loss"], "clock.eval.batch": 1},
    ]


def test_values_are_copies() -> None:
    """What the run changes later does not change a row."""
    recorder = Recorder(fields=("clock", "batch", "metrics", "config"), only="train_step_end")
    one_epoch(recorder, max_duration="2st", log_every="1st", config={"lr": 1})
    first, second = recorder.rows
    assert (first["clock"].step, second["clock"].step) == (1, 2)
    assert (len(first["metrics"]), len(second["metrics"])) == (1, 1)
    assert first["metrics"] != second["metrics"]
    batch = tiny_data(batches=2)[0]
    first["batch"][0].zero_()
    assert not torch.equal(first["batch"][0], batch[0])
    assert first["config"]["lr"] == 1


def test_tensors_hold_no_graph() -> None:
    recorder = Recorder(fields=("loss", "outputs"), only="loss_ready")
    one_epoch(recorder)
    assert isinstance(recorder.rows[0]["loss"], float)
    assert not recorder.rows[0]["outputs"].requires_grad


def test_it_does_not_change_a_run() -> None:
    bare = one_epoch().model.state_dict()
    recorded = one_epoch(Recorder(fields=("loss", "batch", "outputs", "metrics", "clock"))).model.state_dict()
    assert all(torch.equal(bare[name], recorded[name]) for name in bare)


class Verifier(hl.Callback):
    events = (hl.Event("verify", gives=("xb",)),)

    def on_train_start(self, run: hl.Run) -> None:
        run.emit("verify", xb=3)


def test_custom_events_are_recorded_with_their_payload() -> None:
    recorder = Recorder(fields=("xb", "stage"), only=("verify", "train_start"))
    one_epoch(recorder, Verifier())
    assert recorder.rows == [
        {"event": "train_start", "stage": "train"},
        {"event": "verify", "xb": 3, "stage": "train"},
    ]


def test_one_recorder_can_go_through_several_runs() -> None:
    recorder = Recorder(only="fit_end")
    one_epoch(recorder)
    one_epoch(recorder)
    assert recorder.names == ["fit_end", "fit_end"]


def test_a_misspelt_event_is_an_error() -> None:
    """Else it would be an event that never comes."""
    with pytest.raises(RegistrationError, match="no event 'train_stepend'; did you mean train_step_end"):
        one_epoch(Recorder(only=("train_stepend",)))
    with pytest.raises(RegistrationError, match="no event 'fit_ends'; did you mean fit_end"):
        Recorder().count("fit_ends")
    with pytest.raises(RegistrationError, match="no event 'fit_ends'"):
        Recorder().without("fit_ends")


def test_a_recorder_can_be_copied_and_named() -> None:
    recorder = Recorder(fields="stage", name="second")
    drive(recorder, ["train_start"])
    assert deepcopy(recorder).rows == [{"event": "train_start", "stage": "train"}]
    one_epoch(Recorder(), recorder)
    assert recorder.count("train_start") == 2
