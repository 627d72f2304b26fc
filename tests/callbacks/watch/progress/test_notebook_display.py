"""What a notebook shows of a run; a kernel that is real is in ``test_progress_everywhere.py``."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hookline.callbacks.watch.progress import styles
from hookline.callbacks.watch.progress.display import Bar, Progress
from hookline.callbacks.watch.progress.notebook_display import Frame, NotebookDisplay
from hookline.callbacks.watch.progress.plain_display import PlainDisplay


def ipython(monkeypatch: pytest.MonkeyPatch, shell: Any) -> None:
    module = ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>|&nbsp;", " ", html).split())


def test_a_frame_says_what_a_terminal_would_say() -> None:
    bars = (Bar("epoch", "2/5", 1.4, 5, seconds_left=62.0), Bar("step", "46/115", 46, 115, "12.3 it/s"))
    html = Frame(Progress(bars, {"train/loss": 0.3123}, 12.4, note="stopped: enough"))._repr_html_()
    assert text_of(html) == "epoch 2/5 0:12 step 46/115 12.3 it/s train/loss 0.3123 stopped: enough"
    assert html.count("<progress ") == 2
    assert 'value="0.2800"' in html


def test_names_and_reasons_are_text_and_not_html() -> None:
    evil = "<script>alert(1)</script>"
    progress = Progress((Bar(evil, evil, 1, 2, evil),), {evil: 1.0}, 1.0, beside=evil, note=evil)
    html = Frame(progress)._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 6


def test_a_bar_without_an_end_moves_until_the_run_is_over() -> None:
    bars = (Bar("step", "7", 7, None),)
    assert "value=" not in Frame(Progress(bars, {}, 1.0))._repr_html_()
    assert 'value="1.0000"' in Frame(Progress(bars, {}, 1.0, over=True))._repr_html_()


def test_auto_means_the_widget_in_the_kernel_of_a_notebook_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython(monkeypatch, SimpleNamespace(kernel=object()))
    assert isinstance(styles.auto().make(), NotebookDisplay)
    assert isinstance(styles.tqdm().make(), NotebookDisplay)
    ipython(monkeypatch, SimpleNamespace())
    assert isinstance(styles.auto().make(), PlainDisplay)  # IPython in a terminal, which pytest has taken away
    assert isinstance(styles.notebook().make(), NotebookDisplay)  # a front end that is not known, where one asks for it
    ipython(monkeypatch, None)
    assert isinstance(styles.notebook().make(), PlainDisplay)  # a script: nobody would show the widget
