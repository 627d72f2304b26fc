"""``hl.replay`` and ``hookline replay``: steps of a past run are made again, bit for bit, with other callbacks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import hookline as hl
from hookline.checkpoint import Store
from hookline.cli.main import main
from hookline.errors import HooklineError, SetupError
from hookline.records.steps import read_steps
from hookline.replaying.found import read_found
from tests.support import saved_steps

RECIPE = Path(__file__).with_name("recipe.py")
KINDS = (
    "workers",
    "augmentation",
    "ema",
    "accumulation",
    "optimizers",
    "bf16",
    "custom loop",
    "schedule",
    "iterable",
    "rollback",
    "control",
)
WATCH = """
import hookline as hl

class Watch(hl.Callback):
    def __init__(self, every=1):
        self.every = every

    def on_train_step_end(self, run):
        if run.clock.step % self.every == 0:
            run.path("seen.txt").open("a").write(f"{run.clock.step} ")
"""


def train(kind: str, folder: Path, *more: object, processes: int = 1) -> Path:
    """Train the recipe in its own process, or in several, and return the folder of the run."""
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    command = [sys.executable, *launch, str(RECIPE), kind, str(folder), *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def bytes_and_times(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The time of the last change and the bytes of everything in a folder."""
    found = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes()) for path in found}


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_steps_are_equal_in_every_bit_and_the_run_is_untouched(kind: str, tmp_path: Path) -> None:
    run = train(kind, tmp_path / "run")
    before = bytes_and_times(run)
    result = hl.replay(RECIPE, run=run, first_step=33, last_step=53)
    assert result.verdict == "replayed 20 steps, equal in every bit"
    assert (result.resumed_from, result.is_equal, result.exit_code) == (30, True, 0)
    assert bytes_and_times(run) == before
    assert saved_steps(result.folder) == []


def test_a_replay_on_two_ranks(tmp_path: Path) -> None:
    run = train("augmentation", tmp_path / "run", processes=2)
    result = hl.replay(RECIPE, run=run, first_step=20, last_step=40)
    assert result.verdict == "replayed 20 steps, equal in every bit"
    assert result.resumed_from == 15


@pytest.mark.parametrize("kind", ["rollback", "control undone"])
def test_a_step_that_was_undone_and_made_again_is_replayed_to_its_second_time(kind: str, tmp_path: Path) -> None:
    run = train(kind, tmp_path / "run")
    steps = [row.step for row in read_steps(run)]
    undone = next(step for step, later in pairwise(steps) if later <= step)
    result = hl.replay(RECIPE, run=run, first_step=undone - 1, last_step=undone)
    assert result.verdict.endswith("equal in every bit")
    assert [row.step for row in result.made].count(undone) == steps.count(undone) > 1
    assert result.made == result.recorded


@pytest.mark.parametrize("how", [(), ("guarded",), ("accumulated",)], ids=["continues", "stopped", "accumulated"])
def test_a_bad_sample_is_found_with_one_command(
    how: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = random.randrange(320)
    run = train("bad sample", tmp_path / "run", bad, "nan", *how)
    assert main(["replay", str(RECIPE), "--run", str(run), "--until", "nan", "--folder", str(tmp_path / "again")]) == 0
    out = capsys.readouterr().out
    assert f"sample: index {bad} of the data set" in out, out
    assert "activations: first in 0 (Linear), not finite" in out, out
    report = tmp_path / "again" / "report.html"
    assert f"report: {report}" in out
    assert "activations/max/0" in report.read_text()


def test_a_sample_behind_a_spike_is_found(tmp_path: Path) -> None:
    bad = 268  # Of the batch of step 31. The first ten steps are not judged.
    run = train("bad sample", tmp_path / "run", bad, "1e5")
    found = hl.replay(RECIPE, run=run, until="spike").found
    assert found is not None
    assert found.samples == (bad,)
    assert found.activation.startswith("0 (Linear), ")


def test_the_sample_of_a_bad_micro_batch_comes_before_outliers_of_the_others(tmp_path: Path) -> None:
    batch = {"batch": 4, "size": 8, "is_bad": False}
    batches = [
        batch | {"loss": 0.8, "indices": [*range(8)], "positions": [2], "why": "has a loss that is large"},
        batch
        | {"loss": float("nan"), "batch": 5, "indices": [*range(8, 16)], "positions": [3], "why": "is not finite"},
    ]
    row = {"step": 1, "epoch": 0, "activations": {"0 (Linear)": float("nan")}, "gradients": {}, "batches": batches}
    (tmp_path / "found-0.json").write_text(json.dumps([row]))
    found = read_found(tmp_path, "nan", 1)
    assert found is not None
    assert (found.batch, found.samples, found.why) == (5, (11,), "is not finite")


def test_callbacks_join_at_the_first_step_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    run = train("augmentation", tmp_path / "run")
    watch = f"{tmp_path / 'watch.py'}:Watch(every=2)"
    result = hl.replay(RECIPE, run=run, first_step=33, last_step=40, callbacks=[watch])
    assert (result.folder / "seen.txt").read_text().split() == ["34", "36", "38", "40"]
    assert result.is_equal


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unsteady order", "step 16 has other samples than in the run"),
        ("unsteady loss", "step 16 has the same samples, but the loss "),
    ],
)
def test_a_script_that_is_not_repeatable_is_told_what_differs_first(kind: str, said: str, tmp_path: Path) -> None:
    run = train(kind, tmp_path / "run")
    result = hl.replay(RECIPE, run=run, first_step=20, last_step=30)
    assert not result.is_equal
    assert said in result.verdict


def test_a_setting_that_has_changed_since_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("augmentation", tmp_path / "run")
    changed = tmp_path / "train.py"
    changed.write_text(RECIPE.read_text().replace("Dropout(0.2)", "Dropout(0.3)").replace('"7st"', '"9st"'))
    assert main(["replay", str(changed), "--run", str(run), "--from", "20", "--to", "30"]) == 1
    out = capsys.readouterr().out
    assert "different: step 16 has the same samples" in out
    assert "settings.log_every: 7st in the run, 9st in the replay" in out


def test_the_cost_of_deleted_checkpoints_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("prune", tmp_path / "run")
    assert main(["replay", str(RECIPE), "--run", str(run), "--from", "40", "--to", "45"]) == 0
    out = capsys.readouterr().out
    assert "from step 0, because there is no earlier checkpoint; the 40 steps up to step 40 come first" in out
    assert "replayed 5 steps, equal in every bit" in out


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("augmentation", tmp_path / "run")
    weights = run / "checkpoints" / "step-00000030" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["replay", str(RECIPE), "--run", str(run), "--from", "33", "--to", "35"]) == 0
    out = capsys.readouterr().out
    assert "step-00000030/model.safetensors: " in out
    assert "The replay starts at an earlier step." in out
    assert "from step-00000015; the 18 steps up to step 33 come first" in out
    assert "replayed 2 steps, equal in every bit" in out


def test_steps_that_cannot_be_compared_have_their_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("no record", tmp_path / "run")
    assert main(["replay", str(RECIPE), "--run", str(run), "--from", "33", "--to", "35"]) == 3
    assert "\nnot compared: the run recorded no losses\n" in capsys.readouterr().out


def test_a_killed_run_that_was_resumed_is_replayed_over_the_resume(tmp_path: Path) -> None:
    run = train("augmentation", tmp_path / "run")
    whole = read_steps(run)
    store = Store(run / "checkpoints")
    for checkpoint in store.checkpoints():
        if checkpoint.about.step > 30:
            store.delete(checkpoint)
    source = tmp_path / "resumed.py"
    source.write_text(RECIPE.read_text().replace('"seed": 3,', '"seed": 3, "resume": "auto",'))
    subprocess.run([sys.executable, str(source), "augmentation", str(run)], check=True, capture_output=True)
    assert read_steps(run) == whole
    assert hl.replay(source, run=run, first_step=25, last_step=45).verdict == "replayed 20 steps, equal in every bit"


def test_mistakes_are_errors_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="holds no run that can be replayed"):
        hl.replay(RECIPE, run=tmp_path, first_step=1)
    run = train("augmentation", tmp_path / "run")
    for options, said in (
        ({"first_step": 60}, "the run ended at step 60. Give an earlier step."),
        ({"first_step": 9, "last_step": 61}, "the run ended at step 60. Give an earlier step."),
        ({"first_step": 9, "last_step": 9}, "first_step must be >= 0 and below last_step"),
        ({}, "give the step after which the steps begin, or until"),
        ({"until": "nan"}, "no loss of .* is NaN or infinite .60 steps recorded"),
        ({"until": "nan", "last_step": 5}, "give one of them"),
        ({"first_step": 9, "folder": run / "inside"}, "is inside the run, which must not change"),
    ):
        with pytest.raises(SetupError, match=said):
            hl.replay(RECIPE, run=run, **options)
    with pytest.raises(SetupError, match="is not a file"):
        hl.replay(tmp_path / "gone.py", run=run, first_step=9)
    with pytest.raises(HooklineError, match="ended with exit code 1 before its first step"):
        hl.replay(RECIPE, run=run, first_step=9, callbacks=["nowhere:Watch"])
