"""Machines without a common disk: each has the checkpoint of an address from which rank zero resumes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hookline.callbacks import Checkpointer
from hookline.testing import tiny_data
from tests.support import fit

NEWEST = "checkpoints/step-00000004"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder at the address, with two checkpoints."""
    result = fit(Checkpointer("2st", keep_last=None), train=tiny_data(4), max_duration="1ep", folder=tmp_path / "there")
    return Path(result.folder)


@pytest.mark.parametrize("zero", ["nothing", "all"])
@pytest.mark.parametrize("other", ["nothing", "damaged", "the disk of rank zero"])
def test_each_machine_has_the_checkpoint_from_which_rank_zero_resumes(
    ranks: Any, tmp_path: Path, there: Path, zero: str, other: str
) -> None:
    one, two = tmp_path / "one", tmp_path / ("two" if other != "the disk of rank zero" else "one")
    rows = (there / "metrics.jsonl").read_text()
    one.mkdir()
    if zero == "all":
        shutil.copytree(there, one, dirs_exist_ok=True)
        (one / "metrics.jsonl").write_text(rows + "\n")  # What rank zero has may be longer.
    if other == "damaged":
        shutil.copytree(there, two)
        weights = bytearray((two / NEWEST / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (two / NEWEST / "model.safetensors").write_bytes(weights)
    found = ranks.values(
        "cases_of_remote_folder.py:bring",
        2,
        env={"LOCAL_RANK": "0"},
        address=f"local://{there}",
        folders=[str(one), str(two)],
    )
    assert [its["newest"] for its in found] == ["step-00000004"] * 2
    assert found[0]["rows"] == (rows + "\n" if zero == "all" else rows)
    assert found[1]["rows"].startswith(rows)
