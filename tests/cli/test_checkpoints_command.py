"""What a person sees of a run's checkpoints, and that pruning never takes what is needed."""

from __future__ import annotations

import doctest
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.checkpoint import About, FolderLock, Snapshot, Store
from hookline.cli import checkpoint_tables
from hookline.cli.main import main
from hookline.loop import Trainer
from hookline.testing import TinyModel, run_script, start_script, tiny_data

STATE = {"lr": 0.1, "callbacks": {"EarlyStopping": {"best": 0.25, "waited": 2}}, "moments": [torch.zeros(4)]}


def saved(
    store: Store, step: int, loss: float = 0.5, *, full: bool = True, name: str | None = None, **about: Any
) -> Path:
    metrics = {"val/loss": loss, "val/acc": 0.9}
    values = {
        "epoch": step // 10,
        "batch": 0,
        "sample": step * 8,
        "seconds": step * 0.5,
        "run": "r",
        "metrics": metrics,
    }
    snapshot = Snapshot(About(step, **(values | about)), {"w": torch.full((3,), float(step))}, STATE if full else None)
    return store.save(snapshot, name).path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    store = Store(tmp_path / "run" / "checkpoints")
    saved(store, 10, 0.9)
    saved(store, 20, 0.3)
    saved(store, 30, math.nan, full=False)
    saved(store, 40, 0.6, finished=True)
    saved(store, 50, 0.1, exact=False)
    return tmp_path / "run"


def steps(run: Path) -> list[int]:
    return [checkpoint.about.step for checkpoint in Store(run / "checkpoints").checkpoints()]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def out(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert main(["checkpoints", *map(str, arguments)]) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line on stderr."""
    assert main(["checkpoints", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


# -- ls --------------------------------------------------------------------------------------------


def test_ls_marks_what_matters_and_fits_80_columns(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "ls", run)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip().startswith("step-")}
    assert [name for name, row in rows.items() if "latest" in row] == ["step-00000040"]
    assert [name for name, row in rows.items() if "best" in row] == ["step-00000020"]
    assert "finished" in rows["step-00000040"]
    assert "weights only" in rows["step-00000030"]
    assert "inexact" in rows["step-00000050"]
    assert "nan" in rows["step-00000030"]
    assert max(map(len, text.splitlines())) <= 80
    assert "5 checkpoints" in text


def test_ls_marks_the_best_by_the_metric_that_is_asked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "ls", run, "--monitor", "val/loss", "--mode", "max")
    assert [line.split()[0] for line in text.splitlines() if " best" in line] == ["step-00000010"]
    assert "No checkpoint has a value of 'f1'. Available: val/acc, val/loss." in refused(
        capsys, "ls", run, "--monitor", "f1"
    )


def marked_best(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.strip().startswith("step-") and " best" in line]


class Score(hl.Callback):
    writes = ("val/odd",)

    def on_eval_end(self, run: hl.Run) -> None:
        run.log({"odd": {1: 0.5, 2: 0.9, 3: 0.6}[run.clock.epoch]})


def test_ls_marks_the_best_by_the_monitor_of_the_run_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    saving = [
        hl.Checkpointer(monitor="val/odd", mode="max", keep_last=None),
        hl.Checkpointer(monitor="val/loss", mode="max", keep_last=None, folder="other"),
    ]
    trainer = Trainer(max_duration="3ep", folder=tmp_path, callbacks=[Score(), *saving])
    sgd = torch.optim.SGD
    trainer.fit(TinyModel(), tiny_data(2), tiny_data(1), loss=torch.nn.CrossEntropyLoss(), optimizer=sgd)
    text = out(capsys, "ls", tmp_path)
    assert marked_best(text) == ["step-00000004"]
    assert text.splitlines()[-1] == "best: the highest val/odd"
    assert json.loads(out(capsys, "ls", tmp_path, "--json"))["best_by"] == {"metric": "val/odd", "mode": "max"}
    assert marked_best(out(capsys, "ls", tmp_path, "--monitor", "val/odd")) == ["step-00000004"]
    assert marked_best(out(capsys, "ls", tmp_path, "--mode", "min")) == ["step-00000002"]
    assert "best" in out(capsys, "show", tmp_path, "step-00000004").split("written")[0]
    assert "best: the highest val/loss" in out(capsys, "ls", tmp_path / "other")
    assert "best: the lowest val/loss" in out(capsys, "ls", tmp_path, "--monitor", "val/loss")


def test_ls_of_a_run_that_does_not_say_takes_the_loss(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of one that an earlier version wrote."""
    assert "best: the lowest val/loss" in out(capsys, "ls", run)
    (run / "run.json").write_text('{"format": 1, "project": "p", "name": "n", "run_id": "r", "started": "then"}')
    assert "best: the lowest val/loss" in out(capsys, "ls", run)
    (run / "run.json").write_text("torn")
    assert "best: the lowest val/loss" in out(capsys, "ls", run)


def test_ls_names_what_is_damaged_and_why(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-00000020" / "state.json").unlink()
    text = out(capsys, "ls", run)
    assert "Not valid, not used" in text
    assert "state.json: it is missing" in text


def test_ls_as_json_can_be_parsed_strictly(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "odd").mkdir()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(out(capsys, "ls", run, "--json"), parse_constant=refuse)
    assert [item["step"] for item in found["checkpoints"]] == [10, 20, 30, 40, 50]
    assert found["checkpoints"][2]["metrics"] == {"val/loss": "nan", "val/acc": 0.9}
    assert found["checkpoints"][3]["marks"] == ["latest", "finished"]
    assert found["checkpoints"][0]["bytes"] > 12
    assert found["rejected"][0]["path"].endswith("/odd")


def test_the_checkpoints_folder_itself_may_be_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "5 checkpoints" in out(capsys, "ls", run / "checkpoints")


def test_a_hostile_name_cannot_steer_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "x\x1b[2J[red]").mkdir()
    store = Store(run / "checkpoints")
    saved(store, 60, name="[bold]step")
    for verb in ("ls", "verify"):
        main(["checkpoints", verb, str(run)])
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert "x?[2J[red]" in text
        assert "[bold]step" in text


@pytest.mark.parametrize("verb", ["ls", "show", "verify"])
def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    neither = "contains neither a run nor checkpoints"
    assert neither in refused(capsys, verb, tmp_path)
    (tmp_path / "photos").mkdir()
    assert neither in refused(capsys, verb, tmp_path)
    assert "is not a folder" in refused(capsys, verb, tmp_path / "gone")


@pytest.fixture(params=["none", "empty"])
def unsaved(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run that has saved nothing, with folders of its own."""
    for name in ("media", "tensorboard", *(["checkpoints"] if request.param == "empty" else [])):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


@pytest.mark.parametrize("verb", [("ls",), ("verify",), ("prune", "--keep-last", "1")])
def test_a_run_that_has_saved_nothing_is_no_mistake(
    unsaved: Path, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    there = sorted(unsaved.iterdir())
    assert out(capsys, verb[0], unsaved, *verb[1:]) == f"no checkpoints in {unsaved / 'checkpoints'}\n"
    assert sorted(unsaved.iterdir()) == there


def test_what_needs_a_checkpoint_says_that_there_is_none(unsaved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "show", unsaved).endswith(f"No checkpoints in {unsaved / 'checkpoints'}.\n")
    found = json.loads(out(capsys, "ls", unsaved, "--json"))
    assert (found["checkpoints"], found["rejected"]) == ([], [])


def test_a_folder_among_checkpoints_without_a_manifest_stays_not_valid(
    unsaved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (unsaved / "checkpoints" / "odd").mkdir(parents=True)
    assert "Not valid, not used" in out(capsys, "ls", unsaved)
    assert "1 damaged" in out(capsys, "verify", unsaved, code=1)


def test_a_folder_of_runs_names_one_of_them(unsaved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"contains runs, but is not a run. Give one, such as {unsaved}" in refused(capsys, "ls", unsaved.parent)


def test_one_checkpoint_instead_of_a_run_is_explained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "ls", run / "checkpoints" / "step-00000010")
    assert "is one checkpoint. Give the run's folder" in said


def test_errors_of_the_real_command_have_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hookline.cli.main", "checkpoints", "ls", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


# -- show ------------------------------------------------------------------------------------------


def test_show_has_the_manifest_the_files_the_state_and_the_tensors(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out(capsys, "show", run, "step-00000020")
    for part in ("step-00000020", "20 steps, 2 epochs, 160 samples, 10s", "metric val/loss", "model.safetensors"):
        assert part in text
    assert "{best: 0.25, waited: 2}" in text
    assert "1 in 12 B" in text
    assert "[float32 [4]]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_show_without_a_name_takes_what_a_resume_would_take(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "show", run).startswith("step-00000040")


def test_show_of_weights_only(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "weights only" in out(capsys, "show", run, "step-00000030")


def test_show_of_a_name_that_is_not_there_lists_the_newest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Newest: step-00000010, step-00000020" in refused(capsys, "show", run, "step-3")


def test_show_of_a_damaged_one_says_what_is_wrong(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "checkpoints" / "step-00000020" / "model.safetensors")
    (run / "checkpoints" / "step-00000010" / "manifest.json").write_text("{}")
    assert "its SHA-256" in refused(capsys, "show", run, "step-00000020")
    assert "manifest.json" in refused(capsys, "show", run, "step-00000010")


# -- verify ----------------------------------------------------------------------------------------


def test_verify_is_content_with_a_sound_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "verify", run)
    assert text.count("ok ") == 5
    assert text.endswith("all valid\n")


def test_verify_finds_one_flipped_bit_and_one_missing_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "checkpoints" / "step-00000020" / "state.safetensors")
    (run / "checkpoints" / "step-00000040" / "model.safetensors").unlink()
    text = out(capsys, "verify", run, code=1)
    assert "damaged  step-00000020: state.safetensors: its SHA-256" in text
    assert "damaged  step-00000040: model.safetensors: it is missing" in text
    assert text.count("ok ") == 3
    assert "5 checkpoints" in text
    assert text.endswith("2 damaged\n")


# -- prune -----------------------------------------------------------------------------------------


def test_prune_deletes_what_no_rule_keeps_and_says_how_much(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "prune", run, "--keep-last", "1", "--keep-best", "1", "--monitor", "val/loss")
    assert steps(run) == [20, 40, 50]
    assert "deleted  step-00000010" in text
    assert "deleted  step-00000030" in text
    assert "deleted 2 checkpoints" in text
    assert "3 left" in text


def test_prune_can_keep_the_best_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = out(capsys, "prune", run, "--keep-last", "0", "--keep-best", "1", "--monitor", "val/loss")
    assert "1 left" in best
    assert len(steps(run)) == 1


def test_prune_can_keep_milestones(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, "prune", run, "--keep-every", "20st")
    assert steps(run) == [20, 40, 50]


def test_a_dry_run_says_the_same_and_deletes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = out(capsys, "prune", run, "--keep-last", "2", "--dry-run")
    assert steps(run) == [10, 20, 30, 40, 50]
    done = out(capsys, "prune", run, "--keep-last", "2")
    assert planned.replace("would delete", "deleted") == done


def test_prune_without_a_rule_deletes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Nothing to keep is given" in refused(capsys, "prune", run)
    assert "Add monitor=" in refused(capsys, "prune", run, "--keep-best", "1")
    assert "last=0" in refused(capsys, "prune", run, "--keep-last", "0")
    assert "is not a duration" in refused(capsys, "prune", run, "--keep-every", "often")
    assert steps(run) == [10, 20, 30, 40, 50]


def test_prune_does_not_touch_what_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-00000010" / "state.json").unlink()
    text = out(capsys, "prune", run, "--keep-last", "1")
    assert "not deleted: 1 damaged" in text
    assert (run / "checkpoints" / "step-00000010").exists()


def test_prune_keeps_all_if_the_newest_turns_out_to_be_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "checkpoints" / "step-00000040" / "model.safetensors")
    assert "step-00000040" in refused(capsys, "prune", run, "--keep-last", "1")
    assert steps(run) == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("which", ["run", "checkpoints", "link", "linked"])
def test_prune_leaves_a_folder_alone_that_a_run_is_using(
    run: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run if which == "run" else run / "checkpoints"
    if which == "link":
        folder = run.parent / "elsewhere" / "link"
        folder.parent.mkdir()
        folder.symlink_to(run / "checkpoints")
    elif which == "linked":
        folder.rename(run.parent / "disk")
        folder.symlink_to(run.parent / "disk")
    holder = """
    import sys
    from hookline.checkpoint import FolderLock
    with FolderLock(sys.argv[1]):
        print("held", flush=True)
        input()
    """
    with start_script(holder, args=[run]) as script:
        script.wait_for("held")
        assert "is in use by process" in refused(capsys, "prune", folder, "--keep-last", "1")
        assert steps(run) == [10, 20, 30, 40, 50]
        assert "would delete 3" in out(capsys, "prune", folder, "--keep-last", "1", "--dry-run")
    out(capsys, "prune", folder, "--keep-last", "1")
    assert steps(run) == [40, 50]
    with FolderLock(run):  # given back
        pass


def test_prune_leaves_the_target_of_a_link_alone_that_a_run_is_using(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FolderLock(run / "checkpoints"):  # as a run does whose checkpoints/ is a link
        assert "is in use by process" in refused(capsys, "prune", run / "checkpoints", "--keep-last", "1")
    assert steps(run) == [10, 20, 30, 40, 50]


def test_the_examples_are_right() -> None:
    assert doctest.testmod(checkpoint_tables).failed == 0


def test_in_a_file_no_row_of_the_list_is_folded(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    long = "step-00000060-" + "a_name_that_is_long_" * 6
    saved(Store(run / "checkpoints"), 60, 0.2, name=long)
    assert long in out(capsys, "ls", run)


def test_a_terminal_with_ascii_only_shows_everything_else_as_escapes(tmp_path: Path) -> None:
    folder = tmp_path / "gr\u00fc\u00df"
    saved(Store(folder / "checkpoints"), 10, 0.5)
    script = """
        import sys
        from hookline.cli.main import main
        for verb in ("ls", "show", "verify"):
            assert main(["checkpoints", verb, sys.argv[1]]) == 0, verb
            print(f"end of {verb}")
    """
    done = run_script(script, args=[folder], env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    rest = done.stdout
    for verb in ("ls", "show", "verify"):
        shown, _, rest = rest.partition(f"end of {verb}\n")
        assert "step-00000010" in shown, verb
