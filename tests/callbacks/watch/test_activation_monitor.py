"""What comes out of the layers, against SciPy and NumPy; and hooks that are there only when they are needed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch.activation_monitor import STATISTICS, ActivationMonitor, measure
from hookline.errors import ArgumentError, SetupError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Result
from hookline.testing import TinyModel, drive, tiny_data
from hookline.testing.surroundings import hooks_on
from tests.support import crash_at, fit

fit_with_val = partial(fit, val=tiny_data(1), log_every="3st")


def of_monitor(result: Result) -> dict[str, Any]:
    names = [name for name in result.history if name.startswith("activations/")]
    return {name: (result.history.steps(name), result.history[name]) for name in names}


@pytest.mark.parametrize("shape", [(40,), (3, 5, 7)])
def test_the_statistics_are_those_of_numpy_and_scipy(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)).exp()
    values[values < 0.6] = 0
    values[0] *= -1
    flat = values.double().numpy().ravel()
    expected = {
        "norm": np.linalg.norm(flat),
        "mean": flat.mean(),
        "max": np.abs(flat).max(),
        "std": flat.std(),
        "skewness": stats.skew(flat),
        "kurtosis": stats.kurtosis(flat, fisher=False),
        "zeros": (flat == 0).mean(),
    }
    found = measure(values, STATISTICS)
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-4)


def test_a_layer_that_gives_always_the_same_has_no_skewness() -> None:
    found = measure(torch.full((8,), 2.0), ("mean", "std", "skewness", "kurtosis"))
    assert (found["mean"].item(), found["std"].item()) == (2.0, 0.0)
    assert math.isnan(found["skewness"].item())


def test_low_precision_outputs_are_measured_in_a_better_one() -> None:
    assert measure(torch.full((100_000,), 0.01).bfloat16(), ("norm",))["norm"].item() == pytest.approx(3.165, abs=0.01)


def test_the_rows_are_those_of_the_forward_of_that_step() -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    model = TinyModel()

    def note(run: Any) -> None:
        with torch.no_grad():
            x = run.batch[0]
            hidden = x @ model.hidden.weight.T + model.hidden.bias
            seen.append((hidden, torch.relu(hidden) @ model.out.weight.T + model.out.bias))

    result = fit_with_val(
        ActivationMonitor("1st", ignore="Dropout"), LambdaCallback(on_train_step_start=note), model=model
    )
    assert result.failures == ()
    assert result.history.steps("activations/mean/hidden") == list(range(1, 9))
    for index, (hidden, out) in enumerate(seen):
        assert result.history["activations/mean/hidden"][index] == pytest.approx(
            hidden.mean().item(), rel=1e-4, abs=1e-6
        )
        assert result.history["activations/max/out"][index] == pytest.approx(out.abs().max().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("every", "expected"), [("3st", [1, 3, 6]), ("1ep", [1, 4, 8]), ("20sp", [1, 4, 6]), ("0.5dur", [1, 4, 8])]
)
def test_each_step_that_completes_an_interval_has_its_row_whatever_log_every_is(
    every: str, expected: list[int]
) -> None:
    for log_every in ("1st", "100st"):
        found = fit_with_val(ActivationMonitor(every), log_every=log_every).history
        assert found.steps("activations/norm/out") == expected


def test_with_accumulation_the_first_batch_of_the_step_is_taken() -> None:
    result = fit_with_val(ActivationMonitor("1ep"), accumulate=2)
    assert result.history.steps("activations/norm/out") == [1, 2, 4]
    model = TinyModel()
    assert result.history["activations/norm/out"][0] == pytest.approx(model(tiny_data()[0][0]).norm().item(), rel=1e-5)


def test_an_evaluation_inside_the_step_is_not_taken_for_training() -> None:
    def evaluate(run: Any) -> None:
        run.evaluate([(100 * tiny_data()[0][0], tiny_data()[0][1])])

    class Late(LambdaCallback):
        after = (ActivationMonitor,)

    plain = fit_with_val(ActivationMonitor("1st"))
    beside = fit_with_val(ActivationMonitor("1st"), Late(on_train_step_start=evaluate))
    assert of_monitor(beside) == of_monitor(plain)


# -- layers --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Tensor
    numbers: Tensor
    second: Tensor


class Several(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x + 1, torch.arange(3), x * 2)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.0), nn.Linear(6, 3))
        self.several = Several()
        self.shared = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        found = self.several(self.encoder(x))
        result: Tensor = self.shared(self.shared(found.first + found.second))
        return result


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["encoder.0", "encoder.1", "encoder.2", "encoder.3", "several.0", "several.1", "shared"]),
        ({"ignore": ("ReLU", nn.Dropout, "several", "*.3")}, ["encoder.0", "shared"]),
        ({"layers": "encoder"}, ["encoder", "encoder.0", "encoder.1", "encoder.2", "encoder.3"]),
        ({"layers": ("model", "*.0"), "ignore": nn.Sequential}, ["model", "encoder.0"]),
    ],
)
def test_layers_are_chosen_and_ignored_by_name_pattern_and_class(arguments: Any, expected: list[str]) -> None:
    result = fit_with_val(
        ActivationMonitor(statistics="mean", **arguments), model=Deep(), max_duration="1st", log_every="1st"
    )
    assert result.failures == ()
    assert set(of_monitor(result)) == {f"activations/mean/{name}" for name in expected}


def test_of_a_layer_that_is_called_twice_the_first_call_is_taken() -> None:
    result = fit_with_val(ActivationMonitor(), model=Deep(), max_duration="1st", log_every="1st")
    model = Deep()
    found = model.several(model.encoder(tiny_data()[0][0]))
    first = torch.tanh(found.first + found.second)
    assert result.metrics["activations/mean/shared"] == pytest.approx(first.mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"layers": "encodr"},
            "ActivationMonitor(layers='encodr'): no layer of the model matches. The nearest names: encoder",
        ),
        (
            {"ignore": "Dropot"},
            "ActivationMonitor(ignore='Dropot'): no layer of the model matches. The nearest names: Dropout",
        ),
    ],
)
def test_a_name_that_is_not_there_is_an_error_with_the_nearest(arguments: Any, message: str) -> None:
    with pytest.raises(SetupError, match=re.escape(message)):
        fit_with_val(ActivationMonitor(**arguments), model=Deep())


def test_when_everything_is_ignored_it_says_so() -> None:
    (failure,) = fit_with_val(ActivationMonitor(ignore=nn.Module)).failures
    assert "finds no layer to look at" in str(failure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statistics": "median"}, r"ActivationMonitor\(statistics="),
        ({"layers": False}, "give True"),
        ({"ignore": ("",)}, "such as 'encoder'"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ActivationMonitor(**arguments)


def test_a_compiled_part_is_left_alone_and_this_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast = nn.Linear(4, 8)
            self.fast.compile(backend="eager")
            self.out = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.out(self.fast(x))
            return found

    result = fit_with_val(ActivationMonitor("1st", statistics="mean"), model=Half())
    assert set(of_monitor(result)) == {"activations/mean/out"}
    assert [record.message for record in caplog.records if "torch.compile" in record.message] == [
        "ActivationMonitor does not look into fast, which torch.compile has made"
    ]


# -- hooks ---------------------------------------------------------------------------------------


def test_hooks_are_on_the_model_only_in_the_steps_that_are_looked_at() -> None:
    counts: dict[int, int] = {}

    def count(run: Any) -> None:
        counts[run.clock.step + 1] = sum(hooks_on(run.model).values())

    fit_with_val(ActivationMonitor("3st"), LambdaCallback(on_loss_ready=count))
    assert {step for step, number in counts.items() if number} == {1, 3, 6}
    assert len(counts) == 8


def fail(run: Any) -> None:
    raise RuntimeError("planted")


def stop(run: Any) -> None:
    run.stop("now")


@pytest.mark.parametrize(
    "where", ["on_train_batch_start", "on_loss_ready", "on_optimizer_step_end", "on_train_step_end"]
)
@pytest.mark.parametrize("act", [fail, stop])
def test_hooks_are_taken_off_on_every_way_out(where: str, act: Callable[[Any], None]) -> None:
    model = TinyModel()
    with pytest.raises(RuntimeError, match="planted") if act is fail else nullcontext():
        fit_with_val(ActivationMonitor("1st"), LambdaCallback(**{where: act}), model=model)
    assert set(hooks_on(model).values()) == {0}


@pytest.mark.parametrize("event", ["train_epoch_end", "train_end", "exception", "teardown"])
def test_hooks_are_taken_off_when_the_step_has_no_end(event: str) -> None:
    model = TinyModel()
    given: Any = {"data": tiny_data(), "loss": nn.CrossEntropyLoss()}
    driven = drive(ActivationMonitor(), ["setup", "train_start", "train_step_start"], model=model, **given)
    assert sum(hooks_on(model).values()) == 3
    driven.then([event])
    assert set(hooks_on(model).values()) == {0}


def test_hooks_are_taken_off_when_the_forward_itself_fails() -> None:
    class Failing(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            self.hidden(x)
            raise KeyboardInterrupt

    model = Failing()
    with pytest.raises(KeyboardInterrupt):
        fit_with_val(ActivationMonitor("1st"), model=model)
    assert set(hooks_on(model).values()) == {0}


def test_a_step_that_is_skipped_has_no_row_and_the_next_one_is_looked_at_in_its_place() -> None:
    skipped: list[int] = []

    def skip_once(run: Any) -> None:
        if run.clock.batch == 2 and not skipped:
            skipped.append(run.clock.step)
            run.skip_step()

    result = fit_with_val(ActivationMonitor("2st"), LambdaCallback(on_gradients_ready=skip_once), log_every="1st")
    assert skipped == [1]
    assert result.failures == ()
    assert result.history.steps("activations/mean/out") == [1, 2, 4, 6]


@pytest.mark.parametrize("every", ["4st", "1ep"])
def test_when_the_last_step_of_an_epoch_is_skipped_the_first_of_the_next_is_looked_at_in_its_place(every: str) -> None:
    def skip(run: Any) -> None:
        if run.clock.batch == 3:
            run.skip_step()

    result = fit_with_val(ActivationMonitor(every), LambdaCallback(on_train_step_start=skip), log_every="1st")
    assert (result.failures, result.clock.step) == ((), 7)
    assert result.history.steps("activations/mean/out") == ([1, 4] if every == "4st" else [1, 4, 7])


def test_after_a_rollback_out_of_a_step_that_is_looked_at_every_step_has_its_row() -> None:
    class Back(LambdaCallback):
        taken: Any = None
        is_done = False

        def on_train_step_start(self, run: Any) -> None:
            if run.clock.step == 2 and self.taken is None:
                self.taken = run.snapshot()
            if run.clock.step == 5 and not self.is_done:
                self.is_done = True
                run.roll_back(self.taken)

    result = fit_with_val(ActivationMonitor("1st"), Back(), log_every="1st", max_duration="8st")
    assert result.history.steps("activations/mean/out") == [1, 2, 3, 4, 5, 6, 7, 8]


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x.to_sparse()


def test_a_layer_with_a_sparse_output_is_no_trouble_and_only_what_is_dense_is_measured() -> None:
    class Mixed(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            self.sparse = Sparse()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.sparse(x)[0])

    result = fit_with_val(ActivationMonitor(ignore="Dropout"), model=Mixed(), max_duration="1st", log_every="1st")
    assert result.failures == ()
    measured = {name for name in of_monitor(result) if "/mean/" in name}
    assert measured == {f"activations/mean/{name}" for name in ("hidden", "out", "sparse")}


def test_an_error_of_its_own_is_not_an_error_of_the_users_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("hookline.callbacks.watch.activation_monitor.measure", broken)
    result = fit_with_val(ActivationMonitor())
    assert [(f.callback, f.hook) for f in result.failures] == [("ActivationMonitor", "on_train_step_end")]
    assert result.clock.step == 8


class NoReads(TorchDispatchMode):
    """Fails when a number is read from a tensor: on a GPU that would wait for all that was started."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_number_is_read_from_the_device_until_the_interval_ends() -> None:
    driven = drive(ActivationMonitor(statistics=STATISTICS), ["setup", "train_start"])
    with NoReads():
        driven.then(["train_step_start", lambda run: run.model(run.loaders["train"][0][0]), "train_step_end"])
    assert "activations/kurtosis/out" in driven.logged


def test_it_hears_nothing_between_the_two_ends_of_a_step() -> None:
    inside = STEP_EVENTS - {"train_step_start", "train_step_end"}
    assert [event for event in inside if overridden(ActivationMonitor(), f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(ActivationMonitor(), scope)] == []


@cache
def rows_of_whole_run(every: str) -> dict[str, Any]:
    return of_monitor(fit_with_val(ActivationMonitor(every), max_duration="3ep"))


@pytest.mark.parametrize("every", ["3st", "1ep", "20sp"])
@pytest.mark.parametrize("step", [2, 4, 5])
def test_after_a_resume_the_rows_are_bitwise_those_of_a_run_that_was_not_stopped(
    every: str, step: int, tmp_path: Path
) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_with_val(ActivationMonitor(every), Checkpointer("1st"), crash_at(step, "train_step_start"), **options)
    resumed = fit_with_val(ActivationMonitor(every), Checkpointer("1st"), resume="auto", **options)
    assert of_monitor(resumed) == rows_of_whole_run(every)
    assert len(rows_of_whole_run(every)["activations/mean/out"][0]) >= 4
