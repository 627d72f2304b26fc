"""``compile``: in place, so that no key of the state dict is renamed, and once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd


class Backend:
    """Counts the graphs that it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None


def test_in_place_and_without_new_keys() -> None:
    model, other = TinyModel(), TinyModel()
    keys = list(model.state_dict())
    options: Any = {"max_duration": "2ep", "folder": False}
    result = fit(model=model, val=tiny_data(2), compile={"backend": "eager"}, **options)
    plain = fit(model=other, val=tiny_data(2), **options)
    assert result.model is model
    assert list(model.state_dict()) == keys
    assert is_compiled(model)
    assert not is_compiled(other)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert result.history["val/loss"] == pytest.approx(plain.history["val/loss"], rel=1e-5)


def test_the_model_is_really_compiled_and_only_once() -> None:
    backend, model = Backend(), TinyModel()
    trainer = Trainer(max_duration="1ep", compile={"backend": backend}, folder=False)
    trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd)
    first = backend.graphs
    assert first > 0
    compiled = model._compiled_call_impl
    trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd, extend="1ep")
    assert model._compiled_call_impl is compiled
    assert backend.graphs == first


def test_it_is_off_by_default() -> None:
    model = TinyModel()
    fit(model=model, max_duration="1ep")
    assert not is_compiled(model)


def test_the_children_of_a_task_are_compiled() -> None:
    """Not the task itself: its methods are called, not its forward."""

    class Two(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = TinyModel(), nn.Linear(3, 3)

        def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
            return sgd(self.parameters())

        def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
            return cross_entropy(self.head(self.body(batch[0])), batch[1])

    backend, task = Backend(), Two()
    keys = list(task.state_dict())
    fit(model=task, max_duration="1ep", compile={"backend": backend})
    assert is_compiled(task.body)
    assert is_compiled(task.head)
    assert not is_compiled(task)
    assert list(task.state_dict()) == keys
    assert backend.graphs > 0


def test_a_task_with_a_part_called_model_compiles_its_other_parts_too() -> None:
    class Two(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.head = TinyModel(), nn.Linear(3, 3)

        def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
            return sgd(self.parameters())

        def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
            return cross_entropy(self.head(self.model(batch[0])), batch[1])

    task = Two()
    fit(model=task, max_duration="1ep", compile={"backend": "eager"})
    assert is_compiled(task.model)
    assert is_compiled(task.head)


def test_the_own_loop() -> None:
    backend, model = Backend(), TinyModel()
    with Loop(model, sgd, max_duration="1ep", compile={"backend": backend}, folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert backend.graphs > 0
    assert is_compiled(model)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_evaluate_and_predict(verb: str) -> None:
    backend, model = Backend(), TinyModel()
    trainer = Trainer(compile={"backend": backend}, folder=False)
    found: Any = (
        trainer.evaluate(model, tiny_data(), loss=CE) if verb == "evaluate" else trainer.predict(model, tiny_data())
    )
    assert backend.graphs > 0
    assert len(found) == (1 if verb == "evaluate" else 32)


def test_with_bf16_and_accumulation() -> None:
    model = TinyModel()
    result = fit(
        model=model,
        train=tiny_data(8),
        max_duration="4ep",
        compile={"backend": "eager"},
        precision="bf16",
        accumulate=2,
    )
    assert result.clock.step == 16
    assert result.history["train/loss"][-1] < result.history["train/loss"][0]


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")), reason="no C compiler")
def test_the_real_backend() -> None:
    model, other = TinyModel(), TinyModel()
    options: Any = {"max_duration": "2ep", "folder": False}
    fit(model=model, compile=True, **options)
    fit(model=other, **options)
    assert list(model.state_dict()) == list(other.state_dict())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
