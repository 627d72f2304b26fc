"""``SWA``: which weights are averaged, the learning rate, batch norm, checkpoints, and what each mistake says."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.callbacks import Checkpointer, LRMonitor
from hookline.callbacks.weights import EMA, SWA
from hookline.checkpoint import Store
from hookline.errors import ArgumentError, DurationError, OrderError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, check_callback, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, state_of


class Norm(nn.Module):
    """A model with batch norm and dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.first = nn.Linear(4, 8)
            self.norm = nn.BatchNorm1d(8)
            self.drop = nn.Dropout(dropout)
            self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.first(x)))))


momentum_sgd = partial(sgd, momentum=0.9)
fit_five_epochs = partial(fit, optimizer=momentum_sgd, max_duration="5ep")


@torch.enable_grad()
def plain(model: nn.Module, epochs: int = 5, start: int = 2, **options: Any) -> tuple[nn.Module, AveragedModel]:
    """The same in a plain loop, with torch's own average."""
    average, optimizer = AveragedModel(model, **options), momentum_sgd(model.parameters())
    for epoch in range(1, epochs + 1):
        for x, y in tiny_data(4):
            optimizer.zero_grad()
            CE(model(x), y).backward()
            optimizer.step()
        if epoch >= start:
            average.update_parameters(model)
    return model, average


def close(one: Any, other: Any) -> bool:
    """Torch divides by the number of models in float32, which may differ in the last bit."""
    return one.keys() == other.keys() and all(torch.allclose(one[n], other[n], 1e-6, 1e-7) for n in one)


# -- what is averaged ------------------------------------------------------------------------------------


def test_the_average_is_that_of_torch() -> None:
    swa = SWA(start="2ep")
    result = fit_five_epochs(swa, val=tiny_data(1))
    _, average = plain(TinyModel())
    assert swa.updates == 4  # at the ends of epochs 2, 3, 4 and 5
    assert close(state_of(result.model), state_of(average.module))


def test_a_share_of_the_run_is_a_start() -> None:
    for start, updates in (("0.8dur", 2), ("0.5dur", 3), ("1dur", 1)):
        swa = SWA(start=start)
        fit_five_epochs(swa)
        assert swa.updates == updates


def test_it_may_average_every_few_steps() -> None:
    swa, kept = SWA(start="6st", every="5st"), []

    class Keeps(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            kept.append(state_of(run.model))

    result = fit_five_epochs(swa, Keeps())
    chosen = [kept[step - 1] for step in (10, 15, 20)]
    for name, value in state_of(result.model).items():
        torch.testing.assert_close(value, torch.stack([weights[name] for weights in chosen]).mean(0))


def test_training_goes_the_same_way_with_and_without_it() -> None:
    model = Norm()
    fit_five_epochs(SWA(start="2ep", apply_at_end=False), model=model, val=tiny_data(1))
    assert same_tensors(state_of(model), state_of(plain(Norm())[0]))


def test_a_run_that_ends_before_the_first_average_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        result = fit_five_epochs(SWA(start="4ep"), max_duration="7st")
    assert "SWA has averaged nothing" in caplog.text
    assert result.clock.step == 7


# -- the learning rate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_the_learning_rate_is_that_of_torchs_scheduler(strategy: Any) -> None:
    swa, seen = SWA(0.02, start="2ep", annealing="3ep", annealing_strategy=strategy), []
    steps = hl.on("optimizer_step_start")(lambda run: seen.append(run.optimizer.param_groups[0]["lr"]))
    fit_five_epochs(swa, steps, max_duration="8ep")
    optimizer = momentum_sgd(TinyModel().parameters())
    expected = [0.1, 0.1]
    scheduler = SWALR(optimizer, 0.02, anneal_epochs=3, anneal_strategy=strategy)
    optimizer.step()
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert seen[::4] == pytest.approx(expected, rel=1e-9)
    assert seen[-1] == pytest.approx(0.02)


def test_it_counts_in_place_of_the_schedulers_also_at_the_edge_of_an_epoch() -> None:
    def scheduler(optimizer: Any) -> Any:
        return hl.Scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), every="1ep")

    swa, seen = SWA(0.02, start="2ep", annealing="1st"), []
    steps = hl.on("optimizer_step_start")(lambda run: seen.append(run.optimizer.param_groups[0]["lr"]))
    result = fit_five_epochs(swa, steps, LRMonitor(), scheduler=scheduler)
    assert seen[:9] == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025])
    assert seen[9:] == pytest.approx([0.02] * 11)
    assert result.history["lr/SGD"][-3:] == pytest.approx([0.02] * 3)


def test_each_group_of_parameters_may_have_its_own() -> None:
    model = TinyModel()
    groups = [{"params": model.hidden.parameters()}, {"params": model.out.parameters(), "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(0.1))
    trainer = Trainer(callbacks=[SWA([0.01, 0.03], start="1ep", annealing="2st")], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=optimizer)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.01, 0.03])


def test_the_number_of_learning_rates_must_be_that_of_the_groups() -> None:
    with pytest.raises(SetupError, match=r"2 rates for the groups; SGD has 1"):
        fit_five_epochs(SWA([0.1, 0.2]))


# -- batch norm ------------------------------------------------------------------------------------------


def updated(model: nn.Module | None = None, data: Any = None) -> dict[str, Tensor]:
    """The average of torch, with the statistics that torch computes for it."""
    _, average = plain(model or Norm())
    update_bn(tiny_data(4) if data is None else data, average)
    return state_of(average.module)


def test_the_statistics_of_batch_norm_are_those_of_torchs_update_bn() -> None:
    result = fit_five_epochs(SWA(start="2ep"), model=Norm())
    assert close(state_of(result.model), updated())


def test_the_last_evaluation_measures_the_model_that_is_given_back() -> None:
    result = fit_five_epochs(SWA(start="2ep"), model=Norm(), val=tiny_data(1, seed=5))
    x, y = tiny_data(1, seed=5)[0]
    result.model.eval()
    with torch.no_grad():
        assert result.history["val/loss"][-1] == pytest.approx(CE(result.model(x), y).item(), rel=1e-6)
    assert close(state_of(result.model), updated())


def test_earlier_evaluations_use_averaged_statistics() -> None:
    seen = []
    look = hl.on("eval_batch_end")(lambda run: seen.append(state_of(run.model)))
    fit_five_epochs(SWA(start="2ep"), look, model=Norm(), val=tiny_data(1))
    _, average = plain(Norm(), epochs=3, use_buffers=True)
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(seen[2][name], average.module.get_buffer(name))


def test_update_bn_false_makes_no_pass() -> None:
    result = fit_five_epochs(SWA(start="2ep", update_bn=False), model=Norm())
    _, average = plain(Norm(), use_buffers=True)
    torch.testing.assert_close(result.model.norm.running_var, average.module.get_buffer("norm.running_var"))


def test_without_batch_norm_no_pass_is_made() -> None:
    class Counts(list[Any]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            Counts.passes += 1
            return super().__iter__()

    for model, expected in ((TinyModel(), 0), (Norm(), 1)):
        trainer = Trainer(callbacks=[SWA(start="2ep")], max_duration="3ep", folder=False)
        Counts.passes = 0
        bare = Trainer(max_duration="3ep", folder=False)
        bare.fit(copy.deepcopy(model), Counts(tiny_data(4)), loss=CE, optimizer=momentum_sgd)
        without, Counts.passes = Counts.passes, 0
        trainer.fit(model, Counts(tiny_data(4)), loss=CE, optimizer=momentum_sgd)
        assert Counts.passes - without == expected


def test_the_pass_leaves_modes_and_random_states_alone() -> None:
    model = Norm(dropout=0.5)
    seen = {}

    class Before(hl.Callback):
        before = ("SWA",)

        def on_train_end(self, run: Any) -> None:
            seen["before"] = (torch.get_rng_state(), random.getstate(), [m.training for m in run.model.modules()])

    class After(hl.Callback):
        after = ("SWA",)

        def on_train_end(self, run: Any) -> None:
            seen["after"] = (torch.get_rng_state(), random.getstate(), [m.training for m in run.model.modules()])
            assert all(
                m.momentum == 0.1 and not m._forward_pre_hooks for m in run.model.modules() if hasattr(m, "momentum")
            )

    fit_five_epochs(Before(), SWA(start="2ep"), After(), model=model)
    assert torch.equal(seen["before"][0], seen["after"][0])
    assert seen["before"][1:] == seen["after"][1:]


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    model = Norm()
    model.norm.eval()
    result = fit_five_epochs(SWA(start="2ep"), model=model)
    assert torch.equal(result.model.norm.running_mean, torch.zeros(8))
    assert result.model.norm.num_batches_tracked == 0


def test_any_task_knows_how_its_model_is_called() -> None:
    class Task(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = Norm()

        def configure_optimizers(self, run: Any) -> Any:
            return momentum_sgd(self.parameters())

        def train_batch(self, run: Any, batch: Any) -> Any:
            return CE(self.net(batch["x"]), batch["y"])

        eval_batch = train_batch

    data = [{"x": x, "y": y} for x, y in tiny_data(4)]
    task = Task()
    Trainer(callbacks=[SWA(start="2ep")], max_duration="5ep", folder=False).fit(task, data)
    assert close(state_of(task.net), updated())


def test_an_own_loop_calls_the_model_on_the_first_part_or_by_a_function() -> None:
    for data, how in (
        (tiny_data(4), True),
        ([{"x": x, "y": y} for x, y in tiny_data(4)], lambda model, batch: model(batch["x"])),
    ):
        model = Norm()
        swa = SWA(start="2ep", update_bn=how)
        with Loop(model, momentum_sgd(model.parameters()), callbacks=[swa], max_duration="5ep", folder=False) as loop:
            for batch in loop.batches(data):
                x, y = batch.values() if isinstance(batch, dict) else batch
                loop.backward(CE(model(x), y))
                loop.step()
        assert close(state_of(model), updated())


def test_batches_that_it_cannot_tell_how_to_use_are_an_error_that_says_what_to_do() -> None:
    model = Norm()
    data = [{"x": x, "y": y} for x, y in tiny_data(4)]
    loop = Loop(model, momentum_sgd(model.parameters()), callbacks=[SWA(start="1ep")], max_duration="2ep", folder=False)

    def train() -> None:
        with loop:
            for batch in loop.batches(data):
                loop.backward(CE(model(batch["x"]), batch["y"]))
                loop.step()

    with pytest.raises(SetupError, match=r"how the model is called on a dict.*update_bn=lambda model, batch"):
        train()


def test_a_stream_without_an_end_is_passed_over_as_far_as_it_was_trained_on() -> None:
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from tiny_data(4)

    trainer = Trainer(callbacks=[SWA(start="2st", every="2st")], max_duration="6st", folder=False)
    result = trainer.fit(Norm(), Endless(), loss=CE, optimizer=momentum_sgd)
    assert result.model.norm.num_batches_tracked == 6


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_fit_that_goes_on_inside_an_epoch_sees_the_same_data(workers: int, persistent: bool) -> None:
    """The pass has an iterator of its own."""
    xs = torch.cat([x for x, _ in tiny_data(4)])
    ys = torch.cat([y for _, y in tiny_data(4)])

    def run(*callbacks: object) -> dict[str, Tensor]:
        data = TensorDataset(xs, ys)
        loader = DataLoader(data, 8, shuffle=True, num_workers=workers, persistent_workers=persistent)
        trainer = Trainer(callbacks=callbacks, max_duration="6st", folder=False, seed=0)
        model = Norm(dropout=0.3)
        trainer.fit(model, loader, loss=CE, optimizer=momentum_sgd)
        trainer.fit(model, loader, loss=CE, optimizer=momentum_sgd, extend="5st")
        return state_of(model)

    assert same_tensors(run(SWA(start="2st", every="1st", apply_at_end=False)), run())


# -- fit after fit, checkpoints --------------------------------------------------------------------------


def test_a_second_fit_goes_on_from_the_raw_weights() -> None:
    model, swa = Norm(), SWA(start="2ep")
    trainer = Trainer(callbacks=[swa], max_duration="3ep", folder=False)
    trainer.fit(model, tiny_data(4), tiny_data(1), loss=CE, optimizer=momentum_sgd)
    trainer.fit(model, tiny_data(4), tiny_data(1), loss=CE, optimizer=momentum_sgd, extend="2ep")
    assert close(state_of(model), updated())
    assert swa.updates == 4


@pytest.mark.parametrize("stop", [7, 9, 14, 20])
def test_a_resume_is_exact(tmp_path: Path, stop: int) -> None:
    def make() -> SWA:
        return SWA(0.02, start="2ep", annealing="5st")

    common: dict[str, Any] = {"val": tiny_data(1), "max_duration": "5ep"}
    straight = fit_five_epochs(make(), model=Norm(dropout=0.2), **common)
    common |= {"folder": tmp_path, "resume": "auto"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_five_epochs(make(), Checkpointer("1st"), crash_at(stop, "step_settled"), model=Norm(dropout=0.2), **common)
    swa = make()
    result = fit_five_epochs(swa, Checkpointer("1st"), model=Norm(dropout=0.2), **common)
    assert swa.updates == 4
    assert same_tensors(state_of(result.model), state_of(straight.model))
    assert result.history["val/loss"] == straight.history["val/loss"]


def test_every_checkpoint_holds_the_raw_weights(tmp_path: Path) -> None:
    fit_five_epochs(
        SWA(start="2ep"), Checkpointer("1ep", keep_last=None), val=tiny_data(1), folder=tmp_path, model=Norm()
    )
    for checkpoint in Store(tmp_path / "checkpoints").checkpoints():
        raw, _ = plain(Norm(), epochs=checkpoint.about.epoch)
        assert same_tensors(load_file(checkpoint.path / "model.safetensors"), state_of(raw))


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lrs", [0, -0.1, [0.1, 0.0], "0.1", [True]])
def test_a_learning_rate_that_is_none_is_refused(lrs: Any) -> None:
    with pytest.raises(ArgumentError, match=r"SWA\(swa_lrs.*\): must be"):
        SWA(lrs)


def test_a_strategy_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"SWA\(annealing_strategy='cosine'\): must be 'cos' or 'linear'\."):
        SWA(annealing_strategy="cosine")  # type: ignore[arg-type]


def test_a_start_after_the_end_is_refused_before_the_first_step() -> None:
    with pytest.raises(SetupError, match=r"SWA\(start='9ep'\) is after the end of the run, max_duration='5ep'"):
        fit_five_epochs(SWA(start="9ep"))
    with pytest.raises(DurationError):
        SWA(start="late")


def test_an_average_of_each_kind_in_one_run_is_an_error() -> None:
    with pytest.raises(OrderError, match="both write 'weights'"):
        fit_five_epochs(SWA(), EMA())


def test_one_with_linear_annealing_keeps_the_contract() -> None:
    check_callback(
        lambda: SWA(0.05, start="3st", every="2st", annealing="4st", annealing_strategy="linear", evaluate=False)
    )


@pytest.mark.parametrize(("swa_lrs", "rates"), [(0.05, [0.05, 0.05]), ([0.05], [0.05, 0.02])])
def test_a_group_that_is_added_after_the_start_is_annealed_too(
    swa_lrs: Any, rates: list[float], tmp_path: Path
) -> None:
    """``BackboneFinetuning`` adds a group when it unfreezes: the next step failed."""

    made: list[torch.optim.Optimizer] = []

    def noted(parameters: Any) -> torch.optim.Optimizer:
        made.append(sgd(parameters))
        return made[-1]

    for options in ({"max_duration": "4ep"}, {"max_duration": "6ep", "resume": "auto"}):
        fit(
            SWA(swa_lrs, start="1ep", annealing="1st"),
            hl.BackboneFinetuning(2, backbone="hidden", backbone_initial_lr=0.02, lambda_func=1.0),
            Checkpointer(), train=tiny_data(2), optimizer=noted, folder=tmp_path / "run", **options,
        )  # fmt: skip
    for optimizer in made:
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)
