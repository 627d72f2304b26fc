"""Each tutorial runs as a script and reaches its result; its page and its notebook are those of the script."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from hookline.testing import run_script, start_script

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("make_tutorials", ROOT / "docs/tutorials/make_tutorials.py")
assert _spec is not None
assert _spec.loader is not None
make_tutorials = importlib.util.module_from_spec(_spec)
sys.modules["make_tutorials"] = make_tutorials  # dataclasses look their module up there
_spec.loader.exec_module(make_tutorials)
SCRIPTS: dict[str, Path] = make_tutorials.SCRIPTS

RESULTS = {
    "image_classification": ({}, r"test accuracy: ([\d.]+)", 0.94, 1.0),
    "gan": ({"EPOCHS": 20}, r"drawn: mean probability ([\d.]+)", 0.6, 1.0),
    "language_model": ({"TOKENS": 40_000}, r"trained model: ([\d.]+) bits", 2.0, 4.75),
    "custom_loop": ({}, r"validation loss: [\d.]+ -> ([\d.]+)", 0.3, 0.7),
}
"""Constants that make a tutorial shorter, a number that it prints, and the range of this number."""

OTHER_TESTS = {
    "fine_tuning": "tests/interop/test_transformers_tutorial.py",
    "several_processes": "tests/docs/test_tutorials.py",
    "resume_on_slurm": "tests/docs/test_tutorials.py",
}
"""Tutorials that are started several times or need another environment, and the files of their tests."""


def smaller(name: str, constants: dict[str, object]) -> str:
    """Return the source of a tutorial with other values for its constants."""
    source = SCRIPTS[name].read_text()
    for constant, value in constants.items():
        source, found = re.subn(rf"^{constant} = .*$", f"{constant} = {value!r}", source, flags=re.MULTILINE)
        assert found == 1, f"{name}.py has no constant {constant}"
    return source


def test_every_tutorial_is_tested() -> None:
    assert sorted(SCRIPTS) == sorted([*RESULTS, *OTHER_TESTS])
    assert [name for name, file in OTHER_TESTS.items() if name not in (ROOT / file).read_text()] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_and_the_notebook_have_the_text_and_code_of_the_script(name: str) -> None:
    assert not make_tutorials.is_stale(name), f"run `make tutorials ARGS={name}`"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_can_be_read_in_a_few_minutes(name: str) -> None:
    words = (make_tutorials.TUTORIALS / f"{name}.md").read_text().split()
    assert len(words) <= 1000


def test_a_change_of_text_or_code_makes_a_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_tutorials, "TUTORIALS", tmp_path)
    monkeypatch.setattr(make_tutorials, "SCRIPTS", {"sum": tmp_path / "sum.py"})
    cells = "# %% [markdown]\n# # Add\n#\n# Two numbers:\n\n# %%\nprint(1 + 1)\n\n# %%\n# !ls\n"
    (tmp_path / "sum.py").write_text(cells)
    (tmp_path / "sum.md").write_text(make_tutorials.page_of("sum", ["", "2", "sum.py"]))
    make_tutorials.nbformat.write(make_tutorials.notebook_of("sum"), tmp_path / "sum.ipynb")
    page = (tmp_path / "sum.md").read_text()
    assert page.startswith("# Add\n")
    assert (
        '-->\n\nTwo numbers:\n\n```python\nprint(1 + 1)\n```\n\n```text title="Output"\n2\n```\n\n```sh\nls\n' in page
    )
    assert not make_tutorials.is_stale("sum")
    for old, new in (("Two", "Three"), ("1 + 1", "1 + 2"), ("!ls", "!ls -l")):
        (tmp_path / "sum.py").write_text(cells.replace(old, new))
        assert make_tutorials.is_stale("sum"), new


def test_the_first_tutorial_in_two_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast tier runs one tutorial, so that a change of the API is noticed early."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    exec(smaller("image_classification", {"EPOCHS": 2}), namespace)
    plt.close("all")
    assert namespace["result"].metrics["test/acc"] > 0.7  # type: ignore[attr-defined]
    assert (tmp_path / "mistakes.png").exists()


@pytest.mark.parametrize("name", RESULTS)
def test_a_tutorial_reaches_its_result(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    constants, pattern, least, most = RESULTS[name]
    done = run_script(smaller(name, constants), env={"PYTHONWARNINGS": "error::UserWarning"})
    assert done.returncode == 0, done.stderr
    found = re.search(pattern, done.stdout)
    assert found, done.stdout
    assert least <= float(found[1]) <= most, done.stdout
    page = (make_tutorials.TUTORIALS / f"{name}.md").read_text()
    images = {Path(link).name for link in re.findall(rf"\(images/{name}/(.*?)\)", page)}
    assert images <= {path.name for path in tmp_path.rglob("*.png")}


def test_two_processes_get_the_result_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = SCRIPTS["several_processes"]
    losses = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        done = subprocess.run([sys.executable, *launcher, path], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        losses += re.findall(r"processes: (\d), steps: 360, samples: 11496\nloss ([\d.]+)", done.stdout)
    assert [processes for processes, _ in losses] == ["1", "2"]
    assert float(losses[0][1]) == pytest.approx(float(losses[1][1]), rel=1e-3)
    assert float(losses[0][1]) < 0.6


def test_a_run_that_gets_sigterm_ends_as_if_it_had_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, first_checkpoint = SCRIPTS["resume_on_slurm"].read_text(), Path("runs/preempted/checkpoints/step-00000100")
    with start_script(source, env={"FOLDER": "runs/preempted"}) as script:
        while script.process.poll() is None and not first_checkpoint.exists():
            time.sleep(0.02)
        script.send(signal.SIGTERM)
        assert script.finish().returncode == 128 + signal.SIGTERM
    resumed = run_script(source, env={"FOLDER": "runs/preempted"})
    assert "resumed from" in resumed.stdout + resumed.stderr
    assert run_script(source).returncode == 0
    for file in ("model.safetensors", "state.safetensors"):
        ends = [Path(f"runs/{run}/checkpoints/step-00001800/{file}") for run in ("preempted", "never-stopped")]
        assert ends[0].read_bytes() == ends[1].read_bytes(), file
