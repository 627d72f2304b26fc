"""``run.swap_weights``: other weights for a while, the raw ones back on every way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.errors import RoleError, ScopeError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd, state_of


def zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) for name, p in model.named_parameters()}


def at(event: str, act: Any) -> Any:
    return hl.on(event, once=True)(act)


def test_other_weights_inside_and_the_raw_ones_after() -> None:
    seen: list[Any] = []

    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        before, objects = state_of(run.model), [id(p) for p in run.model.parameters()]
        with run.swap_weights(zeros(run.model)):
            seen.append(any(p.any() for p in run.model.parameters()))
            seen.append([id(p) for p in run.model.parameters()] == objects)
        seen.append(same_tensors(state_of(run.model), before))

    fit(swap)
    assert seen == [False, True, True]


def test_some_of_the_weights_and_buffers() -> None:
    class Normed(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        before, counted = state_of(run.model), run.model.norm.num_batches_tracked.clone()
        other = {"norm.running_mean": torch.full((4,), 7.0), "out.bias": torch.full((3,), 5.0)}
        with run.swap_weights(other):
            assert run.model.norm.running_mean.tolist() == [7.0] * 4
            assert run.model.out.bias.tolist() == [5.0] * 3
            assert torch.equal(run.model.norm.num_batches_tracked, counted)
        assert same_tensors(state_of(run.model), before)

    fit(swap, model=Normed())


def test_a_state_dict_can_be_swapped_in() -> None:
    other = TinyModel(seed=9)

    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        with run.swap_weights(other.state_dict()):
            assert same_tensors(state_of(run.model), state_of(other))

    fit(swap)
    assert same_tensors(state_of(other), state_of(TinyModel(seed=9)))


def test_the_state_dict_of_a_model_with_tied_weights() -> None:
    """It has two names for one tensor; ``named_parameters`` has one."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.second(self.first(x)))

    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        before = state_of(run.model)
        average = {name: torch.zeros_like(tensor) for name, tensor in run.model.state_dict().items()}
        with run.swap_weights(average):
            assert not any(p.any() for p in run.model.parameters())
            assert run.model.first.weight is run.model.second.weight
        assert same_tensors(state_of(run.model), before)

    fit(swap, model=Tied())


def test_weights_of_another_dtype_are_cast() -> None:
    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        doubles = {name: p.detach().double() * 0 + 0.5 for name, p in run.model.named_parameters()}
        with run.swap_weights(doubles):
            assert {p.dtype for p in run.model.parameters()} == {torch.float32}

    fit(swap)


def test_swaps_nest() -> None:
    @hl.on("train_step_end", once=True)
    def swap(run: hl.Run) -> None:
        raw = state_of(run.model)
        ones = {name: torch.ones_like(p) for name, p in run.model.named_parameters()}
        with run.swap_weights(zeros(run.model)):
            with run.swap_weights(ones):
                assert all(p.eq(1).all() for p in run.model.parameters())
            assert not any(p.any() for p in run.model.parameters())
        assert same_tensors(state_of(run.model), raw)

    fit(swap)


class Averaged(hl.Callback):
    """Evaluates with weights of zero, which give a loss of log(3)."""

    writes = ("weights",)

    def around_eval(self, run: hl.Run) -> Iterator[None]:
        with run.swap_weights(zeros(run.model)):
            yield


def test_a_swap_does_not_change_training() -> None:
    plain = fit(val=tiny_data(2)).model
    swapped = fit(Averaged(), val=tiny_data(2)).model
    assert same_tensors(state_of(plain), state_of(swapped))


def test_the_evaluation_is_that_of_the_swapped_weights() -> None:
    result = fit(Averaged(), val=tiny_data(2))
    assert result.history["val/loss"] == pytest.approx([torch.log(torch.tensor(3.0)).item()] * 2)


@pytest.mark.parametrize("place", ["eval_batch", "hook", "eval_end", "stop", "task stop"])
def test_the_raw_weights_are_back_on_every_way_out(place: str) -> None:
    class Breaks(hl.SupervisedTask):
        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            if run.clock.step and place == "eval_batch":
                raise ZeroDivisionError
            if run.clock.step and place == "task stop":
                raise hl.StopTraining("enough")
            return super().eval_batch(run, batch)

    class Hook(hl.Callback):
        def on_eval_batch_end(self, run: hl.Run) -> None:
            if place == "hook":
                raise ZeroDivisionError
            if place == "stop":
                run.stop("enough")

        def on_eval_end(self, run: hl.Run) -> None:
            if place == "eval_end":
                raise ZeroDivisionError

    model, plain = TinyModel(), fit(train=tiny_data(3), max_duration="3st").model
    trainer = Trainer(max_duration="2ep", callbacks=[Averaged(), Hook()], folder=False)
    task = Breaks(model, CE, sgd)
    if "stop" in place:
        assert trainer.fit(task, tiny_data(3), tiny_data(2)).stop_reason == "enough"
    else:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(task, tiny_data(3), tiny_data(2))
    assert same_tensors(state_of(model), state_of(plain))


def test_answers_are_not_kept_across_a_swap() -> None:
    seen: list[Tensor] = []

    @hl.on("train_step_end", once=True)
    def ask(run: hl.Run) -> None:
        loader = run.loaders["train"]
        seen.append(run.predict(loader))
        with run.swap_weights(zeros(run.model)):
            seen.append(run.predict(loader))
        seen.append(run.predict(loader))

    fit(ask)
    assert not seen[1].any()
    assert torch.equal(seen[0], seen[2])
    assert seen[0].any()


def test_a_model_called_after_a_swap_has_gradients() -> None:
    """The swap must not leave tensors behind that are not the parameters of the optimizer."""
    model = TinyModel()
    with Loop(model, sgd, max_duration="1ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(3)):
            with loop.run.swap_weights(zeros(model)):
                model(x)
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    plain = fit(train=tiny_data(3), max_duration="1ep").model
    assert same_tensors(state_of(model), state_of(plain))


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda model: {"out.wieght": torch.zeros(3, 8)}, r"has no out\.wieght"),
        (lambda model: {"a": 1, "b": 2}, "has no a, b"),
        (lambda model: {"out.weight": torch.zeros(8, 3)}, r"out\.weight has the shape \(3, 8\), not \(8, 3\)"),
        (lambda model: {"out.weight": 3.0}, r"out\.weight"),
        (lambda model: {"out.weight": None}, r"out\.weight"),
        (lambda model: [torch.zeros(3)], "swap_weights"),
    ],
    ids=["name", "names", "shape", "number", "none", "list"],
)
def test_weights_that_do_not_fit(make: Any, says: str) -> None:
    model, before = TinyModel(), {}

    @hl.on("fit_start")
    def swap(run: hl.Run) -> None:
        before.update(state_of(run.model))
        with run.swap_weights(make(run.model)):
            raise AssertionError("not reached")

    with pytest.raises(SetupError, match=says):
        fit(swap, model=model)
    assert same_tensors(state_of(model), before)


def test_a_wrong_part_leaves_all_of_them_as_they_were() -> None:
    model = TinyModel()

    @hl.on("fit_start")
    def swap(run: hl.Run) -> None:
        with run.swap_weights({"hidden.weight": torch.zeros(8, 4), "out.weight": torch.zeros(1)}):
            raise AssertionError("not reached")

    with pytest.raises(SetupError):
        fit(swap, model=model)
    assert same_tensors(state_of(model), state_of(TinyModel()))


@pytest.mark.parametrize("scope", ["around_train", "around_epoch", "around_step", "around_batch"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_while_a_swap_is_open(scope: str, accumulate: int) -> None:
    def around(self: Any, run: hl.Run) -> Iterator[None]:
        with run.swap_weights(zeros(run.model)):
            yield

    swapper = type("Swaps", (hl.Callback,), {scope: around, "writes": ("weights",)})()
    model = TinyModel()
    if scope == "around_batch":  # closed before the update: allowed, and the update is made on the raw weights
        fit(swapper, model=model, accumulate=accumulate)
        assert not same_tensors(state_of(model), state_of(TinyModel()))
        return
    with pytest.raises(ScopeError, match="swap"):
        fit(swapper, model=model, accumulate=accumulate)
    assert same_tensors(state_of(model), state_of(TinyModel()))


def test_an_optional_callback_may_not_swap() -> None:
    class Optional(hl.Callback):
        optional = True

        def on_train_step_end(self, run: hl.Run) -> None:
            with run.swap_weights(zeros(run.model)):
                pass

    result = fit(Optional(), max_duration="1ep")
    assert [type(failure.error) for failure in result.failures] == [RoleError]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_model_with_a_sparse_buffer_is_evaluated_and_its_best_weights_are_kept(layout: Any, tmp_path: Any) -> None:
    class Graph(TinyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.eye(4).to_sparse(layout=layout), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward((self.get_buffer("edges") @ x.T).T)

    fit(hl.SaveBest("val/loss"), model=Graph(), val=tiny_data(2), folder=tmp_path / "run")
    assert (tmp_path / "run" / "best.safetensors").exists()
