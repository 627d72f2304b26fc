"""``Task`` and ``SupervisedTask``: any subset of the methods, any hook, to be subclassed with ``super()``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.errors import RegistrationError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd


class Plain(hl.Task[Any]):
    """The three methods, as the design shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
        return sgd(self.parameters())

    def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
        x, y = batch
        out = self.net(x)
        run.log({"train/acc": (out.argmax(-1) == y).float().mean()}, weight=len(y))
        return cross_entropy(out, y)

    def eval_batch(self, run: hl.Run, batch: Any) -> Tensor:
        x, y = batch
        out = self.net(x)
        run.log({"acc": (out.argmax(-1) == y)})
        return cross_entropy(out, y)

    def predict_batch(self, run: hl.Run, batch: Any) -> Tensor:
        return self.net(batch[0]).argmax(-1)


def test_the_three_methods() -> None:
    task, data = Plain(), tiny_data(6)
    result = hl.fit(
        task, data, tiny_data(2, seed=1), tiny_data(2, seed=2), max_duration="8ep", folder=False,
        callbacks=[hl.ProgressBar(style=None)],
    )  # fmt: skip
    assert result.history["train/loss"][-1] < result.history["train/loss"][0]
    assert {"train/acc", "val/acc", "val/loss", "test/acc", "test/loss"} <= result.history.keys()
    found = hl.predict(task, data, folder=False, callbacks=[hl.ProgressBar(style=None)])
    right = (found == torch.cat([y for _, y in data])).float().mean().item()
    assert right == pytest.approx(hl.evaluate(task, data, folder=False)["val/acc"], rel=1e-6)


def test_only_the_methods_that_are_used_are_needed() -> None:
    class Evaluates(hl.Task[Any]):
        def eval_batch(self, run: hl.Run, batch: Any) -> Tensor:
            return batch[0].mean()

    class Predicts(hl.Task[Any]):
        def predict_batch(self, run: hl.Run, batch: Any) -> Tensor:
            return batch[0]

    data = tiny_data(3)
    metrics = Trainer(folder=False).evaluate(Evaluates(), data)
    assert metrics["val/loss"] == pytest.approx(torch.cat([x for x, _ in data]).mean().item(), rel=1e-5)
    assert torch.equal(Trainer(folder=False).predict(Predicts(), data), torch.cat([x for x, _ in data]))


def test_train_is_fit_without_evaluation() -> None:
    seen: list[str] = []

    class Note(hl.Callback):
        def on_event(self, event: str, run: hl.Run) -> None:
            seen.append(event)
            assert run.entry_point == "train"

    result = hl.train(
        TinyModel(), tiny_data(2), loss=CE, optimizer=sgd, max_duration="1ep", folder=False,
        callbacks=[Note(), hl.ProgressBar(style=None)],
    )  # fmt: skip
    assert result.clock.step == 2
    assert not [event for event in seen if event.startswith(("eval", "sanity"))]


@pytest.mark.parametrize("name", ["fit", "train", "evaluate", "test", "predict"])
def test_each_entry_point_has_its_name_in_every_hook(name: str) -> None:
    seen: set[str] = set()

    class Note(hl.Callback):
        def on_event(self, event: str, run: hl.Run) -> None:
            seen.add(run.entry_point)

    options: dict[str, Any] = {"callbacks": [Note(), hl.ProgressBar(style=None)], "folder": False}
    if name != "predict":
        options["loss"] = CE
    if name in ("fit", "train"):
        options |= {"optimizer": sgd, "max_duration": "1ep"}
    getattr(hl, name)(TinyModel(), tiny_data(1), **options)
    assert seen == {name}


def test_what_a_hook_sees_of_a_task_and_of_a_model() -> None:
    seen: list[Any] = []
    note = hl.on("fit_start")(lambda run: seen.append((run.task, run.model)))
    task, model = Plain(), TinyModel()
    trainer = Trainer(max_duration="1st", callbacks=[note], folder=False)
    assert trainer.fit(task, tiny_data()).model is task
    assert trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd).model is model
    assert seen[0] == (task, task)
    assert isinstance(seen[1][0], hl.SupervisedTask)
    assert seen[1][0].model is seen[1][1] is model


@pytest.mark.parametrize("kind", ["module", "text"])
def test_an_attribute_called_model_is_only_an_attribute(kind: str) -> None:
    """In a user's task ``model`` may be a part of it, or the name of a checkpoint; the model is the task."""

    class Mine(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 3) if kind == "module" else "resnet18"

    task, seen = Mine(), []
    note = hl.on("fit_start")(lambda run: seen.append(run.model))
    result = Trainer(max_duration="1st", callbacks=[note], folder=False).fit(task, tiny_data())
    assert seen == [task]
    assert result.model is task


def test_the_best_weights_of_a_whole_task_are_restored() -> None:
    class Two(hl.SupervisedTask):
        """A part besides the model; both get worse after the first evaluation."""

        def __init__(self) -> None:
            super().__init__(TinyModel(), CE, sgd)
            self.head = nn.Linear(3, 3)
            self.kept: list[Tensor] = []

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            return cross_entropy(self.head(self.model(batch[0])), batch[1])

        def eval_batch(self, run: hl.Run, batch: Any) -> None:
            run.log({"loss": float(run.clock.step)})

        def on_eval_end(self, run: hl.Run) -> None:
            self.kept.append(self.head.weight.detach().clone())

    task = Two()
    Trainer(max_duration="3ep", callbacks=[hl.EarlyStopping("val/loss", restore_best=True)], folder=False).fit(
        task, tiny_data(2), tiny_data(1)
    )
    assert len(task.kept) == 3
    assert torch.equal(task.head.weight, task.kept[0])


# -- hooks of a task -----------------------------------------------------------------------------------


def test_the_hooks_of_a_task_run_first() -> None:
    order: list[str] = []

    class Hooked(Plain):
        def on_train_step_end(self, run: hl.Run) -> None:
            order.append("task")

    class Early(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            order.append("callback")

    Trainer(max_duration="2st", callbacks=[Early()], folder=False).fit(Hooked(), tiny_data())
    assert order == ["task", "callback"] * 2


def test_a_misspelt_hook_of_a_task() -> None:
    class Wrong(Plain):
        def on_train_stepend(self, run: hl.Run) -> None: ...

    with pytest.raises(RegistrationError, match=r"Wrong\.on_train_stepend.*on_train_step_end"):
        Trainer(max_duration="1ep", folder=False).fit(Wrong(), tiny_data())


@pytest.mark.parametrize("method", ["train_batch", "eval_batch", "configure_optimizers", "count"])
def test_a_method_with_the_wrong_number_of_arguments(method: str) -> None:
    """It fails before step 1, as a misspelt hook does."""
    task = type("Wrong", (Plain,), {method: lambda self: None})()
    steps: list[int] = []
    note = hl.on("optimizer_step_start")(lambda run: steps.append(1))
    trainer = Trainer(max_duration="1ep", callbacks=[note], folder=False)
    with pytest.raises((hl.HooklineError, TypeError)):
        trainer.fit(task, tiny_data(), tiny_data(1))
    assert steps == []


def test_a_method_of_another_system_is_named() -> None:
    """``training_step`` would never be called; the error says what it is called here."""

    class Lightning(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = TinyModel()

        def training_step(self, batch: Any, number: int) -> Any: ...

    with pytest.raises(hl.HooklineError, match="train_batch"):
        Trainer(max_duration="1ep", folder=False).fit(Lightning(), tiny_data(), optimizer=sgd)


def test_custom_events_of_a_task() -> None:
    class Verifies(Plain):
        events = (hl.Event("verify", gives=("x", "y")),)

        def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
            run.emit("verify", x=batch[0], y=batch[1])
            return super().train_batch(run, batch)

    class Hears(hl.Callback):
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def on_verify(self, run: hl.Run, x: Tensor, y: Tensor) -> None:
            self.sizes.append(len(x) + len(y))

    hears = Hears()
    Trainer(max_duration="1ep", callbacks=[hears], folder=False).fit(Verifies(), tiny_data(2))
    assert hears.sizes == [16, 16]


def test_a_task_can_vote_and_log_and_stop() -> None:
    class Stops(Plain):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 3:
                run.stop("three are enough")

    result = Trainer(max_duration="9ep", folder=False).fit(Stops(), tiny_data(2))
    assert (result.clock.step, result.stop_reason) == (3, "three are enough")
    assert str(result.stopped_by).endswith("Stops")


def test_outputs_that_the_task_returns_are_on_run() -> None:
    class Gives(Plain):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            out = self.net(batch[0])
            return {"loss": cross_entropy(out, batch[1]), "outputs": out}

        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            out = self.net(batch[0])
            return {"loss": cross_entropy(out, batch[1]), "outputs": out}

    class Look(hl.Callback):
        def __init__(self) -> None:
            self.shapes: list[Any] = []

        def on_loss_ready(self, run: hl.Run) -> None:
            self.shapes.append(("train", tuple(run.outputs.shape), run.loss.ndim))

        def on_eval_batch_end(self, run: hl.Run) -> None:
            self.shapes.append(("val", tuple(run.outputs.shape)))

    look = Look()
    Trainer(max_duration="1ep", callbacks=[look], folder=False).fit(Gives(), tiny_data(1), tiny_data(1))
    assert look.shapes == [("train", (8, 3), 0), ("val", (8, 3))]


# -- SupervisedTask --------------------------------------------------------------------------------------


def test_a_subclass_with_super() -> None:
    class Smooth(hl.SupervisedTask):
        def compute_loss(self, outputs: Any, batch: Any) -> Any:
            return super().compute_loss(outputs, batch) + 0.01 * outputs.square().mean()

        def call_model(self, run: hl.Run, batch: Any) -> Any:
            return super().call_model(run, (batch[0] * 2, batch[1]))

    task = Smooth(TinyModel(), CE, sgd)
    result = Trainer(max_duration="1ep", folder=False).fit(task, tiny_data(3), tiny_data(1))
    model, other = TinyModel(), None
    optimizer = sgd(model.parameters())
    for x, y in tiny_data(3):
        out = model(x * 2)
        other = cross_entropy(out, y) + 0.01 * out.square().mean()
        optimizer.zero_grad()
        other.backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), model.parameters(), strict=True))
    assert result.clock.step == 3


@pytest.mark.parametrize("part", ["model", "loss"])
def test_a_part_that_is_replaced_is_used(part: str) -> None:
    """A subclass, or a callback in ``on_setup``, may wrap the model or the loss."""

    class Wrapped(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, *args: Any) -> Any:
            self.calls += 1
            return self.inner(*args)

    class Wraps(hl.SupervisedTask):
        def __init__(self) -> None:
            super().__init__(TinyModel(), CE, sgd)
            setattr(self, part, Wrapped(getattr(self, part)))

    task = Wraps()
    Trainer(max_duration="1ep", folder=False).fit(task, tiny_data(2))
    assert getattr(task, part).calls == 2


def test_a_copy_trains_itself() -> None:
    import copy

    task = hl.SupervisedTask(TinyModel(), CE, sgd)
    twin = copy.deepcopy(task)
    Trainer(max_duration="1ep", folder=False).fit(twin, tiny_data(2))
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), TinyModel().parameters(), strict=True))
    assert not torch.equal(task.model.out.weight, twin.model.out.weight)


def test_forward_events_are_sent_in_every_stage() -> None:
    seen: list[Any] = []

    class Note(hl.Callback):
        def on_forward_start(self, run: hl.Run) -> None:
            seen.append((run.stage, "start", run.batch is not None))

        def on_forward_end(self, run: hl.Run) -> None:
            seen.append((run.stage, "end", tuple(run.outputs.shape)))

    model = TinyModel()
    trainer = Trainer(max_duration="1ep", callbacks=[Note()], folder=False)
    trainer.fit(model, tiny_data(1), tiny_data(1), tiny_data(1), loss=CE, optimizer=sgd)
    trainer.predict(model, tiny_data(1))
    stages = ["train", "val", "test", "predict"]
    assert seen == [item for s in stages for item in ((s, "start", True), (s, "end", (8, 3)))]


def test_an_hl_task_is_an_ordinary_module() -> None:
    task = hl.SupervisedTask(TinyModel(), CE, sgd)
    assert list(task.state_dict()) == [f"model.{name}" for name in TinyModel().state_dict()]
    task.load_state_dict(hl.SupervisedTask(TinyModel(seed=9), CE).state_dict())
    assert torch.equal(task.model.out.weight, TinyModel(seed=9).out.weight)
    assert len(list(task.parameters())) == 4


def test_the_loss_of_an_evaluation_batch_is_that_of_the_batch() -> None:
    """And not the mean so far."""
    seen: list[float] = []
    note = hl.on("eval_batch_end")(lambda run: seen.append(float(run.loss)))
    result = fit(note, val=tiny_data(3, seed=1), max_duration="1ep")
    assert len(set(seen)) == 3
    assert sum(seen) / 3 == pytest.approx(result.history["val/loss"][-1])
