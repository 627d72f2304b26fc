"""``hookline events``: the whole table, also where there is no window."""

from __future__ import annotations

import pytest

from hookline.cli.main import main
from hookline.events import EVENTS, SCOPES


def test_no_text_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["events"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for event in EVENTS:
        words = f"{event.name} {event.scope} {event.when} {', '.join(event.valid)}"
        assert " ".join(words.split()) in lines
    for scope in SCOPES:
        assert f"{scope.hook} {scope.when}" in lines


def test_a_width_that_was_asked_for_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["events"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
