"""Metrics: their names, what can be logged, how it is reduced, where it goes and when it is read."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.errors import MetricError
from hookline.loop import Loop, Trainer
from hookline.records import MetricRow, from_json, to_json
from hookline.run import History
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd
from tests.support.inside import FOLD, LARGEST_ARRAY, Series, values_held


class Logs(hl.SupervisedTask):
    """Logs at each training batch what a function of the batch's number gives: values and keywords."""

    def __init__(self, what: Any) -> None:
        super().__init__(TinyModel(), CE, sgd)
        self.what = what
        self.number = 0

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        values, keywords = self.what(self.number)
        self.number += 1
        run.log(values, **keywords)
        return super().train_batch(run, batch)


def logged(what: Any, *callbacks: hl.Callback, batches: int = 4, **options: Any) -> History:
    """The history after one epoch, which is one interval unless said otherwise."""
    return fit(*callbacks, model=Logs(what), train=tiny_data(batches), max_duration="1ep", **options).history


def one(value: Any, **keywords: Any) -> Any:
    """What becomes of one value."""
    return logged(lambda _: ({"x": value}, keywords), batches=1)["train/x"][0]


# -- names -------------------------------------------------------------------------------------


class Names(hl.SupervisedTask):
    def __init__(self) -> None:
        super().__init__(TinyModel(), CE, sgd)

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        run.log({"acc": 1.0, "probe/x": 2.0})
        return super().train_batch(run, batch)

    def eval_batch(self, run: hl.Run, batch: Any) -> Any:
        run.log({"acc": 3.0, f"probe/{run.stage}": 4.0})
        return super().eval_batch(run, batch)


def test_a_name_without_a_slash_gets_the_stage() -> None:
    result = fit(model=Names(), train=tiny_data(2), val=tiny_data(2), test=tiny_data(2), max_duration="1ep")
    assert set(result.history) == {
        *("train/loss", "train/loss_epoch", "train/acc", "train/acc_epoch", "probe/x", "probe/x_epoch"),
        *("val/loss", "val/acc", "test/loss", "test/acc", "probe/val", "probe/test"),
    }
    assert result.history["train/acc"] == [1.0]
    assert result.history["val/acc"] == result.history["test/acc"] == [3.0]


def test_named_loaders_add_their_name() -> None:
    val = {"easy": tiny_data(2), "hard": tiny_data(2, seed=5)}
    seen: list[Any] = []

    @hl.on("eval_end")
    def end(run: hl.Run) -> None:
        run.log({"gap": run.metrics["val/hard/loss"] - run.metrics["val/easy/loss"]})

    note = hl.on("eval_batch_end")(lambda run: seen.append(run.loader_name))
    history = fit(
        end, note, model=Names(), train=tiny_data(2), val=val, test={"final": tiny_data(1)}, max_duration="1ep"
    ).history
    expected = {"val/easy/loss", "val/hard/loss", "val/easy/acc", "val/hard/acc", "val/gap"}
    assert {name for name in history if name.startswith("val/")} == expected
    assert {name for name in history if name.startswith("test/")} >= {"test/final/loss", "test/final/acc"}
    assert history["val/gap"] == pytest.approx([history["val/hard/loss"][0] - history["val/easy/loss"][0]])
    assert seen == ["easy"] * 2 + ["hard"] * 2 + ["final"]


def test_evaluate_gives_the_metrics_of_this_evaluation_only() -> None:
    task, trainer = Names(), Trainer(max_duration="1ep", folder=False)
    trainer.fit(task, tiny_data(2), {"a": tiny_data(2)})
    for _ in range(2):
        assert trainer.evaluate(task, tiny_data(2)).keys() == {"val/loss", "val/acc", "probe/val"}
    assert trainer.test(task, {"b": tiny_data(2)}).keys() == {"test/b/loss", "test/b/acc", "probe/test"}


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_must_be_a_text(name: Any) -> None:
    with pytest.raises(MetricError, match="name must be a text"):
        logged(lambda _: ({name: 1.0}, {}))


def test_the_losses_of_several_optimizers_are_kept_apart() -> None:
    class Two(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)

        def configure_optimizers(self, run: hl.Run) -> Any:
            return {"a": sgd(self.first.parameters()), "b": sgd(self.second.parameters())}

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            for number, (net, optimizer) in enumerate(zip(self.children(), run.optimizers.values(), strict=True)):
                run.loop.backward(net(batch[0]).mean() * 0 + number + 1, optimizer)

    history = fit(model=Two(), train=tiny_data(2), max_duration="1ep").history
    assert history["train/a/loss"] == [1.0]
    assert history["train/b/loss"] == [2.0]
    assert "train/loss" not in history


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 2.0),
        (0.25, 0.25),
        (True, 1.0),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(3), 3.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(0.5, dtype=torch.float16), 0.5),
        (nn.Parameter(torch.tensor(0.5)), 0.5),
        (-math.inf, -math.inf),
        (torch.tensor(math.inf), math.inf),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_numbers_of_every_kind(value: Any, expected: float) -> None:
    found = one(value)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize("value", [math.nan, np.nan, torch.tensor(math.nan)])
def test_nan_is_a_value(value: Any) -> None:
    assert math.isnan(one(value))


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        b"1",
        None,
        [1.0, 2.0],
        (1.0,),
        {"a": 1.0},
        object(),
        1 + 2j,
        torch.tensor(1 + 2j),
        torch.tensor([1j]),
        np.array(["a"]),
        np.array("text"),
        np.array([None], dtype=object),
        np.str_("a"),
        lambda: 1,
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.12}",
)
def test_what_is_no_number_is_refused_at_once(value: Any) -> None:
    with pytest.raises(MetricError, match="train/x"):
        one(value)


def test_one_dimension_is_one_value_per_sample() -> None:
    history = logged(lambda n: ({"x": torch.full((n + 1,), float(n))}, {}), batches=3)
    assert history["train/x"] == [(0 * 1 + 1 * 2 + 2 * 3) / 6]
    assert one(np.array([1.0, 2.0, 6.0])) == 3.0
    assert one(torch.tensor([True, False, True, True])) == 0.75
    assert one(torch.tensor([1.0, 2.0]), weight=5) == 1.5


@pytest.mark.parametrize(("reduce", "expected"), [("mean", 3.5), ("sum", 21.0), ("max", 6.0), ("min", 1.0)])
def test_a_vector_is_the_same_as_its_samples_one_by_one(reduce: Any, expected: float) -> None:
    parts = [torch.tensor([1.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])]
    history = logged(lambda n: ({"x": parts[n]}, {"reduce": reduce}), batches=3)
    assert history["train/x"] == [expected]


def test_a_vector_without_samples_counts_nothing() -> None:
    """No sample of a kind in this batch: the others are averaged as if it had not been."""
    parts = [torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([6.0])]
    assert logged(lambda n: ({"x": parts[n]}, {}), batches=3)["train/x"] == [3.0]


def test_small_arrays_are_kept_as_arrays() -> None:
    history = logged(lambda n: ({"confusion": np.full((2, 2), n)}, {"weight": n + 1}), batches=2)
    assert history["train/confusion"] == [[[2 / 3, 2 / 3], [2 / 3, 2 / 3]]]
    assert one(torch.eye(2), reduce="last") == [[1.0, 0.0], [0.0, 1.0]]
    history = logged(lambda n: ({"counts": torch.eye(2) * n}, {"reduce": "sum"}), batches=3)
    assert history["train/counts"] == [[[3.0, 0.0], [0.0, 3.0]]]


def test_large_arrays_are_refused() -> None:
    side = math.isqrt(LARGEST_ARRAY)
    assert len(one(torch.zeros(side, side))) == side
    with pytest.raises(MetricError, match="too large for a metric"):
        one(torch.zeros(side + 1, side))


@pytest.mark.parametrize("values", [(torch.eye(2), torch.eye(3)), (1.0, torch.eye(2)), (torch.eye(2), 1.0)])
def test_one_metric_has_one_shape(values: Any) -> None:
    with pytest.raises(MetricError, match="train/x"):
        logged(lambda n: ({"x": values[n]}, {}), batches=2)


def test_values_are_copied_when_they_are_logged() -> None:
    scalar, vector, grid, array = torch.tensor(1.0), torch.ones(2), torch.ones(2, 2), np.ones((2, 2))

    def what(number: int) -> Any:
        scalar.fill_(number)
        vector.fill_(number)
        grid.fill_(number)
        array.fill(number)
        return {"scalar": scalar, "vector": vector, "grid": grid, "array": array}, {}

    history = logged(what, batches=5)
    assert history["train/scalar"] == history["train/vector"] == [2.0]
    assert history["train/grid"] == history["train/array"] == [[[2.0, 2.0], [2.0, 2.0]]]


def test_weights_are_copied_when_they_are_logged() -> None:
    seen = torch.zeros(())

    def what(number: int) -> Any:
        seen.fill_(number)
        return {"x": float(number)}, {"weight": seen}

    assert logged(what, batches=4)["train/x"] == [(0 + 1 + 4 + 9) / 6]


@pytest.mark.parametrize("way", ["fit", "own loop"])
def test_the_loss_is_copied_too(way: str) -> None:
    """``total = loss.detach(); total += …`` is what people write, and ``detach`` shares memory."""

    def rest(total: Tensor | None, loss: Tensor) -> Tensor:
        if total is None:
            return loss.detach()
        total += loss.detach()
        return total

    class Sums(hl.SupervisedTask):
        total: Tensor | None = None

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            loss = super().train_batch(run, batch) * 0 + 1
            self.total = rest(self.total, loss)
            return loss

    if way == "fit":
        history = fit(model=Sums(TinyModel(), CE, sgd), max_duration="1ep").history
    else:
        model, total = TinyModel(), None
        with Loop(model, sgd, max_duration="1ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(4)):
                loss = cross_entropy(model(x), y) * 0 + 1
                total = rest(total, loss)
                loop.backward(loss)
                loop.step()
        history = loop.run.history
    assert history["train/loss"] == [1.0]


def test_the_weight_of_the_loss_is_copied_too() -> None:
    """A counter that is used again for each batch."""
    model, tokens = TinyModel(), torch.zeros(())
    with Loop(model, sgd, max_duration="1ep", folder=False) as loop:
        for number, (x, y) in enumerate(loop.batches(tiny_data(3))):
            tokens.fill_(number + 1)
            loop.backward(cross_entropy(model(x), y) * 0 + number, weight=tokens)
            loop.step()
    assert loop.run.history["train/loss"] == [(0 * 1 + 1 * 2 + 2 * 3) / 6]


def test_no_graph_is_kept_alive() -> None:
    import weakref

    references: list[Any] = []

    def what(_: int) -> Any:
        big = torch.ones(3, requires_grad=True) * 2
        references.append(weakref.ref(big))
        return {"x": big.sum(), "y": big, "z": big[None]}, {}

    alive: list[int] = []
    note = hl.on("train_step_start")(lambda run: alive.append(sum(r() is not None for r in references)))
    logged(what, note)
    assert alive == [0] * 4


# -- reductions and weights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", 4.0), ("sum", 16.0), ("last", 2.0), ("max", 7.0), ("min", 2.0)]
)
@pytest.mark.parametrize("kind", [float, torch.tensor, np.float32], ids=["float", "tensor", "numpy"])
def test_reductions(reduce: Any, expected: float, kind: Any) -> None:
    values = [3.0, 7.0, 4.0, 2.0]
    assert logged(lambda n: ({"x": kind(values[n])}, {"reduce": reduce}))["train/x"] == [expected]


@pytest.mark.parametrize("kind", [int, float, torch.tensor, np.int64], ids=["int", "float", "tensor", "numpy"])
def test_weights(kind: Any) -> None:
    history = logged(lambda n: ({"x": float(n)}, {"weight": kind(n + 1)}), batches=3)
    assert history["train/x"] == [(0 * 1 + 1 * 2 + 2 * 3) / 6]


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_weights_of_the_samples_of_a_vector(kind: Any) -> None:
    assert one(kind([1.0, 2.0, 3.0]), weight=kind([1.0, 1.0, 2.0])) == 9 / 4


@pytest.mark.parametrize("weight", ["3", [1.0], object()], ids=lambda weight: type(weight).__name__)
def test_what_is_no_weight_is_refused_at_once(weight: Any) -> None:
    with pytest.raises(MetricError, match="weight"):
        one(1.0, weight=weight)


@pytest.mark.parametrize("value", [1.0, torch.tensor(1.0), torch.eye(2)], ids=["number", "scalar", "array"])
def test_a_vector_of_weights_for_one_value_is_refused_at_once(value: Any) -> None:
    with pytest.raises(MetricError, match="train/x"):
        one(value, weight=torch.ones(3))


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_a_value_with_weight_zero_counts_nothing_even_if_it_is_nan(kind: Any) -> None:
    """The mean over no token is NaN; that nothing was there must not spoil the rest."""
    values, weights = [1.0, math.nan, 4.0], [1.0, 0.0, 2.0]
    history = logged(lambda n: ({"x": kind(values[n])}, {"weight": kind(weights[n])}), batches=3)
    assert history["train/x"] == [3.0]


def test_no_weight_at_all_is_nan() -> None:
    assert math.isnan(one(1.0, weight=0))
    assert math.isnan(one(1.0, weight=torch.tensor(0.0)))


@pytest.mark.parametrize("reduce", ["avg", "MEAN", None, "median"])
def test_an_unknown_reduction(reduce: Any) -> None:
    with pytest.raises(MetricError, match="use one of mean, sum, last, max, min"):
        one(1.0, reduce=reduce)


def test_one_metric_is_reduced_in_one_way() -> None:
    with pytest.raises(MetricError, match="train/x is logged with reduce='max' and with reduce='mean'"):
        logged(lambda n: ({"x": 1.0}, {"reduce": "mean" if n == 0 else "max"}))
    with pytest.raises(MetricError, match="train/loss"):
        logged(lambda _: ({"loss": 1.0}, {"reduce": "last"}))


def test_evaluation_is_averaged_right_over_uneven_batches() -> None:
    class Accuracy(hl.SupervisedTask):
        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            found = super().eval_batch(run, batch)
            right = (found["outputs"].argmax(-1) == batch[1]).float()
            run.log({"vector": right})
            run.log({"scalar": right.mean()}, weight=len(right))
            run.log({"right": right.sum()}, reduce="sum")
            return found

    model, data = TinyModel(), tiny_data(4, 7, last=2)
    metrics = Trainer(folder=False).evaluate(Accuracy(model, CE), data)
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    right = (model(x).argmax(-1) == y).float()
    assert metrics["val/vector"] == pytest.approx(right.mean().item(), rel=1e-6)
    assert metrics["val/scalar"] == pytest.approx(right.mean().item(), rel=1e-6)
    assert metrics["val/right"] == right.sum().item()
    assert metrics["val/loss"] == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-6)


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3)), min_size=1, max_size=20),
    tensors=st.booleans(),
    fold=st.integers(1, 8),
)
def test_a_mean_is_right_however_it_is_folded(rows: list[tuple[float, float]], tensors: bool, fold: int) -> None:
    series = Series("mean")
    for number, (value, weight) in enumerate(rows):
        series.values.append(torch.tensor(value, dtype=torch.float64) if tensors else value)
        series.weights.append(torch.tensor(weight, dtype=torch.float64) if tensors and number % 2 else weight)
        if number % fold == 0:
            series.fold()
    expected = math.fsum(v * w for v, w in rows) / math.fsum(w for _, w in rows)
    assert float(series.result()) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_many_small_values_are_added_up_in_float64() -> None:
    """In float32 a million and one would still be a million."""
    history = logged(lambda n: ({"x": torch.tensor(2.0**24 if n == 0 else 1.0)}, {"reduce": "sum"}), batches=9)
    assert history["train/x"] == [2.0**24 + 8]


# -- intervals ---------------------------------------------------------------------------------


def steps_of(log_every: str | None, batches: int = 6, epochs: int = 2, **options: Any) -> list[int]:
    return fit(train=tiny_data(batches), max_duration=f"{epochs}ep", log_every=log_every, **options).history.steps(
        "train/loss"
    )


@pytest.mark.parametrize(
    ("log_every", "expected"),
    [
        ("1st", list(range(1, 13))),
        ("4st", [4, 6, 8, 12]),
        ("5st", [5, 6, 10, 12]),
        ("6st", [6, 12]),
        ("3st", [3, 6, 9, 12]),
        ("100st", [6, 12]),
        ("1ep", [6, 12]),
        ("2ep", [6, 12]),
        ("16sp", [2, 4, 6, 8, 10, 12]),
    ],
)
def test_an_interval_ends_when_it_is_due_and_with_each_epoch(log_every: str, expected: list[int]) -> None:
    assert steps_of(log_every) == expected


def test_an_interval_of_epochs_is_not_cut_by_other_things_that_are_due() -> None:
    """Step 70 is sampled for costs, evaluated, folded; none of this ends an interval."""
    result = fit(train=tiny_data(70, 2), val=tiny_data(1), log_every="1ep", eval_every="7st")
    assert result.history.steps("train/loss") == [70, 140]


def test_without_log_every_there_is_no_train_loss() -> None:
    result = fit(model=Names(), train=tiny_data(3), log_every=None)
    assert "train/loss" not in result.history
    assert "train/loss_epoch" not in result.history
    assert result.history["train/acc"] == [1.0, 1.0]


def test_metrics_ready_is_sent_for_each_interval_with_the_values() -> None:
    seen: list[Any] = []
    note = hl.on("metrics_ready")(lambda run: seen.append((run.clock.step, run.metrics["train/x"])))
    fit(note, model=Logs(lambda n: ({"x": float(n)}, {})), train=tiny_data(5), max_duration="1ep", log_every="2st")
    assert seen == [(2, 0.5), (4, 2.5), (5, 4.0)]


def test_the_epochs_mean_is_over_the_whole_epoch() -> None:
    history = logged(lambda n: ({"x": float(n)}, {"weight": n + 1}), batches=5, log_every="2st")
    assert history["train/x"] == pytest.approx([2 / 3, 18 / 7, 4.0])
    assert history["train/x_epoch"] == pytest.approx([sum(n * (n + 1) for n in range(5)) / 15])
    history = logged(lambda n: ({"x": float(n)}, {"reduce": "sum"}), batches=5, log_every="2st")
    assert history["train/x_epoch"] == [10.0]


def test_what_is_logged_at_the_end_of_an_epoch_belongs_to_it() -> None:
    """``epoch_end`` promises that all metrics are final; a value of epoch 1 is not a row of epoch 2."""

    class AtTheEnd(hl.Callback):
        def on_train_epoch_end(self, run: hl.Run) -> None:
            run.log({"seconds": float(run.clock.epoch)}, reduce="last")

        def on_epoch_end(self, run: hl.Run) -> None:
            run.log({"late": float(run.clock.epoch)}, reduce="last")

    history = fit(AtTheEnd(), max_duration="3ep").history
    assert history["train/seconds"] == history["train/late"] == [1.0, 2.0, 3.0]
    assert history.steps("train/seconds") == history.steps("train/late") == [4, 8, 12]


def test_a_mean_that_is_logged_at_the_end_of_an_epoch_is_not_one_of_the_next() -> None:
    """Its ``_epoch``, if there is one, has the value of its own epoch."""

    class AtTheEnd(hl.Callback):
        def on_train_epoch_end(self, run: hl.Run) -> None:
            run.log({"number": float(run.clock.epoch)})

        def on_epoch_end(self, run: hl.Run) -> None:
            run.log({"late": float(run.clock.epoch)})

    history = fit(AtTheEnd(), max_duration="3ep").history
    assert history["train/number"] == history["train/late"] == [1.0, 2.0, 3.0]
    for name in ("train/number_epoch", "train/late_epoch"):
        rows = [(row.epoch, row.value) for row in history.rows() if row.name == name]
        assert all(epoch == value for epoch, value in rows), rows


def test_what_is_logged_in_the_last_hooks_is_not_lost() -> None:
    class AtTheEnd(hl.Callback):
        def on_train_end(self, run: hl.Run) -> None:
            run.log({"probe/train_end": 1.0})

        def on_fit_end(self, run: hl.Run) -> None:
            run.log({"probe/fit_end": 2.0})

    result = fit(AtTheEnd(), max_duration="1ep")
    assert (result.metrics["probe/train_end"], result.metrics["probe/fit_end"]) == (1.0, 2.0)
    assert (result.history["probe/train_end"], result.history["probe/fit_end"]) == ([1.0], [2.0])


def test_run_metrics_while_pending_and_when_final() -> None:
    seen: list[Any] = []

    @hl.on("train_step_end")
    def look(run: hl.Run) -> None:
        seen.append((run.metrics["train/x"], run.metrics["train/x"], "train/x" in run.metrics))

    result = fit(
        look,
        model=Logs(lambda n: ({"x": torch.tensor(float(n))}, {})),
        train=tiny_data(6),
        max_duration="1ep",
        log_every="3st",
    )
    assert seen == [(mean, mean, True) for mean in (0.0, 0.5, 1.0, 3.0, 3.5, 4.0)]
    assert result.history["train/x"] == [1.0, 4.0]
    assert result.metrics["train/x"] == 4.0


def test_run_metrics_in_an_evaluation() -> None:
    seen: list[Any] = []

    class Look(hl.Callback):
        def on_eval_batch_end(self, run: hl.Run) -> None:
            seen.append(run.metrics["val/x"])

        def on_eval_end(self, run: hl.Run) -> None:
            seen.append(run.metrics["val/x"])

    class Task(hl.SupervisedTask):
        number = 0.0

        def on_eval_start(self, run: hl.Run) -> None:
            self.number = 0.0

        def eval_batch(self, run: hl.Run, batch: Any) -> None:
            self.number += 1
            run.log({"x": self.number}, weight=len(batch[0]))

    fit(Look(), model=Task(TinyModel(), CE, sgd), train=tiny_data(2), val=tiny_data(2, 3, last=1))
    assert seen == [1.0, 1.25, 1.25] * 2


def test_an_unknown_metric_is_named_with_a_hint() -> None:
    result = fit(model=Names(), train=tiny_data(2), val=tiny_data(2), max_duration="1ep")
    with pytest.raises(MetricError, match=r"no metric 'val/los'; did you mean 'val/loss'\?"):
        result.history["val/los"]
    with pytest.raises(KeyError):
        result.history.steps("nothing")
    assert result.history.get("nothing") is None


# -- history and metrics.jsonl -----------------------------------------------------------------------


def rows_of(folder: Path) -> list[MetricRow]:
    return [from_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def plain(rows: list[MetricRow]) -> list[Any]:
    return sorted((row.name, row.step, row.epoch, repr(row.value), row.kind) for row in rows)


def test_the_file_is_complete_and_equal_to_the_history(tmp_path: Path) -> None:
    class Extra(hl.Callback):
        def on_eval_end(self, run: hl.Run) -> None:
            run.log({"seen": math.inf if run.clock.epoch == 1 else math.nan})

        def on_fit_end(self, run: hl.Run) -> None:
            run.log({"done/grid": torch.eye(2)})

    result = fit(
        Extra(),
        model=Names(),
        train=tiny_data(5),
        val={"a": tiny_data(2), "b": tiny_data(1)},
        test=tiny_data(2),
        max_duration="3ep",
        log_every="2st",
        folder=tmp_path / "run",
    )
    rows = rows_of(tmp_path / "run")
    assert len({(row.name, row.step) for row in rows}) == len(rows)
    assert plain(rows) == plain(result.history.rows())
    assert {row.kind for row in rows} == {"step", "epoch", "eval"}
    assert [row.step for row in rows] == sorted(row.step for row in rows)
    assert {row.name for row in rows} >= {"val/seen", "done/grid", "val/a/loss", "test/loss", "train/loss_epoch"}


def test_the_file_is_whole_after_every_interval(tmp_path: Path) -> None:
    """A run that is killed has lost nothing but its last interval."""
    seen: list[int] = []
    note = hl.on("metrics_ready")(lambda run: seen.append(len(rows_of(tmp_path))))
    fit(note, max_duration="1ep", log_every="1st", folder=tmp_path)
    assert seen == [1, 2, 3, 4]


def test_what_was_measured_before_a_crash_is_in_the_file(tmp_path: Path) -> None:
    """The values just before a failure are those that one wants to see."""

    class Fails(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            if run.clock.step == 3:
                raise ZeroDivisionError
            return super().train_batch(run, batch)

    with pytest.raises(ZeroDivisionError):
        fit(model=Fails(TinyModel(), CE, sgd), train=tiny_data(5), max_duration="1ep", folder=tmp_path)
    assert [(row.name, row.step) for row in rows_of(tmp_path) if row.name == "train/loss"] == [("train/loss", 3)]


def no_space(self: Any, rows: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_does_not_hide_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own exception arrives first; what goes wrong after it is a note, and all is put back."""

    class Fails(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            if run.clock.step == 2:
                raise ZeroDivisionError
            return super().train_batch(run, batch)

    monkeypatch.setattr("hookline.sinks.jsonl.JsonLines.write", no_space)
    task = Fails(TinyModel().eval(), CE, sgd)
    with pytest.raises(ZeroDivisionError):
        fit(model=task, train=tiny_data(5), max_duration="1ep", folder=tmp_path)
    assert not task.model.training


def test_a_sanity_check_and_answers_leave_no_row(tmp_path: Path) -> None:
    ask = hl.on("train_step_end")(lambda run: (run.evaluate("val"), run.predict("val")))
    result = fit(ask, model=Names(), val=tiny_data(3), max_duration="1ep", folder=tmp_path)
    assert result.history.steps("val/loss") == [4]
    assert [row.step for row in rows_of(tmp_path) if row.name == "val/loss"] == [4]


def test_an_evaluation_after_the_fit_leaves_its_history_alone() -> None:
    """``evaluate`` on other data must not take the place of the value that the fit has measured."""
    task, trainer = Names(), Trainer(max_duration="2ep", folder=False)
    result = trainer.fit(task, tiny_data(2), tiny_data(2))
    before, newest = plain(result.history.rows()), result.history["val/loss"][-1]
    assert trainer.evaluate(task, tiny_data(2, seed=8))["val/loss"] != newest
    assert plain(result.history.rows()) == before


def row(number: int, kind: Any = "step", name: str = "x") -> MetricRow:
    return MetricRow(name, number, 0, float(number), kind, 0.0)


def test_the_history_is_bounded_for_steps_and_complete_for_the_rest() -> None:
    history = History(step_rows=3)
    for number in range(10):
        history.record(row(number))
        history.record(row(number, "eval", "val/x"))
        history.record(row(number, "epoch", "x_epoch"))
    assert (history["x"], history.steps("x")) == ([7.0, 8.0, 9.0], [7, 8, 9])
    assert len(history["val/x"]) == len(history["x_epoch"]) == 10
    assert [r.step for r in history.rows()] == sorted(r.step for r in history.rows())


def test_the_bound_holds_for_a_metric_logged_in_training_and_in_evaluation() -> None:
    history = History(step_rows=3)
    for number in range(0, 20, 2):
        history.record(row(number))
        history.record(row(number + 1, "eval"))
    assert [r.step for r in history.rows() if r.kind == "eval"] == list(range(1, 20, 2))
    assert len([r for r in history.rows() if r.kind == "step"]) == 3


@settings(deadline=None, max_examples=50)
@given(value=st.one_of(st.floats(), st.lists(st.lists(st.floats(), max_size=3), max_size=3)))
def test_a_row_is_read_back_as_it_was_written(value: Any) -> None:
    written = MetricRow("a/b", 3, 1, value, "eval", 1.5)
    assert repr(from_json(to_json(written))) == repr(written)


# -- what is read, and when ----------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every way in which a value leaves its tensor, and so its device.

    Tensors say that they are elsewhere: on the CPU there is nothing to wait for, and numbers are read at once.
    """
    seen: list[str] = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False))
    for name in ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"):
        original = getattr(torch.Tensor, name)

        def spy(self: Tensor, *args: Any, _name: str = name, _original: Any = original) -> Any:
            seen.append(_name)
            return _original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    return seen


@pytest.mark.parametrize("way", ["fit", "weighted", "own loop"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_nothing_is_read_between_two_intervals(reads: list[str], way: str, accumulate: int) -> None:
    at_step: list[int] = []
    note = hl.on("train_step_end")(lambda run: at_step.append(len(reads)))

    def log(run: hl.Run, outputs: Tensor, y: Tensor) -> None:
        right = outputs.argmax(-1) == y
        run.log({"right": right, "acc": right.float().mean()}, weight=len(y))
        run.log({"worst": outputs.max()}, reduce="max")
        run.log({"grid": outputs[:2, :2]}, weight=right.sum())

    class Task(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            outputs = self.model(batch[0])
            log(run, outputs, batch[1])
            loss = cross_entropy(outputs, batch[1])
            return {"loss": loss, "weight": (batch[1] >= 0).sum()} if way == "weighted" else loss

    options: Any = {"max_duration": "40st", "log_every": "20st", "accumulate": accumulate}
    data = tiny_data(100 * accumulate, 4)
    if way == "own loop":
        model = TinyModel()
        with Loop(model, sgd, callbacks=[note], folder=False, **options) as loop:
            for x, y in loop.batches(data):
                outputs = model(x)
                log(loop.run, outputs, y)
                loop.backward(cross_entropy(outputs, y))
                loop.step()
    else:
        fit(note, model=Task(TinyModel(), CE, sgd), train=data, **options)
    at_edge = {19: at_step[19], 39: at_step[39]}
    assert at_step[:20] == [at_edge[19]] * 20 == [0] * 20
    assert at_step[20:] == [at_edge[39]] * 20
    assert at_edge[39] > 0


def test_a_plain_step_reads_nothing(reads: list[str]) -> None:
    at_step: list[int] = []
    note = hl.on("train_step_end")(lambda run: at_step.append(len(reads)))
    fit(note, train=tiny_data(40), max_duration="30st", log_every="100st")
    assert at_step == [0] * 30


def test_a_loss_that_a_callback_changes_in_place_is_logged_as_it_was() -> None:
    """What is logged is a copy, also in a plain step."""
    seen: list[float] = []

    class Adds(hl.Callback):
        total: Any = None

        def on_train_step_end(self, run: hl.Run) -> None:
            seen.append(run.loss.item())
            if run.clock.step % 2:
                run.loss.detach().add_(100.0)
            elif self.total is None:
                self.total = run.loss.detach()
            else:
                self.total += run.loss.detach()

    result = fit(Adds(), train=tiny_data(40), max_duration="30st", log_every="1st")
    assert result.history["train/loss"] == seen


def test_an_interval_is_read_in_one_transfer(reads: list[str]) -> None:
    """Of what is on a device; on the CPU numbers are read one by one, which is faster."""
    grid = torch.eye(2)
    before: list[str] = []
    found: list[str] = []

    class Look(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            before[:] = reads

        def on_metrics_ready(self, run: hl.Run) -> None:
            found[:] = reads[len(before) :]

    values = {**{f"x{i}": grid for i in range(5)}, **{f"y{i}": grid.sum() for i in range(5)}}
    logged(lambda n: ({name: value * n for name, value in values.items()}, {}), Look(), batches=1)
    assert before == []
    record = ["cpu", "tolist"]  # the losses of the interval, for the record of the steps
    assert found == ["cpu", "tolist", *record, *["tolist"] * 10]  # what the first has brought: ten metrics and the loss


@pytest.mark.parametrize("reduce", ["mean", "sum", "last", "max", "min"])
@pytest.mark.parametrize("kind", ["number", "tensor", "array"])
def test_a_long_interval_is_folded_with_the_same_result(reduce: Any, kind: str) -> None:
    number, largest = 3 * FOLD + 17, 0
    make = {"number": float, "tensor": torch.tensor, "array": lambda v: torch.full((2, 2), v)}[kind]
    values, weights = [math.sin(n) for n in range(number)], [1 + n % 5 for n in range(number)]

    class Many(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            nonlocal largest
            for value, weight in zip(values, weights, strict=True):
                run.log({"x": make(value)}, reduce=reduce, weight=weight)
                largest = max(largest, values_held(run, "train/x"))
            return super().train_batch(run, batch)

    result = fit(model=Many(TinyModel(), CE, sgd), train=tiny_data(1), max_duration="1st")
    expected = {
        "mean": math.fsum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights),
        "sum": math.fsum(values),
        "last": values[-1],
        "max": max(values),
        "min": min(values),
    }[reduce]
    (found,) = result.history["train/x"]
    assert (found[1][1] if kind == "array" else found) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert largest <= FOLD


def test_the_losses_of_a_long_interval_are_folded() -> None:
    number, held = 2 * FOLD + 17, []

    class Counts(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            held.append(values_held(run, "train/loss"))
            return super().train_batch(run, batch) * 0 + run.clock.step

    result = fit(
        model=Counts(TinyModel(), CE, sgd),
        train=tiny_data(1, 2) * number,
        max_duration=f"{number}st",
        log_every="1000000st",
    )
    assert result.history["train/loss"] == [(number - 1) / 2]
    assert result.history.steps("train/loss") == [number]
    assert max(held) <= FOLD


def test_a_sample_that_counts_nothing_may_be_nan() -> None:
    """A masked token must not make the whole interval NaN."""

    def log(run: hl.Run) -> None:
        run.log({"x": torch.tensor([1.0, float("nan")])}, weight=torch.tensor([1.0, 0.0]))

    result = fit(hl.on("train_step_end")(log), train=tiny_data(2), max_duration="1ep")
    assert result.metrics["train/x_epoch"] == 1.0


def test_what_is_logged_together_in_the_sanity_check_does_not_take_the_names_of_training() -> None:
    log = hl.LambdaCallback(
        on_sanity_check_end=lambda run: run.log({"a": torch.tensor(5.0), "b": torch.tensor(5.0)}),
        on_train_step_end=lambda run: run.log({"a": torch.tensor(1.0), "b": torch.tensor(1.0)}),
    )
    result = fit(log, train=tiny_data(2), val=tiny_data(1), max_duration="1ep")
    assert result.metrics["train/a_epoch"] == 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.eye(2).to_sparse(), "of torch.sparse_coo is not a plain array"),
        (torch.zeros(2, device="meta"), "on the device meta"),
        (10**400, "larger than any float"),
        pytest.param(10**5000, "larger than any float", id="one with more digits than Python prints"),
    ],
)
def test_what_cannot_be_read_later_is_refused_by_name(value: Any, words: str) -> None:
    """Its error came at the end of the interval, and did not say which metric it was."""
    with pytest.raises(MetricError, match=f"train/odd: .*{words}"):
        logged(lambda _: ({"odd": value}, {}))


def test_a_negative_weight_in_a_tensor_is_refused() -> None:
    with pytest.raises(MetricError, match=r"train/odd: weight=-1.0"):
        logged(lambda _: ({"odd": 1.0}, {"weight": torch.tensor(-1.0)}))


def test_weights_of_samples_mean_nothing_to_an_extreme() -> None:
    """Batches of several lengths could not be put together."""
    history = logged(
        lambda step: ({"odd": torch.arange(step + 2.0)}, {"weight": torch.ones(step + 2), "reduce": "max"})
    )
    assert history["train/odd"] == [4.0]
