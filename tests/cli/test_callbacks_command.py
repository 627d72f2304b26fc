"""``hookline callbacks`` and the table in the docs have every callback, with what it does."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hookline import callbacks
from hookline.cli.callbacks_table import callback_rows
from hookline.cli.main import main
from hookline.events import Callback

DOCS = Path(__file__).parents[2] / "docs" / "callbacks"


def exported() -> set[str]:
    named = {name: getattr(callbacks, name) for name in callbacks.__all__}
    return {name for name, cls in named.items() if inspect.isclass(cls) and issubclass(cls, Callback)}


def test_every_callback_has_one_row() -> None:
    names = [row.name for row in callback_rows()]
    assert len(names) == len(set(names))
    assert set(names) == exported()
    assert [row.name for row in callback_rows() if not row.what.endswith(".")] == []


def test_every_callback_has_a_page() -> None:
    assert [row.page for row in callback_rows() if not (DOCS / f"{row.page}.md").is_file()] == []


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["callbacks"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in exported() if name not in printed] == []
    assert "Stop training when a metric stops improving." in printed
