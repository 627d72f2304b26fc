"""A share of ``max_duration`` means that part of the training, also where it is counted in epochs."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.testing import tiny_data
from tests.support import fit
from tests.support.inside import accumulation_of


class Steps(hl.Callback):
    """At which steps something came."""

    def __init__(self) -> None:
        self.evals: list[int] = []
        self.saves: list[int] = []
        self.resumed: int | None = None

    def on_eval_start(self, run: hl.Run) -> None:
        self.evals.append(run.clock.step)

    def on_checkpoint_save(self, run: hl.Run) -> None:
        self.saves.append(run.clock.step)

    def on_checkpoint_loaded(self, run: hl.Run) -> None:
        self.resumed = run.clock.step


evaluated_fit = partial(fit, val=tiny_data(1))


def steps_of(share: str, total: int) -> list[int]:
    """The steps at which a share of so many steps is due: ``ceil(k * share * total)``."""
    part = Fraction(share) * total
    return sorted({math.ceil(k * part) for k in range(1, math.floor(1 / Fraction(share)) + 1)})


def cases() -> list[tuple[str, int, int]]:
    draw = random.Random(0)
    drawn = [(f"0.{draw.randint(5, 60):02}", draw.randint(1, 3), draw.randint(1, 12)) for _ in range(8)]
    return [("0.25", 1, 8), ("0.25", 1, 10), ("0.1", 3, 7), ("0.5", 1, 5), *drawn]


@pytest.mark.parametrize(("share", "epochs", "batches"), cases())
def test_evaluations_checkpoints_rows_and_hooks_come_at_that_part_of_the_steps(
    share: str, epochs: int, batches: int, tmp_path: Path
) -> None:
    seen, every, at = Steps(), [], []
    result = evaluated_fit(
        seen,
        hl.Checkpointer(f"{share}dur", keep_last=None),
        hl.on("train_step_end", every=f"{share}dur")(lambda run: every.append(run.clock.step)),
        hl.on("train_step_end", at=f"{share}dur")(lambda run: at.append(run.clock.step)),
        train=tiny_data(batches),
        folder=tmp_path,
        max_duration=f"{epochs}ep",
        eval_every=f"{share}dur",
        log_every=f"{share}dur",
    )
    total = epochs * batches
    expected = steps_of(share, total)
    assert every == expected
    assert at == expected[:1]
    assert seen.evals == seen.saves == sorted({*expected, total})
    assert set(result.history.steps("train/loss")) <= {*expected, *range(batches, total + 1, batches)}


@pytest.mark.parametrize("crash", [3, 5, 8])
def test_a_resume_in_the_middle_of_an_epoch_makes_none_twice_and_leaves_none_out(crash: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_duration": "2ep", "eval_every": "0.15dur"}
    whole, first, second = Steps(), Steps(), Steps()
    evaluated_fit(whole, hl.Checkpointer("0.35dur"), train=tiny_data(5), folder=tmp_path / "whole", **options)

    def fail(run: hl.Run) -> None:
        if run.clock.step == crash:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        evaluated_fit(
            first,
            hl.Checkpointer("0.35dur"),
            hl.on("train_step_start")(fail),
            train=tiny_data(5),
            folder=tmp_path / "left",
            **options,
        )
    evaluated_fit(
        second, hl.Checkpointer("0.35dur"), train=tiny_data(5), folder=tmp_path / "left", resume="auto", **options
    )
    step = second.resumed or 0
    assert [s for s in first.evals if s <= step] + second.evals == whole.evals == [2, 3, 5, 6, 8, 9, 10]
    assert [s for s in first.saves if s <= step] + second.saves == whole.saves == [4, 7, 10]


def test_an_extended_run_counts_shares_of_the_whole(tmp_path: Path) -> None:
    seen = Steps()
    options: dict[str, Any] = {"max_duration": "2ep", "eval_every": "0.5dur"}
    evaluated_fit(hl.Checkpointer(), train=tiny_data(4), folder=tmp_path, **options)
    evaluated_fit(
        seen, hl.Checkpointer("0.5dur"), train=tiny_data(4), folder=tmp_path, resume="auto", extend="1ep", **options
    )
    assert seen.evals == seen.saves == [12]  # half of 3 epochs was at step 6
    seen = Steps()
    evaluated_fit(
        seen, hl.Checkpointer("0.5dur"), train=tiny_data(4), folder=tmp_path, resume="auto", extend="3ep", **options
    )
    assert seen.evals == seen.saves == [24]  # of 6 epochs: half was at step 12


class Stream:
    """Batches without a length."""

    def __init__(self, batches: int) -> None:
        self.data = tiny_data(batches)

    def __iter__(self) -> Any:
        return iter(self.data)


def test_a_stream_counts_as_long_as_its_epoch_before(caplog: pytest.LogCaptureFixture) -> None:
    seen = Steps()
    evaluated_fit(seen, train=Stream(4), max_duration="3ep", eval_every="0.1dur")
    assert seen.evals == [4, 5, 6, 8, 9, 10, 11, 12]  # 0.3 of an epoch, from the second one on
    assert len([r for r in caplog.records if "the training loader has no length" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("callback", "changes"),
    [
        (lambda: hl.Freeze("hidden", until="0.25dur"), 2),
        (lambda: hl.Finetuning("hidden", unfreeze={"0.25dur": "hidden"}), 2),
    ],
    ids=["Freeze", "Finetuning"],
)
def test_layers_are_unfrozen_inside_the_epoch(callback: Any, changes: int) -> None:
    trained: list[bool] = []
    look = hl.on("train_step_start")(lambda run: trained.append(run.model.hidden.weight.requires_grad))
    evaluated_fit(callback(), look, train=tiny_data(8), max_duration="1ep")
    assert trained == [step >= changes for step in range(8)]


def test_accumulation_changes_inside_the_epoch_and_the_schedule_of_the_learning_rate_knows() -> None:
    used: list[int] = []
    lr = hl.LRSchedule("linear", warmup="0.25dur")
    look = hl.on("train_step_end")(lambda run: used.append(accumulation_of(run)))
    evaluated_fit(
        hl.AccumulationSchedule({"0.25dur": 2, "0.5dur": 4}), lr, look, train=tiny_data(8), max_duration="1ep"
    )
    assert used == [1, 2, 4, 4]
    assert lr.lengths["total"] == len(used)


def test_a_schedule_of_a_part_of_the_run_is_that_long() -> None:
    lr = hl.LRSchedule("linear", total="0.5dur")
    evaluated_fit(lr, train=tiny_data(7), max_duration="1ep")
    assert lr.lengths == {"total": 4}


def test_patience_may_be_a_part_of_an_epoch() -> None:
    values = iter([1.0] * 20)
    log = hl.on("eval_end", writes=("val/odd",))(lambda run: run.log({"val/odd": next(values)}))
    stop = hl.EarlyStopping("val/odd", mode="min", patience="0.3dur")
    result = evaluated_fit(log, stop, train=tiny_data(10), max_duration="1ep", eval_every="0.1dur")
    assert result.clock.step == 4


def test_milestones_of_checkpoints_are_parts_of_epochs(tmp_path: Path) -> None:
    saver = hl.Checkpointer("1st", keep_last=1, keep_every="0.3dur")
    evaluated_fit(saver, train=tiny_data(10), folder=tmp_path, max_duration="1ep")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        f"step-{step:08}" for step in (3, 6, 9, 10)
    ]


def test_gradients_are_looked_at_at_parts_of_an_epoch() -> None:
    result = evaluated_fit(hl.GradientMonitor(every="0.3dur"), train=tiny_data(10), max_duration="1ep", log_every="1st")
    name = next(name for name in result.history if name.startswith("grad"))
    assert result.history.steps(name) == [1, 3, 6, 9]
