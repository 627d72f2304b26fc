"""What a power cut would find: everything is synced before the name is given, and the name after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookline.checkpoint import About, Snapshot, Store

Event = tuple[str, str]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Every change of the disk in its order, by the name of the file; the real thing happens, too."""
    events: list[Event] = []

    def by_descriptor(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(file: int, *args: Any) -> Any:
            events.append((name, Path(os.readlink(f"/proc/self/fd/{file}")).name))
            return real(file, *args)

        return call

    def by_path(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any, *args: Any, **options: Any) -> Any:
            events.append((name, Path(path).name))
            return real(path, *args, **options)

        return call

    for name in ("write", "fsync"):
        monkeypatch.setattr(os, name, by_descriptor(name))
    for name in ("mkdir", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, by_path(name))
    return events


def snapshot() -> Snapshot:
    about = About(step=3, epoch=0, batch=0, sample=0, seconds=0.0, run="r")
    return Snapshot(about, {"w": torch.ones(4)}, {"m": torch.ones(2)})


def test_every_file_then_the_folder_is_synced_before_the_rename_and_the_parent_after_it(
    tmp_path: Path, watched: list[Event]
) -> None:
    Store(tmp_path / "run" / "checkpoints").save(snapshot())
    temporary = next(name for act, name in watched if act == "rename")
    rename = watched.index(("rename", temporary))
    assert watched[:5] == [
        ("mkdir", "run"),
        ("fsync", tmp_path.name),
        ("mkdir", "checkpoints"),
        ("fsync", "run"),
        ("mkdir", temporary),
    ]
    assert watched[rename - 2 :] == [
        ("fsync", "manifest.json"),
        ("fsync", temporary),
        ("rename", temporary),
        ("fsync", "checkpoints"),
    ]
    written = [name for act, name in watched if act == "write"]
    assert list(dict.fromkeys(written)) == ["model.safetensors", "state.safetensors", "state.json", "manifest.json"]
    for name in set(written):
        last_write = max(index for index, event in enumerate(watched) if event == ("write", name))
        assert watched[last_write + 1] == ("fsync", name)
    assert temporary.startswith("step-00000003.tmp-")


def test_a_deleted_one_loses_its_name_for_good_before_its_files_go(tmp_path: Path, watched: list[Event]) -> None:
    store = Store(tmp_path / "checkpoints")
    saved = store.save(snapshot())
    watched.clear()
    store.delete(saved)
    assert watched[:2] == [("rename", saved.name), ("fsync", "checkpoints")]
    assert [act for act, _ in watched[2:]] == ["unlink"] * 4 + ["rmdir"]
    assert watched[-1][1].startswith(f".trash-{saved.name}-")
