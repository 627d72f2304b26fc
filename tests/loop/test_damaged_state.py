"""A damaged state.json gives a Hookline error that names the file, or a resume."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import fit

STATE, MANIFEST = "state.json", "manifest.json"


def train_and_save(folder: Path, duration: str, **options: Any) -> Any:
    model = TinyModel()
    optimizer = torch.optim.Adam(model.parameters())
    return fit(
        hl.Checkpointer("3st", at_end=False),
        hl.EarlyStopping("val/loss", patience=50),
        hl.ProgressBar(style=None),
        model=model,
        val=tiny_data(1),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        max_duration=duration,
        folder=folder,
        log_every="1st",
        eval_every="2st",
        **options,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    train_and_save(folder, "3st")
    return folder


def resume(saved: Path, folder: Path, text: str) -> None:
    """Resume from a checkpoint whose ``state.json`` has this text and whose hashes are right."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    path = folder / "checkpoints" / "step-00000003"
    (path / STATE).write_text(text)
    body = json.loads((path / MANIFEST).read_bytes())
    del body["sha256"]
    body["files"][STATE] = {"size": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    rest = json.dumps(body, indent=1)[2:].encode()
    (path / MANIFEST).write_bytes(f'{{"sha256": "{hashlib.sha256(rest).hexdigest()}",\n'.encode() + rest)
    train_and_save(folder, "4st", resume=path)


def problem_of(saved: Path, folder: Path, text: str) -> str:
    """Empty if the run resumes, or stops with a Hookline error that names the file."""
    try:
        resume(saved, folder, text)
    except hl.HooklineError as error:
        told = f"{error} {getattr(error, '__notes__', '')}"
        return "" if f"step-00000003/{STATE}" in told else f"does not name the file: {error}"
    except Exception as error:
        return f"bare: {type(error).__name__}: {error}"
    return ""


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value; not those inside the state of a callback, which only the callback can judge."""
    if len(above) == 3 and above[0] == "callbacks":
        return
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


def changed(tree: Any, place: tuple[Any, ...], *value: Any) -> str:
    """Without the value at a place, or with another one there."""
    tree = copy.deepcopy(tree)
    at = tree
    for key in place[:-1]:
        at = at[key]
    if value:
        at[place[-1]] = value[0]
    else:
        del at[place[-1]]
    return json.dumps(tree)


def value_at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def kind(value: Any) -> type:
    """The type of the value. Integers and floats are one kind: JSON does not tell them apart."""
    return float if type(value) is int else type(value)


def test_the_checkpoint_as_it_is_resumes(saved: Path, tmp_path: Path) -> None:
    resume(saved, tmp_path / "run", (saved / "checkpoints" / "step-00000003" / STATE).read_text())


@pytest.mark.parametrize("chosen", ["some", "all"])
def test_any_value_that_is_missing_or_of_another_kind_is_an_error_with_the_file_or_does_no_harm(
    saved: Path, tmp_path: Path, chosen: str
) -> None:
    tree = json.loads((saved / "checkpoints" / "step-00000003" / STATE).read_text())
    found = list(places(tree))
    assert len(found) > 100
    cases: list[tuple[Any, ...]] = [(place,) for place in found]
    wrong: tuple[Any, ...] = (None, "x", {}, [], 3)
    cases += [(place, value) for place in found for value in wrong if kind(value) is not kind(value_at(tree, place))]
    if chosen == "some":
        cases = random.Random(0).sample(cases, 40)
    problems = [(case, problem_of(saved, tmp_path / "run", changed(tree, *case))) for case in cases]
    assert [(case, problem) for case, problem in problems if problem] == []


@pytest.mark.parametrize("depth", [50, 150, 400, 900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a": ', '{"$tuple": ['])
def test_any_depth_is_an_error_with_the_file(saved: Path, tmp_path: Path, depth: int, opening: str) -> None:
    closing = opening[::-1].translate(str.maketrans("[{", "]}", '"a:$tuple '))
    text = (saved / "checkpoints" / "step-00000003" / STATE).read_text()
    nested = text.rstrip()[:-1] + f', "more": {opening * depth}1{closing * depth}}}'
    assert problem_of(saved, tmp_path / "run", nested) == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", '{"clock": {}}', '{"clock": null, "callbacks": 3}', "{"])
def test_a_state_with_next_to_nothing_is_an_error_with_the_file(saved: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(hl.HooklineError, match=f"step-00000003/{STATE}"):
        resume(saved, tmp_path / "run", text)


class Growing(torch.optim.lr_scheduler.LRScheduler):
    """A user's scheduler with a value that changes its kind."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.drops: tuple[int, ...] | None = None
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.drops = (*(self.drops or ()), self.last_epoch)
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize("log_every", ["1st", "0.001s", "0.25dur", "1ep", None])
def test_an_intact_checkpoint_is_never_taken_for_a_damaged_one(log_every: str | None, tmp_path: Path) -> None:
    @hl.on("setup")
    def before(run: hl.Run) -> None:
        run.messages.send("note", 0)

    @hl.on("train_step_end")
    def later(run: hl.Run) -> None:
        run.messages.send("note", "text")
        run.optimizers["SGD"].param_groups[0]["tag"] = "head"
        if run.clock.step == 5:
            raise RuntimeError("planted")

    def train(*callbacks: object) -> hl.Result:
        callbacks = (hl.ProgressBar(style=None), hl.Checkpointer(every="2st"), before, *callbacks)
        options: dict[str, Any] = {"max_duration": "3ep", "folder": tmp_path, "resume": "auto", "log_every": log_every}
        return fit(*callbacks, scheduler=Growing, **options)

    with pytest.raises(RuntimeError, match="planted"):
        train(later)
    assert train().clock.step == 12
