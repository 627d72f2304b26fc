"""What a summary says of a model, against torch's own counting; and that it leaves no trace in the run."""

from __future__ import annotations

import io
import logging
import os
import pty
import random
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch._model_inspection import Seen, layers, render
from hookline.callbacks.watch.model_summary import ModelSummary
from hookline.errors import ArgumentError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Task, Trainer
from hookline.records import TableRow, from_json
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, is_quiet, same_tensors, sgd, train_loop

fit_one_epoch = partial(fit, max_duration="1ep")


@dataclass
class Summary:
    """The table of one run, by layer."""

    rows: dict[str, dict[str, Any]]

    def column(self, name: str) -> dict[str, Any]:
        return {layer: row[name] for layer, row in self.rows.items()}

    @property
    def total(self) -> dict[str, Any]:
        return self.rows["total"]


@pytest.fixture
def summarize(tmp_path: Path) -> Callable[..., Summary]:
    """Train a model with a summary, and read the table back from the run's folder."""
    numbers = iter(range(100))

    def make(
        model: nn.Module, data: Any = None, *others: Any, summary: ModelSummary | None = None, **options: Any
    ) -> Summary:
        folder = tmp_path / f"run-{next(numbers)}"
        train = tiny_data(2) if data is None else data
        callbacks = (summary or ModelSummary(print=False), *others)
        result = fit_one_epoch(*callbacks, model=model, train=train, folder=folder, **options)
        assert result.failures == ()
        return Summary(tables(folder)[0])

    return make


def tables(folder: Path) -> list[dict[str, dict[str, Any]]]:
    rows = [from_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [row for row in rows if isinstance(row, TableRow) and row.name == "model/summary"]
    return [{str(cells[0]): dict(zip(row.columns, cells, strict=True)) for cells in row.rows} for row in found]


class Images(nn.Module):
    """Everything that a look at it could disturb: dropout, statistics, random numbers of three kinds, a counter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(4 * 4, 3)
        self.calls = 0
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.features(x) * random.choice((1.0, 2.0)) + float(np.random.rand())
        self.mean.copy_(x.detach().mean((0, 2, 3)))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def images(batches: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 1, 4, 4, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(batches)
    ]


# ------------------------------------------------------------------------------------ what it says


def test_every_column_is_right_for_a_model_that_can_be_counted_by_hand(summarize: Any) -> None:
    rows = summarize(TinyModel()).rows
    assert list(rows) == ["hidden", "drop", "out", "total"]
    weights, classes = 4 * 8 + 8, 8 * 3 + 3
    assert rows["hidden"] == {
        "layer": "hidden",
        "type": "Linear",
        "output": "8 x 8",
        "parameters": weights,
        "trainable": weights,
        "MB": 4 * weights / 1e6,
        "FLOPs": 2 * 4 * 8,
    }
    assert rows["total"] == {
        "layer": "total",
        "type": "TinyModel",
        "output": "8 x 3",
        "parameters": weights + classes,
        "trainable": weights + classes,
        "MB": pytest.approx(4 * (weights + classes) / 1e6),
        "FLOPs": 2 * 4 * 8 + 2 * 8 * 3,
    }


def test_the_operations_are_those_that_torch_counts_on_the_real_model(summarize: Any) -> None:
    model = Images()
    copied, (x, _) = deepcopy(model), images()[0]
    with FlopCounterMode(display=False) as forward:
        output = copied(x)
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    told = LambdaCallback(on_train_end=lambda run: sent.extend(run.messages.read("flops_per_sample")))
    sent: list[float] = []
    summary = summarize(model, images(), told)
    assert summary.total["FLOPs"] == forward.get_total_flops() // 8 > 0
    assert summary.column("FLOPs")["features"] + summary.column("FLOPs")["head"] == summary.total["FLOPs"]
    assert sent == [(forward.get_total_flops() + backward.get_total_flops()) // 8]


def test_buffers_count_in_the_size_and_not_in_the_parameters(summarize: Any) -> None:
    summary = summarize(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    assert summary.rows["1"]["parameters"] == 6
    assert summary.rows["1"]["MB"] == pytest.approx((6 * 4 + 6 * 4 + 8) / 1e6)  # and a counter of batches


def test_frozen_parts_have_parameters_and_none_to_train(summarize: Any) -> None:
    model = TinyModel()
    model.hidden.requires_grad_(False)
    summary = summarize(model)
    assert summary.column("trainable") == {"hidden": 0, "drop": 0, "out": 27, "total": 27}
    assert summary.column("parameters") == {"hidden": 40, "drop": 0, "out": 27, "total": 67}


def test_shared_weights_are_counted_once(summarize: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, words: Tensor) -> Tensor:
            return self.out(self.embedding(words)).mean(1)  # type: ignore[no-any-return]

    data = [(torch.randint(10, (8, 5)), torch.randint(10, (8,)))]
    summary = summarize(Tied(), data, summary=ModelSummary())
    assert summary.column("parameters") == {"embedding": 40, "out": 0, "total": 40}
    assert "0*" in capsys.readouterr().out


def test_a_module_that_is_used_twice_counts_twice_in_operations_and_once_in_weights(summarize: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.same = self.layer

        def forward(self, x: Tensor) -> Tensor:
            return self.same(self.layer(x))  # type: ignore[no-any-return]

    summary = summarize(Twice())
    assert summary.rows["layer"]["output"] == "8 x 4 (2 calls)"
    assert summary.column("FLOPs") == {"layer": 2 * 2 * 16, "total": 2 * 2 * 16}
    assert summary.total["parameters"] == 20


def test_lazy_layers_are_shown_as_they_are_after_the_first_batch(summarize: Any) -> None:
    summary = summarize(nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d()))
    assert summary.column("parameters") == {"0": 25, "1": 10, "total": 35}
    assert summary.rows["0"]["FLOPs"] == 2 * 4 * 5


def test_before_the_first_batch_nobody_knows_the_size_of_a_lazy_layer(
    summarize: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3))
    summary = summarize(model, summary=ModelSummary(flops=False))
    assert summary.column("parameters") == {"0": None, "1": 18, "total": None}
    assert "?" in capsys.readouterr().out


def test_a_model_that_takes_a_dict_and_gives_one(summarize: Any) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = TinyModel()

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, y), "logits": logits}

    summary = summarize(Named(), [{"x": x, "y": y} for x, y in tiny_data(2)], loss=None)
    assert summary.rows["net"]["output"] == "8 x 3"
    assert summary.total["output"] == "scalar, 8 x 3"
    assert summary.total["FLOPs"] == 112


def test_depth_is_how_deep_it_looks(summarize: Any) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(4, 3))))

    names = {depth: list(summarize(model(), summary=ModelSummary(depth, print=False)).rows) for depth in (1, 2, None)}
    assert names == {1: ["0", "total"], 2: ["0", "0.0", "total"], None: ["0", "0.0", "0.0.0", "total"]}


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "2"])
def test_a_depth_that_is_none_is_refused(depth: Any) -> None:
    with pytest.raises(ArgumentError, match=r"ModelSummary\(depth.*\): must be"):
        ModelSummary(depth)


def test_a_model_with_many_layers_is_logged_whole_and_shown_in_part(
    summarize: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(100)))
    summary = summarize(model, summary=ModelSummary())
    shown = capsys.readouterr().out.splitlines()
    assert len(summary.rows) == 101
    assert len(shown) < 70
    assert any("(40 more)" in line for line in shown)


def test_a_model_of_very_many_modules_is_not_counted(summarize: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.callbacks.watch._model_inspection.MAX_COUNTED_MODULES", 3)
    summary = summarize(TinyModel())
    assert (summary.total["parameters"], summary.total["output"], summary.total["FLOPs"]) == (67, "8 x 3", None)


def test_a_task_with_several_networks_is_counted_as_a_whole(summarize: Any) -> None:
    class Pair(Task):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

        def configure_optimizers(self, run: Any) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_batch(self, run: Any, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(self.second(self.first(batch[0])), batch[1])

    summary = summarize(Pair())
    assert summary.column("FLOPs") == {"first": 64, "second": 48, "total": 112}
    assert summary.total["output"] is None  # the task itself is never called


def test_what_a_backward_calls_again_is_not_counted_again(summarize: Any) -> None:
    class Thrifty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(checkpoint(self.hidden, x, use_reentrant=False))  # type: ignore[no-any-return]

    summary = summarize(Thrifty())
    assert summary.column("FLOPs") == {"hidden": 64, "out": 48, "total": 112}
    assert summary.rows["hidden"]["output"] == "8 x 8"


def test_a_pruned_layer_is_counted(summarize: Any) -> None:
    model = TinyModel()
    prune.l1_unstructured(model.hidden, "weight", 0.5)
    assert summarize(model).column("FLOPs") == {"hidden": 64, "drop": 0, "out": 48, "total": 112}


def test_a_model_that_decides_by_values_has_shapes_and_no_operations(summarize: Any) -> None:
    class Moody(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    summary = summarize(Moody())
    assert summary.column("output") == {"hidden": "8 x 8", "drop": "8 x 8", "out": "8 x 3", "total": "8 x 3"}
    assert set(summary.column("FLOPs").values()) == {None}


@pytest.mark.parametrize("compiled", ["by the trainer", "by the user"])
def test_a_compiled_model_is_counted_and_not_compiled_again(summarize: Any, compiled: str) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    if compiled == "by the trainer":
        summary = summarize(TinyModel(), compile={"backend": backend})
        assert summary.column("FLOPs") == {"hidden": 64, "drop": 0, "out": 48, "total": 112}
    else:
        summary = summarize(torch.compile(TinyModel(), backend=backend))
        assert summary.rows["_orig_mod.hidden"]["FLOPs"] == 64
        assert summary.total["FLOPs"] == 112
    assert summary.total["output"] == "8 x 3"
    assert len(graphs) == 1


def test_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    train_loop(ModelSummary(print=False), max_duration="1ep", folder=tmp_path)
    (rows,) = tables(tmp_path)
    assert rows["total"]["FLOPs"] == 112


# ------------------------------------------------------------------------------------ that it leaves no trace


def fit_images(*callbacks: Any, accumulate: int = 1) -> tuple[Images, list[Any], dict[str, Any]]:
    """A run; its model, its losses, and the random states at its end."""
    random.seed(0)
    np.random.seed(0)
    model = Images()
    options: Any = {"accumulate": accumulate, "log_every": "1st", "seed": 3}
    result = fit(*callbacks, model=model, train=images(), optimizer=partial(sgd, momentum=0.9), **options)
    assert result.failures == ()
    states = {"python": random.getstate(), "numpy": np.random.get_state()[1].tolist(), "torch": torch.get_rng_state()}
    return model, result.history["train/loss"], states


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_statistics_losses_and_random_states_are_bitwise_the_same(accumulate: int) -> None:
    bare, bare_losses, bare_states = fit_images(accumulate=accumulate)
    model, losses, states = fit_images(ModelSummary(print=False), accumulate=accumulate)
    assert same_tensors(model.state_dict(), bare.state_dict())
    assert losses == bare_losses
    assert torch.equal(states.pop("torch"), bare_states.pop("torch"))
    assert states == bare_states
    assert model.calls == bare.calls  # the model itself went through each batch once


def test_modes_and_gradients_of_the_first_step_are_those_of_the_batch() -> None:
    model = TinyModel()
    model.drop.eval()
    seen: list[Any] = []

    gradients = at_step(0, lambda run: seen.append([p.grad.clone() for p in run.model.parameters()]), "gradients_ready")
    modes = at_step(1, lambda run: seen.append([part.training for part in run.model.modules()]))
    x, y = tiny_data()[0]
    expected = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    fit_one_epoch(ModelSummary(print=False), gradients, modes, model=model)
    assert same_tensors(seen[0], expected)
    assert seen[1] == [True, True, False, True]


def test_hooks_of_others_on_the_model_see_real_batches_only() -> None:
    seen: list[type] = []
    model = TinyModel()
    handle = model.out.register_forward_hook(lambda module, args, output: seen.append(type(output)))
    fit_one_epoch(ModelSummary(print=False), model=model)
    assert seen == [Tensor] * 4
    assert list(model.out._forward_hooks.values()) == [model.out._forward_hooks[handle.id]]
    assert not model.hidden._forward_hooks
    assert not model.hidden._forward_pre_hooks


def test_later_steps_stay_on_the_fastest_path() -> None:
    listeners: list[Any] = []
    look = LambdaCallback(on_train_step_end=lambda run: listeners.append([type(c).__name__ for c in run.callbacks]))
    trainer = Trainer(max_duration="1ep", callbacks=[ModelSummary(print=False), look], folder=False, device="cpu")
    fit(trainer=trainer)
    assert listeners == [["ModelSummary", "LambdaCallback"]] * 4
    assert is_quiet(trainer)
    assert [event for event in STEP_EVENTS if overridden(ModelSummary(), f"on_{event}")] == []


def test_what_a_model_prints_is_printed_once_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    class Talking(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            print("here")
            return super().forward(x)

    fit_one_epoch(ModelSummary(print=False), model=Talking())
    assert capsys.readouterr().out == "here\n" * 4


# ------------------------------------------------------------------------------------ when it is shown


def test_in_a_log_it_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    fit_one_epoch(ModelSummary())
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert "\x1b" not in out
    assert lines[0] == ["layer", "type", "output", "parameters", "trainable", "MB", "FLOPs"]
    assert lines[2] == ["hidden", "Linear", "8", "x", "8", "40", "40", "<0.01", "64"]
    assert lines[-2] == ["total", "TinyModel", "8", "x", "3", "67", "67", "<0.01", "112"]
    assert out.splitlines()[-1] == "FLOPs a sample: 112 forward, 272 forward and backward"


def test_without_print_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fit_one_epoch(ModelSummary(print=False))
    assert capsys.readouterr().out == ""


def test_a_second_fit_does_not_show_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(max_duration="1ep", callbacks=[ModelSummary()], folder=False, device="cpu")
    model = TinyModel()
    fit(trainer=trainer, model=model)
    assert "total" in capsys.readouterr().out
    fit(trainer=trainer, model=model, extend="1ep")
    assert capsys.readouterr().out == ""


def test_another_model_with_the_same_callback_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    summary = ModelSummary()
    fit_one_epoch(summary)
    fit_one_epoch(summary, model=nn.Sequential(nn.Linear(4, 3)))
    assert capsys.readouterr().out.count("total ") == 2


def test_without_flops_it_comes_before_the_first_step_and_leaves_the_model_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []
    watch = LambdaCallback(on_train_start=lambda run: seen.append(capsys.readouterr().out))
    fit_one_epoch(ModelSummary(flops=False), watch)
    assert seen[0].splitlines()[0].split() == ["layer", "type", "parameters", "trainable", "MB"]
    assert "total" in seen[0]
    assert capsys.readouterr().out == ""


def test_a_run_that_goes_on_shows_it_again_and_logs_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    stop = at_step(6, lambda run: run.stop("now"))
    fit(ModelSummary(), Checkpointer(every="4st", at_end=False), stop, **options)
    fit(ModelSummary(), Checkpointer(every="4st"), resume="auto", **options)
    assert capsys.readouterr().out.count("total ") == 2
    assert [rows["total"]["FLOPs"] for rows in tables(tmp_path / "run")] == [112]  # as in a run that was never stopped


@pytest.mark.parametrize("flops", [True, False])
def test_a_run_that_is_finished_trains_nothing_and_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flops: bool
) -> None:
    folder = tmp_path / "run"
    fit_one_epoch(ModelSummary(print=False, flops=flops), Checkpointer(), folder=folder)
    fit_one_epoch(ModelSummary(flops=flops), Checkpointer(), folder=folder, resume="auto")
    assert capsys.readouterr().out == ""
    assert len(tables(folder)) == 1


def test_when_the_first_batch_fails_it_shows_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit_one_epoch(ModelSummary(), model=wrong)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2][:5] == ["0", "Linear", "8", "x", "8"]
    assert lines[3][:3] == ["1", "Linear", "30"]
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in wrong.modules()] == [0, 0, 0]


def test_a_fit_that_ends_before_its_first_batch_can_be_followed_by_another() -> None:
    summary, bombs = ModelSummary(print=False), [RuntimeError("planted")]

    def explode(run: Any) -> None:
        if bombs:
            raise bombs.pop()

    callbacks = [summary, LambdaCallback(on_train_epoch_start=explode)]
    trainer, model = Trainer(max_duration="1ep", callbacks=callbacks, folder=False, device="cpu"), TinyModel()
    with pytest.raises(RuntimeError, match="planted"):
        fit(trainer=trainer, model=model)
    assert fit(trainer=trainer, model=model).failures == ()


@pytest.mark.parametrize("entry", ["evaluate", "test", "predict"])
def test_without_training_the_first_batch_of_the_entry_point_is_shown(
    entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(callbacks=[ModelSummary()], folder=False, device="cpu")
    options: Any = {} if entry == "predict" else {"loss": CE}
    getattr(trainer, entry)(model := TinyModel(), tiny_data(batches=2), **options)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[2:5]] == [
        ["hidden", "Linear", "8", "x", "8"],
        ["drop", "Dropout", "8", "x", "8"],
        ["out", "Linear", "8", "x", "3"],
    ]
    assert lines[-1] == "FLOPs a sample: 112 forward"
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()] == [0, 0, 0, 0]


def test_an_error_in_the_first_batch_of_an_evaluation_leaves_no_hook_on_the_model() -> None:
    wrong = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Trainer(callbacks=[ModelSummary()], folder=False, device="cpu").evaluate(wrong, tiny_data(), loss=CE)
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in wrong.modules()] == [0, 0, 0]


def test_an_evaluation_after_training_shows_nothing_again(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(max_duration="1ep", callbacks=[ModelSummary()], folder=False, device="cpu")
    fit(trainer=trainer, model=(model := TinyModel()), val=tiny_data(), test=tiny_data())
    assert capsys.readouterr().out.count("total") == 1
    trainer.predict(model, tiny_data())
    assert capsys.readouterr().out == ""


def test_in_a_terminal_it_has_colors_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pseudo-terminal, that of a small window."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", buffering=1, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        fit_one_epoch(ModelSummary())
        print("end", end="", flush=True)
        raw = b""
        while not raw.endswith(b"end"):  # all of it fits into the buffer of a terminal
            raw += os.read(master, 65536)
    os.close(master)
    out = raw.decode().removesuffix("end")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert "\x1b[1m" in out
    assert lines[0].split() == ["layer", "type", "output", "parameters", "FLOPs"]
    assert max(map(len, lines[:-1])) <= 50


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["layer", "type", "output", "parameters", "trainable", "MB", "FLOPs"]),
        (58, ["layer", "type", "output", "parameters", "trainable", "FLOPs"]),
        (48, ["layer", "type", "output", "parameters", "FLOPs"]),
        (36, ["layer", "output", "parameters", "FLOPs"]),
        (26, ["layer", "parameters", "FLOPs"]),
    ],
)
def test_a_narrow_window_shows_fewer_columns(width: int, expected: list[str]) -> None:
    rows = layers(TinyModel(), 2, Seen({"": ["8 x 3"], "out": ["8 x 3"]}, {"": 800, "out": 800}), 8)
    lines = render(rows, "", width=width, color=False, ascii_only=False).splitlines()
    assert lines[0].split() == expected
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_where_there_is_no_unicode_it_is_plain_ascii(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    fit_one_epoch(ModelSummary(), model=nn.Sequential(*(nn.Linear(4, 4) for _ in range(70))))
    stream.seek(0)
    assert "total" in stream.read().encode().decode("ascii", "strict")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_when_nobody_can_read_it_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert fit_one_epoch(ModelSummary()).failures == ()


def test_why_there_are_no_operations_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Moody(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    with caplog.at_level(logging.INFO, "hookline"):
        fit_one_epoch(ModelSummary(print=False), model=Moody())
    assert any("counts no FLOPs" in record.getMessage() for record in caplog.records)


def test_an_input_that_cannot_be_looked_at_is_no_error_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr("hookline.callbacks.watch._model_inspection.without_data", refuse)
    monkeypatch.setattr("hookline.callbacks.watch._model_inspection.shapes", refuse)
    result = fit_one_epoch(ModelSummary(print=False))
    assert (result.clock.step, result.failures) == (4, ())
