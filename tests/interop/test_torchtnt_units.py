"""A unit of TorchTNT ends in Hookline with bitwise the weights, the progress and the hooks of TorchTNT's own loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import hookline as hl
from hookline.errors import SetupError
from hookline.interop.torchtnt.model import HOOKS
from hookline.interop.torchtnt.support import NOT_CALLED
from hookline.loop import Trainer
from tests.support.rank_server import RankServer

pytest.importorskip("torchtnt.framework", reason="torchtnt is not installed: `make interop` runs these tests")

from torchtnt.framework import callbacks as of
from torchtnt.framework.auto_unit import AutoPredictUnit, AutoUnit, SWALRParams, SWAParams
from torchtnt.framework.evaluate import evaluate
from torchtnt.framework.fit import fit
from torchtnt.framework.predict import predict
from torchtnt.framework.train import train
from torchtnt.framework.unit import EvalUnit, PredictUnit, TrainUnit
from torchtnt.utils.early_stop_checker import EarlyStopChecker

from tests.interop.test_torchtnt import data, net, optimizer_of, recorder, same

pytestmark = pytest.mark.filterwarnings("ignore")


class Mean:
    """A metric of a unit, which TorchTNT saves with the unit."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: torch.Tensor) -> None:
        self.total, self.count = self.total + value.item(), self.count + 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.total, self.count = state["total"], state["count"]


def with_notes(cls: Any) -> Any:
    """Let a unit note each call of a hook: its name, the phase, the progress, and whether the modules train."""

    def hook(name: str) -> Any:
        inherited = getattr(cls, name)

        def note(self: Any, state: Any, *values: Any) -> None:
            found = [getattr(self, f"{its}_progress", None) for its in ("train", "eval", "predict")]
            progress = [tuple(its.state_dict().values()) for its in found if its is not None]
            kinds = [type(value).__name__ for value in values]
            modes = [module.training for module in self.tracked_modules().values()]
            rates = [group["lr"] for its in self.tracked_optimizers().values() for group in its.param_groups]
            self.rows.append((name, state.entry_point.name, state.active_phase.name, progress, kinds, modes, rates))
            inherited(self, state, *values)

        return note

    for name in HOOKS:
        if hasattr(cls, name):
            setattr(cls, name, hook(name))
    return cls


@with_notes
class Auto(AutoUnit[Any]):  # type: ignore[misc]
    """An ``AutoUnit`` with metrics and hooks of its own, as users write them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[Any] = []
        self.norms: list[Any] = []
        self.mean = Mean()

    def compute_loss(self, state: Any, data: Any) -> tuple[torch.Tensor, Any]:
        outputs = self.module(data[0])
        return cross_entropy(outputs, data[1]), outputs

    def configure_optimizers_and_lr_scheduler(self, module: Any) -> Any:
        optimizer = optimizer_of(module)
        return optimizer, StepLR(optimizer, 2, 0.5)

    def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
        self.mean.update(results.loss)
        self.norms.append(results.total_grad_norm)
        self.rows.append(("step", step, self.train_progress.num_steps_completed, results.loss.item(), len(data[0])))

    def on_eval_step_end(self, state: Any, data: Any, step: int, loss: Any, outputs: Any) -> None:
        self.val_loss = loss
        self.rows.append(("eval step", step, loss.item(), tuple(outputs.shape)))

    def predict_step(self, state: Any, data: Any) -> Any:
        return self.module(data[0])


def auto_unit(kind: Any = Auto, **options: Any) -> Any:
    return kind(**{"module": net(), "device": torch.device("cpu"), **options})


def there(unit: Any, callbacks: Any = (), **options: Any) -> Any:
    """Train in TorchTNT's own loop."""
    fit(unit, data(), data(2, seed=2), callbacks=list(callbacks), **{"max_epochs": 3, **options})
    return unit


def here(unit: Any, callbacks: Any = (), **options: Any) -> Any:
    """Train in Hookline: the result."""
    options = {"max_duration": "3ep", "log_every": "1st", "folder": False, "device": "cpu", **options}
    return Trainer(callbacks=callbacks, **options).fit(unit, data(), data(2, seed=2))


# -- AutoUnit ----------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "scheduler per step": {"step_lr_interval": "step"},
    "accumulation": {"gradient_accumulation_steps": 2, "step_lr_interval": "step"},
    "clipped norm": {"clip_grad_norm": 0.1},
    "clipped values": {"clip_grad_value": 0.01, "gradient_accumulation_steps": 4},
    "bf16": {"precision": "bf16"},
    "averaged weights": {
        "swa_params": SWAParams(1, 1, swalr_params=SWALRParams(2)),
    },
    "averaged weights per step": {
        "step_lr_interval": "step",
        "swa_params": SWAParams(3, 2, averaging_method="ema", ema_decay=0.7),
        "clip_grad_norm": 0.2,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_auto_unit_ends_as_in_torchtnt(name: str) -> None:
    settings = SETTINGS[name]
    one, other = there(auto_unit(**settings)), auto_unit(**settings)
    result = here(other, accumulate=settings.get("gradient_accumulation_steps", 1))
    assert other.rows == one.rows
    assert [name for name, *_ in other.rows if name.startswith("on_")]
    assert other.norms == one.norms
    for module, expected in zip(other.tracked_modules().values(), one.tracked_modules().values(), strict=True):
        assert same(module, expected)
    assert other.mean.state_dict() == one.mean.state_dict()
    assert [its.state_dict() for its in other.tracked_progress().values()] == [
        its.state_dict() for its in one.tracked_progress().values()
    ]
    assert [its.state_dict() for its in other.tracked_lr_schedulers().values()] == [
        its.state_dict() for its in one.tracked_lr_schedulers().values()
    ]
    assert len(result.history["val/loss"]) == 3


def test_an_auto_unit_that_overrides_its_step_runs_it() -> None:
    class Twice(Auto):
        def train_step(self, state: Any, data: Any) -> Any:
            super().train_step(state, data)
            return super().train_step(state, (2 * data[0], data[1]))

    one, other = there(auto_unit(Twice, clip_grad_norm=0.1)), auto_unit(Twice, clip_grad_norm=0.1)
    result = here(other)
    assert same(other.module, one.module)
    assert other.rows == one.rows
    assert (result.clock.step, len(result.history["train/loss"])) == (12, 12)


def test_callbacks_of_hookline_act_on_an_auto_unit() -> None:
    """Clipping by Hookline is that of the unit, and the averaged weights are those that it evaluates."""
    clipped, plain = there(auto_unit(clip_grad_norm=0.1)), auto_unit()
    here(plain, [hl.GradientClip(0.1)])
    assert same(plain.module, clipped.module)
    unit = auto_unit()
    averaged = here(unit, [hl.EMA(decay=0.9), hl.EarlyStopping("val/loss", min_delta=1.0, patience=2)])
    assert (averaged.clock.epoch, averaged.stop_reason[:8]) == (3, "val/loss")
    assert averaged.history["val/loss"] != here(auto_unit()).history["val/loss"]


# -- units that update the weights themselves --------------------------------------------------------


@with_notes
class Plain(TrainUnit[Any], EvalUnit[Any], PredictUnit[Any]):  # type: ignore[misc]
    """Two optimizers and a scheduler that the unit steps, and an update only in every second batch."""

    def __init__(self, clip: float | None = None) -> None:
        super().__init__()
        self.module, self.head = net(), nn.Linear(2, 2)
        self.optimizer, self.head_optimizer = optimizer_of(self.module), Adam(self.head.parameters(), 0.01)
        self.lr_scheduler, self.plateau = StepLR(self.optimizer, 1, 0.5), ReduceLROnPlateau(self.head_optimizer)
        self.clip, self.mean = clip, Mean()
        self.rows: list[Any] = []

    def train_step(self, state: Any, data: Any) -> torch.Tensor:
        loss = cross_entropy(self.head(self.module(data[0])), data[1])
        loss.backward()
        if self.clip is not None:
            for optimizer in self.tracked_optimizers().values():
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], self.clip)
        if self.train_progress.num_steps_completed % 2:
            self.head_optimizer.step()
            self.head_optimizer.zero_grad()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.mean.update(loss)
        return loss

    def on_train_epoch_end(self, state: Any) -> None:
        self.lr_scheduler.step()
        self.plateau.step(self.mean.total)

    def eval_step(self, state: Any, data: Any) -> Any:
        self.val_acc = (self.head(self.module(data[0])).argmax(1) == data[1]).float().mean()
        return self.val_acc > 0.5, "not a loss", 3

    def predict_step(self, state: Any, data: Any) -> Any:
        return self.module(data[0])


def everything(unit: Any) -> list[Any]:
    """The weights of all modules."""
    return [value.tolist() for module in unit.tracked_modules().values() for value in module.state_dict().values()]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


def plain(**options: Any) -> Plain:
    unit = Plain(**options)
    torch.manual_seed(2)
    nn.init.normal_(unit.head.weight)
    return unit


def test_a_plain_unit_ends_as_in_torchtnt() -> None:
    one, other = there(plain()), plain()
    steps = [vars(optimizer).get("step") for optimizer in other.tracked_optimizers().values()]
    result = here(other)
    assert everything(other) == everything(one)
    assert other.rows == one.rows
    assert other.mean.state_dict() == one.mean.state_dict()
    assert len(result.history["train/loss"]) == 12
    assert "val/loss" not in result.history
    assert [vars(optimizer).get("step") for optimizer in other.tracked_optimizers().values()] == steps


def test_callbacks_of_hookline_see_the_gradients_of_a_plain_unit() -> None:
    updates: list[int] = []
    note = hl.on("optimizer_step_end")(lambda run: updates.append(run.clock.step))
    one, other = there(plain(clip=0.05)), plain()
    clip = hl.on("gradients_ready")(
        lambda run: nn.utils.clip_grad_norm_(run.optimizer.param_groups[0]["params"], 0.05) and None
    )
    here(other, [note])
    assert updates == [0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10, 11, 11]
    single = plain()
    single.train_step = lambda state, data: _one_update(single, data)  # type: ignore[method-assign]
    clipped = plain()
    clipped.train_step = lambda state, data: _one_update(clipped, data, 0.05)  # type: ignore[method-assign]
    here(single, [clip])
    there(clipped)
    assert everything(single) == everything(clipped)
    assert everything(one) != everything(other)


def _one_update(unit: Plain, data: Any, clip: float | None = None) -> None:
    cross_entropy(unit.head(unit.module(data[0])), data[1]).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(unit.module.parameters(), clip)
    unit.optimizer.step()
    unit.head.zero_grad()
    unit.optimizer.zero_grad()


def test_a_unit_that_can_only_train_or_evaluate_or_predict() -> None:
    class Trains(TrainUnit[Any]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = net()
            self.optimizer = optimizer_of(self.module)

        def train_step(self, state: Any, data: Any) -> None:
            assert state.entry_point.name == "TRAIN"
            cross_entropy(self.module(data[0]), data[1]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    class Evaluates(EvalUnit[Any]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module, self.seen = net(), []

        def eval_step(self, state: Any, data: Any) -> Any:
            self.seen.append((self.module(data[0]).sum().item(), self.eval_progress.num_steps_completed))
            return cross_entropy(self.module(data[0]), data[1])

    class Predicts(AutoPredictUnit[Any]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(module=nn.Sequential(First(), net()), device=torch.device("cpu"))
            self.seen: list[Any] = []

        def on_predict_step_end(self, state: Any, data: Any, step: int, outputs: Any) -> None:
            self.seen.append((step, outputs.sum().item()))

    class First(nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch[0]

    options: dict[str, Any] = {"folder": False, "device": "cpu"}
    one, other = Trains(), Trains()
    train(one, data(), max_epochs=2)
    hl.train(other, data(), max_duration="2ep", **options)
    assert same(other.module, one.module)
    with pytest.raises(SetupError, match=r"Trains of TorchTNT has no eval_step, which an evaluation needs\. Make it"):
        hl.fit(Trains(), data(), data(), max_duration="1ep", **options)

    first, second = Evaluates(), Evaluates()
    evaluate(first, data())
    metrics = hl.evaluate(second, data(), **options)
    assert second.seen == first.seen
    assert metrics["val/loss"] == pytest.approx(cross_entropy(net().eval()(_all()[0]), _all()[1]).item())
    with pytest.raises(SetupError, match=r"Evaluates of TorchTNT has no train_step, which training needs\. Make it a"):
        hl.fit(Evaluates(), data(), max_duration="1ep", **options)

    before, after = Predicts(), Predicts()
    predict(before, data())
    found = hl.predict(after, data(), **options)
    assert after.seen == before.seen
    assert found.shape == (32, 2)
    with pytest.raises(SetupError, match=r"Trains of TorchTNT has no predict_step, which a prediction needs\."):
        hl.predict(Trains(), data(), **options)


def _all() -> Any:
    return data().dataset.tensors


# -- with callbacks of TorchTNT, resume, errors, ranks -----------------------------------------------


def test_callbacks_of_torchtnt_see_the_unit_of_the_user() -> None:
    one, other = recorder(), recorder()
    seen: list[Any] = []
    keep = of.Lambda(on_eval_step_end=lambda state, unit: seen.append((unit, state.eval_state.step_output)))
    there(auto_unit(), [one])
    unit = auto_unit()
    here(unit, [other, keep])
    assert other.rows == one.rows
    assert seen[0][0] is unit
    assert torch.equal(seen[-1][1][0], unit.val_loss)
    stop = of.EarlyStopping("val_acc", EarlyStopChecker("max", patience=1, stopping_threshold=0.0))
    result = here(plain(), [stop])
    assert result.clock.epoch == 1
    assert result.stop_reason == "EarlyStopping called state.stop()"


@pytest.mark.parametrize("make", [lambda: auto_unit(step_lr_interval="step", swa_params=SWAParams(2, 2)), plain])
@pytest.mark.parametrize("step", [2, 4, 7])
def test_a_resumed_unit_ends_as_one_that_was_not_interrupted(make: Any, step: int, tmp_path: Path) -> None:
    whole, cut, rest = make(), make(), make()
    here(whole)
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    here(cut, [pause, hl.Checkpointer()], folder=tmp_path)
    for module in rest.tracked_modules().values():
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
    result = here(rest, [hl.Checkpointer()], folder=tmp_path, resume="auto")
    assert result.clock.step == 12
    assert everything(rest) == everything(whole)
    assert rest.mean.state_dict() == whole.mean.state_dict()
    for ours, theirs in zip(rest.tracked_progress().values(), whole.tracked_progress().values(), strict=True):
        assert ours.state_dict() == theirs.state_dict()
    for ours, theirs in zip(rest.tracked_lr_schedulers().values(), whole.tracked_lr_schedulers().values(), strict=True):
        assert ours.state_dict() == theirs.state_dict()


def test_an_error_calls_the_hook_of_the_unit_for_exceptions() -> None:
    class Fails(Auto):
        def compute_loss(self, state: Any, data: Any) -> Any:
            if self.train_progress.num_steps_completed == 2:
                raise ZeroDivisionError("on purpose")
            return super().compute_loss(state, data)

    one, other = auto_unit(Fails), auto_unit(Fails)
    for run, unit in ((there, one), (here, other)):
        with pytest.raises(ZeroDivisionError):
            run(unit)
    assert other.rows == one.rows
    assert other.rows[-1][0] == "on_exception"


def without_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_ranks_train_an_auto_unit_as_one_process_with_twice_the_batch(ranks: RankServer, accumulate: int) -> None:
    found = ranks.values("torchtnt_ranks.py:train", 2, accumulate=accumulate)
    assert found[0] == found[1]
    unit = auto_unit(module=without_norm(), clip_grad_norm=0.1, gradient_accumulation_steps=accumulate)
    loader = torch.utils.data.DataLoader(data().dataset, batch_size=16)
    Trainer(max_duration="3ep", folder=False, device="cpu", accumulate=accumulate).fit(unit, loader)
    assert found[0]["step"] == 6 // accumulate
    for ours, theirs in zip(found[0]["weights"], unit.module.parameters(), strict=True):
        assert ours == pytest.approx(theirs.flatten().tolist(), abs=1e-6)


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOT_CALLED)
def test_a_method_that_would_not_be_called_is_refused(name: str) -> None:
    unit = auto_unit(type("Mine", (Auto,), {name: lambda self, *values, **options: None}))
    with pytest.raises(SetupError, match=rf"Mine of TorchTNT overrides {name}, which Hookline does not call\. .* Do"):
        here(unit)


def reads_iterator(self: Any, state: Any, data: Iterator[Any]) -> None:
    raise AssertionError


reads_iterator.__annotations__["data"] = Iterator[Any]

REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "iterator": (
        lambda: auto_unit(type("Mine", (Auto,), {"train_step": reads_iterator})),
        {},
        r"Mine of TorchTNT\.train_step\(data: Iterator\): Hookline passes one batch",
    ),
    "accumulation": (
        lambda: auto_unit(gradient_accumulation_steps=4),
        {},
        r"Auto of TorchTNT has gradient_accumulation_steps=4, and the run accumulate=1\. Pass accumulate=4",
    ),
    "own updates": (plain, {"accumulate": 2}, r"Plain of TorchTNT updates the weights in train_step: such a unit"),
    "anomalies": (lambda: auto_unit(detect_anomaly=True), {}, r"Auto of TorchTNT has detect_anomaly\. Leave it out"),
    "device": (
        lambda: on_device("meta"),
        {},
        r"Closed of TorchTNT is on meta, and the run on cpu\. Pass device='",
    ),
    "no module": (lambda: Empty(), {}, r"Empty of TorchTNT has no module\. Set one in __init__"),
    "closure": (lambda: Closed(), {}, r"Closed of TorchTNT calls optimizer\.step with a closure"),
}


class Empty(TrainUnit[Any]):  # type: ignore[misc]
    def train_step(self, state: Any, data: Any) -> None: ...


class Closed(TrainUnit[Any]):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.module = net()
        self.optimizer = SGD(self.module.parameters(), 0.1)

    def train_step(self, state: Any, data: Any) -> None:
        self.optimizer.step(lambda: self.module(data[0]).sum())

    def eval_step(self, state: Any, data: Any) -> None: ...


def on_device(name: str) -> Closed:
    unit = Closed()
    unit.device = torch.device(name)
    return unit


@pytest.mark.parametrize("name", REFUSED)
def test_a_unit_that_cannot_work_is_refused(name: str) -> None:
    make, options, text = REFUSED[name]
    with pytest.raises(SetupError, match=text):
        here(make(), **options)
