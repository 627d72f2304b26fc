"""The page about other libraries shows its measured values, and the lines of scripts are counted right."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peer_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peer_page

    yield peer_page
    sys.modules.pop("peer_page")


@pytest.fixture
def data() -> Any:
    return json.loads((ROOT / "docs/benchmarks-peers.json").read_text())


def test_the_page_and_its_chart_are_those_of_the_measured_values(peer_page: Any, data: Any) -> None:
    assert (ROOT / "docs/benchmarks-peers.md").read_text() == peer_page.page(data), (
        "run `make bench-peers ARGS=--only-page`"
    )
    assert (ROOT / "docs/images/peers.svg").read_text() == peer_page.chart(data)


def test_the_page_names_a_library_that_is_better_than_hookline(peer_page: Any, data: Any) -> None:
    changed = copy.deepcopy(data)
    ignite = changed["measured"]["ignite"]
    ignite["step"]["added"] |= {"hookline": [9.0, 9.0], "ignite": [4.0, 4.0], "bare loop": [1.0, 2.0]}
    ignite["save"] = {"torch.save": [10.0], "hookline": [30.0], "ignite": [12.0]}
    changed["jobs"]["hookline"]["resume"], changed["jobs"]["ignite"]["resume"] = 8, 6
    better = peer_page.page(changed).partition("## Where other libraries are better")[2]
    line = next(line for line in better.splitlines() if line.startswith("- **ignite**"))
    for words in ("step by 5 µs (noise 2 µs)", "checkpoint by 18 ms", "lines of code of 'resume' (6 instead of 8)"):
        assert words in line


def test_a_line_of_code_is_counted_once_and_other_lines_are_not(peer_page: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        '"""What it does."""\n\n'
        "import torch  # counts\n"
        "from common import (\n    make_model,\n    train_loader,\n)\n\n"
        "# a comment\n"
        "model = make_model(\n    # inside\n    1,\n)\n\n"
        'text = """two\nlines"""\n'
    )
    assert peer_page.code_lines(script) == 1 + 3 + 2


def test_the_page_counts_the_lines_of_the_scripts_as_they_are(peer_page: Any, data: Any) -> None:
    scripts = ROOT / "benchmarks/jobs"
    for name, jobs in data["jobs"].items():
        folder = scripts / peer_page.LIBRARIES[name].module
        assert jobs == {job: peer_page.code_lines(folder / f"{job}.py") for job in jobs}, name


def test_every_library_has_a_script_for_every_job(peer_page: Any) -> None:
    folders = {library.module for library in peer_page.LIBRARIES.values()}
    found = {str(path.relative_to(ROOT / "benchmarks/jobs")) for path in (ROOT / "benchmarks/jobs").glob("*/*.py")}
    assert found == {f"{folder}/{job}.py" for folder in folders for job in peer_page.JOBS}
