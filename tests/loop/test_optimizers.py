"""Optimizers in every form, several of them, and those that call a closure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim.lr_scheduler import ExponentialLR

import hookline as hl
from hookline.errors import LossError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd, weights_of


def optimizers_of(model: nn.Module, optimizer: Any = None, **options: Any) -> Mapping[str, torch.optim.Optimizer]:
    """The optimizers of a short run."""
    found: dict[str, torch.optim.Optimizer] = {}
    keep = hl.on("fit_start")(lambda run: found.update(run.optimizers))
    kwargs = {} if isinstance(model, hl.Task) else {"loss": CE}
    trainer = Trainer(max_duration="2st", callbacks=[keep], folder=False, **options)
    trainer.fit(model, tiny_data(), optimizer=optimizer, **kwargs)
    return found


# -- forms -------------------------------------------------------------------------------------


def test_a_class_or_a_function() -> None:
    assert list(optimizers_of(TinyModel(), torch.optim.AdamW)) == ["AdamW"]
    assert list(optimizers_of(TinyModel(), sgd)) == ["SGD"]


def test_a_function_that_makes_several() -> None:
    def both(parameters: Any) -> dict[str, torch.optim.Optimizer]:
        every = list(parameters)
        return {"weights": sgd(every[:1]), "rest": sgd(every[1:])}

    model = TinyModel()
    with Loop(model, both, max_duration="1st", folder=False) as loop:
        assert list(loop.run.optimizers) == ["weights", "rest"]


def test_an_instance() -> None:
    model = TinyModel()
    optimizer = sgd(model.parameters())
    assert optimizers_of(model, optimizer)["SGD"] is optimizer


@pytest.mark.parametrize("form", ["dict", "list", "tuple"])
def test_several(form: str) -> None:
    class Two(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = TinyModel(), TinyModel(), TinyModel()

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            x, y = batch
            for optimizer, net in zip(run.optimizers.values(), self.children(), strict=True):
                run.loop.backward(cross_entropy(net(x), y), optimizer)

    task = Two()
    adam = torch.optim.Adam
    every = [adam(task.first.parameters()), adam(task.second.parameters()), sgd(task.third.parameters())]
    given = {"dict": dict(zip("abc", every, strict=True)), "list": every, "tuple": tuple(every)}[form]
    found = optimizers_of(task, given)
    assert list(found) == (["a", "b", "c"] if form == "dict" else ["Adam", "Adam-2", "SGD"])
    assert list(found.values()) == every


def test_subclasses_have_their_own_names() -> None:
    class Mine(torch.optim.SGD):
        pass

    model = TinyModel()
    with Loop(model, [Mine(model.hidden.parameters(), lr=0.1), sgd(model.out.parameters())], folder=False) as loop:
        assert list(loop.run.optimizers) == ["Mine", "SGD"]


@pytest.mark.parametrize(
    "form", ["optimizer", "list", "tuple", "dict", "with scheduler", "lists", "with none", "with function"]
)
def test_what_configure_optimizers_may_return(form: str) -> None:
    class Configured(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            optimizer = sgd(self.parameters())
            scheduler = ExponentialLR(optimizer, 0.5)
            return {
                "optimizer": optimizer,
                "list": [optimizer],
                "tuple": (optimizer,),
                "dict": {"mine": optimizer},
                "with scheduler": (optimizer, scheduler),
                "lists": ([optimizer], [scheduler]),
                "with none": (optimizer, None),
                "with function": (optimizer, lambda o: ExponentialLR(o, 0.5)),
            }[form]

    seen: list[Any] = []
    note = hl.on("fit_start")(lambda run: seen.append((list(run.optimizers), len(run.schedulers))))
    fit(note, model=Configured(TinyModel(), CE), max_duration="2st")
    scheduled = form in ("with scheduler", "lists", "with function")
    assert seen == [(["mine"] if form == "dict" else ["SGD"], 1 if scheduled else 0)]


def test_a_tuple_of_two_optimizers_is_not_an_optimizer_and_a_scheduler() -> None:
    class Pair(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = TinyModel()

        def configure_optimizers(self, run: hl.Run) -> Any:
            return sgd(self.net.hidden.parameters()), sgd(self.net.out.parameters())

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            loss = cross_entropy(self.net(batch[0]), batch[1])
            run.loop.backward(loss, run.optimizers["SGD"])

    assert list(optimizers_of(Pair())) == ["SGD", "SGD-2"]


def test_an_optimizer_given_to_fit_wins_over_the_task() -> None:
    class Configured(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            raise AssertionError("not asked")

    task = Configured(TinyModel(), CE)
    assert list(optimizers_of(task, torch.optim.Adam)) == ["Adam"]


def test_a_loss_with_parameters_is_trained_with_the_model() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(outputs * self.scale, y)

    loss = Scaled()
    fit(loss=loss, max_duration="1ep")
    assert loss.scale.item() != 1.0


def test_frozen_parameters_stay() -> None:
    model = TinyModel()
    model.hidden.requires_grad_(False)
    before = model.hidden.weight.clone()
    optimizers_of(model, torch.optim.Adam)
    assert torch.equal(model.hidden.weight, before)


# -- bad input -----------------------------------------------------------------------------------


def test_an_optimizer_of_another_model() -> None:
    with pytest.raises(SetupError, match="none of the 4 parameters of optimizer SGD is a parameter of TinyModel"):
        optimizers_of(TinyModel(), sgd(TinyModel().parameters()))


def test_an_optimizer_of_the_model_before_a_copy() -> None:
    import copy

    model = TinyModel()
    optimizer = sgd(model.parameters())
    with pytest.raises(SetupError, match=r"copy or \.to"):
        optimizers_of(copy.deepcopy(model), optimizer)


def test_a_partly_foreign_optimizer_is_warned_about_and_works() -> None:
    model, extra = TinyModel(), nn.Parameter(torch.ones(3))
    optimizer = sgd([*model.parameters(), extra])
    with pytest.warns(hl.HooklineWarning, match="1 of 5 parameters of optimizer SGD are not TinyModel's"):
        fit(model=model, loss=lambda out, y: cross_entropy(out * extra, y), optimizer=optimizer, max_duration="2st")
    assert not torch.equal(extra, torch.ones(3))


def test_no_optimizer() -> None:
    with pytest.raises(SetupError, match="no optimizer; pass optimizer="):
        optimizers_of(TinyModel())


def test_an_empty_collection_is_no_optimizer() -> None:
    for given in ([], {}, ()):
        with pytest.raises(SetupError, match="no optimizer"):
            optimizers_of(TinyModel(), given)


@pytest.mark.parametrize("given", [torch.optim.SGD, None, sgd])
def test_a_model_without_parameters(given: Any) -> None:
    with pytest.raises(SetupError, match="Flatten has no parameters, so there is nothing to train"):
        optimizers_of(nn.Flatten(), given)


def test_a_task_without_parameters() -> None:
    class Empty(hl.Task[Any]):
        def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
            return batch[0].mean()

    with pytest.raises(SetupError, match="Empty has no parameters"):
        optimizers_of(Empty(), torch.optim.SGD)


@pytest.mark.parametrize("given", [3, "adam", lambda parameters: None, lambda parameters: "adam", [1]])
def test_not_an_optimizer(given: Any) -> None:
    with pytest.raises(hl.HooklineError, match="optimizer"):
        optimizers_of(TinyModel(), given)


def test_the_form_of_another_system_is_named() -> None:
    class Lightning(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            optimizer = sgd(self.parameters())
            return {"optimizer": optimizer, "lr_scheduler": ExponentialLR(optimizer, 0.5)}

    with pytest.raises(SetupError, match="'lr_scheduler' is an ExponentialLR"):
        optimizers_of(Lightning(TinyModel(), CE))


def own_loop(model: nn.Module, optimizer: Any, body: Any) -> None:
    """An own loop whose body is a function of the loop and the loss."""
    with Loop(model, optimizer, max_duration="1st", folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            body(loop, cross_entropy(model(x), y))


def pair_of(model: TinyModel) -> list[torch.optim.Optimizer]:
    return [sgd(model.hidden.parameters()), sgd(model.out.parameters())]


def test_one_loss_for_several_optimizers_moves_all_of_them() -> None:
    """One optimizer for the matrices and one for the rest, as with Muon beside AdamW."""
    model, bare = TinyModel(), TinyModel()
    x, y = tiny_data()[0]
    for optimizer in pair_of(bare):
        optimizer.zero_grad()
    cross_entropy(bare(x), y).backward()
    for optimizer in pair_of(bare):
        optimizer.step()

    def body(loop: Loop, loss: Tensor) -> None:
        loop.backward(loss)
        assert loop.step()

    own_loop(model, pair_of(model), body)
    assert same_tensors(weights_of(model), weights_of(bare))


def test_backward_with_a_foreign_optimizer() -> None:
    foreign = sgd(TinyModel().parameters())
    with pytest.raises(SetupError, match="not one of this run's"):
        own_loop(TinyModel(), sgd, lambda loop, loss: loop.backward(loss, foreign))


def test_step_of_an_optimizer_without_backward() -> None:
    model = TinyModel()
    pair = pair_of(model)

    def body(loop: Loop, loss: Tensor) -> None:
        loop.backward(loss, pair[0])
        loop.step(pair[1])

    with pytest.raises(hl.HooklineError, match=r"SGD-2.*no loop\.backward\(loss, optimizer\)"):
        own_loop(model, pair, body)


# -- one loss for several optimizers -------------------------------------------------------------


def hand_written_pair(model: TinyModel, batches: list[Any], epochs: int) -> None:
    pair = pair_of(model)
    for x, y in batches * epochs:
        for optimizer in pair:
            optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        for optimizer in pair:
            optimizer.step()


@pytest.mark.parametrize("way", ["fit", "dict", "own loop"])
def test_one_loss_moves_all_optimizers_in_every_way_in(way: str) -> None:
    model, other, batches = TinyModel(), TinyModel(), tiny_data(5)
    pair: Any = pair_of(model)
    if way == "own loop":
        with Loop(model, pair, max_duration="3ep", folder=False) as loop:
            for x, y in loop.batches(batches):
                loop.backward(cross_entropy(model(x), y))
                assert loop.step()
        result = loop.result()
    else:
        given = {"a": pair[0], "b": pair[1]} if way == "dict" else pair
        result = fit(model=model, train=batches, optimizer=given, max_duration="3ep")
    hand_written_pair(other, batches, 3)
    assert same_tensors(weights_of(model), weights_of(other))
    assert result.clock.step == 15
    assert set(result.clock.updates.values()) == {15}
    assert len(result.history["train/loss"]) == 3


@pytest.mark.parametrize("accumulate", [2, 3])
def test_one_loss_moves_all_optimizers_with_accumulation(accumulate: int) -> None:
    batches = [(x.double(), y) for x, y in tiny_data(7, 5, last=2)]
    model, other = TinyModel().double(), TinyModel().double()
    fit(model=model, train=batches, optimizer=pair_of(model), accumulate=accumulate)
    windows = [batches[i : i + accumulate] for i in range(0, 7, accumulate)]
    hand_written_pair(other, [tuple(torch.cat(part) for part in zip(*w, strict=True)) for w in windows], 2)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_the_only_optimizer_may_be_named() -> None:
    """``loop.backward(loss, optimizer)`` with one optimizer is the same as without it, metrics included."""
    model, other, batches = TinyModel(), TinyModel(), tiny_data(5)
    optimizer = sgd(model.parameters())
    with Loop(model, optimizer, max_duration="2ep", folder=False) as loop:
        for x, y in loop.batches(batches):
            loop.backward(cross_entropy(model(x), y), optimizer)
            loop.step(optimizer)
    fit(model=other, train=batches)
    assert same_tensors(weights_of(model), weights_of(other))
    assert (loop.run.clock.step, loop.run.clock.updates) == (10, {"SGD": 10})
    assert len(loop.run.history["train/loss"]) == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_frozen_and_unused_parameters_of_one_of_several(accumulate: int) -> None:
    class Frozen(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = TinyModel(seed=1), TinyModel(seed=2), nn.Linear(2, 2)
            self.first.hidden.requires_grad_(False)

        def configure_optimizers(self, run: hl.Run) -> Any:
            both = [*self.first.parameters(), *self.unused.parameters()]
            return {"first": sgd(both), "second": sgd(self.second.parameters())}

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            x, y = batch
            for net, optimizer in zip((self.first, self.second), run.optimizers.values(), strict=True):
                run.loop.backward(cross_entropy(net(x), y), optimizer)
                run.loop.step(optimizer)

    task = Frozen()
    result = Trainer(max_duration="1ep", accumulate=accumulate, folder=False).fit(task, tiny_data(4))
    assert result.clock.updates == {"first": 4 // accumulate, "second": 4 // accumulate}
    assert torch.equal(task.first.hidden.weight, TinyModel(seed=1).hidden.weight)
    assert not torch.equal(task.first.out.weight, TinyModel(seed=1).out.weight)


# -- a GAN -------------------------------------------------------------------------------------


def mlp(inputs: int, outputs: int, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return net


class GAN(hl.Task[Any]):
    """Two optimizers that the task drives; the generator's loss goes through the discriminator."""

    def __init__(self, critic_steps: int = 1) -> None:
        super().__init__()
        self.generator, self.discriminator = mlp(3, 4, 1), mlp(4, 1, 2)
        self.critic_steps = critic_steps

    def configure_optimizers(self, run: hl.Run) -> Any:
        return {"d": self.adam(self.discriminator), "g": self.adam(self.generator)}

    @staticmethod
    def adam(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters(), lr=5e-3, betas=(0.5, 0.9))

    def loss_d(self, real: Tensor) -> Tensor:
        fake = self.generator(torch.randn(len(real), 3)).detach()
        answers = self.discriminator(torch.cat([real, fake]))
        wanted = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        return binary_cross_entropy_with_logits(answers, wanted)

    def loss_g(self, number: int) -> Tensor:
        answers = self.discriminator(self.generator(torch.randn(number, 3)))
        return binary_cross_entropy_with_logits(answers, torch.ones(number, 1))

    def train_batch(self, run: hl.Run, batch: Any) -> None:
        real, opt_d, opt_g = batch[0], run.optimizers["d"], run.optimizers["g"]
        for _ in range(self.critic_steps):
            run.loop.backward(self.loss_d(real), opt_d)
            run.loop.step(opt_d)
        run.loop.backward(self.loss_g(len(real)), opt_g)
        run.loop.step(opt_g)


def hand_written_gan(gan: GAN, batches: list[Any], epochs: int, autocast: bool = False) -> None:
    opt_d, opt_g = gan.adam(gan.discriminator), gan.adam(gan.generator)
    for real, _ in batches * epochs:
        for _ in range(gan.critic_steps):
            opt_d.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = gan.loss_d(real)
            loss.backward()
            opt_d.step()
        opt_g.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = gan.loss_g(len(real))
        loss.backward()
        opt_g.step()


@pytest.mark.parametrize("critic_steps", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gan_is_bitwise_the_hand_written_loop(critic_steps: int, precision: Any) -> None:
    ours, theirs, batches = GAN(critic_steps), GAN(critic_steps), tiny_data(5)
    torch.manual_seed(0)
    result = Trainer(max_duration="4ep", precision=precision, folder=False).fit(ours, batches)
    torch.manual_seed(0)
    hand_written_gan(theirs, batches, 4, autocast=precision == "bf16")
    assert same_tensors(weights_of(ours), weights_of(theirs))
    assert result.clock.step == 20
    assert result.clock.updates == {"d": 20 * critic_steps, "g": 20}


def test_a_gan_in_the_own_loop_is_bitwise_the_hand_written_loop() -> None:
    ours, theirs, batches = GAN(), GAN(), tiny_data(5)
    opt_d, opt_g = ours.adam(ours.discriminator), ours.adam(ours.generator)
    torch.manual_seed(0)
    with Loop(ours, [opt_d, opt_g], max_duration="4ep", folder=False) as loop:
        for real, _ in loop.batches(batches):
            loop.backward(ours.loss_d(real), opt_d)
            loop.step(opt_d)
            loop.backward(ours.loss_g(len(real)), opt_g)
            loop.step(opt_g)
    torch.manual_seed(0)
    hand_written_gan(theirs, batches, 4)
    assert same_tensors(weights_of(ours), weights_of(theirs))
    assert loop.run.clock.updates == {"Adam": 20, "Adam-2": 20}


def test_an_optimizer_that_steps_now_and_then() -> None:
    """The generator is updated at every third batch; every batch is a step all the same."""

    class Sometimes(GAN):
        def train_batch(self, run: hl.Run, batch: Any) -> None:
            real, opt_d, opt_g = batch[0], run.optimizers["d"], run.optimizers["g"]
            run.loop.backward(self.loss_d(real), opt_d)
            run.loop.step(opt_d)
            if run.clock.batch % 3 == 2:
                run.loop.backward(self.loss_g(len(real)), opt_g)
                run.loop.step(opt_g)

    result = Trainer(max_duration="1ep", folder=False).fit(Sometimes(), tiny_data(9))
    assert result.clock.step == 9
    assert result.clock.updates == {"d": 9, "g": 3}


def test_run_optimizer_is_the_one_that_is_stepped() -> None:
    seen: list[str] = []

    class Who(hl.Callback):
        def on_optimizer_step_start(self, run: hl.Run) -> None:
            seen.append(next(name for name, o in run.optimizers.items() if o is run.optimizer))

        def on_train_step_end(self, run: hl.Run) -> None:
            with pytest.raises(hl.HooklineError, match="on_optimizer_step_start"):
                _ = run.optimizer

    Trainer(max_duration="2st", callbacks=[Who()], folder=False).fit(GAN(), tiny_data())
    assert seen == ["d", "g", "d", "g"]


# -- closures ----------------------------------------------------------------------------------


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.5, max_iter=5, history_size=4, line_search_fn="strong_wolfe")


def hand_written_lbfgs(model: nn.Module, batches: list[Any], epochs: int) -> None:
    optimizer = lbfgs(model.parameters())
    for x, y in batches * epochs:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("way", ["fit", "dict", "own loop"])
def test_lbfgs_is_bitwise_the_hand_written_loop(way: str) -> None:
    ours, theirs, batches = TinyModel(), TinyModel(), tiny_data(3)
    if way == "own loop":
        with Loop(ours, lbfgs(ours.parameters()), max_duration="2ep", folder=False) as loop:
            for x, y in loop.batches(batches):
                moved = loop.step(closure=lambda x=x, y=y: cross_entropy(ours(x), y))
                assert moved
        clock = loop.run.clock
    else:
        weighted = lambda out, y: (cross_entropy(out, y), 2)  # noqa: E731
        loss = weighted if way == "dict" else CE
        clock = Trainer(max_duration="2ep", folder=False).fit(ours, batches, loss=loss, optimizer=lbfgs).clock
    hand_written_lbfgs(theirs, batches, 2)
    assert same_tensors(weights_of(ours), weights_of(theirs))
    assert (clock.step, clock.updates) == (6, {"LBFGS": 6})


class GivesDict(hl.SupervisedTask):
    """Returns all that a batch may, or what it is told."""

    given: Any = None

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        outputs = self.model(batch[0])
        return self.given or {"loss": cross_entropy(outputs, batch[1]), "weight": 1, "outputs": outputs}


def test_outputs_and_weight_of_a_batch_count_with_a_closure_too() -> None:
    shapes: list[Any] = []
    note = hl.on("train_step_end")(lambda run: shapes.append(run.outputs.shape))
    make = lambda p: torch.optim.LBFGS(p, lr=0.0, max_iter=1)  # noqa: E731
    task, data = GivesDict(TinyModel(), None, make), tiny_data(2, last=2)
    result = Trainer(max_duration="1ep", callbacks=[note], folder=False).fit(task, data)
    assert shapes == [(8, 3), (2, 3)]
    losses = [cross_entropy(task.model(x), y).item() for x, y in data]
    assert result.history["train/loss"] == pytest.approx([sum(losses) / 2])  # not by samples: 8 and 2


def test_a_dict_without_a_loss_is_explained_with_a_closure_too() -> None:
    task = GivesDict(TinyModel(), None, lbfgs)
    task.given = {"los": 1.0}
    with pytest.raises(LossError, match="train_batch returned a dict with los: it must have 'loss'"):
        Trainer(max_duration="1ep", folder=False).fit(task, tiny_data())


def test_the_events_of_forward_and_backward_repeat_inside_the_update() -> None:
    seen: list[str] = []

    class Note(hl.Callback):
        def on_event(self, event: str, run: hl.Run) -> None:
            seen.append(event)

    make = lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2, max_eval=2)  # noqa: E731
    Trainer(max_duration="1st", callbacks=[Note()], folder=False).fit(TinyModel(), tiny_data(), loss=CE, optimizer=make)
    update = seen[seen.index("optimizer_step_start") : seen.index("optimizer_step_end") + 1]
    once = ["forward_start", "forward_end", "loss_ready", "backward_start", "backward_end", "gradients_ready"]
    assert update == ["optimizer_step_start", *once, *once, "optimizer_step_end"]


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"precision": "fp16"}], ids=str)
def test_a_closure_needs_plain_steps(options: Any) -> None:
    steps: list[int] = []
    note = hl.on("train_step_end")(lambda run: steps.append(run.clock.step))
    with pytest.raises(SetupError, match=r"closure.*accumulate=1, no fp16 and one process"):
        Trainer(max_duration="1st", callbacks=[note], folder=False, **options).fit(
            TinyModel(), tiny_data(), loss=CE, optimizer=lbfgs
        )
    assert steps == []


def test_stop_training_in_a_task_with_a_closure() -> None:
    class Stops(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            if run.clock.batch == 2:
                raise hl.StopTraining("enough")
            return super().train_batch(run, batch)

    task = Stops(TinyModel(), CE, lbfgs)
    result = Trainer(max_duration="1ep", folder=False).fit(task, tiny_data(4))
    assert (result.clock.step, result.stop_reason) == (2, "enough")
    assert str(result.stopped_by).endswith("Stops")
