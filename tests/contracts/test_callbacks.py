"""Every callback that comes with Hookline keeps the contract. They are found by themselves."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchmetrics.classification import MulticlassF1Score

from hookline import callbacks
from hookline.errors import OrderError
from hookline.events import Callback
from hookline.events.order import declares_writes, sort
from hookline.testing import CALLBACK_RULES, Recorder, TinyModel, check_callback, tiny_data
from hookline.testing.resume_rules import undeclared_metrics

Make = Callable[[Any], Callback]

WAYS: dict[str, tuple[Make, ...]] = {
    "EarlyStopping": (
        lambda cls: cls(),
        lambda cls: cls("val/loss", patience=1, min_delta=10.0),
        lambda cls: cls("val/acc", patience="3st", restore_best=True),
        lambda cls: cls("train/loss", patience=1, stopping_threshold=0.1, divergence_threshold=100.0),
        lambda cls: cls("train/loss", patience=1, decide_at="interval", start="4st", threshold_mode="rel"),
    ),
    "StopAtThreshold": (
        lambda cls: cls("val/loss", 0.0),
        lambda cls: cls("train/acc", 0.99, when="missed", patience="8st", decide_at="interval"),
        lambda cls: cls("val/loss", 100.0),
    ),
    "StopOnNaN": (
        lambda cls: cls(),
        lambda cls: cls("loss", every="2st"),
        lambda cls: cls(("gradients", "val/loss", "train/acc")),
    ),
    "SpikeGuard": (
        lambda cls: cls(),
        lambda cls: cls("gradients", method="factor", threshold=1.5, window=4, warmup=2),
    ),
    "StopOnConstantPredictions": (lambda cls: cls(), lambda cls: cls(1, action="warn", tolerance=2.0, patience=2)),
    "TimeLimit": (
        lambda cls: cls("1h"),
        lambda cls: cls("1h", count="process", margin="1m", until=datetime(2100, 1, 1, tzinfo=UTC)),
    ),
    "LRSchedule": (
        lambda cls: cls(),
        lambda cls: cls("wsd", warmup="2st", decay="0.3dur"),
        lambda cls: cls("plateau", patience=0),
        lambda cls: cls(torch.optim.lr_scheduler.StepLR, every="1ep", step_size=1, gamma=0.5),
    ),
    "AccumulationSchedule": (lambda cls: cls({0: 1, 1: 2}), lambda cls: cls({"3st": 2, "6st": 3})),
    "Freeze": (lambda cls: cls("*hidden"), lambda cls: cls("*", but="*out", until="3st", train_bn=True)),
    "Finetuning": (
        lambda cls: cls("*hidden", {1: "*hidden"}),
        lambda cls: cls("*hidden", {"3st": {"layers": "*hidden.weight", "lr": 0.01}, "1ep": "*hidden.bias"}),
    ),
    "BackboneFinetuning": (
        lambda cls: cls(1, backbone="*hidden"),
        lambda cls: cls(0, backbone="*hidden", lambda_func=3.0, should_align=False, train_bn=False, verbose=True),
    ),
    "LRFinder": (
        lambda cls: cls(num_training_steps=20, plot=False),
        lambda cls: cls(1e-4, 1.0, num_training_steps=20, mode="linear", apply=True, plot=False),
    ),
    "BatchSizeFinder": (lambda cls: cls(make_loader=_sized, max_val=8, apply=True, plot=False),),
    "SaveBest": (lambda cls: cls(), lambda cls: cls("train/loss", load_best=False, min_delta=0.1)),
    "SaveAtEnd": (lambda cls: cls(), lambda cls: cls("done", predictions=(), source=False)),
    "PredictionWriter": (
        lambda cls: cls(),
        lambda cls: cls(interval="batch", format="csv", stages=("predict", "val", "test")),
    ),
    "ExportModel": (lambda cls: cls("torchscript", monitor="val/acc", path="out/best.ts"),),
    "Upload": (
        lambda cls: cls("memory://contract"),
        lambda cls: cls("memory://contract", files="metrics.jsonl", every="1st", wait=5.0),
    ),
    "EMA": (lambda cls: cls(), lambda cls: cls(0.9, start="3st", every="2st", warmup=True, apply_at_end=False)),
    "SWA": (
        lambda cls: cls(),
        lambda cls: cls(0.05, start="3st", every="2st", annealing="4st", annealing_strategy="linear", evaluate=False),
    ),
    "Pruning": (
        lambda cls: cls(),
        lambda cls: cls("ln_structured", 0.25, every="3st", lottery_ticket="1st", of="all"),
    ),
    "QuantizationAwareTraining": (lambda cls: cls(), lambda cls: cls(4, None, start="2st", convert=False)),
    "LabelSmoothing": (lambda cls: cls(), lambda cls: cls(0.5)),
    "MixUp": (lambda cls: cls(), lambda cls: cls(1.0, probability=0.5)),
    "CutMix": (lambda cls: _on_squares(cls),),
    "SAM": (lambda cls: cls(), lambda cls: cls(0.5)),
    "MicroBatches": (lambda cls: cls(), lambda cls: cls(3)),
    "GradientClip": (lambda cls: cls(1.0), lambda cls: cls({"SGD": 0.1}, norm_type=1.0)),
    "GradientMonitor": (
        lambda cls: cls(),
        lambda cls: cls("2st", weights=True, updates=True, statistics=True, histograms=True),
    ),
    "GradientPlot": (lambda cls: cls("4st", layers="*out"),),
    "ParameterMonitor": (lambda cls: cls(), lambda cls: cls("3st", layers="*.weight", histograms=True)),
    "ActivationMonitor": (
        lambda cls: cls(),
        lambda cls: cls("2st", layers=("*out", "*hidden"), ignore=torch.nn.Dropout),
    ),
    "MLPerfLog": (
        lambda cls: cls("bert", organization="Us"),
        lambda cls: cls("bert", organization="Us", monitor="val/loss", target=0.5, extra={"opt_name": "sgd"}),
    ),
    "Notify": (
        lambda cls: cls(webhook="http://127.0.0.1:9/"),
        lambda cls: cls(
            ("epoch", "end"), to="me@example.org", smtp="127.0.0.1:9", security="none", when="val/loss > 0"
        ),
    ),
    "TorchProfiler": (lambda cls: cls(wait=1, warmup=1, active=1, repeat=2, record_shapes=True),),
    "MemorySnapshot": (lambda cls: cls(0, 2, rows=5),),
    "GarbageCollector": (lambda cls: cls(every=2, generation=1),),
    "LimitBatches": (
        lambda cls: cls(train=2, val=1),
        lambda cls: cls(train=0.5, val=0.5, test=1.0, predict=1),
    ),
    "OverfitBatches": (lambda cls: cls(2), lambda cls: cls(4)),
    "DryRun": (lambda cls: cls(5), lambda cls: cls(4)),
    "Checkpointer": (
        lambda cls: cls(),
        lambda cls: cls("2st", monitor="val/loss", keep_last=1, background=True),
        lambda cls: cls(on_eval=True, weights_only=True, on_exception=True, on_error="warn"),
    ),
    "LoadWeights": (lambda cls: cls(_weights(), strict=False),),
    "StopOnSignal": (lambda cls: cls("SIGUSR1", requeue=lambda run: None),),
    "LambdaCallback": (
        lambda cls: cls(),
        lambda cls: cls(on_train_step_end=lambda run: run.log({"twice": 2.0}), around_eval=_around),
    ),
    "DerivedMetric": (lambda cls: cls("val/double", _double, reads=("val/loss",)),),
    "Metrics": (
        lambda cls: cls({"f1": MulticlassF1Score(3), "hits": _hits}),
        lambda cls: cls({"f1": MulticlassF1Score(3), "hits": _hits}, stages=("train", "val", "test")),
    ),
    "PrintMetrics": (lambda cls: cls(), lambda cls: cls(("val/*", "lr/*"), every="2st")),
    "RenameMetric": (
        lambda cls: cls({"val/acc": "val/accuracy"}),
        lambda cls: cls({"train/loss": "train/nll"}, keep=True),
    ),
    "HistoryPlot": (
        lambda cls: cls(),
        lambda cls: cls("loss", every="5st", formats="png", log_y=True, log=False),
    ),
    "ImageSamples": (
        lambda cls: cls(inputs=_squares),
        lambda cls: cls("2st", 2, "train", inputs=_squares, classes=("a", "b", "c")),
    ),
    "LRMonitor": (lambda cls: cls(), lambda cls: cls(momentum=True, weight_decay=True)),
    "MemoryMonitor": (lambda cls: cls(), lambda cls: cls(children=True)),
    "ModelSummary": (lambda cls: cls(), lambda cls: cls(1, flops=False, print=False)),
    "SlowRankMonitor": (lambda cls: cls(), lambda cls: _timed(cls)),
    "SpeedMonitor": (lambda cls: cls(), lambda cls: cls(3, data_wait=True, peak=1e12)),
    "ProgressBar": (
        lambda cls: cls(),
        lambda cls: cls(style="plain"),
        lambda cls: cls(style="rich", every="2st"),
        lambda cls: cls(style="tqdm"),
        lambda cls: cls(style="notebook"),
        lambda cls: cls(("train/loss", "val/acc"), style=None),
    ),
}
"""How to make a callback, where it is not just ``cls()``; more than one way when its arguments change what it does."""

SKIP: dict[str, tuple[str, ...]] = {
    "DeviceMonitor": ("resume",),  # a share of the time needs some time to have passed
    "SlowRankMonitor": ("resume",),  # what it logs are times
    # A trial needs a task: in an own loop both refuse, with an error.
    "BatchSizeFinder": ("own_loops",),
    "LRFinder": ("own_loops",),
    # A custom loop computes its loss itself: all five refuse it, with an error.
    "CutMix": ("own_loops",),
    "LabelSmoothing": ("own_loops",),
    "MixUp": ("own_loops",),
    "SAM": ("own_loops",),
    "MicroBatches": ("own_loops", "weights"),  # pieces of a batch differ from the whole by rounding
}
"""By name of a callback: the rules that cannot hold for it. Each needs its reason beside it."""


def _double(metrics: Any) -> Any:
    return metrics["val/loss"] * 2


def _hits(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


def _sized(size: int) -> Any:
    return tiny_data(batches=3, batch_size=size)


def _squares(run: Any) -> Any:
    return run.batch[0].reshape(-1, 1, 2, 2)


def _on_squares(cls: Any) -> Any:
    """The inputs of the contract are rows of four numbers, which it takes as images of two by two."""

    def mix(self: Any, inputs: torch.Tensor, order: torch.Tensor, kept: float) -> tuple[torch.Tensor, float]:
        images = inputs.reshape(-1, 1, 2, 2) if inputs.ndim == 2 else inputs
        mixed, kept = cls.mix(self, images, order, kept)
        return mixed.reshape(inputs.shape), kept

    return type(cls.__name__, (cls,), {"mix": mix, "__doc__": cls.__doc__, "__module__": cls.__module__})()


def _timed(cls: Any) -> Any:
    """As if there were another process: the hooks of a step are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        return cls(factor=2.0, patience=1)


def _around(run: Any) -> Iterator[None]:
    yield


@cache
def _weights() -> Path:
    """A file with the weights of the models that the contract trains: a plain one, and one inside a task."""
    path = Path(tempfile.mkdtemp(prefix="hookline-contract-")) / "tiny.safetensors"
    with torch.random.fork_rng():  # it is made while the rules watch the global random state
        weights = TinyModel(seed=5).state_dict()
    save_file(weights | {f"model.{name}": value.clone() for name, value in weights.items()}, path)
    return path


def found() -> dict[str, type[Callback]]:
    """The callbacks that ``hookline.callbacks`` exports."""
    exported = {name: getattr(callbacks, name) for name in callbacks.__all__}
    return {name: cls for name, cls in exported.items() if inspect.isclass(cls) and issubclass(cls, Callback)}


CASES = [
    pytest.param(cls, make, id=f"{name}-{number}")
    for name, cls in found().items()
    for number, make in enumerate(WAYS.get(name, (lambda cls: cls(),)))
]


@pytest.mark.parametrize("rule", CALLBACK_RULES)
@pytest.mark.parametrize(("cls", "make"), CASES)
def test_it_keeps_the_contract(cls: type[Callback], make: Make, rule: str) -> None:
    if rule in SKIP.get(cls.__name__, ()):
        pytest.skip("the table SKIP says why")
    check_callback(lambda: make(cls), rules=(rule,))


@pytest.mark.parametrize(("cls", "make"), [case for case in CASES if case.values[0] is not callbacks.LambdaCallback])
def test_it_logs_only_metrics_that_it_declares(cls: type[Callback], make: Make) -> None:
    """One that declares none may log none: a callback that reads its metric would run before it.

    It says so, with ``writes = ()`` if there is nothing to declare: else it might log a metric that nobody feeds.
    """
    assert undeclared_metrics(lambda: make(cls)) == ()
    assert declares_writes(made := make(cls)) or made.reads


def test_a_recorder_keeps_the_contract() -> None:
    check_callback(lambda: Recorder(fields=("clock.step", "loss", "metrics.val/loss")))


def test_every_callback_is_exported() -> None:
    """One that is not exported would not be held to the contract."""
    defined = set()
    for module in pkgutil.walk_packages(callbacks.__path__, "hookline.callbacks."):
        if module.name.rpartition(".")[2].startswith("_"):  # Base classes are in helper modules.
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            own = inspect.isclass(value) and issubclass(value, Callback) and value.__module__ == module.name
            if own and not name.startswith("_"):
                defined.add(name)
    assert defined == set(found())


def test_the_tables_name_callbacks_that_exist() -> None:
    assert set(WAYS) <= set(found())
    assert set(SKIP) <= set(found())


CONFLICTS = [{"EMA", "SWA"}]
"""Both put their own average into the model: one of them has to be left out."""


def test_any_two_callbacks_can_be_in_one_list_in_both_orders() -> None:
    """Only the order is compiled. It must not depend on the list where both write the same thing."""
    made = {case.id: (cls.__name__, make(cls)) for case in CASES for cls, make in [case.values]}
    refused: dict[str, set[str]] = {}
    for (one, (name, first)), (other, (other_name, second)) in combinations(made.items(), 2):
        if name == other_name:
            continue  # two of a kind that write the same thing need a name and an order
        try:
            orders = [sort(pair, raw_gradients=raw).callbacks for raw in (False, True) for pair in _both(first, second)]
        except OrderError as error:
            refused[f"{one} and {other}: {error}"] = {name, other_name}
            continue
        if {*first.writes} & {*second.writes}:
            assert orders[0] == orders[1], f"{one} and {other}: the order is that of the list"
            assert orders[2] == orders[3], f"{one} and {other}: the order is that of the list"
    assert [why for why, names in refused.items() if names not in CONFLICTS] == []
    assert all(names in refused.values() for names in CONFLICTS)


def _both(one: Callback, other: Callback) -> tuple[list[Callback], list[Callback]]:
    return [one, other], [other, one]
