"""The numbers of the parameters, against NumPy, at the right steps."""

from __future__ import annotations

import signal
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch.parameter_monitor import ParameterMonitor
from hookline.errors import ArgumentError, DurationError, Preempted, SetupError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Result
from hookline.testing import TinyModel, drive
from tests.support import at_step, crash_at, fit, json_lines

fit_in_intervals = partial(fit, log_every="2st")


def rows(result: Result) -> dict[str, Any]:
    names = [name for name in result.history if name.startswith("parameters/")]
    return {name: (result.history.steps(name), result.history[name]) for name in names}


def test_the_numbers_are_those_that_numpy_computes() -> None:
    weights: list[dict[str, np.ndarray[Any, Any]]] = []

    def note(run: Any) -> None:
        if run.clock.step % 2 == 0:
            weights.append({name: p.detach().double().numpy().copy() for name, p in run.model.named_parameters()})

    class Sparse(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                self.hidden.weight[:4] = 0
            self.hidden.requires_grad_(False)

    result = fit_in_intervals(ParameterMonitor(), LambdaCallback(on_train_step_end=note), model=Sparse())
    history = result.history
    assert result.failures == ()
    assert history.steps("parameters/norm/total") == [2, 4, 6, 8]
    for index, step in enumerate(weights):
        for name, values in step.items():
            expected = {
                "norm": np.linalg.norm(values),
                "mean": values.mean(),
                "std": values.std(),
                "zeros": (values == 0).mean(),
            }
            for kind, value in expected.items():
                assert history[f"parameters/{kind}/{name}"][index] == pytest.approx(value, rel=1e-5, abs=1e-7)
        total = np.sqrt(sum((values**2).sum() for values in step.values()))
        assert history["parameters/norm/total"][index] == pytest.approx(total, rel=1e-5)
    assert history["parameters/zeros/hidden.weight"] == [0.5] * 4


def test_statistics_and_parameters_are_chosen() -> None:
    result = fit_in_intervals(ParameterMonitor(layers=("out", "*.bias"), statistics="std"))
    assert {name for name in result.history if name.startswith("parameters/")} == {
        f"parameters/std/{name}" for name in ("hidden.bias", "out.weight", "out.bias")
    }


def test_one_number_alone_and_low_precision_and_complex_numbers_are_no_trouble() -> None:
    class Odd(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.tensor(3.0))
            self.low = nn.Parameter(torch.full((60_000,), 0.01, dtype=torch.bfloat16))
            self.wave = nn.Parameter(torch.tensor([3 + 4j]))
            self.empty = nn.Parameter(torch.zeros(0))

    metrics = fit_in_intervals(ParameterMonitor(), model=Odd(), max_duration="2st").metrics
    assert (metrics["parameters/norm/one"], metrics["parameters/std/one"]) == (3.0, 0.0)
    assert metrics["parameters/norm/low"] == pytest.approx(float(torch.tensor(0.01).bfloat16()) * 60_000**0.5, rel=1e-4)
    assert metrics["parameters/norm/wave"] == 5.0
    assert "parameters/norm/empty" not in metrics


def test_a_parameter_with_the_name_of_the_sum_has_a_name_of_its_own() -> None:
    class Scaled(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            self.total = nn.Parameter(torch.full((4,), 2.0))

    metrics = fit_in_intervals(
        ParameterMonitor(layers=("total", "out.bias")), model=Scaled(), max_duration="2st"
    ).metrics
    assert metrics["parameters/norm/model.total"] == 4.0
    assert metrics["parameters/norm/total"] == pytest.approx((16 + metrics["parameters/norm/out.bias"] ** 2) ** 0.5)
    assert metrics["parameters/mean/model.total"] == 2.0


def test_histograms_hold_every_number(tmp_path: Path) -> None:
    fit_in_intervals(ParameterMonitor("1ep", layers="out", histograms=True, statistics=()), folder=tmp_path / "run")
    found = [
        row for row in json_lines(tmp_path / "run" / "metrics.jsonl") if str(row.get("name")).startswith("parameters/")
    ]
    assert [(row["name"], row["step"], sum(row["counts"])) for row in found] == [
        (f"parameters/values/{name}", step, size)
        for step in (4, 8)
        for name, size in (("out.weight", 24), ("out.bias", 3))
    ]


@pytest.mark.parametrize(
    ("every", "log_every", "expected"),
    [("1ep", "1st", [4, 8]), ("3st", "2st", [4, 6]), ("3st", None, [4, 8]), ("0.5dur", "1st", [4, 8])],
)
def test_with_every_it_looks_at_the_first_interval_after_it(every: str, log_every: Any, expected: list[int]) -> None:
    assert (
        fit_in_intervals(ParameterMonitor(every), log_every=log_every).history.steps("parameters/norm/total")
        == expected
    )


@cache
def rows_of_whole_run(every: str | None) -> dict[str, Any]:
    return rows(fit_in_intervals(ParameterMonitor(every), max_duration="3ep"))


@pytest.mark.parametrize("every", [None, "3st", "5st", "1ep"])
@pytest.mark.parametrize("step", [3, 4, 7])
def test_after_a_resume_the_rows_are_bitwise_those_of_a_run_that_was_not_stopped(
    every: str | None, step: int, tmp_path: Path
) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_in_intervals(ParameterMonitor(every), Checkpointer("1st"), crash_at(step, "train_step_start"), **options)
    resumed = fit_in_intervals(ParameterMonitor(every), Checkpointer("1st"), resume="auto", **options)
    assert rows(resumed) == rows_of_whole_run(every)
    written = [
        row for row in json_lines(tmp_path / "run" / "metrics.jsonl") if row.get("name") == "parameters/norm/total"
    ]
    expected = dict.fromkeys(rows_of_whole_run(every)["parameters/norm/total"][0], 1)
    assert Counter(row["step"] for row in written) == expected


def test_a_signal_at_the_edge_of_an_epoch_gives_its_step_no_second_row(tmp_path: Path) -> None:
    leave = at_step(4, lambda run: signal.raise_signal(signal.SIGTERM), "metrics_ready")
    with pytest.raises(Preempted):
        fit_in_intervals(ParameterMonitor(), leave, folder=tmp_path / "run")
    resumed = fit_in_intervals(ParameterMonitor(), folder=tmp_path / "run", resume="auto")
    assert resumed.history.steps("parameters/norm/total") == [2, 4, 6, 8]


def test_a_name_that_means_no_parameter_is_an_error_with_the_nearest() -> None:
    message = r"ParameterMonitor\(layers='hiden'\): no parameter of the model matches. The nearest names: hidden"
    with pytest.raises(SetupError, match=message):
        fit_in_intervals(ParameterMonitor(layers="hiden"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"statistics": "median"}, ArgumentError, r"ParameterMonitor\(statistics="),
        ({"statistics": ()}, ArgumentError, r"ParameterMonitor\(statistics="),
        ({"layers": False}, ArgumentError, "give True for all"),
        ({"layers": ()}, ArgumentError, "give names of layers or patterns"),
        ({"every": "5ba"}, DurationError, "st"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ParameterMonitor(**arguments)


class NoReads(TorchDispatchMode):
    """Fails when a number is read from a tensor: on a GPU that would wait for all that was started."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_number_is_read_from_the_device_until_the_interval_ends() -> None:
    driven = drive(ParameterMonitor(), ["setup", "train_start", "train_step_end"])
    with NoReads():
        driven.then(["metrics_ready"])
    assert "parameters/std/out.bias" in driven.logged


def test_it_hears_no_event_of_a_step() -> None:
    assert [event for event in STEP_EVENTS if overridden(ParameterMonitor(), f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(ParameterMonitor(), scope)] == []
