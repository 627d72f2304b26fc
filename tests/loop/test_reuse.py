"""A callback that one training run has used starts another run with the state of a new instance."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import fit, sgd, train_loop
from tests.support.training import CE, DEFAULTS, at_step, crash_at


class StepCounter(hl.Callback):
    """Count steps, and note how many were counted when a training run was set up."""

    state = ("count",)

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self.count = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.count += 1


class Attribute(hl.Callback):
    """The same with the initial value in the class."""

    state = ("count",)
    count = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.count += 1


class OwnState(hl.Callback):
    """The same with a separate ``state_dict``, and with objects that refer to the callback."""

    def __init__(self, *steps: int, **more: int) -> None:
        self.given = (steps, more)
        self.rows: list[int] = []
        self._add = self._append

    def _append(self, step: int) -> None:
        self.rows.append(step)

    @property
    def count(self) -> int:
        return len(self.rows)

    def on_train_step_end(self, run: hl.Run) -> None:
        self._add(run.clock.step)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state: Any) -> None:
        self.rows = list(state["rows"])


COUNTERS = {"in __init__": StepCounter, "in the class": Attribute, "own state_dict": lambda: OwnState(1, 2, more=3)}


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("kind", ["trainer", "loop"])
def test_another_run_starts_with_a_new_state(name: str, kind: str) -> None:
    counter: Any = COUNTERS[name]()
    train = fit if kind == "trainer" else train_loop
    train(counter)
    assert counter.count == 8
    train(counter)
    assert counter.count == 8
    if isinstance(counter, OwnState):
        assert counter.given == ((1, 2), {"more": 3})


def test_another_model_in_the_same_trainer_is_another_run() -> None:
    counter = StepCounter()
    trainer = Trainer(callbacks=[counter], **DEFAULTS)
    fit(trainer=trainer)
    fit(trainer=trainer)
    assert counter.count == 8


@pytest.mark.parametrize("how", ["extend", "loop", "after an error"])
def test_a_run_that_continues_keeps_the_state(how: str) -> None:
    counter, model = StepCounter(), TinyModel()
    if how == "loop":
        loop = Loop(model, sgd, callbacks=[counter], **{**DEFAULTS, "max_duration": "8st"})
        for _ in range(2):
            with loop:
                for x, y in loop.batches(tiny_data()):
                    loop.backward(CE(model(x), y))
                    loop.step()
                    if loop.run.clock.step == 3:
                        break
    else:
        crash = [crash_at(3)] if how == "after an error" else []
        trainer = Trainer(callbacks=[counter, *crash], **DEFAULTS)
        if crash:
            with pytest.raises(RuntimeError, match="planted"):
                fit(model=model, trainer=trainer)
            assert counter.count == 3
            fit(model=model, trainer=trainer)
        else:
            fit(model=model, trainer=trainer, extend="1ep")
            fit(model=model, trainer=trainer, extend="1ep")
    assert counter.count == 8


def test_an_evaluation_of_another_run_changes_nothing() -> None:
    counter, model = StepCounter(), TinyModel()
    trainer = Trainer(callbacks=[counter], **DEFAULTS)
    fit(model=model, trainer=trainer)
    Trainer(callbacks=[counter], **DEFAULTS).evaluate(TinyModel(), tiny_data(), loss=CE)
    assert counter.count == 8
    fit(model=model, trainer=trainer, extend="1ep")
    assert counter.count == 12


def test_a_resume_has_the_state_of_the_checkpoint_and_not_of_the_instance(tmp_path: Path) -> None:
    counter, folder = StepCounter(), tmp_path / "run"
    with pytest.raises(RuntimeError, match="planted"):
        fit(counter, hl.Checkpointer(every="2st"), crash_at(5), folder=folder, resume="auto")
    fit(counter)
    assert counter.count == 8
    fit(counter, hl.Checkpointer(every="2st"), folder=folder, resume="auto")
    assert counter.count == 8


def test_a_callback_that_joins_during_a_run_is_reset() -> None:
    counter = StepCounter()
    fit(counter)
    fit(at_step(3, lambda run: run.callbacks.add(counter)))
    assert counter.count in (5, 6)  # The first step that it hears may be the one at which it joins.


def test_arguments_that_were_changed_keep_their_values() -> None:
    counter = StepCounter(limit=5)
    fit(counter)
    counter.limit, counter.name = 7, "mine"
    fit(counter)
    assert (counter.limit, counter.name, counter.count) == (7, "mine", 8)


def test_a_callback_without_a_state_keeps_what_it_has_collected() -> None:
    class Losses(hl.Callback):
        def __init__(self) -> None:
            self.values: list[float] = []

        def on_train_step_end(self, run: hl.Run) -> None:
            self.values.append(run.loss.item())

    losses = Losses()
    fit(losses)
    fit(losses)
    assert len(losses.values) == 16


def test_reset_state_can_be_overridden() -> None:
    class Total(StepCounter):
        total = 0

        def reset_state(self) -> None:
            total = self.total + self.count
            super().reset_state()
            self.total = total

    total = Total()
    for _ in range(3):
        fit(total)
    assert (total.total, total.count) == (16, 8)


def test_a_reset_that_fails_names_the_callback_and_disables_an_optional_one() -> None:
    class Broken(StepCounter):
        def reset_state(self) -> None:
            raise RuntimeError("no reset")

    broken = Broken()
    fit(broken)
    with pytest.raises(RuntimeError, match="no reset"):
        fit(broken)
    optional = Broken()
    optional.optional = True
    fit(optional)
    result = fit(optional)
    assert [failure.hook for failure in result.failures] == ["reset_state"]
    assert optional.count == 8


def test_a_copy_of_a_used_callback_is_reset() -> None:
    counter = StepCounter()
    fit(counter)
    copied = copy.deepcopy(counter)
    assert copied.count == 8
    fit(copied)
    assert copied.count == 8


def test_drive_resets_a_used_callback() -> None:
    counter = StepCounter()
    events = ["setup", "train_start", "train_step_start", "train_step_end"]
    for _ in range(2):
        drive(counter, events)
        assert counter.count == 1


def test_two_runs_with_one_set_of_callbacks_are_equal_to_two_with_new_ones() -> None:
    """Every callback with a state that changes training, in one recipe: the second run has the same bits."""

    def recipe() -> list[hl.Callback]:
        return [
            hl.Freeze("hidden", until="1ep"),
            hl.LRSchedule("cosine", warmup="2st"),
            hl.EMA(0.5),
            hl.EarlyStopping("train/loss", patience=5),
            hl.StopOnNaN(),
            hl.SpikeGuard(warmup=2, window=4),
            hl.Pruning(amount=0.1),
        ]

    def weights(callbacks: list[hl.Callback], seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        model = TinyModel()
        fit(*callbacks, model=model, seed=seed, max_duration="3ep")
        return [value.clone() for value in model.state_dict().values()]

    used = recipe()
    weights(used, 1)
    found, expected = weights(used, 2), weights(recipe(), 2)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
