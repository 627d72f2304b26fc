"""How fast a run says that it is: against a clock that moves only when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch import speed_monitor
from hookline.callbacks.watch.model_summary import ModelSummary
from hookline.callbacks.watch.speed_monitor import SpeedMonitor, peak_flops
from hookline.errors import ArgumentError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Loop, Result, SupervisedTask, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, is_quiet, set_time, sgd


class SlowTime:
    """The run's own clock, which moves only at the hooks that are given, so far each time."""

    def __init__(self) -> None:
        self.now = 0.0

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def callback(self, **seconds: float) -> LambdaCallback:
        hooks = {hook: (lambda run, s=s: self.passes(s)) for hook, s in seconds.items()}
        return LambdaCallback(name="slow time", on_setup=lambda run: set_time(run, lambda: self.now), **hooks)


def fit_slowly(*callbacks: Any, time: SlowTime | None = None, **options: Any) -> Result:
    """Steps that take a second, evaluation batches that take ten, saves that take a hundred."""
    seconds = {"on_train_step_start": 1.0, "on_eval_batch_start": 10.0, "on_checkpoint_save": 100.0}
    slow = (time or SlowTime()).callback(**seconds | options.pop("seconds", {}))
    result = fit(slow, *callbacks, **{"val": tiny_data(2), "log_every": "2st", **options})
    assert result.failures == ()
    return result


def test_speeds_are_those_of_training_without_evaluations_and_saves(tmp_path: Path) -> None:
    result = fit_slowly(SpeedMonitor(), Checkpointer(every="2st"), folder=tmp_path / "run")
    assert result.clock.seconds > 2 * 20 + 4 * 100  # they did take their time
    assert result.history.steps("speed/samples_per_second") == [2, 4, 6, 8]
    assert result.history["speed/samples_per_second"] == [8.0] * 4
    assert result.history["speed/batches_per_second"] == [1.0] * 4
    assert result.history["speed/steps_per_second"] == [1.0] * 4
    assert "speed/tokens_per_second" not in result.history


def test_batches_that_are_accumulated_and_a_short_one_are_counted_as_they_are() -> None:
    data = tiny_data(batches=5, last=3)  # steps of 16, 16 and 3 samples
    result = fit_slowly(SpeedMonitor(), train=data, accumulate=2, log_every="3st", max_duration="1ep")
    assert result.history["speed/samples_per_second"] == [35 / 3]
    assert result.history["speed/batches_per_second"] == [5 / 3]
    assert result.history["speed/steps_per_second"] == [1.0]


def test_tokens_are_counted_where_the_task_counts_them() -> None:
    class Counting(SupervisedTask):
        def count(self, batch: Any) -> tuple[int, int]:
            return len(batch[0]), 7 * len(batch[0])

    from_task = fit_slowly(SpeedMonitor(), model=Counting(TinyModel(), CE, sgd))
    assert from_task.history["speed/tokens_per_second"] == [56.0] * 4


@pytest.mark.parametrize(("window", "expected"), [(1, [2 / 2, 2 / 6, 2 / 6]), (2, [2 / 2, 4 / 8, 4 / 12])])
def test_a_window_is_as_many_intervals_as_the_user_says(window: int, expected: list[float]) -> None:
    time = SlowTime()
    slower = LambdaCallback(on_train_step_start=lambda run: time.passes(2.0) if run.clock.step >= 2 else None)
    result = fit_slowly(SpeedMonitor(window), slower, time=time, max_duration="6st", train=tiny_data(6))
    assert result.history["speed/steps_per_second"] == expected


@pytest.mark.parametrize("window", [0, -1, True, 1.5, "10st"])
def test_a_window_that_is_no_number_of_intervals_is_refused(window: Any) -> None:
    with pytest.raises(ArgumentError, match=r"SpeedMonitor\(window.*\): must be"):
        SpeedMonitor(window)


def test_without_intervals_there_is_a_row_for_each_epoch() -> None:
    result = fit_slowly(SpeedMonitor(), log_every=None)
    assert result.history.steps("speed/steps_per_second") == [4, 8]
    assert result.history["speed/steps_per_second"] == [1.0, 1.0]


def test_after_a_resume_only_what_this_process_did_counts(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "8st", "train": tiny_data(8)}
    fit_slowly(SpeedMonitor(), Checkpointer(every="3st", at_end=False), **options | {"max_duration": "4st"})
    slower = {"on_train_step_start": 4.0}
    again = fit_slowly(SpeedMonitor(), Checkpointer(every="3st"), resume="auto", seconds=slower, **options)
    # It goes on after step 3: the interval to step 4 is one step long.
    assert again.history.steps("speed/steps_per_second") == [2, 4, 6, 8]
    assert again.history["speed/steps_per_second"] == [1.0, 0.25, 0.25, 0.25]
    assert again.history["speed/samples_per_second"] == [8.0, 2.0, 2.0, 2.0]


def test_a_second_fit_does_not_count_the_time_between_the_two() -> None:
    time = SlowTime()
    slow = time.callback(on_train_step_start=1.0)
    trainer = Trainer(max_duration="1ep", callbacks=[slow, SpeedMonitor()], folder=False, device="cpu")
    model = TinyModel()
    fit(trainer=trainer, model=model)
    time.passes(1000.0)
    result = fit(trainer=trainer, model=model, extend="1ep")
    assert result.history["speed/steps_per_second"] == [1.0, 1.0]


# ------------------------------------------------------------------------------------ waiting for data


class SlowLoader:
    """A batch of it takes half a second."""

    def __init__(self, time: SlowTime) -> None:
        self._time = time

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        for batch in tiny_data():
            self._time.passes(0.5)
            yield batch


def test_the_wait_for_data_is_a_share_of_the_time_of_training() -> None:
    time = SlowTime()
    result = fit_slowly(SpeedMonitor(data_wait=True), time=time, train=SlowLoader(time))
    assert result.history["speed/data_wait"] == pytest.approx([0.5 / 1.5] * 4)
    assert result.history["speed/steps_per_second"] == pytest.approx([1 / 1.5] * 4)


def test_evaluations_test_and_prediction_have_their_own_speed() -> None:
    """Four batches, for each of which the loader needs half a second."""
    time, found = SlowTime(), {}
    loader: Any = SlowLoader(time)
    result = fit_slowly(SpeedMonitor(data_wait=True), time=time, val=loader, test=loader, max_duration="1ep")
    assert result.history["speed/val/seconds"] == result.history["speed/test/seconds"] == [4 * 10.5]
    assert result.history["speed/val/batches_per_second"] == pytest.approx([1 / 10.5])
    assert result.history["speed/val/samples_per_second"] == pytest.approx([8 / 10.5])
    assert result.history["speed/val/data_wait"] == pytest.approx([0.5 / 10.5])
    assert result.history["speed/steps_per_second"] == [1.0, 1.0]  # what training needs, without them

    slow = time.callback(on_eval_batch_start=19.5, on_predict_batch_start=1.0)
    look = LambdaCallback(on_teardown=lambda run: found.update(run.metrics))
    trainer = Trainer(callbacks=[slow, SpeedMonitor(data_wait=True), look], folder=False, device="cpu")
    assert trainer.evaluate(TinyModel(), loader, loss=CE)["speed/val/samples_per_second"] == pytest.approx(8 / 20)
    trainer.predict(TinyModel(), loader)
    assert found["speed/predict/seconds"] == 6.0
    assert found["speed/predict/data_wait"] == pytest.approx(1 / 3)


def test_an_evaluation_that_the_body_leaves_is_measured_from_its_start() -> None:
    time = SlowTime()
    slow = time.callback(on_eval_batch_start=10.0)
    with Loop(TinyModel(), sgd, callbacks=[slow, SpeedMonitor()], folder=False, device="cpu") as loop:
        for number, _ in enumerate(loop.eval_batches(tiny_data())):
            if number == 1:
                break
    assert loop.run.history["speed/val/seconds"] == [20.0]


def test_a_loader_that_is_always_ready_is_not_waited_for() -> None:
    assert fit_slowly(SpeedMonitor(data_wait=True)).history["speed/data_wait"] == [0.0] * 4


def test_it_hears_events_of_a_step_only_when_asked_for_the_wait() -> None:
    def heard(monitor: SpeedMonitor) -> set[str]:
        return {event for event in STEP_EVENTS if overridden(monitor, f"on_{event}")}

    assert heard(SpeedMonitor()) == set()
    assert heard(SpeedMonitor(data_wait=True)) == {"batch_fetch_start", "batch_fetch_end"}
    assert [s for s in ("around_step", "around_batch") if overridden(SpeedMonitor(), s)] == []


def test_steps_stay_on_the_fastest_path() -> None:
    trainer = Trainer(max_duration="1ep", callbacks=[SpeedMonitor()], folder=False, device="cpu")
    fit(trainer=trainer)
    assert is_quiet(trainer)


# ------------------------------------------------------------------------------------ the hardware's peak


def tell(flops: float) -> LambdaCallback:
    return LambdaCallback(on_train_start=lambda run: run.messages.send("flops_per_sample", flops, keep="forever"))


def test_how_much_of_the_peak_is_used() -> None:
    result = fit_slowly(SpeedMonitor(peak=1e9), tell(5e6))
    assert result.history["speed/flops_per_second"] == [8 * 5e6] * 4
    assert result.history["speed/utilization"] == [8 * 5e6 / 1e9] * 4


def test_what_a_sample_costs_comes_from_the_summary_of_the_model() -> None:
    # Linear(4, 8) and Linear(8, 3): a product of matrices for the outputs, for the gradients of the weights, and
    # in the second layer for those of its inputs.
    cost = 2 * (4 * 8 + 8 * 3) + 2 * (4 * 8 + 8 * 3) + 2 * 8 * 3
    result = fit_slowly(SpeedMonitor(), ModelSummary(print=False))
    assert result.history["speed/flops_per_second"] == [8.0 * cost] * 4


def test_on_hardware_without_a_known_peak_there_is_no_share_of_it() -> None:
    assert "speed/utilization" not in fit_slowly(SpeedMonitor(), tell(5e6)).history


def test_without_knowing_what_a_sample_costs_there_are_speeds_only() -> None:
    names = {name for name in fit_slowly(SpeedMonitor(peak=1e9), eval_every=None).history if name.startswith("speed/")}
    assert names == {f"speed/{what}_per_second" for what in ("steps", "batches", "samples")}


@pytest.mark.parametrize("peak", [0, -1.0, float("nan")])
def test_a_peak_that_is_none_is_refused(peak: float) -> None:
    with pytest.raises(ArgumentError, match=r"SpeedMonitor\(peak=.*\): must be"):
        SpeedMonitor(peak=peak)


def test_the_peak_of_a_gpu_is_found_by_its_name() -> None:
    rows = [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "fp16", 835),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A10", "fp16", 125),
        ("NVIDIA A10G", "fp16", None),
        ("NVIDIA L4", "fp32", 30.3),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L40", "bf16", 181),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("Some other GPU", "fp32", None),
    ]
    wrong = []
    for device, number, tera in rows:
        expected = None if tera is None else tera * 1e12
        if peak_flops(device, number) != expected:
            wrong.append((device, number, peak_flops(device, number)))
    assert wrong == []


@pytest.mark.parametrize(
    ("precision", "dtype", "matmul", "tera"),
    [
        ("bf16", torch.float32, "highest", 312),
        ("fp16", torch.float32, "highest", 312),
        ("fp32", torch.bfloat16, "highest", 312),
        ("fp32", torch.float32, "highest", 19.5),
        ("fp32", torch.float32, "high", 156),
    ],
)
def test_the_peak_is_that_of_the_numbers_that_are_trained_with(
    monkeypatch: pytest.MonkeyPatch, precision: str, dtype: torch.dtype, matmul: str, tera: float
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")  # there is none here
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: matmul)
    run: Any = SimpleNamespace(device=torch.device("cuda"), precision=precision, model=nn.Linear(2, 2, dtype=dtype))
    assert speed_monitor._peak_of(run) == tera * 1e12
