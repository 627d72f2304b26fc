"""``LimitBatches``: how many batches each stage takes, and that no more are loaded."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hookline as hl
from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.debug import LimitBatches
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, same_tensors, weights_of

fit_ten_batches = partial(fit, train=tiny_data(10))


class Seen(hl.Callback):
    """The sums of the batches that each stage has taken."""

    def __init__(self) -> None:
        self.batches: dict[str, list[float]] = {}

    def _note(self, run: Any, stage: str) -> None:
        self.batches.setdefault(stage, []).append(run.batch[0].sum().item())

    def on_train_batch_start(self, run: Any) -> None:
        self._note(run, "train")

    def on_eval_batch_start(self, run: Any) -> None:
        self._note(run, run.stage if run.loader_name is None else f"{run.stage}/{run.loader_name}")

    def on_predict_batch_start(self, run: Any) -> None:
        self._note(run, "predict")

    @property
    def counts(self) -> dict[str, int]:
        return {stage: len(batches) for stage, batches in self.batches.items()}


def sums(data: Any) -> list[float]:
    return [x.sum().item() for x, _ in data]


def test_each_stage_takes_so_many_batches_and_they_are_the_first() -> None:
    seen, val, test = Seen(), tiny_data(8, seed=1), tiny_data(8, seed=2)
    result = fit_ten_batches(LimitBatches(train=3, val=2, test=4), seen, val=val, test=test)
    assert result.clock.epoch == 2
    assert seen.batches == {
        "train": sums(tiny_data(10)[:3]) * 2,
        "val": sums(val[:2]) * 2,
        "test": sums(test[:4]),
    }


def test_the_metrics_are_those_of_the_batches_that_were_taken() -> None:
    val = tiny_data(8, seed=1)
    limited = fit_ten_batches(LimitBatches(train=3, val=2), val=val)
    cut = fit_ten_batches(train=tiny_data(10)[:3], val=val[:2])
    assert limited.history["val/loss"] == cut.history["val/loss"]
    assert limited.history["train/loss_epoch"] == cut.history["train/loss_epoch"]


def test_a_stage_that_is_not_named_is_whole() -> None:
    seen = Seen()
    fit_ten_batches(LimitBatches(val=1), seen, val=tiny_data(3), test=tiny_data(5), max_duration="1ep")
    assert seen.counts == {"train": 10, "val": 1, "test": 5}


@pytest.mark.parametrize(("share", "batches"), [(0.5, 5), (0.59, 5), (0.01, 1), (1.0, 10), (1, 1), (25, 10)])
def test_a_share_is_rounded_down_and_one_at_least(share: Any, batches: int) -> None:
    seen = Seen()
    fit_ten_batches(LimitBatches(train=share, test=share), seen, test=tiny_data(10), max_duration="1ep")
    assert seen.counts == {"train": batches, "test": batches}


@pytest.mark.parametrize(("share", "batches"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.07, 7), (0.289, 28)])
def test_a_share_that_is_a_whole_number_of_batches_loses_none_to_rounding(share: float, batches: int) -> None:
    result = fit(LimitBatches(train=share), train=tiny_data(100, batch_size=1), max_duration="1ep")
    assert result.clock.step == batches


def test_a_share_of_named_loaders_is_that_of_each() -> None:
    seen, val = Seen(), {"short": tiny_data(4), "long": tiny_data(10)}
    fit_ten_batches(LimitBatches(val=0.5), seen, val=val, max_duration="1ep")
    assert seen.counts == {"train": 10, "val/short": 2, "val/long": 5}


def test_a_number_is_for_each_of_the_named_loaders() -> None:
    seen, val = Seen(), {"short": tiny_data(1), "long": tiny_data(10)}
    fit_ten_batches(LimitBatches(val=3), seen, val=val, max_duration="1ep")
    assert seen.counts == {"train": 10, "val/short": 1, "val/long": 3}


@pytest.mark.parametrize("limit", [2, 0.25])
@pytest.mark.parametrize("entry", ["evaluate", "test", "predict"])
def test_entry_points_of_their_own_are_limited(entry: str, limit: Any) -> None:
    seen = Seen()
    made = Trainer(callbacks=[LimitBatches(val=limit, test=limit, predict=limit), seen], folder=False)
    arguments: dict[str, Any] = {} if entry == "predict" else {"loss": CE}
    found = getattr(made, entry)(TinyModel(), tiny_data(8), **arguments)
    assert seen.counts == {{"evaluate": "val"}.get(entry, entry): 2}
    if entry == "predict":
        assert len(found) == 2 * 8


def test_an_answer_to_a_hook_is_limited_too() -> None:
    answers: list[Any] = []

    def ask(run: Any) -> None:
        answers.extend((run.evaluate("val")["val/loss"], len(run.predict("val"))))

    val = tiny_data(5, seed=1)
    fit_ten_batches(LimitBatches(val=2, predict=3), LambdaCallback(on_train_start=ask), val=val)
    model = TinyModel()
    with torch.no_grad():
        expected = sum(CE(model(x), y).item() for x, y in val[:2]) / 2
    assert answers == [pytest.approx(expected), 3 * 8]


class Counted(Dataset[Any]):
    """Counts which samples are read."""

    def __init__(self) -> None:
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.read[index] += 1
        return torch.full((4,), float(index)), torch.tensor(index % 3)


def test_what_is_left_out_is_not_loaded() -> None:
    train, val = Counted(), Counted()
    fit_ten_batches(
        LimitBatches(train=2, val=1),
        train=DataLoader(train, batch_size=4),
        val=DataLoader(val, batch_size=4),
        max_duration="1ep",
    )
    assert set(train.read) == set(range(8))
    assert set(val.read) <= set(range(8))  # two batches for the check before training


def test_with_shuffle_each_epoch_has_others_and_a_run_repeats_itself() -> None:
    def samples() -> list[list[float]]:
        seen = Seen()
        fit_ten_batches(
            LimitBatches(train=2), seen, train=DataLoader(Counted(), batch_size=4, shuffle=True), max_duration="2ep"
        )
        return [seen.batches["train"][:2], seen.batches["train"][2:]]

    first, second = samples()
    assert first != second
    assert samples() == [first, second]


def test_data_without_a_length_can_be_limited_by_a_number() -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter(tiny_data(10))

    seen = Seen()
    assert fit_ten_batches(LimitBatches(train=3, val=2), seen, train=Stream(), val=Stream()).clock.epoch == 2
    assert seen.counts == {"train": 6, "val": 4}
    with pytest.raises(SetupError, match=r"LimitBatches\(train=0.5\) is a fraction, .* a Stream, has no length"):
        fit_ten_batches(LimitBatches(train=0.5), train=Stream())
    with pytest.raises(SetupError, match=r"LimitBatches\(val=0.5\) is a fraction, and the val loader"):
        fit_ten_batches(LimitBatches(val=0.5), val=Stream())


def test_an_own_loop_is_limited() -> None:
    model, batches = TinyModel(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limits = LimitBatches(train=0.3, val=0.5)
    with Loop(model, optimizer, callbacks=[limits], max_duration="2ep", eval_every="1ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(10)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                batches += sum(1 for _ in loop.eval_batches(tiny_data(4)))
    assert (loop.run.clock.step, loop.run.clock.epoch, batches) == (6, 2, 4)


def test_accumulation_ends_with_the_shorter_epoch() -> None:
    result = fit_ten_batches(LimitBatches(train=3), accumulate=2)
    assert result.clock.step == 4  # two accumulation windows per epoch, the second one short


def test_a_second_fit_is_limited_again_and_one_without_it_is_not() -> None:
    limits, model = LimitBatches(train=3), TinyModel()
    made = Trainer(max_duration="1ep", folder=False)
    arguments: dict[str, Any] = {"loss": CE, "optimizer": torch.optim.SGD}
    made.fit(model, tiny_data(10), callbacks=[limits], **arguments)
    result = made.fit(model, tiny_data(10), extend="1ep", **arguments)
    assert result.clock.step == 3 + 10


@pytest.mark.parametrize("stopped_at", [2, 4, 5])
def test_a_resume_ends_with_the_same_weights(tmp_path: Path, stopped_at: int) -> None:
    def loader() -> Any:
        x, y = (torch.cat(parts) for parts in zip(*tiny_data(10), strict=True))
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)

    whole, again = TinyModel(dropout=0.2), TinyModel(dropout=0.2)
    options: dict[str, Any] = {"max_duration": "3ep"}
    expected = fit_ten_batches(LimitBatches(train=3, val=0.5), train=loader(), val=tiny_data(4), model=whole, **options)
    stop = at_step(stopped_at + 1, lambda run: run.stop("now"))
    saver = Checkpointer(every=f"{stopped_at}st", at_end=False, on_eval=False)
    run: dict[str, Any] = {"val": tiny_data(4), "folder": tmp_path, **options}
    fit_ten_batches(LimitBatches(train=3, val=0.5), saver, stop, train=loader(), model=TinyModel(dropout=0.2), **run)
    saver = Checkpointer(every="90st")
    found = fit_ten_batches(LimitBatches(train=3, val=0.5), saver, train=loader(), model=again, resume="auto", **run)
    assert found.clock.step == expected.clock.step == 9
    assert found.history["val/loss"] == expected.history["val/loss"]
    assert same_tensors(weights_of(whole), weights_of(again))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"LimitBatches\(\): no limit is given\. Write for example LimitBatches\(train=10, val=0\.1\)\."),
        ({"train": 0}, r"LimitBatches\(train=0\): must be >= 1\. To leave train out, pass no loader for it\."),
        ({"val": 0.0}, r"LimitBatches\(val="),
        ({"test": 1.5}, r"LimitBatches\(test="),
        ({"test": float("nan")}, r"LimitBatches\(test=nan\): must be an integer, a number or None\."),
        ({"predict": True}, r"LimitBatches\(predict=True\): must be an integer, a number or None\."),
        ({"predict": "10%"}, r"LimitBatches\(predict='10%'\)"),
    ],
)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LimitBatches(**options)
