"""Each image gets a rectangle of another image, and the losses count in proportion to the areas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookline.callbacks import Checkpointer, CutMix, LambdaCallback
from hookline.errors import ArgumentError, SetupError
from hookline.testing import tiny_data
from tests.support import CE, crash_at, fit, same_tensors


def images(batches: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Image i of a batch has the value i + 1 everywhere."""
    return [(torch.arange(1.0, 9.0)[:, None, None, None].expand(8, 1, 6, 5), torch.arange(8) % 3)] * batches


def flat_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(30, 3))


def test_a_rectangle_of_one_other_image_and_its_area_in_the_loss() -> None:
    """The loss that is logged is computed again from the pixels that the model got."""
    found: list[tuple[Tensor, Tensor, float]] = []

    def note(run: Any) -> None:
        found.append((run.batch[0].clone(), run.outputs.detach(), run.loss.item()))

    fit(CutMix(), LambdaCallback(on_backward_start=note), model=flat_model(), train=images(30), max_duration="1ep")
    areas = []
    for mixed, outputs, loss in found:
        targets = torch.arange(8) % 3
        others = targets.clone()
        area = 0
        for number, image in enumerate(mixed[:, 0]):
            pasted = image != number + 1
            if pasted.any():
                rows, columns = pasted.any(1).nonzero(), pasted.any(0).nonzero()
                area = int(pasted.sum())
                assert area == (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)  # a full rectangle
                assert len(image[pasted].unique()) == 1
                others[number] = targets[int(image[pasted][0]) - 1]
        kept = 1 - area / 30
        areas.append(area)
        expected = kept * CE(outputs, targets) + (1 - kept) * CE(outputs, others)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert len(set(areas)) > 5


def test_a_run_that_crashed_resumes_bitwise(tmp_path: Path) -> None:
    whole = fit(CutMix(), model=flat_model(), train=images())
    with pytest.raises(RuntimeError, match="planted"):
        fit(CutMix(), Checkpointer("3st"), crash_at(5), model=flat_model(), train=images(), folder=tmp_path)
    result = fit(CutMix(), model=flat_model(), train=images(), folder=tmp_path, resume="auto")
    assert same_tensors(result.model.state_dict(), whole.model.state_dict())
    assert not same_tensors(whole.model.state_dict(), fit(model=flat_model(), train=images()).model.state_dict())


def test_the_images_of_the_user_do_not_change() -> None:
    given = [(x.clone(), y) for x, y in images()]
    fit(CutMix(), model=flat_model(), train=given)
    assert all(torch.equal(x, images()[0][0]) for x, _ in given)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(SetupError, match=r"CutMix: the inputs have the shape \(8, 4\)\. Give images"):
        fit(CutMix(), train=tiny_data())
    with pytest.raises(ArgumentError, match=r"CutMix\(alpha=-1\): must be"):
        CutMix(-1)
