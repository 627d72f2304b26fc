"""Accumulation: any split of a step into batches gives the loss, the gradients and the weights of the full batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, same_tensors, sgd, state_of, weights_of

Batch = tuple[Tensor, Tensor]

fast_sgd = partial(sgd, lr=0.3)


class Gradients(hl.Callback):
    """Keeps the gradients of every step, as they are at ``gradients_ready``."""

    def __init__(self) -> None:
        self.found: list[list[Tensor]] = []

    def on_gradients_ready(self, run: hl.Run) -> None:
        self.found.append([p.grad.to_dense().clone() for g in run.optimizer.param_groups for p in g["params"]])


class NoLength:
    """A loader that can be iterated over again and does not know how long it is."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def windows(batches: list[Any], accumulate: int) -> list[list[Any]]:
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def joined(batches: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def full_batches(
    model: nn.Module, batches: list[Any], accumulate: int, loss: Callable[..., Tensor], epochs: int = 1, lr: float = 0.3
) -> tuple[list[list[Tensor]], list[float]]:
    """A bare loop that steps on the whole of each window: its gradients and losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    gradients, losses = [], []
    for window in windows(batches, accumulate) * epochs:
        value = loss(model, *joined(window))
        optimizer.zero_grad()
        value.backward()
        gradients.append([p.grad.to_dense().clone() for p in model.parameters()])
        losses.append(value.item())
        optimizer.step()
    return gradients, losses


def assert_same(found: list[list[Tensor]], expected: list[list[Tensor]], tolerance: float = 1e-6) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


# -- the mean over samples ---------------------------------------------------------------------


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), accumulate=st.integers(1, 8), known=st.booleans())
@example(sizes=[6] * 8, accumulate=4, known=True)
@example(sizes=[6] * 8, accumulate=8, known=False)
@example(sizes=[6] * 7, accumulate=2, known=False)
@example(sizes=[6] * 6 + [1], accumulate=8, known=True)
@example(sizes=[6] * 10 + [1], accumulate=1, known=False)
@example(sizes=[6] * 10 + [1], accumulate=2, known=True)
@example(sizes=[6] * 10 + [1], accumulate=4, known=False)
@example(sizes=[6] * 10 + [1], accumulate=8, known=True)
def test_mean_loss_equals_the_full_batch(sizes: list[int], accumulate: int, known: bool) -> None:
    x, y = tiny_data(1, sum(sizes), seed=3)[0]
    batches = list(zip(x.double().split(sizes), y.split(sizes), strict=True))
    ours, theirs, keeper = TinyModel().double(), TinyModel().double(), Gradients()
    loader = batches if known else NoLength(batches)
    result = fit(keeper, model=ours, train=loader, optimizer=fast_sgd, accumulate=accumulate, log_every="1st")
    gradients, losses = full_batches(theirs, batches, accumulate, mean_loss, epochs=2)
    assert_same(keeper.found, gradients, 1e-10)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-10)
    assert result.clock.step == 2 * math.ceil(len(sizes) / accumulate)
    assert result.clock.batch == 2 * len(sizes)
    assert result.clock.sample == 2 * sum(sizes)
    assert_same([weights_of(ours)], [weights_of(theirs)], 1e-10)


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_mean_loss_in_float32_to_1e_6(accumulate: int) -> None:
    batches = tiny_data(11, 6, last=1)
    ours, theirs, keeper = TinyModel(), TinyModel(), Gradients()
    result = fit(
        keeper,
        model=ours,
        train=batches,
        optimizer=fast_sgd,
        max_duration="1ep",
        accumulate=accumulate,
        log_every="1st",
    )
    gradients, losses = full_batches(theirs, batches, accumulate, mean_loss)
    assert_same(keeper.found, gradients)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-6)


def test_the_logged_loss_of_an_interval_and_of_the_epoch_is_the_mean_over_samples() -> None:
    batches = [(x.double(), y) for x, y in tiny_data(7, 5, last=2)]
    model = TinyModel().double()
    still = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    result = fit(model=model, train=batches, optimizer=still, max_duration="1ep", accumulate=2, log_every="2st")
    expected = [mean_loss(model, *joined(part)).item() for part in (batches[:4], batches[4:])]
    assert result.history["train/loss"] == pytest.approx(expected, rel=1e-12)
    assert result.history.steps("train/loss") == [2, 4]
    assert result.history["train/loss_epoch"] == pytest.approx([mean_loss(model, *joined(batches)).item()], rel=1e-12)


def test_a_window_never_crosses_an_epoch() -> None:
    result = fit(train=tiny_data(5), optimizer=fast_sgd, max_duration="3ep", accumulate=4)
    assert (result.clock.step, result.clock.batch) == (6, 15)


@pytest.mark.parametrize("loader", [list, NoLength])
def test_step_says_whether_the_weights_moved(loader: Any) -> None:
    model, moved = TinyModel(), []
    with Loop(model, fast_sgd(model.parameters()), accumulate=3, max_duration="1ep", folder=False) as loop:
        for x, y in loop.batches(loader(tiny_data(5))):
            loop.backward(cross_entropy(model(x), y))
            moved.append(loop.step())
    expected = [False, False, True, False, True]
    assert moved == (expected if loader is list else [*expected[:4], False])  # the end of the data is not known before
    assert loop.run.clock.step == 2


# -- the mean over tokens ----------------------------------------------------------------------


class Tagger(nn.Module):
    """A class for every token; ``-1`` in the targets is padding."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = nn.Embedding(7, 5)
        self.out = nn.Linear(5, 7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(ids)))


def ragged(lengths: list[list[int]], seed: int = 0, width: int = 9) -> list[Batch]:
    """Batches of token rows of these lengths, padded to one width."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for rows in lengths:
        ids = torch.randint(7, (len(rows), width), generator=generator)
        targets = torch.randint(7, (len(rows), width), generator=generator)
        for row, length in enumerate(rows):
            targets[row, length:] = -1
        found.append((ids, targets))
    return found


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1)


def full_token_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    return token_loss(model(ids), targets)


class TokenTask(hl.Task[Batch]):
    """Returns the number of tokens as the weight, in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.net = Tagger()
        self.form = form

    def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
        return fast_sgd(self.parameters())

    def train_batch(self, run: hl.Run, batch: Batch) -> Any:
        ids, targets = batch
        loss, weight = token_loss(self.net(ids), targets), (targets >= 0).sum()
        if self.form == "no weight":
            return loss
        if self.form == "backward":
            return run.loop.backward(loss, weight=int(weight))
        return {"loss": loss, "weight": weight if self.form == "tensor" else weight.item()}


LENGTHS = [[9, 1], [2], [3, 3, 3], [1, 1], [8], [9, 9], [4]]


def fit_tokens(form: str, accumulate: int, keeper: Gradients) -> hl.Result:
    options: Any = {"accumulate": accumulate, "max_duration": "1ep", "log_every": "1st", "folder": False}
    if form in ("int", "tensor", "backward", "no weight"):
        return fit(keeper, model=TokenTask(form), train=ragged(LENGTHS), **options)
    if form == "function":
        loss = lambda outputs, targets: (token_loss(outputs, targets), int((targets >= 0).sum()))  # noqa: E731
        return fit(keeper, model=Tagger(), train=ragged(LENGTHS), loss=loss, optimizer=fast_sgd, **options)
    model = Tagger()
    with Loop(model, fast_sgd, callbacks=[keeper], **options) as loop:
        for ids, targets in loop.batches(ragged(LENGTHS)):
            loop.backward(token_loss(model(ids), targets), weight=(targets >= 0).sum())
            loop.step()
    return loop.result()


@pytest.mark.parametrize("accumulate", [1, 2, 4, 8])
@pytest.mark.parametrize("form", ["int", "tensor", "backward", "function", "own loop"])
def test_token_weighted_loss_equals_the_full_batch(accumulate: int, form: str) -> None:
    keeper = Gradients()
    result = fit_tokens(form, accumulate, keeper)
    gradients, losses = full_batches(Tagger(), ragged(LENGTHS), accumulate, full_token_loss)
    assert_same(keeper.found, gradients, 1e-10)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-10)


def test_without_the_weight_the_same_data_would_be_wrong() -> None:
    """The test above can fail."""
    keeper = Gradients()
    fit_tokens("no weight", 4, keeper)
    gradients, _ = full_batches(Tagger(), ragged(LENGTHS), 4, full_token_loss)
    assert max((a - b).abs().max().item() for a, b in zip(keeper.found[0], gradients[0], strict=True)) > 1e-3


def test_the_evaluation_is_weighted_by_tokens_too() -> None:
    model = Tagger()
    loss = lambda outputs, targets: (token_loss(outputs, targets), (targets >= 0).sum())  # noqa: E731
    metrics = Trainer(folder=False).evaluate(model, ragged(LENGTHS), loss=loss)
    ids, targets = joined(ragged(LENGTHS))
    assert metrics["val/loss"] == pytest.approx(token_loss(model(ids), targets).item(), rel=1e-12)


# -- any tokens and weights --------------------------------------------------------------------


@settings(max_examples=30)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=9),
    accumulate=st.integers(1, 6),
    form=st.sampled_from(["int", "tensor"]),
)
def test_any_tokens(lengths: list[list[int]], accumulate: int, form: str) -> None:
    batches, keeper = ragged(lengths), Gradients()
    result = fit(
        keeper, model=TokenTask(form), train=batches, max_duration="1ep", accumulate=accumulate, log_every="1st"
    )
    gradients, losses = full_batches(Tagger(), batches, accumulate, full_token_loss)
    assert_same(keeper.found, gradients, 1e-9)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-9)


@settings(max_examples=20)
@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_any_weights(weights: list[float]) -> None:
    batches = [(x.double(), y) for x, y in tiny_data(len(weights), 3)]
    model, other, keeper = TinyModel().double(), TinyModel().double(), Gradients()
    with Loop(
        model, fast_sgd, callbacks=[keeper], accumulate=len(weights), max_duration="1ep", log_every="1st", folder=False
    ) as loop:
        for (x, y), weight in zip(loop.batches(batches), weights, strict=True):
            loop.backward(cross_entropy(model(x), y), weight=weight)
            loop.step()
    parts = [w * cross_entropy(other(x), y) for (x, y), w in zip(batches, weights, strict=True)]
    total = torch.stack(parts).sum() / sum(weights)
    total.backward()
    assert_same(keeper.found, [[p.grad for p in other.parameters()]], 1e-9)
    assert loop.run.history["train/loss"] == pytest.approx([total.item()], rel=1e-9)


# -- one batch a step is a bare loop -------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
}


def bare(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], epochs: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model.train()
    for x, y in batches * epochs:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", ["fit", "fit with evaluation", "weighted", "own loop"])
def test_one_batch_a_step_is_bitwise_a_bare_loop(optimizer: str, way: str) -> None:
    model, other, batches = TinyModel(dropout=0.5), TinyModel(dropout=0.5), tiny_data(9, 7, last=3)
    make, options = OPTIMIZERS[optimizer], {"max_duration": "2ep", "folder": False, "seed": None, "log_every": "5st"}
    torch.manual_seed(0)
    if way == "own loop":
        with Loop(model, make(model.parameters()), **options) as loop:
            for x, y in loop.batches(batches):
                loop.backward(cross_entropy(model(x), y))
                loop.step()
    else:
        weighted = lambda outputs, y: (cross_entropy(outputs, y), 5.0)  # noqa: E731
        loss = weighted if way == "weighted" else nn.CrossEntropyLoss()
        val = tiny_data(3, seed=9) if way == "fit with evaluation" else None
        fit(model=model, train=batches, val=val, loss=loss, optimizer=make, **options)
    assert same_tensors(model.state_dict(), bare(other, make(other.parameters()), batches, 2))


# -- sparse gradients, several optimizers, several losses ----------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("weight", ["samples", "int", "tensor"])
def test_sparse_gradients(accumulate: int, weight: str) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 7, sparse=True, dtype=torch.float64)
            with torch.no_grad():
                self.table.weight.copy_(torch.arange(49.0).reshape(7, 7).sin())

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids)

    def loss(outputs: Tensor, targets: Tensor) -> Any:
        count = (targets >= 0).sum()
        found = token_loss(outputs, targets)
        return {"samples": found, "int": (found, count.item()), "tensor": (found, count)}[weight]

    lengths = [[9, 9], [9], [9, 9, 9], [9]] if weight == "samples" else LENGTHS
    keeper = Gradients()
    fit(keeper, model=Bag(), train=ragged(lengths), loss=loss, optimizer=fast_sgd, accumulate=accumulate)
    gradients, _ = full_batches(Bag(), ragged(lengths), accumulate, full_token_loss, epochs=2)
    assert_same(keeper.found, gradients, 1e-10)


class TwoNets(hl.Task[Batch]):
    """Two optimizers; the second loss also flows through the first network, as that of a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TinyModel(seed=1).double(), TinyModel(seed=2).double()

    def configure_optimizers(self, run: hl.Run) -> dict[str, torch.optim.Optimizer]:
        return {"first": fast_sgd(self.first.parameters()), "second": fast_sgd(self.second.parameters())}

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y = batch
        return cross_entropy(self.first(x), y), (self.first(x).softmax(-1) - self.second(x)).square().mean()

    def train_batch(self, run: hl.Run, batch: Batch) -> None:
        first, second = run.optimizers.values()
        loss_first, loss_second = self.losses(batch)
        run.loop.backward(loss_first, first)
        run.loop.backward(loss_second, second)
        run.loop.step(first)
        run.loop.step(second)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_several_optimizers_with_accumulation(accumulate: int) -> None:
    """What a loss puts on the parameters of another optimizer must not reach that optimizer's update."""
    batches = [(x.double(), y) for x, y in tiny_data(6, 5, last=2)]
    ours, theirs, keeper = TwoNets(), TwoNets(), Gradients()
    result = fit(keeper, model=ours, train=batches, accumulate=accumulate)
    optimizers = [fast_sgd(theirs.first.parameters()), fast_sgd(theirs.second.parameters())]
    expected = []
    for window in windows(batches, accumulate) * 2:
        losses = theirs.losses(joined(window))
        nets = [list(theirs.first.parameters()), list(theirs.second.parameters())]
        gradients = [torch.autograd.grad(loss, net, retain_graph=True) for loss, net in zip(losses, nets, strict=True)]
        for optimizer, net, found in zip(optimizers, nets, gradients, strict=True):
            for parameter, gradient in zip(net, found, strict=True):
                parameter.grad = gradient.clone()
            expected.append(list(found))
            optimizer.step()
    assert_same(keeper.found, expected, 1e-9)
    steps = 2 * math.ceil(6 / accumulate)
    assert result.clock.step == steps
    assert result.clock.updates == {"first": steps, "second": steps}


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_two_losses_of_one_batch_add_up(accumulate: int) -> None:
    """``backward`` twice on a batch is ``backward`` of the sum, with accumulation as without it."""
    batches = [(x.double(), y) for x, y in tiny_data(6, 5, last=2)]
    model, keeper = TinyModel().double(), Gradients()
    options: Any = {"accumulate": accumulate, "max_duration": "1ep", "log_every": "1st", "folder": False}
    with Loop(model, fast_sgd, callbacks=[keeper], **options) as loop:
        for x, y in loop.batches(batches):
            loop.backward(cross_entropy(model(x), y))
            loop.backward(model(x).square().mean())
            loop.step()
    both = lambda model, x, y: cross_entropy(model(x), y) + model(x).square().mean()  # noqa: E731
    gradients, losses = full_batches(TinyModel().double(), batches, accumulate, both)
    assert_same(keeper.found, gradients, 1e-9)
    assert loop.run.history["train/loss"] == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_losses_of_each_of_two_optimizers_add_up_for_each(accumulate: int) -> None:
    """In turn, so that the last loss that was kept is that of the other one."""

    class Four(TwoNets):
        def train_batch(self, run: hl.Run, batch: Batch) -> None:
            for factor in (1, 2):
                for name, loss in zip(("first", "second"), self.losses(batch), strict=True):
                    run.loop.backward(factor * loss, run.optimizers[name])

    batches = [(x.double(), y) for x, y in tiny_data(4, 5)]
    options: Any = {"accumulate": accumulate, "max_duration": "1ep", "log_every": "1st", "folder": False}
    once, both = (fit(model=task, train=batches, **options).history for task in (TwoNets(), Four()))
    for name in ("train/first/loss", "train/second/loss"):
        assert both[name][0] == pytest.approx(3 * once[name][0])


def test_losses_between_which_the_body_steps_are_averaged_and_not_added_up() -> None:
    class Inner(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Batch) -> None:
            for _ in range(3):
                run.loop.backward(super().train_batch(run, batch))
                run.loop.step(run.optimizers["SGD"])

    task = Inner(TinyModel(), nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, lr=0.0))
    expected = mean_loss(task.model, *tiny_data(1)[0]).item()
    result = fit(model=task, train=tiny_data(1), max_duration="1ep")
    assert result.history["train/loss"] == pytest.approx([expected])


def test_losses_that_a_closure_computes_again_are_averaged_and_not_added_up() -> None:
    model = TinyModel()
    still = lambda p: torch.optim.LBFGS(p, lr=0.0, max_iter=3, tolerance_change=-1.0)  # noqa: E731
    expected = mean_loss(model, *tiny_data(1)[0]).item()
    result = fit(model=model, train=tiny_data(1), optimizer=still, max_duration="1ep")
    assert result.history["train/loss"] == pytest.approx([expected])


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_two_losses_of_one_batch_with_weights_of_their_own(accumulate: int) -> None:
    """A mean over tokens and one over rows: right, or refused; accumulation must not change the sum in silence."""
    batches, model, keeper = ragged(LENGTHS), Tagger(), Gradients()
    try:
        with Loop(model, fast_sgd, callbacks=[keeper], accumulate=accumulate, max_duration="1ep", folder=False) as loop:
            for ids, targets in loop.batches(batches):
                loop.backward(token_loss(model(ids), targets), weight=(targets >= 0).sum())
                loop.backward(model(ids).square().mean())
                loop.step()
    except hl.HooklineError:
        assert accumulate > 1
        return
    both = lambda model, ids, targets: token_loss(model(ids), targets) + model(ids).square().mean()  # noqa: E731
    gradients, _ = full_batches(Tagger(), batches, accumulate, both)
    assert_same(keeper.found, gradients, 1e-9)


# -- weights that are zero, windows that are dropped ---------------------------------------------


def test_a_batch_of_weight_zero_adds_nothing() -> None:
    batches = [(x.double(), y) for x, y in tiny_data(3, 4)]
    model, other, keeper = TinyModel().double(), TinyModel().double(), Gradients()
    with Loop(
        model, fast_sgd, callbacks=[keeper], accumulate=3, max_duration="1ep", log_every="1st", folder=False
    ) as loop:
        for (x, y), weight in zip(loop.batches(batches), (4, 0, 2), strict=True):
            loop.backward(cross_entropy(model(x), y), weight=weight)
            loop.step()
    loss = (4 * mean_loss(other, *batches[0]) + 2 * mean_loss(other, *batches[2])) / 6
    loss.backward()
    assert_same(keeper.found, [[p.grad for p in other.parameters()]], 1e-10)
    assert loop.run.history["train/loss"] == pytest.approx([loss.item()])


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_a_batch_of_nothing_but_padding_counts_nothing(accumulate: int) -> None:
    """Its mean over no token is NaN, with weight 0: the full batch does not notice it, so neither may the parts."""
    lengths = [[9, 1], [0, 0], [3], [2, 5]]
    keeper = Gradients()
    result = fit(
        keeper,
        model=TokenTask("tensor"),
        train=ragged(lengths),
        max_duration="1ep",
        accumulate=accumulate,
        log_every="1st",
    )
    gradients, losses = full_batches(Tagger(), ragged(lengths), accumulate, full_token_loss)
    assert_same(keeper.found, gradients, 1e-10)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-10)


@pytest.mark.parametrize("kind", [int, torch.as_tensor], ids=["int", "tensor"])
def test_a_batch_of_nothing_but_padding_in_an_evaluation(kind: Any) -> None:
    model, data = Tagger(), ragged([[9, 1], [0, 0], [3]])
    loss = lambda outputs, targets: (token_loss(outputs, targets), kind((targets >= 0).sum()))  # noqa: E731
    metrics = Trainer(folder=False).evaluate(model, data, loss=loss)
    ids, targets = joined(data)
    assert metrics["val/loss"] == pytest.approx(token_loss(model(ids), targets).item(), rel=1e-12)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_window_without_any_weight_does_not_spoil_the_model(accumulate: int) -> None:
    """Nothing but padding in a whole window: an error of our own, or no update; never a division by zero."""
    model = TinyModel()
    before = state_of(model)
    try:
        with Loop(model, fast_sgd, accumulate=accumulate, max_duration="1ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(cross_entropy(model(x), y) * 0, weight=0)
                loop.step()
    except hl.HooklineError:
        pass
    assert same_tensors(model.state_dict(), before)


def test_a_stop_in_the_task_drops_the_window_and_its_clock() -> None:
    """Decision 19: the half-filled window is dropped, with its batches; a second fit takes them again."""

    class Stops(hl.SupervisedTask):
        seen = 0

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            self.seen += 1
            if self.seen == 7:
                raise hl.StopTraining("enough")
            return super().train_batch(run, batch)

    task = Stops(TinyModel(), nn.CrossEntropyLoss(), fast_sgd)
    trainer = Trainer(max_duration="1ep", accumulate=4, folder=False)
    result = trainer.fit(task, tiny_data(12))
    assert (result.clock.step, result.clock.batch, result.clock.sample) == (1, 4, 32)
    assert all(p.grad is None or not p.grad.any() for p in task.parameters())
    result = trainer.fit(task, tiny_data(12))
    assert (result.clock.step, result.clock.batch, result.clock.sample) == (3, 12, 96)


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_equal_batches_give_bitwise_the_weights_of_a_loop_that_divides_its_loss(accumulate: int) -> None:
    batches = tiny_data(batches=3 * accumulate)
    torch.manual_seed(0)
    model = TinyModel()
    bare = TinyModel()
    bare.load_state_dict(model.state_dict())
    fit(model=model, train=batches, accumulate=accumulate, optimizer=fast_sgd, max_duration="1ep")
    optimizer = fast_sgd(bare.parameters())
    for index, (x, y) in enumerate(batches, 1):
        (cross_entropy(bare(x), y) / accumulate).backward()
        if index % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert same_tensors(weights_of(model), weights_of(bare))


class Uncertainty(hl.Task[Any]):
    """A loss with a term that is a view of a parameter, which autograd may keep as the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.log_sigma = TinyModel(), nn.Parameter(torch.zeros(1))

    def configure_optimizers(self, run: hl.Run) -> Any:
        return fast_sgd(self.parameters())

    def train_batch(self, run: hl.Run, batch: Any, /) -> Any:
        return cross_entropy(self.model(batch[0]), batch[1]) + self.log_sigma.squeeze()


def test_a_parameter_that_is_added_to_the_loss_gets_the_gradient_of_the_mean() -> None:
    task, seen = Uncertainty(), []
    noted = hl.on("gradients_ready")(lambda run: seen.append(task.log_sigma.grad.item()))  # type: ignore[union-attr]
    fit(noted, model=task, train=tiny_data(batches=16), loss=None, accumulate=4, max_duration="1ep")
    assert seen == [1.0] * 4


@pytest.mark.parametrize("weight", [math.nan, -8.0])
def test_a_weight_that_cannot_be_one_is_an_error_as_a_tensor_also(weight: float) -> None:
    with pytest.raises(hl.HooklineError, match=f"the weight of the loss at .* is {weight}"):
        Trainer(max_duration="1ep", accumulate=2, folder=False, device="cpu").fit(
            TinyModel(),
            tiny_data(batches=4),
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD,
            weight=lambda outputs, batch: torch.tensor(weight),
        )
