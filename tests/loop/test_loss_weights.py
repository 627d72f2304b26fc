"""Losses that are no mean over samples: class weights, ignored targets, tokens, sums.

However the data is split into batches, a step of ``accumulate`` batches and an evaluation equal one full batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hookline as hl
from hookline.errors import SetupError
from hookline.loop.tasks.loss_weights import LossWeights
from tests.support.inside import set_accumulation

CLASSES, LENGTH = 5, 6
SIZES = [7, 1, 5, 3, 4, 2]
"""Samples in each batch."""
RATE = 0.5
fast_sgd = partial(torch.optim.SGD, lr=RATE)
FAST: dict[str, Any] = {"folder": False, "device": "cpu"}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


CLASS_WEIGHTS = torch.rand(CLASSES, dtype=torch.float64, generator=seeded()) + 0.1


def classes(*shape: int, ignored: int | None = None) -> Tensor:
    """Class indices; with ``ignored`` about a third of them is that index, and all of the second batch."""
    found = torch.randint(0, CLASSES, shape, generator=seeded())
    if ignored is not None:
        found[torch.rand(shape, generator=seeded()) < 0.35] = ignored
        found[SIZES[0]] = ignored
    return found


@dataclass(frozen=True)
class Kind:
    """A loss, the targets of all samples, and what comes between a linear layer and the loss."""

    loss: Callable[..., Any]
    targets: Tensor
    head: Callable[[Tensor], Tensor] = torch.clone
    weight: Callable[[Any, Any], Any] | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        head = self.head if isinstance(self.head, nn.Module) else Called(self.head)
        return nn.Sequential(nn.Linear(4, CLASSES), head).double()

    def inputs(self) -> Tensor:
        extra = (LENGTH,) if self.targets.ndim == 2 and not self.targets.is_floating_point() else ()
        return torch.randn(sum(SIZES), *extra, 4, dtype=torch.float64, generator=seeded())

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.inputs().split(SIZES), self.targets.split(SIZES), strict=True))

    def full_loss(self, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        found = self.loss(model(x), y)
        return found[0] if isinstance(found, tuple) else found


class Called(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def channels_second(x: Tensor) -> Tensor:
    return x.movedim(-1, 1)


def custom(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, ignore_index=1)


def with_its_weight(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return custom(outputs, targets), (targets != 1).sum()


class Subclass(nn.CrossEntropyLoss):
    """Its ``forward`` is that of torch."""


class Focal(nn.CrossEntropyLoss):
    """A mean over samples in a class that inherits from a loss that is none."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = functional.cross_entropy(outputs, targets, weight=self.weight, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


N = sum(SIZES)
SOFT = torch.rand(N, CLASSES, dtype=torch.float64, generator=seeded()).softmax(1)
KINDS = {
    "plain": Kind(nn.CrossEntropyLoss(), classes(N)),
    "-100 in flat targets": Kind(nn.CrossEntropyLoss(), classes(N, ignored=-100)),
    "ignore_index": Kind(nn.CrossEntropyLoss(ignore_index=2), classes(N, ignored=2)),
    "class weights": Kind(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), classes(N)),
    "class weights, -100 and smoothing": Kind(
        nn.CrossEntropyLoss(weight=CLASS_WEIGHTS, label_smoothing=0.1), classes(N, ignored=-100)
    ),
    "tokens": Kind(nn.CrossEntropyLoss(), classes(N, LENGTH, ignored=-100), channels_second),
    "NLLLoss": Kind(nn.NLLLoss(weight=CLASS_WEIGHTS), classes(N, ignored=-100), nn.LogSoftmax(1)),
    "probabilities": Kind(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), SOFT),
    "function": Kind(functional.cross_entropy, classes(N, ignored=-100)),
    "partial": Kind(partial(functional.cross_entropy, weight=CLASS_WEIGHTS, ignore_index=0), classes(N, ignored=0)),
    "subclass": Kind(Subclass(weight=CLASS_WEIGHTS), classes(N)),
    "subclass with its own forward": Kind(Focal(weight=CLASS_WEIGHTS), classes(N)),
    "MSELoss": Kind(nn.MSELoss(), SOFT),
    "pos_weight": Kind(nn.BCEWithLogitsLoss(pos_weight=CLASS_WEIGHTS), (SOFT > 0.2).double()),
    "weight=": Kind(custom, classes(N, ignored=1), weight=lambda outputs, batch: (batch[1] != 1).sum()),
    "(loss, weight)": Kind(with_its_weight, classes(N, ignored=1)),
}


def bare_loop(kind: Kind, accumulate: int) -> tuple[nn.Module, list[float], float]:
    """A step on each full window; the model, the losses, and the loss of all samples at the end."""
    model, losses = kind.model(), []
    for at in range(0, len(SIZES), accumulate):
        model.zero_grad()
        loss = kind.full_loss(model, kind.batches()[at : at + accumulate])
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= RATE * parameter.grad
    with torch.no_grad():
        return model, losses, kind.full_loss(model, kind.batches()).item()


def same_parameters(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("accumulate", [4, 6])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_accumulation_and_evaluation_equal_the_full_batch(kind: Kind, accumulate: int) -> None:
    model = kind.model()
    result = hl.fit(
        model, kind.batches(), kind.batches(), loss=kind.loss, weight=kind.weight, optimizer=fast_sgd,
        max_duration="1ep", accumulate=accumulate, log_every="1st", **FAST,
    )  # fmt: skip
    expected, losses, last = bare_loop(kind, accumulate)
    same_parameters(model, expected)
    assert result.history["train/loss"] == pytest.approx(losses, rel=1e-9)
    assert result.metrics["val/loss"] == pytest.approx(last, rel=1e-9)
    evaluated = hl.evaluate(model, kind.batches(), loss=kind.loss, weight=kind.weight, **FAST)
    assert evaluated["val/loss"] == pytest.approx(last, rel=1e-9)


@pytest.mark.parametrize("kind", ["ignore_index", "class weights", "tokens", "weight="])
def test_the_loss_of_an_epoch_without_accumulation_is_that_of_all_its_samples(kind: str) -> None:
    its = KINDS[kind]
    still = partial(torch.optim.SGD, lr=0.0)
    fit = partial(hl.fit, loss=its.loss, weight=its.weight, optimizer=still, max_duration="1ep", **FAST)
    result = fit(its.model(), its.batches())
    with torch.no_grad():
        expected = its.full_loss(its.model(), its.batches()).item()
    assert result.metrics["train/loss_epoch"] == pytest.approx(expected, rel=1e-9)


def test_a_step_is_the_same_whether_it_is_plain_or_not() -> None:
    class Hears(hl.Callback):
        def on_zero_grad(self, run: hl.Run) -> None: ...

    for kind in KINDS.values():
        rows = []
        for callbacks in ([], [Hears()]):
            fit = partial(hl.fit, loss=kind.loss, weight=kind.weight, optimizer=fast_sgd, max_duration="1ep", **FAST)
            rows.append(fit(kind.model(), kind.batches(), log_every="2st", callbacks=callbacks).history["train/loss"])
        assert rows[0] == pytest.approx(rows[1], rel=1e-12, nan_ok=True)


# -- reduction="sum" ---------------------------------------------------------------------------

SUMS = {
    "module": nn.CrossEntropyLoss(reduction="sum"),
    "partial": partial(functional.cross_entropy, reduction="sum"),
}


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
def test_a_sum_is_refused_with_accumulation_and_trains_without(loss: Any) -> None:
    kind = Kind(loss, classes(N))
    model = kind.model()
    fit = partial(hl.fit, model, kind.batches(), loss=loss, optimizer=fast_sgd, max_duration="1ep", **FAST)
    with pytest.raises(SetupError, match=r"reduction='sum'.*accumulate=4.*reduction='mean'") as raised:
        fit(accumulate=4)
    assert "weight=" not in str(raised.value)
    same_parameters(model, kind.model())
    fit()
    same_parameters(model, bare_loop(kind, 1)[0])


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_no_weight_makes_a_sum_right(loss: Any, accumulate: int) -> None:
    kind = Kind(loss, classes(N))
    with pytest.raises(
        SetupError, match=r"reduction='sum'\) with weight=.*Write reduction='mean', or return \(loss_sum"
    ):
        hl.fit(
            kind.model(), kind.batches(), loss=loss, weight=lambda outputs, batch: 1, optimizer=fast_sgd,
            max_duration="1ep", accumulate=accumulate, **FAST,
        )  # fmt: skip


def test_a_sum_is_refused_where_a_callback_begins_to_accumulate() -> None:
    class Later(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            set_accumulation(run, 2)

    kind = Kind(SUMS["module"], classes(N))
    with pytest.raises(SetupError, match="reduction='sum'"):
        hl.fit(
            kind.model(),
            kind.batches(),
            loss=kind.loss,
            optimizer=fast_sgd,
            max_duration="1ep",
            callbacks=[Later()],
            **FAST,
        )


def test_the_evaluation_of_a_sum_is_the_sum_divided_by_the_samples() -> None:
    kind = Kind(SUMS["module"], classes(N))
    model = kind.model()
    with torch.no_grad():
        expected = kind.full_loss(model, kind.batches()).item() / N
    found = hl.evaluate(model, kind.batches(), loss=kind.loss, **FAST)
    assert found["val/loss"] == pytest.approx(expected, rel=1e-9)


# -- models that compute their own loss, as those of Hugging Face do ----------------------------

VOCABULARY = 11


class Tokens(nn.Module):
    """A model of tokens that takes ``labels`` and returns ``.loss`` and ``.logits``.

    ``shifts``: the logits of a token are compared with the label of the next one. ``extra`` is added to the loss.
    """

    loss_type: str | None = None

    def __init__(self, *, shifts: bool, extra: float = 0.0, loss_type: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.shifts, self.extra, self.loss_type = shifts, extra, loss_type
        self.config = SimpleNamespace(is_encoder_decoder=False)
        self.double()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embed(input_ids))
        if labels is None:
            return SimpleNamespace(loss=None, logits=logits)
        used, targets = (logits[:, :-1], labels[:, 1:]) if self.shifts else (logits, labels)
        loss = functional.cross_entropy(used.reshape(-1, VOCABULARY), targets.reshape(-1))
        return SimpleNamespace(loss=loss + self.extra, logits=logits)


def token_batches(ignored: int = -100) -> list[dict[str, Tensor]]:
    """Texts that are padded to one length, with the padding ignored."""
    ids = torch.randint(0, VOCABULARY, (N, LENGTH), generator=seeded())
    lengths = torch.randint(1, LENGTH + 1, (N, 1), generator=seeded())
    labels = ids.masked_fill(torch.arange(LENGTH) >= lengths, ignored)
    pairs = zip(ids.split(SIZES), labels.split(SIZES), strict=True)
    return [{"input_ids": inputs, "labels": its} for inputs, its in pairs]


def joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


MODELS: dict[str, Callable[[], Tokens]] = {
    "causal": lambda: Tokens(shifts=True),
    "masked": lambda: Tokens(shifts=False),
    "causal, told by its loss_type": lambda: Tokens(shifts=True, extra=0.5, loss_type="ForCausalLM"),
    "masked, told by its loss_type": lambda: Tokens(shifts=False, extra=0.5, loss_type="ForMaskedLM"),
    "causal, with a loss_type that says another thing": lambda: Tokens(shifts=True, loss_type="ForMaskedLM"),
}


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_labels_of_minus_100_do_not_count(make: Callable[[], Tokens], accumulate: int) -> None:
    batches = token_batches()
    model, expected = make(), make()
    result = hl.fit(model, batches, batches, optimizer=fast_sgd, max_duration="1ep", accumulate=accumulate, **FAST)
    for at in range(0, len(batches), accumulate):
        expected.zero_grad()
        expected(**joined(batches[at : at + accumulate])).loss.backward()
        with torch.no_grad():
            for parameter in expected.parameters():
                parameter -= RATE * parameter.grad  # type: ignore[operator]
    same_parameters(model, expected)
    with torch.no_grad():
        assert result.metrics["val/loss"] == pytest.approx(expected(**joined(batches)).loss.item(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("weight", [None, CLASS_WEIGHTS], ids=["plain", "class weights"])
def test_targets_of_any_integer_dtype_are_weighed_alike(dtype: torch.dtype, weight: Tensor | None) -> None:
    kind = Kind(nn.CrossEntropyLoss(weight=weight), classes(N))
    weights = LossWeights(None)
    weights.choose(kind.loss, None)
    for x, y in kind.batches():
        found = []
        for targets in (y, y.to(dtype)):
            weights.computed(x, (x, targets), targets)
            found.append(weights.in_evaluation(0.0, len(x))[1])
        assert found[0] == found[1]


def test_class_156_of_uint8_is_not_ignored() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 200), torch.randn(6, 4)
    y = torch.tensor([156, 156, 1, 156, 2, 3], dtype=torch.uint8)
    loss = nn.CrossEntropyLoss()
    evaluated = hl.evaluate(model, list(zip(x.split([2, 4]), y.split([2, 4]), strict=True)), loss=loss, **FAST)
    assert evaluated["val/loss"] == pytest.approx(loss(model(x), y).item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_dtype_are_counted_alike(dtype: torch.dtype) -> None:
    class Casts(Tokens):
        def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
            return super().forward(input_ids, labels.long())

    batches = token_batches(ignored=3)
    small = [{**batch, "labels": batch["labels"].to(dtype)} for batch in batches]
    one, other = Casts(shifts=True), Casts(shifts=True)
    fit = partial(hl.fit, optimizer=fast_sgd, max_duration="1ep", accumulate=4, **FAST)
    fit(one, batches)
    fit(other, small)
    same_parameters(one, other)


def test_a_model_whose_loss_cannot_be_told_is_weighed_by_samples_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = partial(Tokens, shifts=True, extra=0.5)
    hl.fit(unknown(), token_batches(), optimizer=fast_sgd, max_duration="1ep", accumulate=4, **FAST)
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "Tokens" in said
    assert "-100" in said
    assert "weight=" in said
    caplog.clear()
    hl.fit(unknown(), token_batches(), optimizer=fast_sgd, max_duration="1ep", **FAST)
    hl.fit(unknown(), token_batches(ignored=3), optimizer=fast_sgd, max_duration="1ep", accumulate=4, **FAST)
    count = lambda outputs, batch: (batch["labels"][:, 1:] != -100).sum()  # noqa: E731
    fit = partial(hl.fit, optimizer=fast_sgd, max_duration="1ep", accumulate=4, **FAST)
    model, told = unknown(), Tokens(shifts=True, extra=0.5, loss_type="ForCausalLM")
    fit(model, token_batches(), weight=count)
    fit(told, token_batches())
    same_parameters(model, told)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


# -- losses that Hookline does not know --------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture, kind: Kind, *, sizes: list[int] = SIZES, **options: Any) -> list[str]:
    """Warnings of a fit about the weights of its losses."""
    caplog.clear()
    batches = list(zip(kind.inputs().split(sizes), kind.targets.split(sizes), strict=True))
    hl.fit(kind.model(), batches, loss=kind.loss, optimizer=fast_sgd, max_duration="1ep", **options, **FAST)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [message for message in said if "StopOnNaN" not in message]  # a batch without targets is NaN


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_classes = nn.CrossEntropyLoss(weight=CLASS_WEIGHTS)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.of_classes(outputs, targets)  # type: ignore[no-any-return]


class OwnWeight(nn.Module):
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", CLASS_WEIGHTS)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, weight=self.weight)


class Doubled(nn.CrossEntropyLoss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().forward(outputs, targets)


def root_of_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets).sqrt()


def of_parts(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs["logits"], targets, weight=CLASS_WEIGHTS)


def late_ignored() -> Tensor:
    found = classes(N)
    found[-4:-2] = -100  # in the fifth batch
    return found


NO_MEANS = {
    "function with class weights": Kind(
        lambda outputs, targets: functional.cross_entropy(outputs, targets, weight=CLASS_WEIGHTS), classes(N)
    ),
    "class weights as a buffer": Kind(OwnWeight(), classes(N)),
    "loss inside a module": Kind(Holding(), classes(N)),
    "subclass that calls torch's forward": Kind(Doubled(weight=CLASS_WEIGHTS), classes(N)),
    "-100 in a later batch": Kind(lambda outputs, targets: functional.cross_entropy(outputs, targets), late_ignored()),
    "root": Kind(root_of_mean, SOFT),
    "outputs in a dict": Kind(of_parts, classes(N), lambda x: {"logits": x}),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("kind", NO_MEANS.values(), ids=NO_MEANS)
def test_a_loss_that_is_not_a_mean_over_samples_is_a_warning(caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    (said,) = warnings_of(caplog, kind, accumulate=6)
    assert "is not a mean over samples" in said
    assert "pass weight=lambda outputs, batch" in said
    assert warnings_of(caplog, kind) == [], "one batch per step needs no weights"
    (said,) = warnings_of(caplog, kind, val=kind.batches())
    assert "is not a mean over samples" in said


def test_the_warning_about_a_sum_does_not_name_weight(caplog: pytest.LogCaptureFixture) -> None:
    add_up = partial(functional.cross_entropy, reduction="sum")
    kind = Kind(lambda outputs, targets: add_up(outputs, targets), classes(N))
    (said,) = warnings_of(caplog, kind, accumulate=4)
    assert "is a sum over samples" in said
    assert "reduction='mean'" in said
    assert "weight=" not in said


class Noisy(nn.Module):
    """A mean over samples, times a random number; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        self.total += 1  # type: ignore[operator]
        return functional.cross_entropy(outputs, targets) * torch.rand(())


MEANS = {
    "function": Kind(lambda outputs, targets: functional.cross_entropy(outputs, targets), classes(N)),
    "subclass with its own forward": Kind(Focal(weight=CLASS_WEIGHTS), classes(N)),
    "random": Kind(Noisy(), classes(N)),
    "small numbers": Kind(lambda outputs, targets: 1e-9 * functional.mse_loss(outputs, targets), SOFT),
    "both signs": Kind(lambda outputs, targets: (outputs - targets).mean(), SOFT),
    "zero": Kind(lambda outputs, targets: 0 * outputs.mean(), SOFT),
}


@pytest.mark.parametrize("kind", MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mean_over_samples_is_not_warned_about(caplog: pytest.LogCaptureFixture, kind: Kind, precision: str) -> None:
    assert warnings_of(caplog, kind, accumulate=4, precision=precision, val=kind.batches()) == []


def test_a_loss_that_cannot_be_compared_is_a_warning_if_targets_may_be_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = Kind(lambda outputs, targets: functional.cross_entropy(outputs, targets), classes(N, ignored=-100))
    (said,) = warnings_of(caplog, kind, sizes=[1] * N, accumulate=4)
    assert "may not be a mean over samples: the targets contain -100" in said
    (said,) = warnings_of(caplog, Kind(Holding(), classes(N)), sizes=[1] * N, accumulate=4)
    assert "may not be a mean over samples: it contains a loss with class weights" in said


def test_the_state_of_a_loss_and_random_numbers_are_those_of_a_bare_loop() -> None:
    noisy, seen = Noisy(), list[int]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(outputs))
        return noisy(outputs, targets)  # type: ignore[no-any-return]

    kind = Kind(loss, classes(N))
    model = kind.model()
    torch.manual_seed(1)
    hl.fit(model, kind.batches()[:4], loss=loss, optimizer=fast_sgd, max_duration="1ep", accumulate=2, **FAST)
    after = torch.rand(3)
    assert (noisy.calls, noisy.total, seen) == (4, 4, SIZES[:4])
    torch.manual_seed(1)
    for _ in range(4):
        torch.rand(())
    assert torch.equal(after, torch.rand(3))


# -- weight= -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [3, "tokens", nn.Linear])
def test_a_weight_that_cannot_be_called_is_refused(weight: Any) -> None:
    kind = KINDS["plain"]
    with pytest.raises(SetupError, match=r"weight=.*lambda outputs, batch"):
        hl.fit(
            kind.model(), kind.batches(), loss=kind.loss, weight=weight, optimizer=fast_sgd, max_duration="1ep", **FAST
        )


def test_a_weight_next_to_a_task_is_not_used_and_hookline_says_so(caplog: pytest.LogCaptureFixture) -> None:
    kind = KINDS["plain"]
    task = hl.SupervisedTask(kind.model(), kind.loss, fast_sgd, weight=lambda outputs, batch: 1.0)
    hl.fit(task, kind.batches(), weight=lambda outputs, batch: 1.0, max_duration="1ep", **FAST)
    assert any("weight= is not used" in record.getMessage() for record in caplog.records)


def test_a_task_that_adds_to_the_loss_keeps_its_weight() -> None:
    class Penalty(hl.SupervisedTask):
        def compute_loss(self, outputs: Any, batch: Any) -> Any:
            return super().compute_loss(outputs, batch) + 0.1 * self.model[0].weight.square().sum()

    kind = KINDS["class weights"]
    task = Penalty(kind.model(), kind.loss, fast_sgd)
    hl.fit(task, kind.batches(), max_duration="1ep", accumulate=len(SIZES), **FAST)
    model = kind.model()
    loss = kind.full_loss(model, kind.batches()) + 0.1 * model[0].weight.square().sum()  # type: ignore[operator,index]
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad  # type: ignore[operator]
    same_parameters(task.model, model)


def test_a_task_that_computes_another_loss_is_weighed_by_samples() -> None:
    class Own(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            return functional.cross_entropy(self.call_model(run, batch), batch[1])

    kind = KINDS["class weights"]
    task, plain = Own(kind.model(), kind.loss, fast_sgd), KINDS["plain"]
    hl.fit(task, kind.batches(), max_duration="1ep", accumulate=4, **FAST)
    same_parameters(task.model, bare_loop(Kind(plain.loss, kind.targets), 4)[0])


def test_a_loss_that_a_callback_replaces_is_weighed_as_the_new_one() -> None:
    class Replaces(hl.Callback):
        def on_fit_start(self, run: hl.Run) -> None:
            run.task.loss = nn.CrossEntropyLoss(weight=CLASS_WEIGHTS)

    kind = KINDS["class weights"]
    task = hl.SupervisedTask(kind.model(), nn.CrossEntropyLoss(), fast_sgd)
    hl.fit(task, kind.batches(), max_duration="1ep", accumulate=4, callbacks=[Replaces()], **FAST)
    same_parameters(task.model, bare_loop(kind, 4)[0])
