"""The norms are those of a plain loop, of the steps that were asked for, before and after a resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.gradients import GradientMonitor
from hookline.callbacks.gradients._layers import norms
from hookline.errors import ArgumentError, DurationError, SetupError
from hookline.loop import Loop, Result
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, json_lines, train_loop


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def fit_adam(*callbacks: Any, **options: Any) -> Result:
    result: Result = fit(*callbacks, **{"optimizer": adam, "log_every": "3st", **options})
    assert result.failures == ()
    return result


def length(*tensors: Tensor) -> float:
    return float(np.sqrt(sum((tensor.detach().double().numpy() ** 2).sum() for tensor in tensors)))


def plain_loop() -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]]:
    """Gradients, weights before and weights after of each step."""
    model = TinyModel()
    optimizer = adam(model.parameters())
    for x, y in tiny_data() * 2:
        nn.functional.cross_entropy(model(x), y).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        yield gradients, before, {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.zero_grad()


def test_norms_of_gradients_weights_and_updates_are_those_of_a_plain_loop() -> None:
    history = fit_adam(GradientMonitor("1st", weights=True, updates=True)).history
    assert history.steps("grad_norm/total") == list(range(1, 9))
    for index, (gradients, before, after) in enumerate(plain_loop()):
        for layer in ("hidden", "out", "total"):
            names = [name for name in before if layer == "total" or name.startswith(layer)]
            moved = length(*(after[name] - before[name] for name in names))
            size = length(*(before[name] for name in names))
            expected = {
                "grad_norm": length(*(gradients[name] for name in names)),
                "weight_norm": size,
                "update_norm": moved,
                "update_ratio": moved / size,
            }
            for kind, value in expected.items():
                assert history[f"{kind}/{layer}"][index] == pytest.approx(value, rel=1e-5), (kind, layer, index)


def test_mean_deviation_and_zeros_of_gradients_are_those_of_a_plain_loop() -> None:
    """Two hidden units never fire, so that some gradients are exactly zero."""
    model = TinyModel()
    with torch.no_grad():
        model.hidden.bias[:2] = -1e6
    history = fit_adam(GradientMonitor("1st", statistics=True, layers="hidden"), model=model).history
    plain = TinyModel()
    with torch.no_grad():
        plain.hidden.bias[:2] = -1e6
    x, y = tiny_data()[0]
    nn.functional.cross_entropy(plain(x), y).backward()
    gradients = {name: p.grad.flatten().double() for name, p in plain.named_parameters() if p.grad is not None}
    for layer in ("hidden", "total"):
        values = torch.cat([its for name, its in gradients.items() if layer == "total" or name.startswith(layer)])
        assert history[f"grad_mean/{layer}"][0] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-8)
        assert history[f"grad_std/{layer}"][0] == pytest.approx(values.std(correction=0).item(), rel=1e-5)
        assert history[f"grad_zeros/{layer}"][0] == pytest.approx((values == 0).double().mean().item(), rel=1e-6)
    assert history["grad_zeros/hidden"][0] >= 0.25
    assert "grad_mean/out" not in history
    assert history.steps("grad_std/total") == list(range(1, 9))


def test_by_default_only_the_first_of_a_hundred_steps_is_looked_at_and_only_its_gradients() -> None:
    history = fit_adam(GradientMonitor(), train=tiny_data(110), max_duration="1ep").history
    assert history.steps("grad_norm/total") == [1, 100]
    assert [name for name in history if "/" in name and not name.startswith("train/")] == [
        "grad_norm/hidden",
        "grad_norm/out",
        "grad_norm/total",
    ]


@pytest.mark.parametrize(
    ("every", "expected"),
    [("3st", [1, 3, 6]), ("1ep", [1, 4, 8]), ("20sp", [1, 3, 5, 8]), ("0.5dur", [1, 4, 8]), ("1000s", [1])],
)
def test_each_step_that_completes_an_interval_has_its_row_whatever_log_every_is(
    every: str, expected: list[int]
) -> None:
    for log_every in ("1st", "3st", "100st"):
        assert fit_adam(GradientMonitor(every), log_every=log_every).history.steps("grad_norm/total") == expected


class Stream(torch.utils.data.IterableDataset[Any]):
    """Batches without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tiny_data())


def test_of_a_loader_without_a_length_the_first_step_of_the_next_epoch_is_looked_at() -> None:
    loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
    assert fit_adam(GradientMonitor("1ep"), train=loader).history.steps("grad_norm/total") == [1, 5]


def test_the_gradients_of_a_window_are_seen_when_they_are_averaged() -> None:
    x, y = (torch.cat(parts) for parts in zip(*tiny_data(4), strict=True))
    whole = fit_adam(GradientMonitor("1st"), train=[(x, y)])
    split = fit_adam(GradientMonitor("1st"), train=tiny_data(4), accumulate=4)
    assert split.history["grad_norm/out"] == pytest.approx(whole.history["grad_norm/out"], rel=1e-4)
    assert split.history.steps("grad_norm/out") == [1, 2]


def test_a_step_that_is_skipped_has_no_row_and_the_next_one_is_looked_at_in_its_place() -> None:
    skipped: list[int] = []

    def skip_once(run: Any) -> None:
        if run.clock.batch == 2 and not skipped:
            skipped.append(run.clock.step)
            for parameter in run.model.parameters():
                parameter.grad.fill_(math.nan)
            run.skip_step()

    class Skip(LambdaCallback):
        writes = ("gradients",)
        before = (GradientMonitor,)

    result = fit_adam(Skip(on_gradients_ready=skip_once), GradientMonitor("2st", updates=True), log_every="1st")
    assert skipped == [1]
    assert result.history.steps("grad_norm/total") == [1, 2, 4, 6]
    assert all(map(math.isfinite, result.history["grad_norm/total"] + result.history["update_ratio/total"]))


# -- layers --------------------------------------------------------------------------------------


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.total = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.total(self.encoder(x)) * self.scale
        return found


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (True, ["encoder.0", "encoder.2", "model.total", "model", "total"]),
        (False, ["total"]),
        ("encoder", ["encoder.0", "encoder.2", "total"]),
        (("*.2", "model"), ["encoder.2", "model.total", "model", "total"]),
    ],
)
def test_layers_are_chosen_by_name_or_pattern_and_none_is_taken_for_the_total(layers: Any, expected: list[str]) -> None:
    model = Deep()
    history = fit_adam(GradientMonitor("1st", layers=layers), model=model, max_duration="1st", log_every="1st").history
    assert {name for name in history if name.startswith("grad_norm")} == {f"grad_norm/{name}" for name in expected}
    fresh = Deep()
    nn.functional.cross_entropy(fresh(tiny_data()[0][0]), tiny_data()[0][1]).backward()
    all_of_them = [p.grad for p in fresh.parameters() if p.grad is not None]
    assert history["grad_norm/total"] == pytest.approx([length(*all_of_them)], rel=1e-5)


def test_a_layer_that_is_not_there_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(SetupError, match=r"no layer with parameters of the model matches. The nearest names: encoder"):
        fit(GradientMonitor(layers="encodr"), model=Deep())


@pytest.mark.parametrize("layers", [(1,), ("",)])
def test_layers_that_are_no_names_are_refused(layers: Any) -> None:
    with pytest.raises(ArgumentError, match=r"GradientMonitor\(layers="):
        GradientMonitor(layers=layers)


def test_a_time_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DurationError, match="ba"):
        GradientMonitor("10ba")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4, sparse=True)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.frozen(self.second(self.first(self.embed(x).mean(1))))
        return found


def test_shared_frozen_unused_and_sparse_parameters_are_counted_right() -> None:
    data = [(torch.tensor([[1, 2, 2], [1, 1, 3]]), torch.tensor([0, 3]))]
    model = Tied()
    result = fit_adam(GradientMonitor("1st"), model=model, train=data, max_duration="1st", optimizer=torch.optim.SGD)
    fresh = Tied()
    nn.functional.cross_entropy(fresh(data[0][0]), data[0][1]).backward()
    gradients = {name: p.grad.to_dense() for name, p in fresh.named_parameters() if p.grad is not None}
    history = {name: values[0] for name, values in result.history.items() if name.startswith("grad_norm/")}
    assert set(history) == {f"grad_norm/{name}" for name in ("embed", "first", "second", "total")}
    assert history["grad_norm/embed"] == pytest.approx(length(gradients["embed.weight"]), rel=1e-5)
    assert history["grad_norm/second"] == pytest.approx(length(gradients["second.bias"]), rel=1e-5)
    assert history["grad_norm/total"] == pytest.approx(length(*gradients.values()), rel=1e-5)


def test_norms_of_low_precision_numbers_are_summed_in_a_better_one() -> None:
    many = torch.full((100_000,), 0.01, dtype=torch.bfloat16)
    total, (part,) = norms([[many]])
    assert part.item() == pytest.approx(float(many[0]) * math.sqrt(100_000), rel=1e-4)
    assert total.dtype == torch.float32


# -- several optimizers, histograms ------------------------------------------------------------------


def test_each_optimizer_has_its_total_and_is_looked_at_once_in_a_step() -> None:
    model = TinyModel()
    optimizers = {
        "critic": torch.optim.SGD(model.hidden.parameters(), lr=0.1),
        "actor": torch.optim.SGD(model.out.parameters(), lr=0.1),
    }
    options: Any = {"max_duration": "1ep", "log_every": "1st", "folder": False, "device": "cpu"}
    monitor = GradientMonitor("1st", updates=True)
    first: list[float] = []
    with Loop(model, optimizers, callbacks=[monitor], **options) as loop:
        for x, y in loop.batches(tiny_data()):
            for repeat in range(2):  # the critic steps twice
                loop.backward(nn.functional.cross_entropy(model(x), y), optimizers["critic"])
                if not repeat:
                    first.append(length(*(p.grad for p in model.hidden.parameters() if p.grad is not None)))
                loop.step(optimizers["critic"])
            loop.backward(nn.functional.cross_entropy(model(x), y), optimizers["actor"])
            loop.step(optimizers["actor"])
    history = loop.run.history
    assert loop.result().failures == ()
    assert history["grad_norm/total/critic"] == pytest.approx(first)
    assert history["grad_norm/total/actor"] == history["grad_norm/out"]
    assert history["update_norm/total/actor"] == pytest.approx([0.1 * n for n in history["grad_norm/out"]], rel=1e-4)


def test_a_layer_that_two_optimizers_share_has_a_value_for_each_part_and_none_under_its_own_name(
    tmp_path: Path,
) -> None:
    model, fresh = TinyModel(), TinyModel()
    optimizers = {
        "w": torch.optim.SGD([model.hidden.weight, *model.out.parameters()], lr=0.1),
        "b": torch.optim.SGD([model.hidden.bias], lr=0.1),
    }
    monitor = GradientMonitor("1st", weights=True, updates=True, histograms=True)
    options: Any = {"max_duration": "1st", "log_every": "1st", "folder": tmp_path / "run"}
    loop, _ = train_loop(monitor, model=model, train=tiny_data(1), optimizer=optimizers, **options)
    assert loop.result().failures == ()
    nn.functional.cross_entropy(fresh(tiny_data(1)[0][0]), tiny_data(1)[0][1]).backward()
    parts = {
        "hidden/w": [fresh.hidden.weight],
        "hidden/b": [fresh.hidden.bias],
        "out": list(fresh.out.parameters()),
        "total/w": [fresh.hidden.weight, *fresh.out.parameters()],
        "total/b": [fresh.hidden.bias],
    }
    found = {name: values[0] for name, values in loop.run.history.items() if not name.startswith("train/")}
    expected = {}
    for name, its in parts.items():
        gradient, weight = length(*(p.grad for p in its if p.grad is not None)), length(*its)
        expected |= {f"grad_norm/{name}": gradient, f"weight_norm/{name}": weight}
        expected |= {f"update_norm/{name}": 0.1 * gradient, f"update_ratio/{name}": 0.1 * gradient / weight}
    assert found == pytest.approx(expected, rel=1e-4)
    rows = json_lines(tmp_path / "run" / "metrics.jsonl")
    counts = {row["name"]: sum(row["counts"]) for row in rows if str(row.get("name")).startswith("grad_histogram/")}
    assert counts == {"grad_histogram/hidden/w": 32, "grad_histogram/hidden/b": 8, "grad_histogram/out": 27}


def test_a_step_that_is_made_again_after_a_rollback_has_its_row() -> None:
    class Back(LambdaCallback):
        taken: Any = None
        is_done = False

        def on_train_step_start(self, run: Any) -> None:
            if run.clock.step == 3 and self.taken is None:
                self.taken = run.snapshot()

        def on_train_step_end(self, run: Any) -> None:
            if run.clock.step == 4 and not self.is_done:
                self.is_done = True
                run.roll_back(self.taken)

    back = Back()
    history = fit_adam(back, GradientMonitor("2st"), log_every="1st").history
    assert back.is_done
    assert history.steps("grad_norm/total") == [1, 2, 4, 6]


def test_an_optimizer_with_a_closure_is_looked_at_once_a_step() -> None:
    class LBFGS(GradientMonitor):
        pass

    model = TinyModel()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    monitor = LBFGS("1st", updates=True)
    options: Any = {"max_duration": "1ep", "log_every": "1st", "folder": False, "device": "cpu"}
    with Loop(model, optimizer, callbacks=[monitor], **options) as loop:
        for x, y in loop.batches(tiny_data(2)):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                return nn.functional.cross_entropy(model(x), y)

            loop.step(optimizer, closure=closure)
    assert loop.result().failures == ()
    assert loop.run.history.steps("update_ratio/total") == [1, 2]


def test_histograms_hold_every_gradient_of_the_layer(tmp_path: Path) -> None:
    fit_adam(GradientMonitor("4st", histograms=True, layers="out"), folder=tmp_path / "run")
    rows = json_lines(tmp_path / "run" / "metrics.jsonl")
    found = {row["step"]: row for row in rows if row.get("name") == "grad_histogram/out"}
    assert sorted(found) == [1, 4, 8]
    for index, (gradients, _, _) in enumerate(plain_loop()):
        if index + 1 in found:
            row = found[index + 1]
            values = np.concatenate([gradients[name].numpy().ravel() for name in ("out.weight", "out.bias")])
            assert sum(row["counts"]) == 27
            assert (row["edges"][0], row["edges"][-1]) == pytest.approx((values.min(), values.max()))


# -- stops and resumes -----------------------------------------------------------------------------


def of_monitor(result: Result) -> dict[str, Any]:
    names = [name for name in result.history if name.partition("/")[0] in ("grad_norm", "update_ratio", "weight_norm")]
    return {name: (result.history.steps(name), result.history[name]) for name in names}


@pytest.mark.parametrize("every", ["3st", "1ep", "20sp", "2st"])
def test_after_a_resume_the_rows_are_bitwise_those_of_a_run_that_was_not_stopped(every: str, tmp_path: Path) -> None:
    def make() -> GradientMonitor:
        return GradientMonitor(every, weights=True, updates=True)

    whole = of_monitor(fit_adam(make()))
    assert len(whole["grad_norm/total"][0]) >= 3
    for step in (2, 4, 5):
        folder = tmp_path / str(step)
        with pytest.raises(RuntimeError, match="planted"):
            fit_adam(Checkpointer("1st"), crash_at(step, "train_step_start"), make(), folder=folder)
        resumed = fit_adam(Checkpointer("1ep"), make(), folder=folder, resume="auto")
        assert of_monitor(resumed) == whole, step


def test_a_second_fit_with_a_new_model_begins_anew_and_nothing_is_kept_of_the_first() -> None:
    monitor = GradientMonitor("4st", updates=True, histograms=True)
    assert [fit_adam(monitor).history.steps("grad_norm/total") for _ in range(2)] == [[1, 4, 8]] * 2
    held = {name: value for name, value in vars(monitor).items() if isinstance(value, dict) and name != "_arguments"}
    assert all(not value for value in held.values()), held


@pytest.mark.parametrize("where", ["gradients_ready", "optimizer_step_start"])
def test_a_run_that_fails_between_two_looks_leaves_no_copies_behind(where: str) -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("planted")

    monitor = GradientMonitor("1st", updates=True)
    hooks: dict[str, Callable[[Any], None]] = {f"on_{where}": fail}
    with pytest.raises(RuntimeError, match="planted"):
        fit_adam(LambdaCallback(**hooks), monitor)
    assert monitor._held == {}
    assert monitor._groups == {}
