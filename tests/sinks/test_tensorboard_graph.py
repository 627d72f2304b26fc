"""The graph of a model is in TensorBoard, and the model does not notice."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from hookline.errors import SetupError
from hookline.loop import SupervisedTask
from hookline.sinks.tensorboard import TensorBoard
from hookline.sinks.tensorboard_graph import ModelGraph, trace
from hookline.testing import TinyModel
from tests.support import CE, fit, same_tensors, sgd, state_of


class Restless(nn.Module):
    """Draws from every random state, counts its calls, and has a part that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel(dropout=0.3)
        self.norm = nn.BatchNorm1d(4)
        self.norm.eval()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.norm(x) * (1 + 1e-3 * random.random() + 1e-3 * float(np.random.random()))
        return self.model(x + 1e-3 * torch.randn_like(x))  # type: ignore[no-any-return]


def graph_of(folder: Path) -> Any:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found.Graph() if found.Tags()["graph"] else None


def names(graph: Any) -> str:
    return " ".join(node.name for node in graph.node)


def test_the_graph_has_the_layers_of_the_model(tmp_path: Path) -> None:
    fit(folder=tmp_path, sinks=[TensorBoard(graph=True)])
    found = graph_of(tmp_path)
    assert "Linear[hidden]" in names(found)
    assert "Linear[out]" in names(found)
    inputs = [node for node in found.node if node.op == "IO Node" and node.name.startswith("input")]
    assert [[size.size for size in node.attr["_output_shapes"].list.shape[0].dim] for node in inputs] == [[8, 4]]


def test_no_graph_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert TensorBoard().callbacks == ()
    fit(folder=tmp_path, sinks=[TensorBoard()])
    assert graph_of(tmp_path) is None


def test_a_traced_model_is_trained_to_the_same_bits(tmp_path: Path) -> None:
    results = []
    for number, sinks in enumerate(([], [TensorBoard(graph=True)])):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        results.append(fit(model=Restless(), folder=tmp_path / str(number), sinks=sinks))
    assert graph_of(tmp_path / "1") is not None
    plain, traced = (state_of(result.model) for result in results)
    assert plain["calls"] == 8
    assert same_tensors(plain, traced)


def test_modes_and_gradients_are_as_they_were() -> None:
    model = Restless()
    model(torch.ones(2, 4)).sum().backward()
    model.model.hidden.eval()
    modes = [part.training for part in model.modules()]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    trace(model, (torch.ones(2, 4), torch.zeros(2)))
    assert [part.training for part in model.modules()] == modes
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert torch.equal(parameter.grad, gradients[name])  # type: ignore[arg-type]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(left) + self.layer(right)}


@pytest.mark.parametrize(
    "batch",
    [
        (torch.ones(2, 4), torch.ones(2, 4), torch.zeros(2)),
        [torch.ones(2, 4), torch.ones(2, 4), torch.zeros(2)],
        {"left": torch.ones(2, 4), "right": torch.ones(2, 4)},
    ],
    ids=["tuple", "list", "dict"],
)
def test_batches_of_several_parts_reach_the_model_as_in_training(batch: Any) -> None:
    assert "Linear[layer]" in names(trace(TwoInputs(), batch))


def test_a_batch_that_is_one_tensor_is_the_input() -> None:
    assert "Linear" in names(trace(nn.Linear(4, 2), torch.ones(3, 4)))


def test_a_compiled_model_has_a_graph_too(tmp_path: Path) -> None:
    model = TinyModel()
    model.compile(backend="eager")
    fit(model=model, folder=tmp_path, sinks=[TensorBoard(graph=True)])
    assert "Linear[hidden]" in names(graph_of(tmp_path))


def test_of_a_task_its_model_is_traced(tmp_path: Path) -> None:
    task = SupervisedTask(TinyModel(), CE, sgd)
    result = fit(model=task, folder=tmp_path, max_duration="1ep", sinks=[TensorBoard(graph=True)])
    assert not result.failures
    assert "Linear[hidden]" in names(graph_of(tmp_path))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel()

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("not with me\nand a second line")
        return self.model(x)  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_traced_is_trained_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fit(model=Untraceable(), folder=tmp_path, sinks=[TensorBoard(graph=True)])
    assert result.clock.step == 8
    (failure,) = result.failures
    assert failure.callback == "ModelGraph"
    assert "Untraceable cannot be traced with Tensor of a training batch (RuntimeError: not with me)" in str(failure)
    assert graph_of(tmp_path) is None
    assert "not with me" not in capsys.readouterr().out
    (report,) = result.sinks
    assert report.is_well


def test_what_torch_warns_of_while_it_traces_is_not_the_users_business() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace(TinyModel(), (torch.ones(2, 4), torch.zeros(2)))
    assert said == []


def test_it_says_what_it_could_not_trace() -> None:
    with pytest.raises(SetupError, match=r"graph=True\): Linear cannot be traced with str of a training batch"):
        trace(nn.Linear(4, 2), ("text", torch.zeros(2)))


def test_a_graph_is_handed_over_once_and_made_anew_for_the_next_run(tmp_path: Path) -> None:
    graph = ModelGraph()
    fit(graph, folder=tmp_path / "one")
    assert graph.take() is not None
    assert graph.take() is None
    fit(graph, folder=tmp_path / "two")
    assert graph.take() is not None
