"""Loaders and batches of every kind: moved, counted, iterated over, and refused with a reason."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import hookline as hl
from hookline.errors import DataError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd, weights_of
from tests.support.inside import count, first_tensor, is_one_shot, sure_length, to_device

META = torch.device("meta")


def use(loader: Any, where: str, **options: Any) -> Any:
    """Give a loader to one of the entry points."""
    trainer = Trainer(max_duration="1ep", folder=False, **options)
    if where == "evaluate":
        return trainer.evaluate(TinyModel(), loader, loss=CE)
    if where == "predict":
        return trainer.predict(TinyModel(), loader)
    loaders = {"train": tiny_data(2), where: loader}
    return fit(**loaders, trainer=trainer)


def weights_after(loader: Any, **kwargs: Any) -> list[Tensor]:
    model = TinyModel()
    fit(model=model, train=loader, **kwargs)
    return weights_of(model)


@dataclasses.dataclass
class Pair:
    x: Tensor
    y: Tensor
    note: str = ""


@dataclasses.dataclass(frozen=True)
class FrozenPair:
    x: Tensor
    y: Tensor


class Named(NamedTuple):
    x: Tensor
    y: Tensor


class Own:
    """An object that moves itself."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.moved_to: list[Any] = []

    def to(self, device: Any) -> Own:
        moved = Own(self.x.to(device), self.y.to(device))
        moved.moved_to = [*self.moved_to, device]
        return moved


class InPlace(Own):
    """One that moves itself in place and returns nothing, as some graph libraries do."""

    def to(self, device: Any) -> None:  # type: ignore[override]
        self.x, self.y = self.x.to(device), self.y.to(device)


class Encoding(UserDict[str, Any]):
    """As the tokenizers of Hugging Face return it."""

    def to(self, device: Any) -> Encoding:
        return Encoding({k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.data.items()})


# -- moving ------------------------------------------------------------------------------------


def tensors() -> tuple[Tensor, Tensor]:
    return torch.zeros(3, 2), torch.ones(3)


def test_tensors_tuples_lists_and_dicts_are_moved() -> None:
    x, y = tensors()
    assert to_device(x, META).device == META
    moved = to_device((x, [y, {"deep": (x, "text", 3, None)}]), META)
    assert type(moved) is tuple
    assert type(moved[1]) is list
    deep = moved[1][1]["deep"]
    assert [moved[0].device, moved[1][0].device, deep[0].device] == [META] * 3
    assert deep[1:] == ("text", 3, None)
    assert x.device.type == "cpu"


@pytest.mark.parametrize("kind", [Named, namedtuple("Loose", "x y")])
def test_named_tuples_keep_their_class(kind: Any) -> None:
    moved = to_device(kind(*tensors()), META)
    assert type(moved) is kind
    assert moved.x.device == moved.y.device == META


@pytest.mark.parametrize("kind", [Pair, FrozenPair])
def test_dataclasses_keep_their_class(kind: Any) -> None:
    batch = kind(*tensors())
    moved = to_device(batch, META)
    assert type(moved) is kind
    assert moved.x.device == moved.y.device == META
    assert batch.x.device.type == "cpu"


def test_a_dataclass_with_a_field_that_its_init_does_not_take() -> None:
    @dataclasses.dataclass
    class Counted:
        x: Tensor
        size: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.size = len(self.x)

    moved = to_device(Counted(torch.zeros(3)), META)
    assert (moved.x.device, moved.size) == (META, 3)


def test_an_object_with_to_moves_itself() -> None:
    batch = Own(*tensors())
    moved = to_device(batch, META)
    assert moved.x.device == moved.y.device == META
    assert moved.moved_to == [META]
    in_place = InPlace(*tensors())
    assert to_device(in_place, META) is in_place
    assert in_place.x.device == META


@pytest.mark.parametrize("kind", [OrderedDict, dict, UserDict])
def test_mappings_keep_their_class(kind: Any) -> None:
    moved = to_device(kind(x=torch.zeros(2), name="a"), META)
    assert type(moved) is kind
    assert (moved["x"].device, moved["name"]) == (META, "a")


def test_a_defaultdict_is_moved() -> None:
    batch: defaultdict[str, Any] = defaultdict(list)
    batch["x"] = torch.zeros(2)
    moved = to_device(batch, META)
    assert moved["x"].device == META
    assert isinstance(moved, dict)


@pytest.mark.parametrize("content", [{"ids": torch.zeros(2)}, {"nested": {"ids": torch.zeros(2)}}, {"text": "none"}])
def test_a_mapping_with_to_moves_itself(content: dict[str, Any]) -> None:
    moved = to_device(Encoding(content), META)
    assert isinstance(moved, Encoding)
    assert moved.keys() == content.keys()
    if "ids" in content:
        assert moved["ids"].device == META


def test_a_packed_sequence_is_moved_by_its_own_rule() -> None:
    """It is a named tuple with ``.to``; its ``batch_sizes`` must stay on the CPU."""
    moved = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), META)
    assert isinstance(moved, PackedSequence)
    assert moved.data.device == META
    assert moved.batch_sizes.device.type == "cpu"


def test_a_shape_in_a_batch_stays_a_shape() -> None:
    moved = to_device((torch.zeros(3, 2), torch.zeros(3, 2).shape, range(3), {1, 2}), META)
    assert moved[1:] == (torch.Size([3, 2]), range(3), {1, 2})


def test_an_empty_batch_and_texts_are_left_as_they_are() -> None:
    for batch in ((), [], {}, "text", None, 3, [b"bytes"]):
        assert to_device(batch, META) == batch


def test_the_loop_moves_batches() -> None:
    """On a device that is not the CPU; the meta device is one on every machine."""
    seen: list[Any] = []

    class Task(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def train_batch(self, run: hl.Run, batch: Own) -> Tensor:
            seen.append((batch.x.device.type, next(self.parameters()).device.type, run.batch is batch))
            return self.net(batch.x).sum()

    loader = [Own(x, y) for x, y in tiny_data(2)]
    Trainer(max_duration="1ep", device="meta", log_every=None, folder=False).fit(Task(), loader, optimizer=sgd)
    assert seen == [("meta", "meta", True)] * 2


# -- counting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(5, 2),
        (torch.zeros(5, 2), torch.zeros(9)),
        [torch.zeros(5)],
        {"x": torch.zeros(5, 1)},
        ({"x": torch.zeros(5)}, 3),
        (["text"], torch.zeros(5)),
        Pair(torch.zeros(5), torch.zeros(5)),
        Named(torch.zeros(5), torch.zeros(5)),
        Own(torch.zeros(5), torch.zeros(5)),
        Encoding({"ids": torch.zeros(5, 3)}),
        SimpleNamespace(x=torch.zeros(5)),
        (nn.Parameter(torch.zeros(5)), 1),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_samples_are_the_first_dimension_of_the_first_tensor(batch: Any) -> None:
    assert count(batch) == (5, None)


@pytest.mark.parametrize("batch", [torch.tensor(3.0), "text", 7, None, {}, (), [], ["a"]], ids=repr)
def test_what_has_no_first_dimension_is_one_sample(batch: Any) -> None:
    assert count(batch) == (1, None)


def test_the_first_tensor_is_in_the_batchs_own_order() -> None:
    assert first_tensor({"b": [torch.zeros(2)], "a": torch.zeros(3)}).shape == (2,)
    assert first_tensor({"b": "x", "a": 3}) is None


def test_a_task_counts_samples_and_tokens() -> None:
    class Tokens(hl.SupervisedTask):
        def count(self, batch: Any) -> tuple[int, int]:
            return 2 * len(batch[0]), 10 * len(batch[0])

    clocks: list[Any] = []
    note = hl.on("eval_batch_end")(lambda run: clocks.append((run.clock.eval.sample, run.clock.eval.token)))
    task = Tokens(TinyModel(), CE, sgd)
    result = Trainer(max_duration="2ep", callbacks=[note], folder=False).fit(task, tiny_data(3, last=1), tiny_data(2))
    assert (result.clock.sample, result.clock.token) == (2 * 2 * 17, 2 * 10 * 17)
    assert clocks[:2] == [(16, 80), (32, 160)]


def test_the_weight_of_a_batch_is_the_tasks_count_of_samples() -> None:
    class Half(hl.SupervisedTask):
        def count(self, batch: Any) -> tuple[int, None]:
            return (3 if len(batch[0]) == 8 else 1), None

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            return super().train_batch(run, batch) * 0 + len(batch[0])

    result = Trainer(max_duration="1ep", folder=False).fit(Half(TinyModel(), CE, sgd), tiny_data(2, last=4))
    assert result.history["train/loss"] == [(3 * 8 + 1 * 4) / 4]


@pytest.mark.parametrize("duration", ["70tok", "33sp", "3st", "2ep"])
def test_durations_in_every_unit_that_is_counted(duration: str) -> None:
    class Tokens(hl.SupervisedTask):
        def count(self, batch: Any) -> tuple[int, int]:
            return len(batch[0]), 3 * len(batch[0])

    result = Trainer(max_duration=duration, folder=False).fit(Tokens(TinyModel(), CE, sgd), tiny_data(2))
    assert result.clock.step == {"70tok": 3, "33sp": 5, "3st": 3, "2ep": 4}[duration]
    assert result.clock.token == 24 * result.clock.step


@pytest.mark.parametrize("key", ["max_duration", "eval_every", "log_every"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_duration_in_tokens_without_tokens(key: str, accumulate: int) -> None:
    """Decision 4: an error at the first batch, before the weights move; not a run that never ends."""
    options: Any = {"max_duration": "2ep", key: "100tok", "accumulate": accumulate}
    model, steps = TinyModel(), []
    note = hl.on("optimizer_step_start")(lambda run: steps.append(run.clock.step))
    with pytest.raises(SetupError, match=r"(?s)tokens.*count"):
        Trainer(callbacks=[note], folder=False, **options).fit(model, tiny_data(), loss=CE, optimizer=sgd)
    assert steps == []
    assert same_tensors(weights_of(model), weights_of(TinyModel()))


def test_a_duration_in_tokens_given_by_extend() -> None:
    model = TinyModel()
    trainer = Trainer(max_duration="1ep", folder=False)
    trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd)
    with pytest.raises(SetupError, match=r"(?s)tokens.*count"):
        trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd, extend="100tok")


def test_tokens_counted_with_a_tensor_stay_plain_numbers() -> None:
    """``mask.sum()`` is what people write; a clock of tensors could not be saved as plain values."""

    class Tokens(hl.SupervisedTask):
        def count(self, batch: Any) -> Any:
            return len(batch[0]), (batch[1] >= 0).sum()

    result = Trainer(max_duration="1ep", folder=False).fit(Tokens(TinyModel(), CE, sgd), tiny_data())
    assert type(result.clock.token) is int
    assert result.clock.token == 32


# -- batches of plain models ---------------------------------------------------------------------


class AsDict(TinyModel):
    def forward(self, x: Tensor, y: Tensor | None = None, note: Any = None) -> Any:
        return super().forward(x)


class OwnLoss(TinyModel):
    """Computes its loss itself, and gives it in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = super().forward(x)
        loss = cross_entropy(logits, y)
        forms = {
            "scalar": loss,
            "dict": {"loss": loss, "logits": logits},
            "attribute": SimpleNamespace(loss=loss, logits=logits),
            "mapping": UserDict({"loss": loss, "logits": logits}),
        }
        return forms[self.form]


def test_tuples_and_lists_are_the_same() -> None:
    assert same_tensors(weights_after(tiny_data()), weights_after([list(batch) for batch in tiny_data()]))


def test_a_named_tuple_is_a_tuple() -> None:
    """The default collate of torch keeps named tuples, so a data set of them gives such batches."""
    assert same_tensors(weights_after(tiny_data()), weights_after([Named(x, y) for x, y in tiny_data()]))


def test_three_parts_are_two_inputs_and_a_target() -> None:
    class TwoInputs(TinyModel):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x) * scale

    model = TwoInputs()
    fit(model=model, train=[(x, torch.ones(()), y) for x, y in tiny_data()])
    assert same_tensors(weights_of(model), weights_after(tiny_data()))


def test_a_dict_calls_the_model_with_keywords_and_the_loss_with_the_target() -> None:
    model = AsDict()
    fit(
        model=model,
        train=[{"x": x, "y": y} for x, y in tiny_data()],
        val=[{"x": x, "y": y} for x, y in tiny_data(2)],
        loss=cross_entropy,
    )
    assert same_tensors(weights_of(model), weights_after(tiny_data()))


@pytest.mark.parametrize("kind", [Pair, Own, FrozenPair])
def test_an_object_is_passed_whole(kind: Any) -> None:
    class Whole(TinyModel):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch.x)

    model = Whole()
    fit(model=model, train=[kind(x, y) for x, y in tiny_data()], loss=lambda out, batch: cross_entropy(out, batch.y))
    assert same_tensors(weights_of(model), weights_after(tiny_data()))


@pytest.mark.parametrize("form", ["scalar", "dict", "attribute", "mapping"])
def test_a_model_with_its_own_loss(form: str) -> None:
    model = OwnLoss(form)
    batches = [{"x": x, "y": y} for x, y in tiny_data()]
    result = fit(model=model, train=batches, val=batches[:2], loss=None)
    assert same_tensors(weights_of(model), weights_after(tiny_data()))
    assert len(result.history["val/loss"]) == 2


def test_a_single_tensor_is_the_input_and_the_target() -> None:
    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    result = fit(model=Auto(), train=[x for x, _ in tiny_data()], loss=nn.MSELoss(), max_duration="9ep")
    assert result.history["train/loss"][-1] < result.history["train/loss"][0]


def test_a_batch_of_one_part_is_that_part() -> None:
    """``DataLoader(TensorDataset(x))`` gives lists with one tensor: the input, and the target of an autoencoder."""
    x = torch.cat([x for x, _ in tiny_data()])
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    models[1].load_state_dict(models[0].state_dict())
    fit(model=models[0], train=DataLoader(TensorDataset(x), batch_size=8), loss=nn.MSELoss())
    fit(model=models[1], train=list(x.split(8)), loss=nn.MSELoss())
    assert same_tensors(weights_of(models[0]), weights_of(models[1]))


@pytest.mark.parametrize("val", [False, True])
def test_no_loss_at_all(val: bool) -> None:
    steps: list[int] = []
    note = hl.on("optimizer_step_start")(lambda run: steps.append(run.clock.step))
    with pytest.raises(SetupError, match=r"(?s)no loss= was given.*pass loss="):
        fit(note, val=tiny_data(2) if val else None, loss=None)
    assert steps == []


def test_predictions_need_no_loss_and_keep_the_order() -> None:
    model, data = TinyModel(), tiny_data(3, last=2)
    trainer = Trainer(folder=False)
    found = trainer.predict(model, data)
    assert torch.equal(found, torch.cat([model(x) for x, _ in data]))
    assert not found.requires_grad
    by_dict = trainer.predict(AsDict(), [{"x": x} for x, _ in data])
    torch.testing.assert_close(by_dict, found)


def test_predictions_of_other_shapes() -> None:
    class Shapes(TinyModel):
        def forward(self, x: Tensor) -> Any:
            return {"pair": (x, x + 1), "ragged": x.flatten(), "none": None, "grid": x[None].expand(len(x), -1, -1)}

    found = Trainer(folder=False).predict(Shapes(), tiny_data(2, batch_size=3, last=2))
    assert [part.shape for part in found["pair"]] == [(5, 4), (5, 4)]
    assert found["ragged"].shape == (20,)
    assert found["none"] == [None, None]
    assert [part.shape for part in found["grid"]] == [(3, 3, 4), (2, 2, 4)]


# -- loaders -------------------------------------------------------------------------------------


class NoLength:
    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class ByIndex:
    """The old protocol: ``__getitem__`` until ``IndexError``."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


class Samples(Dataset[Any]):
    def __init__(self, number: int = 16, fails_at: int | None = None, error: type[Exception] = StopIteration) -> None:
        (self.x, self.y), self.fails_at, self.error = tiny_data(1, number)[0], fails_at, error

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.fails_at:
            raise self.error("inside the data set")
        return self.x[index], self.y[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        x, y = tiny_data(1, 16)[0]
        return iter(list(zip(x, y, strict=True)))


@pytest.mark.parametrize("kind", [tuple, NoLength, ByIndex], ids=lambda kind: kind.__name__)
def test_every_kind_of_loader_trains_the_same(kind: Any) -> None:
    assert same_tensors(weights_after(kind(tiny_data())), weights_after(tiny_data()))


@pytest.mark.parametrize(("workers", "data"), [(0, "map"), (2, "map"), (0, "iterable")])
def test_data_loaders(workers: int, data: str) -> None:
    loader = DataLoader(Samples() if data == "map" else Stream(), batch_size=5, num_workers=workers)
    result = fit(train=loader, val=loader)
    assert (result.clock.step, result.clock.epoch, result.clock.sample) == (8, 2, 32)
    x, y = tiny_data(1, 16)[0]
    expected = list(zip(x.split(5), y.split(5), strict=True))
    model, other = TinyModel(), TinyModel()
    fit(model=model, train=loader)
    fit(model=other, train=expected)
    assert same_tensors(weights_of(model), weights_of(other))


def test_workers_that_persist() -> None:
    loader = DataLoader(Samples(), batch_size=4, num_workers=2, persistent_workers=True)
    assert fit(train=loader, max_duration="3ep").clock.step == 12
    assert fit(train=loader, max_duration="6st").clock.step == 6
    assert fit(train=loader, max_duration="1ep").clock.step == 4


def test_one_loader_with_workers_that_persist_for_training_and_evaluation() -> None:
    """The workers of the sanity check are ended, and no later evaluation may ask them."""
    loader = DataLoader(Samples(), batch_size=4, num_workers=1, persistent_workers=True)
    result = fit(train=loader, val=loader)
    assert result.history.steps("val/loss") == [4, 8]


class Growing(Dataset[Any]):
    """Becomes larger or smaller when somebody says so."""

    samples = tiny_data(1, batch_size=64)[0]
    size = 24

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.samples[0][index], self.samples[1][index]


class GrowingByEpoch(Growing):
    def set_epoch(self, epoch: int) -> None:
        self.size = SIZES[epoch]


class SubClass(DataLoader[Any]):
    """Not rebuilt, but iterated over as it is."""


SIZES = [24, 40, 8]  # samples in each epoch


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        *(("map", when) for when in ("epoch_end", "train_epoch_start", "set_epoch")),
        *((kind, "train_epoch_start") for kind in ("shuffled", "sub-class", "list")),
        ("workers", "set_epoch"),
    ],
)
def test_the_data_may_have_another_size_in_each_epoch(kind: str, when: str) -> None:
    """A replay buffer, a curriculum: what is new must be trained on, and what has gone must not be missed."""
    data, batches, seen = GrowingByEpoch() if when == "set_epoch" else Growing(), tiny_data(3), list[tuple[int, int]]()
    loaders: dict[str, Any] = {
        "map": lambda: DataLoader(data, 8),
        "shuffled": lambda: DataLoader(data, 8, shuffle=True),
        "workers": lambda: DataLoader(data, 8, num_workers=1),
        "sub-class": lambda: SubClass(data, 8),
        "list": lambda: batches,
    }

    class Grow(hl.Callback):
        def _grow(self, epoch: int) -> None:
            if when != "set_epoch" and epoch < len(SIZES):
                data.size = SIZES[epoch]
                batches[:] = tiny_data(SIZES[epoch] // 8)

        def on_train_epoch_start(self, run: hl.Run) -> None:
            if when == "train_epoch_start":
                self._grow(run.clock.epoch)

        def on_epoch_end(self, run: hl.Run) -> None:
            seen.append((run.clock.sample, run.clock.step))
            if when == "epoch_end":
                self._grow(run.clock.epoch)

    fit(Grow(), train=loaders[kind](), max_duration="3ep", accumulate=2)
    assert seen == [(24, 2), (64, 5), (72, 6)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_that_is_all_taken_away_is_an_error_that_says_so(shuffle: bool) -> None:
    data = Growing()
    take = hl.on("epoch_end")(lambda run: setattr(data, "size", 0))
    with pytest.raises(hl.errors.DataError, match="gave no batch in epoch 1"):
        fit(take, train=DataLoader(data, 8, shuffle=shuffle))


def test_loaders_without_a_length_count_epochs() -> None:
    result = fit(train=NoLength(tiny_data(3)), val=NoLength(tiny_data(2)), max_duration="3ep")
    assert (result.clock.epoch, result.clock.step) == (3, 9)
    assert result.history.steps("val/loss") == [3, 6, 9]


def test_the_length_is_believed_only_where_it_is_sure() -> None:
    class Liar(list[Any]):
        pass

    class Sized:
        def __len__(self) -> int:
            return 7

        def __iter__(self) -> Iterator[Any]:
            return iter(tiny_data(3))

    assert sure_length(Liar(tiny_data(3))) == 3
    assert sure_length(Sized()) is None
    assert sure_length(DataLoader(Stream(), batch_size=4)) is None
    assert sure_length(DataLoader(Samples(), batch_size=5)) == 4
    assert fit(train=Sized()).clock.step == 6


def test_a_generator_is_good_for_one_epoch() -> None:
    result = fit(train=(batch for batch in tiny_data(3)), max_duration="1ep")
    assert (result.clock.step, result.clock.epoch) == (3, 1)


def test_a_generator_by_steps() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield from tiny_data(3)

    assert fit(train=endless(), max_duration="8st").clock.step == 8


def test_a_generator_is_used_up_in_the_second_epoch() -> None:
    epochs: list[int] = []
    note = hl.on("epoch_end")(lambda run: epochs.append(run.clock.epoch))
    with pytest.raises(DataError, match=r"(?s)no batch in epoch 1.*generator is used up.*iterated over again"):
        fit(note, train=(batch for batch in tiny_data(3)))
    assert epochs == [1]


def test_a_generator_for_evaluation_is_good_for_one_evaluation() -> None:
    result = fit(train=tiny_data(3), val=(batch for batch in tiny_data(2)), max_duration="1ep")
    assert len(result.history["val/loss"]) == 1
    with pytest.raises(DataError, match="val loader gave no batch"):
        fit(train=tiny_data(3), val=(batch for batch in tiny_data(2)))


def test_only_iterators_are_one_shot() -> None:
    assert is_one_shot(iter([1]))
    assert is_one_shot(x for x in [1])
    assert not is_one_shot([1])
    assert not is_one_shot(NoLength([1]))
    assert not is_one_shot(DataLoader(Samples()))


def test_asking_whether_a_loader_is_one_shot_does_not_iterate_over_it() -> None:
    """A loader may shuffle, or start workers, in ``__iter__``."""
    started: list[int] = []

    class Starts:
        def __iter__(self) -> Iterator[Any]:
            started.append(1)
            return iter(tiny_data(2))

    assert not is_one_shot(Starts())
    assert started == []


def test_a_validation_loader_that_shuffles_by_itself_changes_nothing() -> None:
    """Decision 6: adding an evaluation leaves the weights bitwise the same."""

    class Shuffles:
        def __iter__(self) -> Iterator[Any]:
            batches = tiny_data(4)
            return iter([batches[i] for i in torch.randperm(4).tolist()])

    def trained(val: Any = None) -> list[Tensor]:
        model = TinyModel(dropout=0.5)
        torch.manual_seed(3)
        fit(model=model, train=Shuffles(), val=val, seed=None)
        return list(model.parameters())

    assert same_tensors(trained(), trained(Shuffles()))


# -- empty, short and lying loaders ----------------------------------------------------------------


@pytest.mark.parametrize(
    "empty",
    [[], (), NoLength([]), iter([]), DataLoader(Samples(3), batch_size=4, drop_last=True)],
    ids=["list", "tuple", "no length", "iterator", "drop_last"],
)
@pytest.mark.parametrize("where", ["train", "val", "test", "evaluate", "predict"])
def test_an_empty_loader(empty: Any, where: str) -> None:
    steps: list[int] = []
    note = hl.on("train_step_end")(lambda run: steps.append(run.clock.step))
    with pytest.raises(DataError, match=r"empty|no batch"):
        use(empty, where, callbacks=[note])
    known = not isinstance(empty, NoLength) and not isinstance(empty, type(iter([])))
    if where == "train" or known:
        assert steps == []


def test_an_empty_loader_says_why_it_may_be_empty() -> None:
    with pytest.raises(DataError, match="drop_last=True"):
        fit(train=DataLoader(Samples(3), batch_size=4, drop_last=True))


def test_an_empty_named_loader_is_named() -> None:
    with pytest.raises(DataError, match="val/b loader is empty"):
        fit(val={"a": tiny_data(1), "b": []})
    with pytest.raises(DataError, match="no loaders"):
        fit(val={})


@pytest.mark.parametrize("bad", [5, 2.5, object(), TinyModel()], ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("where", ["train", "val", "evaluate", "predict"])
def test_what_is_no_loader(bad: Any, where: str) -> None:
    with pytest.raises(DataError, match="cannot be iterated over"):
        use(bad, where)


def test_a_dict_of_loaders_where_one_is_meant() -> None:
    """Training takes no named loaders; iterating over the dict would give its keys."""
    with pytest.raises(hl.HooklineError, match=r"(?i)loader"):
        use({"a": tiny_data(), "b": tiny_data()}, "train")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["train", "val"])
def test_a_stop_iteration_inside_a_data_set_is_no_quiet_end(workers: int, where: str) -> None:
    broken = DataLoader(Samples(16, fails_at=13), batch_size=4, num_workers=workers)
    with pytest.raises(
        DataError, match=r"(?s)StopIteration.*batch 3 of epoch 0|ended after 3 of 4 batches.*StopIteration"
    ):
        use(broken, where)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_error_in_a_data_set_arrives_unchanged_with_a_note(workers: int) -> None:
    broken = DataLoader(Samples(16, fails_at=13, error=ZeroDivisionError), batch_size=4, num_workers=workers)
    with pytest.raises(ZeroDivisionError, match="inside the data set") as caught:
        fit(train=broken)
    assert "while fetching a batch, at step 3, epoch 0 (train)" in caught.value.__notes__


def test_a_stop_iteration_in_the_task_or_a_hook_is_an_error() -> None:
    class Stops(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            raise StopIteration

    with pytest.raises((StopIteration, RuntimeError)):
        Trainer(max_duration="1ep", folder=False).fit(Stops(TinyModel(), CE, sgd), tiny_data())

    @hl.on("train_batch_start")
    def hook(run: hl.Run) -> None:
        raise StopIteration

    with pytest.raises((StopIteration, RuntimeError)):
        fit(hook)


class Buckets(Sampler[list[int]]):
    """A batch sampler whose length is an estimate, as those that group by tokens have."""

    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives = says, gives

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[i, i + 1] for i in range(self.gives)])


def test_a_loader_that_gives_more_than_it_said_loses_nothing_in_silence() -> None:
    """All batches, as a bare loop would see them, or an error."""
    loader = DataLoader(Samples(), batch_sampler=Buckets(says=2, gives=4))
    try:
        result = fit(train=loader, max_duration="1ep")
    except DataError:
        return
    assert result.clock.batch == 4


def test_a_sampler_that_gives_less_than_it_said_is_believed() -> None:
    """Its length is an estimate: all that it gives is trained on, as in a bare loop."""
    loader = DataLoader(Samples(), batch_sampler=Buckets(says=4, gives=2))
    assert fit(train=loader, max_duration="1ep").clock.batch == 2


# -- epochs of samplers ------------------------------------------------------------------------------


class Epochs(Sampler[int]):
    """Shuffles by epoch, as ``DistributedSampler`` does."""

    def __init__(self, number: int = 16) -> None:
        self.number = number
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))


def test_a_sampler_is_told_the_epoch() -> None:
    sampler = Epochs()
    fit(train=DataLoader(Samples(), batch_size=4, sampler=sampler), max_duration="3ep")
    assert sampler.told == [0, 1, 2]


def test_a_batch_sampler_is_told_the_epoch() -> None:
    class Batches(Buckets):
        told: list[int]

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

    sampler = Batches(3, 3)
    sampler.told = []
    fit(train=DataLoader(Samples(), batch_sampler=sampler))
    assert sampler.told == [0, 1]


def test_the_sampler_of_a_batch_sampler_is_told_the_epoch() -> None:
    sampler = Epochs()
    loader = DataLoader(Samples(), batch_sampler=BatchSampler(sampler, 4, drop_last=False))
    fit(train=loader)
    assert sampler.told == [0, 1]


def test_a_loader_of_its_own_is_told_the_epoch() -> None:
    class Loader(NoLength):
        told: list[int]

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

    loader = Loader(tiny_data(2))
    loader.told = []
    fit(train=loader)
    assert loader.told == [0, 1]


def test_the_own_loop_takes_the_same_loaders() -> None:
    model = TinyModel()
    loader = DataLoader(TensorDataset(*tiny_data(1, 16)[0]), batch_size=5)
    with Loop(model, sgd, max_duration="2ep", folder=False) as loop:
        for x, y in loop.batches(loader):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert (loop.run.clock.step, loop.run.clock.sample) == (8, 32)


def test_the_loader_is_not_fetched_ahead() -> None:
    """Decision 2: a batch is asked for when the one before it is done."""
    fetched, seen = [], []

    def source() -> Iterator[Any]:
        for number, batch in enumerate(tiny_data(4)):
            fetched.append(number)
            yield batch

    model = TinyModel()
    with Loop(model, sgd, max_duration="1ep", accumulate=2, folder=False) as loop:
        for x, y in loop.batches(source()):
            seen.append(len(fetched))
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert seen == [1, 2, 3, 4]


def test_a_batch_can_be_replaced_by_a_callback() -> None:
    class Scale(hl.Callback):
        writes = ("batch",)

        def on_batch_fetch_end(self, run: hl.Run) -> None:
            x, y = run.batch
            run.batch = (x * 2, y)

    ours, theirs = TinyModel(), TinyModel()
    fit(Scale(), model=ours)
    fit(model=theirs, train=[(x * 2, y) for x, y in tiny_data()])
    assert same_tensors(weights_of(ours), weights_of(theirs))
