"""The pictures are those of the batch, and what is said about them is what the model said."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hookline as hl
from hookline.callbacks.evaluation._image_grid import (
    FRAME,
    GAP,
    RIGHT,
    SMALLEST,
    STRIP,
    WRONG,
    Tile,
    as_pictures,
    in_rows,
    overlay,
    sheet,
)
from hookline.callbacks.evaluation.image_samples import ImageSamples
from hookline.errors import ArgumentError
from hookline.loop import Loop, Task
from hookline.records import ImageRow
from tests.support import crash_at, fit

NAMES = ("cat", "dog", "owl")
CELL = GAP + SMALLEST + 2 * FRAME
"""From one picture to the next."""


class Kept:
    """A sink that keeps the pictures."""

    def __init__(self) -> None:
        self.rows: list[ImageRow] = []

    def start(self, info: Any) -> None: ...
    def write(self, records: Any) -> None:
        self.rows += [record for record in records if isinstance(record, ImageRow)]

    def flush(self) -> None: ...
    def close(self) -> None: ...


def pictures(count: int = 4, size: int = 8) -> Tensor:
    """Each darker than the one before it."""
    return (1 - 0.2 * torch.arange(count)).view(-1, 1, 1, 1).expand(count, 3, size, size).clone()


class Fixed(Task):
    """Learns nothing, and answers what it was told to."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.outputs = outputs

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return {"loss": self.weight * 1.0, "outputs": self.outputs, "weight": 1}

    def eval_batch(self, run: Any, batch: Any) -> Any:
        return {"loss": torch.zeros(()), "outputs": self.outputs, "weight": 1}

    def count(self, batch: Any) -> Any:
        return 1, None


def images_of(
    callback: ImageSamples, batch: Any, outputs: Any, *others: Any, **given: Any
) -> tuple[list[ImageRow], Any]:
    """The images of a run that has this batch and these outputs everywhere."""
    sink = Kept()
    options = {"train": [batch, batch], "val": [batch, batch], "max_duration": "1ep", "sinks": [sink], **given}
    return sink.rows, fit(callback, *others, model=Fixed(outputs), **options)


def shown(callback: ImageSamples, batch: Any, outputs: Any) -> ImageRow:
    rows, result = images_of(callback, batch, outputs)
    assert not result.failures
    (row,) = rows
    return row


def pixels(row: ImageRow) -> Tensor:
    """In the shape (height, width, 3)."""
    image = Image.open(BytesIO(row.png))
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)


def frames(row: ImageRow, count: int) -> list[tuple[int, ...]]:
    """The colours of the frames of the first row."""
    found = pixels(row)
    return [tuple(found[GAP + 1, GAP + 1 + number * CELL].tolist()) for number in range(count)]


def middles(row: ImageRow, count: int, down: int = 0, cell: int = 0) -> list[tuple[int, ...]]:
    found = pixels(row)
    y = GAP + FRAME + SMALLEST // 2 + down * cell
    return [tuple(found[y, GAP + FRAME + SMALLEST // 2 + number * CELL].tolist()) for number in range(count)]


CLASSES = torch.tensor([0, 1, 2, 1])
LOGITS = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [9.0, 0, 0], [0, 9.0, 0]])


# -- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        (pictures(), CLASSES),
        [pictures(), CLASSES],
        (pictures(), torch.zeros(4), CLASSES),
        {"image": pictures(), "label": CLASSES},
        {"pixel_values": pictures(), "labels": CLASSES, "attention_mask": torch.ones(4)},
        {"id": torch.zeros(4), "x": pictures(), "y": CLASSES},
    ],
    ids=["tuple", "list", "three", "dict", "hub", "x-y"],
)
def test_each_picture_has_its_class_and_says_whether_it_is_right(batch: Any) -> None:
    row = shown(ImageSamples(count=3, classes=NAMES), batch, LOGITS)
    assert (row.name, row.step) == ("val/samples", 2)
    assert row.caption == "cat, dog, cat (true: owl)"
    assert frames(row, 3) == [RIGHT, RIGHT, WRONG]
    assert middles(row, 3) == [(255,) * 3, (204,) * 3, (153,) * 3]


def test_classes_without_names_are_numbers() -> None:
    assert shown(ImageSamples(), (pictures(), CLASSES), LOGITS).caption == "0, 1, 0 (true: 2), 1"


@pytest.mark.parametrize("outputs", [{"logits": LOGITS}, {"loss": torch.zeros(()), "out": LOGITS}, (LOGITS, None)])
def test_outputs_may_be_a_dict_or_a_tuple(outputs: Any) -> None:
    assert shown(ImageSamples(), (pictures(), CLASSES), outputs).caption == "0, 1, 0 (true: 2), 1"


def test_only_so_many_are_shown_as_are_wanted_or_there() -> None:
    assert shown(ImageSamples(count=2), (pictures(), CLASSES), LOGITS).caption == "0, 1"
    assert shown(ImageSamples(count=9), (pictures(), CLASSES), LOGITS).caption == "0, 1, 0 (true: 2), 1"


def test_a_number_is_shown_beside_the_true_one_and_is_neither_right_nor_wrong() -> None:
    row = shown(ImageSamples(), (pictures(2), torch.tensor([1.0, 2.0])), torch.tensor([[1.0], [2.5]]))
    assert row.caption == "1, 2.5 (true: 2)"
    assert not {RIGHT, WRONG} & set(frames(row, 2))


def test_many_labels_a_picture_are_not_taken_for_one() -> None:
    row = shown(ImageSamples(count=3), (pictures(), LOGITS.bool().float()), LOGITS)
    assert not {RIGHT, WRONG} & set(frames(row, 3))


def test_outputs_that_say_nothing_about_pictures_leave_the_pictures() -> None:
    assert shown(ImageSamples(), (pictures(), CLASSES), "text").caption == "0, 1, 2, 1"
    assert shown(ImageSamples(), pictures(), None).caption == ""


def test_texts_of_ones_own_are_shown() -> None:
    def captions(run: Any) -> list[str]:
        return [f"a {NAMES[number]}" for number in run.outputs.argmax(1).tolist()]

    row = shown(ImageSamples(predictions=captions, targets=lambda run: None), (pictures(), CLASSES), LOGITS)
    assert row.caption == "a cat, a dog, a cat, a dog"


def test_pictures_and_targets_can_be_anywhere() -> None:
    batch = {"meta": {"scan": pictures(), "truth": CLASSES}}
    callback = ImageSamples(
        inputs=lambda run: run.batch["meta"]["scan"], targets=lambda run: run.batch["meta"]["truth"], classes=NAMES
    )
    assert shown(callback, batch, LOGITS).caption == "cat, dog, cat (true: owl), dog"


def test_without_pillow_the_labels_are_in_the_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    with_labels = shown(ImageSamples(count=3), (pictures(), CLASSES), LOGITS)
    monkeypatch.setitem(sys.modules, "PIL", None)
    row = shown(ImageSamples(count=3), (pictures(), CLASSES), LOGITS)
    monkeypatch.undo()
    assert row.caption == with_labels.caption
    assert with_labels.height == row.height + 2 * STRIP  # the true class, and the predicted one below it
    assert frames(row, 3) == [RIGHT, RIGHT, WRONG]


@pytest.mark.parametrize("label", ["x" * 500, "精度 ☃", "two\nlines", "<b>"])
def test_any_label_can_be_written(label: str) -> None:
    assert shown(ImageSamples(predictions=lambda run: [label] * 4), (pictures(), CLASSES), LOGITS).png


# -- masks and pictures --------------------------------------------------------------------------


def test_masks_are_colours_over_the_pictures_true_and_predicted() -> None:
    true = torch.zeros(2, 8, 8, dtype=torch.long)
    true[1] = 2
    logits = torch.zeros(2, 3, 8, 8)
    logits[0, 1] = 9.0
    logits[1, 2] = 9.0
    black = torch.zeros(2, 3, 8, 8)
    row = shown(ImageSamples(classes=NAMES), (black, true), logits)
    assert row.caption == "images, true, predicted: cat, dog, owl"
    cell = SMALLEST + 2 * FRAME + STRIP + GAP
    picture, truth, predicted = (middles(row, 2, down, cell) for down in range(3))
    assert picture == [(0, 0, 0), (0, 0, 0)]
    assert truth[0] == (0, 0, 0)
    assert truth[1] != (0, 0, 0)
    assert predicted[1] == truth[1]
    assert predicted[0] not in (truth[1], (0, 0, 0))


def test_one_channel_is_the_mask_of_one_class() -> None:
    true = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    row = shown(ImageSamples(), (pictures(2), true), torch.tensor([-3.0, 3.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8))
    assert row.caption == "images, true, predicted: 0, 1"


def test_masks_of_ones_own_need_no_true_ones() -> None:
    masks = torch.ones(4, 8, 8, dtype=torch.long)
    row = shown(ImageSamples(masks=lambda run: masks), (pictures(), CLASSES), None)
    assert row.caption == "images, predicted: 1"


def test_what_is_ignored_in_a_mask_stays_as_it_is() -> None:
    picture = torch.full((3, 2, 2), 100, dtype=torch.uint8)
    found = overlay(picture, torch.tensor([[0, -1], [255, 1]]))
    assert (found[:, 0, 0] == 100).all()
    assert (found[:, 0, 1] == 100).all()
    assert (found[:, 1, 0] == 100).all()
    assert (found[:, 1, 1] != 100).any()


def test_a_smaller_mask_is_enlarged() -> None:
    mask = torch.tensor([[0, 1], [0, 1]])
    found = overlay(torch.zeros(3, 4, 4, dtype=torch.uint8), mask)
    assert (found[:, :, :2] == 0).all()
    assert found[:, :, 2:].any()


def test_outputs_that_are_pictures_are_a_row_below() -> None:
    row = shown(ImageSamples(), (pictures(2), pictures(2)), 1 - pictures(2))
    assert middles(row, 2) == [(255,) * 3, (204,) * 3]
    assert middles(row, 2, 1, SMALLEST + 2 * FRAME + GAP) == [(0,) * 3, (51,) * 3]


# -- pixels --------------------------------------------------------------------------------------


def test_values_outside_of_0_to_1_are_scaled_for_each_picture_alone() -> None:
    values = torch.tensor([[-2.0, 2.0], [0.25, 0.5]]).view(2, 1, 1, 2)
    assert as_pictures(values, normalize=True)[:, 0, 0].tolist() == [[0, 255], [64, 128]]  # type: ignore[index]
    assert as_pictures(values, normalize=False)[:, 0, 0].tolist() == [[0, 255], [64, 128]]  # type: ignore[index]
    values[0, 0, 0] = torch.tensor([1.0, 3.0])
    assert as_pictures(values, normalize=True)[:, 0, 0].tolist() == [[0, 255], [64, 128]]  # type: ignore[index]
    assert as_pictures(values, normalize=False)[:, 0, 0].tolist() == [[255, 255], [64, 128]]  # type: ignore[index]


def test_pictures_of_every_kind_become_bytes() -> None:
    rows = [
        (torch.full((2, 1, 4, 4), 7, dtype=torch.uint8), 7),
        (torch.full((2, 4, 4), 0.2), 51),
        (torch.full((2, 5, 5, 3), 0.2), 51),
        (torch.full((2, 4, 4, 4), 0.2), 51),
        (torch.full((2, 1, 4, 4), 200), 200),
        (torch.ones(2, 1, 4, 4, dtype=torch.bool), 255),
        (torch.full((2, 3, 4, 4), 0.2, dtype=torch.bfloat16), 51),
        (torch.full((2, 3, 4, 4), float("nan")), 0),
        (torch.full((2, 3, 4, 4), float("inf")), 255),
        (torch.full((2, 3, 4, 4), 5.0), 0),
    ]
    wrong = []
    for values, first in rows:
        found = as_pictures(values, normalize=True)
        assert found is not None, values
        size = 5 if values.shape[1] == 5 else 4
        if (found.dtype, tuple(found.shape), int(found[0, 0, 0, 0])) != (torch.uint8, (2, 3, size, size), first):
            wrong.append((values, found))
    assert wrong == []


def test_small_pictures_are_enlarged_and_large_ones_made_smaller() -> None:
    small = sheet([[Tile(torch.zeros(3, 8, 4, dtype=torch.uint8))]])
    large = sheet([[Tile(torch.zeros(3, 1000, 2000, dtype=torch.uint8))]])
    assert small.shape == (3, 112 + 2 * FRAME + 2 * GAP, 56 + 2 * FRAME + 2 * GAP)
    assert large.shape == (3, 128 + 2 * FRAME + 2 * GAP, 256 + 2 * FRAME + 2 * GAP)


@pytest.mark.parametrize(("count", "lengths"), [(1, [1]), (2, [2]), (8, [4, 4]), (12, [4, 4, 4]), (7, [4, 3])])
def test_tiles_are_in_rows_of_nearly_the_same_length(count: int, lengths: list[int]) -> None:
    tiles = [Tile(torch.zeros(3, 1, 1, dtype=torch.uint8))] * count
    assert [len(row) for row in in_rows(tiles)] == lengths


# -- when ----------------------------------------------------------------------------------------


def steps(callback: ImageSamples, **options: Any) -> list[tuple[str, int]]:
    rows, result = images_of(callback, (pictures(), CLASSES), LOGITS, **options)
    assert not result.failures
    return [(row.name, row.step) for row in rows]


def test_an_evaluation_is_shown_when_it_is_due_and_only_its_first_batch() -> None:
    assert steps(ImageSamples(), max_duration="3ep") == [("val/samples", 2), ("val/samples", 4), ("val/samples", 6)]
    assert steps(ImageSamples("2ep"), max_duration="5ep") == [("val/samples", 4), ("val/samples", 8)]
    assert steps(ImageSamples("4st"), max_duration="5ep", eval_every="1st") == [("val/samples", 4), ("val/samples", 8)]


def test_each_loader_has_its_pictures() -> None:
    batch = (pictures(), CLASSES)
    found = steps(ImageSamples(), val={"clean": [batch, batch], "noisy": [batch]})
    assert found == [("val/clean/samples", 2), ("val/noisy/samples", 2)]


def test_a_test_is_shown_when_it_is_asked_for() -> None:
    batch = (pictures(), CLASSES)
    assert steps(ImageSamples(stage="test"), test=[batch, batch]) == [("test/samples", 2)]


def test_training_is_shown_when_metrics_are_ready() -> None:
    found = steps(ImageSamples("2st", stage="train"), max_duration="3ep", log_every="1st")
    assert found == [("train/samples", 2), ("train/samples", 4), ("train/samples", 6)]


def test_a_run_that_goes_on_does_not_show_the_same_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "resume": "auto", "max_duration": "4ep"}
    batch = (pictures(), CLASSES)

    with pytest.raises(RuntimeError, match="planted"):
        images_of(ImageSamples("2ep"), batch, LOGITS, hl.Checkpointer(every="1ep"), crash_at(5), **options)
    rows, _ = images_of(ImageSamples("2ep"), batch, LOGITS, **options)
    assert [row.step for row in rows] == [8]
    names = sorted(path.name for path in (tmp_path / "media" / "val" / "samples").iterdir())
    assert names == ["step-00000004.png", "step-00000008.png"]


def test_an_own_loop_that_does_not_say_what_it_computed_shows_the_pictures() -> None:
    sink, model = Kept(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"max_duration": "1ep", "folder": False, "sinks": [sink]}
    with Loop(model, optimizer, callbacks=[ImageSamples(classes=NAMES)], **options) as loop:
        for _ in loop.batches([(pictures(), CLASSES)]):
            loop.backward(model(torch.ones(1, 1)).sum())
            loop.step()
            if loop.eval_due:
                for _ in loop.eval_batches([(pictures(), CLASSES)]):
                    loop.run.log({"loss": 1.0})
    assert [row.caption for row in sink.rows] == ["cat, dog, owl, dog"]


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "batch", "text"),
    [
        (ImageSamples(), (torch.zeros(4, 7), CLASSES), r"\(4, 7\) is not a batch of images"),
        (ImageSamples(), (torch.zeros(4, 5, 8, 8), CLASSES), r"\(4, 5, 8, 8\) is not a batch of images"),
        (ImageSamples(), {"words": torch.zeros(4)}, "NoneType is not a batch of images"),
        (ImageSamples(), ("words", CLASSES), "str is not a batch of images"),
        (ImageSamples(predictions=lambda run: ["one"]), (pictures(), CLASSES), "1 predictions for 4 images"),
        (ImageSamples(masks=lambda run: torch.zeros(4)), (pictures(), CLASSES), r"\(count, height, width\)"),
    ],
    ids=["flat", "channels", "dict", "text", "few", "masks"],
)
def test_what_cannot_be_shown_is_said_and_stops_nothing(callback: ImageSamples, batch: Any, text: str) -> None:
    rows, result = images_of(callback, batch, LOGITS)
    assert rows == []
    assert result.clock.step == 2
    (failure,) = result.failures
    assert failure.callback == "ImageSamples"
    with pytest.raises(Exception, match=text):
        raise failure.error


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"ImageSamples\(stage='validation'\): must be 'train', 'val' or 'test'\."):
        ImageSamples(stage="validation")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"count=0\): must be from 1 to 64"):
        ImageSamples(count=0)
