"""``hookline checkpoints consolidate``: plain weights out of any checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hookline.checkpoint import Snapshot, Store
from hookline.cli.main import main
from tests.checkpoint.sharded_checkpoints import ABOUT, SHARD, save_sharded


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))


@pytest.fixture(params=["plain", "sharded"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a run with one checkpoint, written by one process or as ranks do."""
    weights = model().state_dict()
    store = Store(tmp_path / "run" / "checkpoints")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    if request.param == "plain":
        store.save(Snapshot(ABOUT, weights, {}))
        return tmp_path / "run"
    sharded = {
        f"weights/{name}": (value, (min(2, value.shape[0]), *(1 for _ in value.shape[1:])) if value.ndim else ())
        for name, value in weights.items()
        if "running" not in name
    }
    save_sharded(store.folder, {name: value for name, value in weights.items() if "running" in name}, sharded)
    return tmp_path / "run"


def test_the_file_loads_into_a_bare_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "consolidate", str(run), "--to", str(tmp_path / "out.safetensors")]) == 0
    found = load_file(tmp_path / "out.safetensors")
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))
    bare.load_state_dict(found)
    for name, value in model().state_dict().items():
        assert torch.equal(bare.state_dict()[name], value)
    assert "step-00000005: 9 tensors" in capsys.readouterr().out


def test_one_checkpoint_is_named_and_the_file_lies_in_the_runs_folder(run: Path) -> None:
    assert main(["checkpoints", "consolidate", str(run / "checkpoints" / "step-00000005")]) == 0
    assert (run / "step-00000005.safetensors").stat().st_mode & 0o777 == 0o600
    assert [its.name for its in Store(run / "checkpoints").checkpoints()] == ["step-00000005"]


def test_a_file_that_is_there_stays_unless_it_is_said_otherwise(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "mine.safetensors"
    there.write_text("mine")
    command = ["checkpoints", "consolidate", str(run), "--to", str(there)]
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert len(load_file(there)) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.safetensors", "run"]


def test_a_checkpoint_that_is_damaged_gives_no_file(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / "step-00000005"
    name = SHARD if (folder / SHARD).exists() else "model.safetensors"
    data = bytearray((folder / name).read_bytes())
    data[-50] ^= 1
    (folder / name).write_bytes(data)
    assert main(["checkpoints", "consolidate", str(folder), "--to", str(tmp_path / "out.safetensors")]) == 2
    assert not (tmp_path / "out.safetensors").exists()


def test_into_the_checkpoint_itself_it_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run / "checkpoints" / "step-00000005"
    assert main(["checkpoints", "consolidate", str(folder), "--to", str(folder / "w.safetensors")]) == 2
    assert "is inside the checkpoint" in capsys.readouterr().err
    Store(folder.parent).verify(folder)
