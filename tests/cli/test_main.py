"""``hookline`` and ``python -m hookline``: the command line itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hookline as hl
from hookline.cli.main import COMMANDS, main


def test_the_version_is_told_by_the_script_and_by_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"hookline {hl.__version__}\n")
    done = subprocess.run([sys.executable, "-m", "hookline", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"hookline {hl.__version__}\n")


def test_no_command_is_an_error_that_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    names = [command.__name__.rpartition(".")[2].removesuffix("_command").replace("_", "-") for command in COMMANDS]
    names[names.index("control-commands")] = "stop"
    assert all(name in shown for name in (*names, "save", "eval", "set"))


def test_the_help_names_all_that_can_be_done_with_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "list, show, verify, prune or consolidate" in " ".join(capsys.readouterr().out.split())
