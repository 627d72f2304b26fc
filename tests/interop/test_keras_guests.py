"""Callbacks of Hookline do in ``Model.fit`` of Keras what they do in Hookline, with the same weights within 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("keras", reason="keras is not installed: `make interop` runs these tests")

import hookline as hl
from hookline.errors import NotAvailableError, RegistrationError
from tests.interop.test_keras import arrays, close, in_hookline, in_keras, keras_model, weights
from tests.interop.test_keras import on_the_cpu as on_the_cpu

pytestmark = pytest.mark.filterwarnings("ignore")

EVENTS = (
    *("train_start", "train_epoch_start", "train_step_start", "train_batch_start", "train_batch_end"),
    *("train_step_end", "train_epoch_end", "eval_start", "eval_batch_start", "eval_batch_end", "eval_end"),
    *("epoch_end", "stop", "train_end", "fit_end"),
)


class EpochMonitor(hl.Callback):
    """It notes the events in their order, with the clock, and the metrics."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.values: list[float] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        if event in EVENTS:
            self.rows.append((event, run.stage, run.clock.epoch, run.clock.step, run.clock.batch))
        if event == "eval_end":
            self.values.append(run.metrics["val/loss"])
        if event == "epoch_end":
            self.values.append(run.metrics["train/loss_epoch"])


CASES: dict[str, Callable[[], list[Any]]] = {
    "EpochMonitor": lambda: [EpochMonitor()],
    "EarlyStopping": lambda: [hl.EarlyStopping("val/loss", min_delta=0.03, patience=1), EpochMonitor()],
    "EMA": lambda: [hl.EMA(0.7), EpochMonitor()],
    "both": lambda: [hl.EarlyStopping("val/loss", min_delta=0.03), hl.EMA(0.7), EpochMonitor()],
}


@pytest.mark.parametrize("name", CASES)
def test_a_guest_does_the_same(name: str) -> None:
    there, here = CASES[name](), CASES[name]()
    expected, result = in_hookline(here, max_duration="9ep", make=keras_model)
    found = in_keras([hl.interop.to_keras(*there)], epochs=9)
    assert close(weights(found), weights(expected))
    assert there[-1].rows == here[-1].rows
    assert there[-1].rows[-1][3] == result.clock.step
    assert close(there[-1].values, here[-1].values)


def test_another_model_is_another_run_and_the_same_model_continues() -> None:
    stopper, monitor = hl.EarlyStopping("val/loss", min_delta=0.03, patience=1), EpochMonitor()
    guest = hl.interop.to_keras(stopper, monitor)
    first = in_keras([guest], epochs=9)
    steps, best = monitor.rows[-1][3], stopper.best
    second = in_keras([guest], epochs=9)
    assert close(weights(second), weights(first))
    assert (monitor.rows[-1][3], stopper.best) == (steps, best)
    second.fit(*arrays(), batch_size=8, shuffle=False, callbacks=[guest], verbose=0, validation_data=arrays(2, seed=2))
    assert monitor.rows[-1][3] == steps + 4


def test_a_stop_in_an_epoch_ends_training_after_the_step() -> None:
    monitor = EpochMonitor()
    stop = hl.on("train_step_end", at="6st")(lambda run: run.stop("now"))
    in_keras([hl.interop.to_keras(stop, monitor)])
    assert monitor.rows[-1] == ("fit_end", "train", 1, 6, 6)


def test_what_a_guest_logs_is_in_the_logs() -> None:
    log = hl.on("train_epoch_end")(lambda run: run.log({"twice": 2 * run.metrics["train/loss"]}))
    history = in_keras([hl.interop.to_keras(log)]).history.history
    assert close(history["twice"], [2 * value for value in history["loss"]])


def test_an_evaluation_and_a_prediction_are_runs() -> None:
    seen: list[Any] = []

    class Seen(hl.Callback):
        def on_event(self, event: str, run: hl.Run) -> None:
            seen.append((run.entry_point, event))

    model = keras_model()
    model.compile(loss="mse")
    x, _ = arrays(1)
    model.evaluate(x, x[:, :2], verbose=0, callbacks=[hl.interop.to_keras(Seen())])
    model.predict(x, verbose=0, callbacks=[hl.interop.to_keras(Seen())])
    events = ["setup", "model_ready", "eval_start", "eval_batch_start", "eval_batch_end", "eval_end", "teardown"]
    assert seen == [
        *(("evaluate", event) for event in events),
        *(("predict", event.replace("eval", "predict")) for event in events),
    ]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (hl.Checkpointer, "Checkpointer"),
        (lambda: hl.GradientClip(1.0), r"GradientClip\.on_gradients_ready: Keras has no such event"),
        (lambda: hl.LimitBatches(train=1), r"LimitBatches\.on_eval_loader_start: Keras has no such event"),
    ],
)
def test_a_callback_that_needs_hookline_is_refused(callback: Callable[[], Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        hl.interop.to_keras(callback())


def test_the_engine_is_not_there() -> None:
    with pytest.raises(NotAvailableError, match=r"run\.evaluate: Keras drives this run, and not Hookline"):
        in_keras([hl.interop.to_keras(hl.on("train_start")(lambda run: run.evaluate()))])
