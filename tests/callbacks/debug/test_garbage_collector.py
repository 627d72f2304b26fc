"""``GarbageCollector``: when Python collects, and that it is on again on every way out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.callbacks import LambdaCallback
from hookline.callbacks.debug import GarbageCollector
from hookline.errors import ArgumentError, DurationError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit

fit_ten_steps = partial(fit, train=tiny_data(5))


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


class Cycle:
    """What only the collector can free."""

    def __init__(self) -> None:
        self.me = self


class Watch(hl.Callback):
    """Notes at each step whether collection is on, and at which steps it took place (as Python itself says)."""

    reads = ("*",)

    def __init__(self) -> None:
        self.on: set[bool] = set()
        self.collected: list[tuple[str, int, int]] = []
        self.where: tuple[str, int] | None = None  # outside of it Python collects as it likes

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and self.where is not None:
            self.collected.append((*self.where, info["generation"]))

    def on_setup(self, run: Any) -> None:
        gc.callbacks.append(self._heard)

    def on_teardown(self, run: Any) -> None:
        gc.callbacks.remove(self._heard)

    def on_train_step_start(self, run: Any) -> None:
        self.where = ("train", run.clock.step + 1)
        self.on.add(gc.isenabled())

    def on_eval_batch_start(self, run: Any) -> None:
        self.where = ("eval", run.clock.eval.batch + 1)
        self.on.add(gc.isenabled())

    def on_predict_batch_start(self, run: Any) -> None:
        self.where = ("predict", run.clock.eval.batch + 1)
        self.on.add(gc.isenabled())

    def on_train_end(self, run: Any) -> None:
        self.where = None

    def on_eval_end(self, run: Any) -> None:
        self.where = None

    def on_predict_end(self, run: Any) -> None:
        self.where = None


def test_in_training_only_the_chosen_steps_collect() -> None:
    watch = Watch()
    fit_ten_steps(GarbageCollector(every=4), watch)
    assert watch.on == {False}
    assert watch.collected == [("train", 4, 2), ("train", 8, 2)]


def test_before_training_what_there_is_is_collected() -> None:
    gc.disable()
    cycle = Cycle()
    left = weakref.ref(cycle)
    del cycle
    gone: list[bool] = []
    gc.enable()
    fit_ten_steps(GarbageCollector(), LambdaCallback(on_train_start=lambda run: gone.append(left() is None)))
    assert gone == [True]


def test_the_steps_are_the_same_after_a_stop() -> None:
    watch = Watch()
    made = Trainer(callbacks=[GarbageCollector("4st"), watch], max_duration="10st", folder=False)
    stop = LambdaCallback(on_train_step_end=lambda run: run.stop("now") if run.clock.step == 6 else None)
    model = TinyModel()
    made.fit(model, tiny_data(5), loss=CE, optimizer=torch.optim.SGD, callbacks=[stop])
    made.fit(model, tiny_data(5), loss=CE, optimizer=torch.optim.SGD, extend="6st")
    assert [step for what, step, _ in watch.collected if what == "train" and step % 4 == 0] == [4, 8, 12]


def test_a_younger_generation_can_be_chosen() -> None:
    watch = Watch()
    fit_ten_steps(GarbageCollector(every=5, generation=1), watch)
    assert watch.collected == [("train", 5, 1), ("train", 10, 1)]


def test_garbage_waits_for_the_step_and_is_then_gone() -> None:
    made: list[Any] = []
    alive: list[bool] = []

    def look(run: Any) -> None:
        if run.clock.step == 1:
            cycle = Cycle()
            made.append(weakref.ref(cycle))
            for _ in range(3000):  # enough for Python to collect by itself, were it on
                Cycle()
        alive.append(made[0]() is not None)

    fit_ten_steps(GarbageCollector(every=3), LambdaCallback(on_train_step_end=look))
    assert alive[:5] == [True, True, False, False, False]


def test_evaluations_inside_training_collect_every_so_many_batches() -> None:
    watch = Watch()
    fit_ten_steps(GarbageCollector(every=3), watch, val=tiny_data(7), max_duration="1ep")
    assert watch.on == {False}
    assert [(what, number) for what, number, _ in watch.collected] == [("train", 3), ("eval", 3), ("eval", 6)]


@pytest.mark.parametrize("entry", ["evaluate", "predict"])
def test_evaluate_and_predict_count_batches(entry: str) -> None:
    watch = Watch()
    made = Trainer(callbacks=[GarbageCollector(every=2), watch], folder=False)
    arguments: dict[str, Any] = {"loss": CE} if entry == "evaluate" else {}
    getattr(made, entry)(TinyModel(), tiny_data(5), **arguments)
    assert watch.on == {False}
    assert [number for _, number, _ in watch.collected] == [2, 4]
    assert gc.isenabled()


@pytest.mark.parametrize("way", ["end", "stop", "error", "error in an evaluation", "Ctrl-C"])
def test_it_is_on_again_on_every_way_out(way: str) -> None:
    def leave(run: Any) -> None:
        if (run.stage == "val") != (way == "error in an evaluation"):
            return
        if way == "stop":
            run.stop("now")
        elif way.startswith("error"):
            raise ValueError("mine")
        elif way == "Ctrl-C":
            raise KeyboardInterrupt

    callbacks = GarbageCollector(), LambdaCallback(on_train_step_end=leave, on_eval_batch_end=leave)
    if way in ("end", "stop"):
        fit_ten_steps(*callbacks, val=tiny_data(2))
    else:
        with pytest.raises((ValueError, KeyboardInterrupt)):
            fit_ten_steps(*callbacks, val=tiny_data(2))
    assert gc.isenabled()


def test_it_is_on_again_after_an_own_loop_that_was_left() -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, callbacks=[GarbageCollector()], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(4)):
            assert not gc.isenabled()
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.run.clock.step == 3:
                break
        assert gc.isenabled()


def test_one_that_was_off_before_stays_off() -> None:
    gc.disable()
    fit_ten_steps(GarbageCollector(every=2))
    assert not gc.isenabled()


def test_what_switches_it_on_in_between_does_not_last() -> None:
    on: list[bool] = []
    look = LambdaCallback(
        on_train_step_start=lambda run: on.append(gc.isenabled()),
        on_train_step_end=lambda run: gc.enable() if run.clock.step == 1 else None,
    )
    fit_ten_steps(look, GarbageCollector(every=3), max_duration="1ep")
    assert on == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, r"GarbageCollector\(every=0\): must be >= 1\."),
        ({"every": True}, r"GarbageCollector\(every=True\): must be an integer or a duration such as '2ep'\."),
        ({"every": "30s"}, r"GarbageCollector\(every.*\): must be"),
        ({"every": "1ep"}, r"GarbageCollector\(every.*\): must be"),
        ({"generation": 3}, r"GarbageCollector\(generation=3\): must be 0, 1 or 2\."),
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GarbageCollector(**options)


def test_a_duration_that_is_none_is_refused() -> None:
    with pytest.raises(DurationError):
        GarbageCollector("often")
