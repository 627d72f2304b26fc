"""``ProgressBar(style="tqdm")`` looks like tqdm, in every width."""

from __future__ import annotations

import re
import threading

import pytest

from hookline.callbacks import ProgressBar
from hookline.callbacks.watch.progress import styles
from hookline.callbacks.watch.progress.display import Bar, Progress
from hookline.callbacks.watch.progress.tqdm_display import TqdmDisplay
from hookline.errors import SetupError

EPOCH = Bar("epoch", "2/5", 1.4, 5, seconds_left=31.0)
STEP = Bar("step", "46/115", 46, 115, "12.3 it/s, 394 samples/s")
VAL = Bar("val", "3/4", 3, 4, "50.0 it/s", seconds_left=1.0)


def lines_of(progress: Progress, width: int = 100) -> list[str]:
    return TqdmDisplay()._lines(progress, width)


def test_each_bar_is_a_line_of_tqdm_and_the_metrics_are_behind_the_first() -> None:
    found = lines_of(Progress((EPOCH, STEP, VAL), {"train/loss": 0.31234, "val/acc": None}, 12.4))
    assert [re.sub(r"\|[█▏▎▍▌▋▊▉ ]+\|", "|#|", line) for line in found] == [
        "epoch:  28%|#| 2/5 [00:12<00:31, train/loss=0.3123, val/acc=-]",
        "step:   40%|#| 46/115 [12.3 it/s, 394 samples/s]",
        "val:    75%|#| 3/4 [<00:01, 50.0 it/s]",
    ]
    assert {len(line) for line in found} == {100}


def test_where_it_is_narrow_the_metrics_go_below_and_no_line_is_too_long() -> None:
    metrics = {"train/loss": 0.31234, "val/accuracy": 0.5, "val/something/else": 1e-5}
    for width in (10, 20, 40, 60, 80):
        assert max(map(len, lines_of(Progress((EPOCH, STEP), metrics, 12.4), width))) <= max(width, 24)
    assert lines_of(Progress((EPOCH, STEP), metrics, 12.4), 60)[2:] == [
        "train/loss=0.3123, val/accuracy=0.5",
        "val/something/else=1e-05",
    ]


@pytest.mark.parametrize(("width", "ends"), [(40, "46/115 [12.3 it/s]"), (30, "46/115"), (24, "46/115")])
def test_where_it_is_narrow_speeds_are_left_out_and_not_cut(width: int, ends: str) -> None:
    assert lines_of(Progress((EPOCH, STEP), {}, 12.4), width)[1].endswith(f"| {ends}")


def test_a_loader_without_a_length_counts_up() -> None:
    progress = Progress((Bar("step", "1234", 1234, None, "88.1 it/s"),), {"train/loss": 0.5}, 14.0, beside="epoch 3")
    assert lines_of(progress) == ["step: 1234 [00:14, 88.1 it/s, epoch 3, train/loss=0.5]"]


def test_a_run_that_stopped_says_why_and_promises_nothing() -> None:
    found = lines_of(Progress((EPOCH, STEP), {}, 12.4, note="stopped: enough", over=True))
    assert found[2:] == ["stopped: enough"]
    assert "<" not in found[0]


def test_names_with_braces_are_only_names() -> None:
    found = lines_of(Progress((Bar("val/{x}", "1/2", 1, 2),), {"val/{bar}": 1.0}, 1.0))
    assert found[0].startswith("val/{x}:  50%|")
    assert "val/{bar}=1" in found[0]


def test_tqdm_starts_no_thread_and_writes_nothing_itself(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    lines_of(Progress((EPOCH,), {}, 1.0))
    assert threading.active_count() == before
    assert capsys.readouterr().err == ""


def test_without_tqdm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(styles, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[tqdm\]'"):
        ProgressBar(style="tqdm")
