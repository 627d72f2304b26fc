"""A callback in a separate package does with the public ``run`` alone what users expect of one of ours.

The package is ``examples/callback_package``: ``KeepBest`` saves the best weights, stops early, logs a figure and
restores its state. ``tests/distributed/test_callback_package.py`` runs it on two ranks.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hookline as hl
from hookline.errors import SetupError
from hookline.testing import check_callback, drive, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, saved_steps, sgd, state_of

PACKAGE = Path(__file__).parents[2] / "examples" / "callback_package" / "src"
SOURCE = PACKAGE / "keepbest" / "__init__.py"


@pytest.fixture
def keep_best(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PACKAGE)
    from keepbest import KeepBest

    return KeepBest


def rising(parameters: Any) -> torch.optim.SGD:
    """An optimizer with which ``val/loss`` falls twice and then rises."""
    return sgd(parameters, lr=1.0, momentum=0.9)


def test_the_best_weights_are_saved_and_loaded_and_training_stops(keep_best: Any, tmp_path: Path) -> None:
    callback = keep_best(patience=2)
    result = fit(callback, val=tiny_data(2), optimizer=rising, max_duration="50ep", folder=tmp_path)
    losses = result.history["val/loss"]
    assert result.stopped_by == "KeepBest"
    assert callback.best == min(losses) == losses[-3]
    assert callback.curve == list(zip(result.history.steps("val/loss"), losses, strict=True))
    assert same_tensors(load_file(tmp_path / "best.safetensors"), state_of(result.model))
    assert hl.evaluate(result.model, tiny_data(2), loss=CE)["val/loss"] == min(losses)
    assert len(list((tmp_path / "media" / "best").rglob("*.png"))) == len(losses)


@pytest.mark.parametrize("crash", [9, 14])
def test_a_resumed_run_ends_as_one_that_was_never_killed(keep_best: Any, tmp_path: Path, crash: int) -> None:
    options: dict[str, Any] = {"val": tiny_data(2), "optimizer": rising, "max_duration": "50ep"}
    whole = keep_best(patience=4)
    expected = fit(whole, hl.Checkpointer("3st"), **options, folder=tmp_path / "whole")
    assert expected.clock.step > 14, "the crash comes before the stop"
    with suppress(RuntimeError):
        fit(keep_best(patience=4), hl.Checkpointer("3st"), crash_at(crash), **options, folder=tmp_path / "killed")
    resumed = keep_best(patience=4)
    result = fit(resumed, hl.Checkpointer("3st"), **options, folder=tmp_path / "killed", resume="auto")
    assert (resumed.best, resumed.waited, resumed.curve) == (whole.best, whole.waited, whole.curve)
    assert result.stop_reason == expected.stop_reason
    assert same_tensors(state_of(result.model), state_of(expected.model))
    assert saved_steps(tmp_path / "killed")[-1] == expected.clock.step


def test_a_resume_makes_the_file_equal_to_its_checkpoint(keep_best: Any, tmp_path: Path) -> None:
    """The killed run has written weights of a step after its last checkpoint, which the resumed run has not made."""
    options: dict[str, Any] = {"val": tiny_data(2), "optimizer": rising, "max_duration": "50ep", "folder": tmp_path}
    with suppress(RuntimeError):
        fit(keep_best(), hl.Checkpointer("3st"), crash_at(9), **options)
    left, found = load_file(tmp_path / "best.safetensors"), {}
    resumed = keep_best()

    @hl.on("train_step_start", once=True)
    def look(run: hl.Run) -> None:
        found.update(load_file(tmp_path / "best.safetensors"))
        assert same_tensors(found, resumed.weights)

    fit(resumed, look, hl.Checkpointer("3st"), **options, resume="auto")
    assert found
    assert not same_tensors(found, left)


def test_a_run_without_a_folder_is_refused_before_the_first_step(keep_best: Any) -> None:
    steps: list[int] = []
    with pytest.raises(SetupError, match=r"best\.safetensors"):
        fit(keep_best(), hl.on("train_step_end")(lambda run: steps.append(run.clock.step)), val=tiny_data(1))
    assert steps == []


def test_it_keeps_the_contract_of_callbacks(keep_best: Any) -> None:
    check_callback(keep_best)


def test_it_is_driven_without_a_trainer(keep_best: Any, tmp_path: Path) -> None:
    """``hookline.testing`` offers the same ``run``: metrics, a file, an image, a request to stop, ranks."""
    evaluations = [("eval_end", {"step": step, "metrics": {"val/loss": 0.1 * step}}) for step in (1, 2, 3)]
    driven = drive(keep_best(patience=2), ["setup", "train_start", *evaluations, "train_end"], folder=tmp_path)
    assert driven.stop_reason == "val/loss has not improved on 0.1 for 2 evaluations"
    assert same_tensors(load_file(tmp_path / "best.safetensors"), state_of(driven.run.model))


# -- what the package may use ------------------------------------------------------------------------


def test_the_package_uses_public_names_only() -> None:
    """From Hookline it imports only ``hookline``, and of ``run`` it uses only public names other than ``run.loop``."""
    tree = ast.parse(SOURCE.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module for module in modules if module.startswith("hookline")} == {"hookline"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "run"
    }
    assert used
    assert used <= {name for name in dir(hl.Run) if not name.startswith("_")} - {"loop"}


# -- what its author sees ----------------------------------------------------------------------------


def test_mypy_strict_accepts_the_package(tmp_path: Path) -> None:
    """With the types that an installed Hookline has: errors inside it are not shown to its users."""
    pytest.importorskip("mypy", reason="make check installs mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(SOURCE)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_pyright_strict_accepts_the_package(tmp_path: Path) -> None:
    """Only the reports about untyped arguments of matplotlib and safetensors are off."""
    pytest.importorskip("pyright", reason="make check installs pyright")
    config = {
        "include": [str(SOURCE)],
        "typeCheckingMode": "strict",
        "reportUnknownMemberType": False,
        "reportUnknownVariableType": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
