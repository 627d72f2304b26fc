"""Number formats: where autocast is on, what stays fp32, and how fp16 meets an overflow."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, sgd
from tests.support.inside import loss_scale_of

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast() -> torch.dtype | None:
    """The dtype of autocast on the CPU now; ``None`` when it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class Spy(torch.autograd.Function):
    """Notes autocast when its backward runs."""

    seen: list[Any] = []  # noqa: RUF012 (an autograd function has no instance)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Spy.seen.append(autocast())
        return gradient


class Noting(hl.SupervisedTask):
    """Notes autocast in each of its methods, and in backward."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(TinyModel(), small_loss, **kwargs)
        self.seen: dict[str, list[Any]] = {"train": [], "val": [], "test": [], "predict": []}

    def call_model(self, run: hl.Run, inputs: Any) -> Any:
        self.seen[run.stage].append(autocast())
        return Spy.apply(super().call_model(run, inputs))


class Noted(torch.optim.SGD):
    """Notes autocast at each update."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, lr=lr)
        self.seen: list[Any] = []

    def step(self, closure: Any = None) -> Any:
        self.seen.append(autocast())
        return super().step(closure)


def small_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """So small that fp16 overflows only where a test makes it."""
    return 0.01 * cross_entropy(outputs, targets)


# -- where autocast is on ----------------------------------------------------------------------


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_autocast_is_on_in_every_forward_and_off_in_backward_and_update(precision: Any, accumulate: int) -> None:
    dtype, optimizers = DTYPES[precision], []

    def make(parameters: Any) -> Noted:
        optimizers.append(Noted(parameters))
        return optimizers[-1]

    task = Noting(optimizer=make)
    Spy.seen.clear()
    trainer = Trainer(max_duration="1ep", precision=precision, accumulate=accumulate, folder=False)
    trainer.fit(task, tiny_data(), tiny_data(2), tiny_data(2))
    trainer.predict(task, tiny_data(2))
    assert task.seen["train"] == [dtype] * 4
    assert set(task.seen["val"]) == set(task.seen["test"]) == set(task.seen["predict"]) == {dtype}
    assert Spy.seen == [None] * 4
    assert optimizers[0].seen == [None] * (4 // accumulate)
    assert autocast() is None


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_same_in_the_own_loop(precision: Any, accumulate: int) -> None:
    model, seen = TinyModel(), []
    optimizer = Noted(model.parameters())
    Spy.seen.clear()
    with Loop(model, optimizer, max_duration="1ep", precision=precision, accumulate=accumulate, folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            seen.append(autocast())
            loop.backward(small_loss(Spy.apply(model(x)), y))
            loop.step()
            if loop.eval_due:
                for x, _ in loop.eval_batches(tiny_data(2)):
                    seen.append(autocast())
                    assert model(x).dtype is DTYPES[precision]
        seen.extend(autocast() for _ in loop.predict_batches(tiny_data(1)))
        assert autocast() is None
    assert seen == [DTYPES[precision]] * 7
    assert Spy.seen == [None] * 4
    assert set(optimizer.seen) == {None}


@pytest.mark.parametrize("error", [False, True])
def test_autocast_ends_with_a_break_and_with_an_error(error: bool) -> None:
    def leave_early() -> None:
        with Loop(TinyModel(), sgd, max_duration="1ep", precision="bf16", folder=False) as loop:
            for _ in loop.batches(tiny_data()):
                if error:
                    raise ZeroDivisionError
                break

    with pytest.raises(ZeroDivisionError) if error else nullcontext():
        leave_early()
    assert autocast() is None


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_parameters_gradients_and_state_stay_fp32(precision: Any) -> None:
    seen: list[torch.dtype] = []

    @hl.on("optimizer_step_end")
    def note(run: hl.Run) -> None:
        seen.extend(p.grad.dtype for p in run.model.parameters())
        seen.extend(t.dtype for s in run.optimizer.state.values() for t in s.values() if isinstance(t, Tensor))

    model = TinyModel()
    trainer = Trainer(max_duration="2ep", precision=precision, callbacks=[note], folder=False)
    result = trainer.fit(model, tiny_data(), loss=CE, optimizer=torch.optim.AdamW)
    assert set(seen) == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert result.history["train/loss"][-1] < 1.5


def test_bf16_is_bitwise_a_bare_loop_with_autocast() -> None:
    model, other, batches = TinyModel(dropout=0.3), TinyModel(dropout=0.3), tiny_data(6)
    torch.manual_seed(0)
    Trainer(max_duration="3ep", precision="bf16", folder=False).fit(
        model, batches, tiny_data(2), loss=CE, optimizer=sgd
    )
    optimizer = sgd(other.parameters())
    torch.manual_seed(0)
    for x, y in batches * 3:
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(other(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_forward_after_a_backward_of_the_same_batch_is_under_autocast_too(precision: Any, accumulate: int) -> None:
    """Two losses of one batch, each with a forward of its own."""
    model, dtypes = TinyModel(), []
    with Loop(model, sgd, max_duration="1ep", precision=precision, accumulate=accumulate, folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            for _ in range(2):
                outputs = model(x)
                dtypes.append(outputs.dtype)
                loop.backward(small_loss(outputs, y))
            loop.step()
    assert dtypes == [DTYPES[precision]] * 8


def test_a_region_of_the_users_own_does_not_leave_autocast_on() -> None:
    """A loss in full precision, and its backward inside that region: the regions must nest."""
    model = TinyModel()
    with Loop(model, sgd, max_duration="1ep", precision="bf16", folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            outputs = model(x)
            assert outputs.dtype is torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                loop.backward(cross_entropy(outputs.float(), y))
                loop.step()
    left_on = autocast()
    torch.set_autocast_enabled("cpu", False)  # for the tests that follow
    assert left_on is None


# -- autocast keeps casts of the weights: they must not outlive an update ------------------------


def logits(model: nn.Module) -> Tensor:
    """What the model answers in bf16, for sure with its weights of now."""
    torch.clear_autocast_cache()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model(tiny_data(1, seed=7)[0][0])


def big_steps(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0)


def test_a_hook_after_the_update_sees_the_new_weights_in_bf16() -> None:
    found, expected = [], []

    @hl.on("train_step_end")
    def look(run: hl.Run) -> None:
        found.append(run.predict(tiny_data(1, seed=7)))
        expected.append(logits(run.model))

    Trainer(max_duration="1ep", precision="bf16", callbacks=[look], folder=False).fit(
        TinyModel(), tiny_data(), loss=CE, optimizer=big_steps
    )
    assert len(found) == 4
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_evaluation_in_the_own_loop_sees_the_new_weights_in_bf16() -> None:
    model, found, expected = TinyModel(), [], []
    with Loop(model, big_steps, max_duration="1ep", eval_every="1st", precision="bf16", folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x, _ in loop.eval_batches(tiny_data(1, seed=7)):
                    found.append(model(x))
                    expected.append(logits(model))
    assert len(found) == 4
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_lbfgs_sees_the_new_weights_in_bf16() -> None:
    """Its closure goes through the model several times a step, each time with other weights."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4)

    model, other, batches = TinyModel(), TinyModel(), tiny_data(3)
    Trainer(max_duration="1ep", precision="bf16", folder=False).fit(model, batches, loss=CE, optimizer=make)
    optimizer = make(other.parameters())
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(other(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_swapped_weights_are_seen_in_bf16() -> None:
    found: list[Tensor] = []

    @hl.on("backward_end")
    def swap(run: hl.Run) -> None:
        zeros = {name: torch.zeros_like(p) for name, p in run.model.named_parameters()}
        with run.swap_weights(zeros):
            found.append(run.predict(tiny_data(1)))

    Trainer(max_duration="2st", precision="bf16", callbacks=[swap], folder=False).fit(
        TinyModel(), tiny_data(), loss=CE, optimizer=sgd
    )
    assert [answer.any().item() for answer in found] == [False, False]


# -- fp16 --------------------------------------------------------------------------------------


class Overflows(hl.SupervisedTask):
    """Gradients are infinite at the batches with these numbers, counted from 1."""

    def __init__(self, at: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(TinyModel(), small_loss, **kwargs)
        self.at = at
        self.number = 0

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        self.number += 1
        loss = super().train_batch(run, batch)
        return loss * float("inf") if self.number in self.at else loss


class Recorder(hl.Callback):
    """The events of the updates, with the step that the clock shows."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        if event in ("gradients_ready", "step_skipped", "scheduler_step", "zero_grad", "train_step_end") or (
            event.startswith("optimizer_step")
        ):
            self.heard.append((event, run.clock.step))


def scale(loop: Loop) -> float:
    return loss_scale_of(loop)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_overflow_is_skipped_and_counted(accumulate: int) -> None:
    recorder, rates, scales = Recorder(), [], []

    @hl.on("train_step_end")
    def note(run: hl.Run) -> None:
        rates.append(run.optimizers["SGD"].param_groups[0]["lr"])
        scales.append(scale(run.loop))

    task = Overflows(at=(accumulate + 1,), optimizer=sgd)  # the second step
    scheduler = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # noqa: E731
    task.scheduler = scheduler
    trainer = Trainer(
        max_duration="1ep", precision="fp16", accumulate=accumulate, callbacks=[recorder, note], folder=False
    )
    result = trainer.fit(task, tiny_data(3 * accumulate))
    update = ["gradients_ready", "optimizer_step_start", "optimizer_step_end", "scheduler_step", "zero_grad"]
    assert [e for e, step in recorder.heard if step == 0] == update
    assert [e for e, step in recorder.heard if step == 1] == ["train_step_end", "step_skipped", "zero_grad"]
    assert [e for e, step in recorder.heard if step == 2] == ["train_step_end", *update]
    assert result.clock.step == 3
    assert result.clock.updates == {"SGD": 2}
    assert rates == pytest.approx([0.05, 0.05, 0.025])
    assert scales == [65536.0, 32768.0, 32768.0]


def test_an_overflow_leaves_the_weights_and_the_optimizer_as_they_were() -> None:
    kept: list[list[Tensor]] = []

    @hl.on("train_step_end")
    def note(run: hl.Run) -> None:
        kept.append([p.detach().clone() for p in run.model.parameters()])

    adam = lambda p: torch.optim.Adam(p, lr=0.1)  # noqa: E731
    Trainer(max_duration="3st", precision="fp16", callbacks=[note], folder=False).fit(
        Overflows(at=(2,), optimizer=adam), tiny_data()
    )
    first, second, third = kept
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(second, third, strict=True))


def test_an_overflow_in_the_own_loop() -> None:
    model, moved = TinyModel(), []
    recorder = Recorder()
    with Loop(
        model, sgd(model.parameters()), max_duration="3st", precision="fp16", callbacks=[recorder], folder=False
    ) as loop:
        for number, (x, y) in enumerate(loop.batches(tiny_data())):
            loss = small_loss(model(x), y)
            loop.backward(loss * float("inf") if number == 1 else loss)
            moved.append(loop.step())
        assert scale(loop) == 32768.0
    assert moved == [True, False, True]
    assert (loop.run.clock.step, loop.run.clock.updates) == (3, {"SGD": 2})
    assert [event for event, _ in recorder.heard].count("step_skipped") == 1


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("loss", [small_loss, cross_entropy], ids=["small", "large"])
def test_gradients_are_unscaled_and_averaged_before_gradients_ready(accumulate: int, loss: Any) -> None:
    """The difference to fp32 is that of the number format; what the full batch can do, its parts can."""
    found: dict[str, list[Tensor]] = {}
    for precision in ("fp32", "fp16"):

        @hl.on("gradients_ready")
        def keep(run: hl.Run, precision: str = precision) -> None:
            found.setdefault(precision, [p.grad.clone() for p in run.model.parameters()])

        options: Any = {"precision": precision, "accumulate": accumulate, "callbacks": [keep], "folder": False}
        Trainer(max_duration="1st", **options).fit(TinyModel(), tiny_data(3, last=2), loss=loss, optimizer=sgd)
    assert found.keys() == {"fp32", "fp16"}, "the first step was skipped"
    for one, other in zip(found["fp16"], found["fp32"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3)


class TwoLosses(hl.Task[Any]):
    """Two optimizers in one window; the gradients of the first overflow in its second batch."""

    def __init__(self, overflow: bool) -> None:
        super().__init__()
        self.first, self.second = TinyModel(seed=1), TinyModel(seed=2)
        self.overflow = overflow
        self.number = 0

    def configure_optimizers(self, run: hl.Run) -> dict[str, torch.optim.Optimizer]:
        return {"first": sgd(self.first.parameters()), "second": sgd(self.second.parameters())}

    def train_batch(self, run: hl.Run, batch: Any) -> None:
        (x, y), (first, second) = batch, run.optimizers.values()
        self.number += 1
        factor = float("inf") if self.overflow and self.number == 2 else 1.0
        run.loop.backward(small_loss(self.first(x), y) * factor, first)
        run.loop.backward(small_loss(self.second(x), y), second)


def test_fp16_is_bitwise_a_bare_loop_with_a_scaler() -> None:
    """One batch a step in one process needs no weights (decision 1), whatever the precision."""
    model, other, batches = TinyModel(dropout=0.3), TinyModel(dropout=0.3), tiny_data(6)
    torch.manual_seed(0)
    Trainer(max_duration="3ep", precision="fp16", folder=False).fit(model, batches, loss=CE, optimizer=sgd)
    optimizer, scaler = sgd(other.parameters()), torch.amp.GradScaler("cpu")
    torch.manual_seed(0)
    for x, y in batches * 3:
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(other(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536.0  # nothing overflows in the bare loop
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_an_overflow_of_one_optimizer_leaves_the_gradients_of_the_other_right() -> None:
    """The scale may change once all optimizers of the step are done, not between them."""
    found: dict[bool, list[Tensor]] = {}
    for overflow in (False, True):

        @hl.on("gradients_ready")
        def keep(run: hl.Run, overflow: bool = overflow) -> None:
            if run.optimizer is run.optimizers["second"] and run.clock.step == 1:
                found[overflow] = [p.grad.clone() for g in run.optimizer.param_groups for p in g["params"]]

        trainer = Trainer(max_duration="2st", precision="fp16", callbacks=[keep], folder=False)
        result = trainer.fit(TwoLosses(overflow), tiny_data())
        assert result.clock.updates == {"first": 1 if overflow else 2, "second": 2}
    for one, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_step_says_whether_this_optimizer_moved() -> None:
    moved: list[tuple[bool, bool]] = []

    class Driven(TwoLosses):
        def train_batch(self, run: hl.Run, batch: Any) -> None:
            (x, y), (first, second) = batch, run.optimizers.values()
            self.number += 1
            run.loop.backward(small_loss(self.first(x), y), first)
            one = run.loop.step(first)
            run.loop.backward(small_loss(self.second(x), y) * (float("inf") if self.number == 2 else 1), second)
            moved.append((one, run.loop.step(second)))

    Trainer(max_duration="3st", precision="fp16", folder=False).fit(Driven(False), tiny_data())
    assert moved == [(True, True), (True, False), (True, True)]


def test_an_optimizer_that_steps_several_times_a_batch_in_fp16() -> None:
    """The critic of a GAN: torch refuses to unscale twice without an update of the scale."""

    class Critic(TwoLosses):
        def train_batch(self, run: hl.Run, batch: Any) -> None:
            (x, y), (first, second) = batch, run.optimizers.values()
            for _ in range(3):
                run.loop.backward(small_loss(self.first(x), y), first)
                run.loop.step(first)
            run.loop.backward(small_loss(self.second(x), y), second)
            run.loop.step(second)

    result = Trainer(max_duration="1ep", precision="fp16", folder=False).fit(Critic(False), tiny_data())
    assert result.clock.updates == {"first": 12, "second": 4}


@pytest.mark.parametrize("place", ["backward_end", "gradients_ready", "optimizer_step_start", "zero_grad"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_fit_in_fp16_goes_on_after_an_error_in_a_step(place: str, accumulate: int) -> None:
    """The scaler must not be left in the middle of a step."""
    model = TinyModel()
    fails = hl.on(place, once=True)(lambda run: 1 / 0)
    trainer = Trainer(max_duration="3ep", precision="fp16", accumulate=accumulate, callbacks=[fails], folder=False)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(model, tiny_data(), loss=small_loss, optimizer=sgd)
    result = trainer.fit(model, tiny_data(), loss=small_loss, optimizer=sgd)
    assert result.clock.epoch == 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_loss_for_several_optimizers_in_fp16(accumulate: int) -> None:
    model = TinyModel()
    pair = [sgd(model.hidden.parameters()), sgd(model.out.parameters())]
    trainer = Trainer(max_duration="1ep", precision="fp16", accumulate=accumulate, folder=False)
    result = trainer.fit(model, tiny_data(), loss=small_loss, optimizer=pair)
    plain = TinyModel()
    trainer = Trainer(max_duration="1ep", precision="fp16", accumulate=accumulate, folder=False)
    trainer.fit(plain, tiny_data(), loss=small_loss, optimizer=sgd)
    assert result.clock.updates == {"SGD": 4 // accumulate, "SGD-2": 4 // accumulate}
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_large_weights_do_not_overflow_a_loss_in_fp16() -> None:
    """A loss that is itself fp16, weighted by its 100,000 tokens: larger than any number of fp16."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x).square().mean()

    def loss(value: Tensor, _: Any) -> tuple[Tensor, int]:
        assert value.dtype is torch.float16
        return value, 100_000

    trainer = Trainer(max_duration="20st", precision="fp16", folder=False)
    result = trainer.fit(Mean(), tiny_data(20), loss=loss, optimizer=sgd)
    assert result.clock.updates["SGD"] > 0


def test_fp16_learns() -> None:
    trainer = Trainer(max_duration="10ep", precision="fp16", folder=False)
    result = trainer.fit(TinyModel(), tiny_data(8), loss=CE, optimizer=lambda p: torch.optim.Adam(p, lr=0.05))
    assert result.history["train/loss"][-1] < 0.6 * result.history["train/loss"][0]
