"""A wrong argument of a callback or sink raises ``ArgumentError`` that names the class and the argument."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

import hookline as hl
from hookline.errors import ArgumentError, DurationError, SetupError

WRONG: dict[str, Any] = {
    "object": object(),
    "none": None,
    "true": True,
    "string": "no such thing",
    "negative": -1,
    "zero": 0,
    "half": 20.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "list": [object()],
    "number list": [1, 2],
    "dict": {object(): object()},
    "class": nn.Module,
}

NEEDED: dict[str, dict[str, Any]] = {
    "AccumulationSchedule": {"scheduling": {0: 2}},
    "DerivedMetric": {"name": "val/x", "function": lambda metrics: 1.0, "reads": ("val/loss",)},
    "Freeze": {"layers": "net"},
    "GradientClip": {"norm": 1.0},
    "JSONL": {"path": "copy.jsonl"},
    "LimitBatches": {"train": 1},
    "LoadWeights": {"path": "weights.safetensors"},
    "MLPerfLog": {"benchmark": "resnet", "organization": "us"},
    "Metrics": {"metrics": {"acc": lambda outputs, targets: 1.0}},
    "Notify": {"webhook": "https://example.org/hook"},
    "RenameMetric": {"names": {"val/acc": "val/accuracy"}},
    "StopAtThreshold": {"monitor": "val/loss", "threshold": 1.0},
    "TimeLimit": {"duration": "1h"},
    "Upload": {"to": "memory://runs"},
}
"""Arguments without which the class cannot be made."""

CLASSES = [
    kind
    for kind in (
        *(getattr(hl.callbacks, name) for name in hl.callbacks.__all__),
        *(getattr(hl.sinks, name) for name in ("CSV", "JSONL", "Console", "MLflow", "Memory", "TensorBoard", "WandB")),
    )
    if not issubclass(kind, hl.Callback) or kind.__init__ is not object.__init__
]
CLASSES = [kind for kind in CLASSES if issubclass(kind, hl.Callback) or "sinks" in kind.__module__]


def arguments() -> Iterator[tuple[Any, str]]:
    for kind in CLASSES:
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                yield kind, name


@pytest.mark.parametrize(("kind", "name"), list(arguments()), ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_argument_is_named_or_accepted(kind: Any, name: str) -> None:
    accepted = []
    for what, value in WRONG.items():
        try:
            kind(**(NEEDED.get(kind.__name__, {}) | {name: value}))
        except SetupError as error:
            assert "pip install" in str(error)  # noqa: PT017 (the argument is right, and a package is missing)
        except ArgumentError as error:
            text = str(error)
            assert text.startswith(f"{kind.__name__}("), f"{what}: {text}"
            assert name in text, f"{what}: {text}"
        else:
            accepted.append(what)
    assert "object" not in accepted or name in ("config", "target"), accepted
    assert "nan" not in accepted or "object" in accepted, accepted


def test_a_needed_argument_that_is_left_out_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'metrics'"):
        hl.Metrics()  # type: ignore[call-arg]


def test_the_arguments_of_a_subclass_that_passes_them_on_are_checked() -> None:
    class Mine(hl.EMA):
        def __init__(self, given: Any) -> None:
            super().__init__(given)

    with pytest.raises(ArgumentError, match=r"^Mine\(decay='x'\): must be a number\.$"):
        Mine("x")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hl.EMA(decay="x"), "EMA(decay='x'): must be a number."),
        (lambda: hl.EMA(decay=1.5), "EMA(decay=1.5): must be >= 0 and < 1."),
        (lambda: hl.EMA(every=5), "EMA(every=5): must be a duration such as '2ep'."),
        (lambda: hl.SWA("0.1"), "SWA(swa_lrs='0.1'): must be a number, a list of numbers or None."),
        (lambda: hl.SWA(update_bn="x"), "SWA(update_bn='x'): must be True, False or a function."),
        (lambda: hl.LRFinder(num_training_steps=20.5), "LRFinder(num_training_steps=20.5): must be an integer."),
        (lambda: hl.GarbageCollector(generation=True), "GarbageCollector(generation=True): must be an integer."),
        (lambda: hl.SpeedMonitor(peak="x"), "SpeedMonitor(peak='x'): must be a number or None."),
        (lambda: hl.SaveBest(min_delta=float("nan")), "SaveBest(min_delta=nan): must be a number."),
        (lambda: hl.SaveBest(mode="low"), "SaveBest(mode='low'): must be 'min', 'max' or None."),
        (lambda: hl.SaveBest(path=3), "SaveBest(path=3): must be a path."),
        (lambda: hl.Checkpointer(mode="max"), "Checkpointer(mode='max'): needs a metric. Add monitor='val/loss'."),
        (lambda: hl.ProgressBar("val/loss"), "ProgressBar(metrics='val/loss'): must be a list of strings."),
        (lambda: hl.Notify(password=3), "Notify(password='[redacted]'): must be a string or None."),
        (
            lambda: hl.QuantizationAwareTraining(weight_bits=4.0),
            "QuantizationAwareTraining(weight_bits=4.0): must be an integer.",
        ),
        (
            lambda: hl.Finetuning("net", {1: {"layers": "net", "lr": -1}}),
            "Finetuning(unfreeze={1: {'layers': 'net', 'lr': -1}}): 'lr' must be a number > 0.",
        ),
        (lambda: hl.Trainer(accumulate=True), "Trainer(accumulate=True): must be the number of batches"),
        (lambda: hl.Trainer(name="a\nb"), r"Trainer(name='a\nb'): must not have line breaks"),
        (lambda: hl.Loop(nn.Linear(1, 1), seed="x"), "Loop(seed='x'): must be an integer."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_bad_duration_is_a_bad_argument() -> None:
    assert issubclass(DurationError, ArgumentError)
    with pytest.raises(ArgumentError, match=r"^EarlyStopping\(start=…\): "):
        hl.EarlyStopping(start="soon")
