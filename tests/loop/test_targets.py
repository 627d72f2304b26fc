"""The target of a batch is the same for the loss and for every callback that looks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, sgd

PAIRS = tiny_data(3)
TARGET_KEYS = ("labels", "label", "targets", "target", "y", "masks", "mask")
"""As the documentation lists them: the first one that a batch has is its target."""
FAST: dict[str, Any] = {"max_duration": "1ep", "device": "cpu"}


class TakesAll(TinyModel):
    """Takes whatever else a batch holds."""

    def forward(self, x: Tensor, **others: Tensor) -> Tensor:
        return super().forward(x)


def dicts(*keys: str) -> list[dict[str, Tensor]]:
    """The first of the keys has the classes, the others have wrong ones."""
    return [{"x": x, **{key: y if key == keys[0] else (y + 1) % 3 for key in reversed(keys)}} for x, y in PAIRS]


@pytest.mark.parametrize("keys", [TARGET_KEYS[at:] for at in range(len(TARGET_KEYS))], ids=lambda keys: keys[0])
def test_a_dict_with_a_target_trains_as_a_pair_does(keys: tuple[str, ...], tmp_path: Path) -> None:
    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).float()

    found = []
    for number, data in enumerate((PAIRS, dicts(*keys))):
        model = TakesAll() if len(keys) > 1 else TinyModel()
        result = hl.fit(
            model, data, data, loss=CE, optimizer=sgd, folder=tmp_path / str(number),
            callbacks=[hl.Metrics({"acc": accuracy}), hl.SaveAtEnd(source=False)], **FAST,
        )  # fmt: skip
        saved = load_file(tmp_path / str(number) / "final" / "predictions-val.safetensors")
        found.append((result.metrics["val/loss"], result.metrics["val/acc"], saved["labels"].tolist()))
        assert torch.equal(hl.predict(model, data, folder=False, device="cpu"), saved["predictions"])
    assert found[0] == found[1]


def test_image_samples_show_the_target_that_the_loss_is_given(tmp_path: Path) -> None:
    image, right, wrong = torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 2, 2])
    given = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

        def forward(self, image: Tensor, **others: Tensor) -> Any:
            return self.net(image)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        given.append(targets.tolist())
        return nn.functional.cross_entropy(outputs, targets)

    pictures = []
    for name, batch in {"both": {"image": image, "target": wrong, "labels": right}, "pair": (image, right)}.items():
        torch.manual_seed(0)
        folder = tmp_path / name
        model = Net()
        hl.fit(model, [batch], [batch], loss=loss, optimizer=sgd, folder=folder, callbacks=[hl.ImageSamples()], **FAST)
        (path,) = folder.rglob("*.png")
        pictures.append(path.read_bytes())
    assert set(map(tuple, given)) == {tuple(right.tolist())}
    assert pictures[0] == pictures[1]


def test_a_model_that_takes_the_target_gets_it() -> None:
    class Teacher(TinyModel):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            assert labels is not None
            return super().forward(x)

    data = dicts("labels")
    result = hl.fit(Teacher(), data, data, loss=CE, optimizer=sgd, folder=False, **FAST)
    plain = hl.fit(TinyModel(), PAIRS, PAIRS, loss=CE, optimizer=sgd, folder=False, **FAST)
    assert result.metrics["val/loss"] == plain.metrics["val/loss"]


def test_a_loss_function_gets_the_whole_dict_if_it_has_no_target() -> None:
    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return (outputs - batch["x"].sum()).square().mean()

    hl.fit(TinyModel(), [{"x": x} for x, _ in PAIRS], loss=loss, optimizer=sgd, folder=False, **FAST)


@pytest.mark.parametrize("words", ["CUDA out of memory", "Cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_the_finder_and_the_report_hear_the_same_errors(words: str, tmp_path: Path) -> None:
    class Fails(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 8:
                try:
                    raise RuntimeError(words)
                except RuntimeError as error:
                    raise ValueError("a library says it in its own words") from error
            return super().forward(x)

    data = [(torch.zeros(9, 4), torch.zeros(9, dtype=torch.long))]
    with pytest.raises(ValueError, match="its own words"):
        hl.fit(
            Fails(),
            data,
            loss=CE,
            optimizer=sgd,
            folder=tmp_path,
            callbacks=[hl.OOMReport()],
            **FAST,
        )
    assert list((tmp_path / "oom").iterdir())
    samples = torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64, dtype=torch.long))
    loader = torch.utils.data.DataLoader(samples, batch_size=2)
    finder = hl.BatchSizeFinder(max_val=64, margin=0.0, plot=False)
    hl.fit(Fails(), loader, loss=CE, optimizer=sgd, folder=False, callbacks=[finder], **FAST)
    assert finder.size == 8
