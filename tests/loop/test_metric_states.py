"""States of torchmetrics objects: saved and back bit by bit, set aside and put back, and two of them as one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)
from torchmetrics.wrappers import ClasswiseWrapper, MinMaxMetric, Running

from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import encode
from hookline.errors import CheckpointMismatchError
from hookline.loop.metrics.object_states import (
    SetAside,
    can_merge,
    is_metric_object,
    load_metric_states,
    merged,
    metric_states,
    metrics_in,
    was_updated,
)

Batch = tuple[Tensor, Tensor]


def classes(count: int = 4, seed: int = 0) -> list[Batch]:
    """Probabilities of three classes, and the classes; all of them in every batch."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for size in range(6, 6 + count):
        preds = torch.rand(size, 3, generator=generator).softmax(1)
        batches.append((preds, torch.arange(size) % 3))
    return batches


def numbers(count: int = 4, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(5, generator=generator), torch.rand(5, generator=generator)) for _ in range(count)]


class Seen(tm.Metric):
    """As users write them: nothing is said of ``full_state_update``."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("largest", torch.tensor(-1.0), dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.total += preds.sum()
        self.largest = torch.maximum(self.largest, preds.max())

    def compute(self) -> Tensor:
        return self.total / self.largest


class Mean(Seen):
    """The mean over processes is not that over intervals of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")


def collection() -> tm.MetricCollection:
    return tm.MetricCollection([MulticlassPrecision(3), MulticlassRecall(3), MulticlassAUROC(3)])


MERGEABLE: dict[str, tuple[Callable[[], Any], Callable[..., list[Batch]]]] = {
    "sums of counts": (lambda: MulticlassAccuracy(3), classes),
    "lists of all that was seen": (lambda: MulticlassAUROC(3), classes),
    "a metric of the user's own": (Seen, numbers),
    "a collection with shared states": (collection, classes),
    "a wrapper without a state": (lambda: ClasswiseWrapper(MulticlassAccuracy(3, average=None)), classes),
    "a composition": (lambda: MulticlassPrecision(3) * 2 + MulticlassRecall(3), classes),
    "a mean error": (tm.MeanSquaredError, numbers),
}
OTHERS: dict[str, tuple[Callable[[], Any], Callable[..., list[Batch]]]] = {
    "a correlation, whose states are not sums": (tm.PearsonCorrCoef, numbers),
    "a window of the last batches": (lambda: Running(tm.MeanSquaredError(), 2), numbers),
    "the best and the worst so far": (lambda: MinMaxMetric(MulticlassAccuracy(3)), classes),
    "a state that is a mean": (Mean, numbers),
    "a collection with one of them": (
        lambda: tm.MetricCollection([tm.PearsonCorrCoef(), tm.MeanSquaredError()]),
        numbers,
    ),
}
ALL = MERGEABLE | OTHERS


def fed(metric: Any, batches: list[Batch]) -> Any:
    for batch in batches:
        metric.update(*batch)
    return metric


def bits(value: Any) -> Any:
    """A result that can be compared exactly."""
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return (value.dtype, value.tolist())


# -- what is one -----------------------------------------------------------------------------------


def test_metrics_and_collections_are_found_and_nothing_else() -> None:
    assert is_metric_object(MulticlassAccuracy(3))
    assert is_metric_object(collection())
    for other in (nn.Linear(1, 1), torch.tensor(1.0), 0.5, {"acc": MulticlassAccuracy(3)}, MulticlassAccuracy, None):
        assert not is_metric_object(other)


def test_torchmetrics_is_not_imported_by_hookline() -> None:
    code = "import sys, hookline, hookline.loop.metrics.objects; print('torchmetrics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_all_metrics_inside_a_module_are_found_by_their_path() -> None:
    task = nn.ModuleDict(
        {"model": nn.Linear(2, 2), "one": MulticlassAccuracy(3), "more": nn.ModuleList([collection()])}
    )
    found = [path for path, _ in metrics_in(task)]
    assert found == ["one", "more.0", *(f"more.0.Multiclass{name}" for name in ("Precision", "Recall", "AUROC"))]


@pytest.mark.parametrize("name", ALL)
def test_it_is_known_whether_there_is_anything_to_compute(name: str) -> None:
    make, data = ALL[name]
    metric = make()
    assert not was_updated(metric)
    assert was_updated(fed(metric, data(1)))
    metric.reset()
    assert not was_updated(metric)


def test_a_forward_counts_as_an_update() -> None:
    for metric in (MulticlassAccuracy(3), MulticlassPrecision(3) + MulticlassRecall(3), collection()):
        metric(*classes(1)[0])
        assert was_updated(metric)


# -- saved and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_metric_goes_on_bit_by_bit_where_it_was_saved(name: str) -> None:
    make, data = ALL[name]
    batches = data(5)
    straight = fed(make(), batches)
    half = fed(make(), batches[:3])
    again = make()
    load_metric_states(again, decode(*encode(metric_states(half)), "state"))  # as a checkpoint holds it: no pickle
    assert bits(fed(again, batches[3:]).compute()) == bits(straight.compute())


def test_what_was_loaded_is_not_changed_by_what_follows() -> None:
    """A snapshot that is kept for a rollback must not move on with the metric."""
    saved = metric_states(fed(MulticlassAUROC(3), classes(2)))
    one, other = MulticlassAUROC(3), MulticlassAUROC(3)
    load_metric_states(one, saved)
    fed(one, classes(2, seed=1)).reset()
    load_metric_states(other, saved)
    assert bits(other.compute()) == bits(fed(MulticlassAUROC(3), classes(2)).compute())


def test_which_metrics_of_a_collection_share_a_state_is_saved() -> None:
    """It was found out from the first batch; another first batch could say otherwise, and be wrong."""
    half = fed(collection(), classes(2))
    assert ["MulticlassPrecision", "MulticlassRecall"] in half.compute_groups.values()
    again = collection()
    load_metric_states(again, metric_states(half))
    assert again.compute_groups == half.compute_groups
    assert again._groups_checked
    fed(again, classes(1, seed=5))
    assert again["MulticlassPrecision"].tp is not None
    assert bits(again.compute()) == bits(fed(half, classes(1, seed=5)).compute())


def test_a_metric_that_was_not_saved_stays_as_it_is() -> None:
    metric = fed(MulticlassAccuracy(3), classes(1))
    before = bits(metric.compute())
    load_metric_states(metric, {})
    assert bits(metric.compute()) == before


def test_another_kind_of_metric_under_the_same_path_is_refused() -> None:
    saved = metric_states(nn.ModuleDict({"acc": fed(MulticlassAccuracy(3), classes(1))}))
    with pytest.raises(CheckpointMismatchError, match="'acc' \\(MulticlassAUROC\\) has the states preds, target"):
        load_metric_states(nn.ModuleDict({"acc": MulticlassAUROC(3)}), saved)
    with pytest.raises(CheckpointMismatchError, match="'acc' is a MetricCollection here"):
        load_metric_states(nn.ModuleDict({"acc": collection()}), saved)


# -- aside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_what_is_set_aside_begins_anew_and_is_then_as_it_was(name: str) -> None:
    make, data = ALL[name]
    metric = fed(make(), data(3))
    metric.compute()  # one that remembers the best has computed before
    other = fed(make(), data(3))
    other.compute()
    aside = SetAside([metric])
    assert not was_updated(metric)
    fed(metric, data(2, seed=7))
    if name != "the best and the worst so far":  # these are kept over a reset by torchmetrics itself
        assert bits(metric.compute()) == bits(fed(make(), data(2, seed=7)).compute())
    metric.reset()
    aside.restore()
    assert bits(fed(metric, data(1, seed=9)).compute()) == bits(fed(other, data(1, seed=9)).compute())


def test_a_collection_that_is_put_back_still_shares_its_states() -> None:
    metrics = fed(collection(), classes(2))
    aside = SetAside([metrics])
    fed(metrics, classes(1, seed=3)).compute()
    aside.restore()
    assert metrics._modules["MulticlassRecall"].tp is metrics._modules["MulticlassPrecision"].tp


def test_what_a_collection_learns_about_its_metrics_while_it_is_aside_is_forgotten() -> None:
    metrics = collection()
    aside = SetAside([metrics])
    fed(metrics, classes(1))
    aside.restore()
    assert not metrics._groups_checked
    assert len(metrics.compute_groups) == 3


def test_all_metrics_of_a_task_are_set_aside_with_it() -> None:
    task = nn.ModuleDict({"model": nn.Linear(2, 2), "one": fed(MulticlassAccuracy(3), classes(2)), "two": collection()})
    aside = SetAside([task, task["one"]])  # twice does no harm
    assert not was_updated(task["one"])
    fed(task["one"], classes(1, seed=4)), fed(task["two"], classes(1, seed=4))
    aside.restore()
    assert bits(task["one"].compute()) == bits(fed(MulticlassAccuracy(3), classes(2)).compute())
    assert not was_updated(task["two"])


def test_a_metric_that_keeps_something_over_a_reset_keeps_it() -> None:
    """As the real images of an FID: the copy that is worked on must not be the one that is put back."""

    class Keeping(Seen):
        def reset(self) -> None:
            kept = self.total
            super().reset()
            self.total = kept

    metric = fed(Keeping(), numbers(2))
    before = metric.total.item()
    aside = SetAside([metric])
    assert metric.total.item() == before
    fed(metric, numbers(1, seed=2))
    aside.restore()
    assert metric.total.item() == before


# -- two as one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MERGEABLE)
def test_two_states_come_to_what_one_metric_over_both_does(name: str) -> None:
    make, data = MERGEABLE[name]
    batches = data(5)
    assert can_merge(make())
    metric = make()
    one, two = (metric_states(fed(make(), part)) for part in (batches[:2], batches[2:]))
    load_metric_states(metric, merged(metric, one, two))
    expected, found = fed(make(), batches).compute(), metric.compute()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_merged_is_known(name: str) -> None:
    assert not can_merge(OTHERS[name][0]())


def test_a_metric_without_a_declared_state_cannot_be_merged() -> None:
    """It keeps what it has seen where nobody can find it."""

    class Hidden(tm.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        def update(self, preds: Tensor, target: Tensor) -> None:
            self.seen += len(preds)

        def compute(self) -> Tensor:
            return torch.tensor(self.seen)

    assert not can_merge(Hidden())
    assert not can_merge(tm.MetricCollection({"hidden": Hidden(), "acc": MulticlassAccuracy(3)}))


def test_classes_that_are_balanced_in_one_half_only_are_weighted_right() -> None:
    """The mean of two accuracies is not the accuracy of both."""
    first, second = (
        [(torch.eye(3), torch.arange(3))],
        [(torch.eye(3)[:1].repeat(9, 1), torch.ones(9, dtype=torch.long))],
    )
    metric = MulticlassF1Score(3, average="micro")
    states = [metric_states(fed(MulticlassF1Score(3, average="micro"), half)) for half in (first, second)]
    load_metric_states(metric, merged(metric, *states))
    assert metric.compute().item() == pytest.approx(3 / 12)
