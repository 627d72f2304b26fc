"""``steps.bin``: each step that counts has one row, with its loss and the samples, at no reading of the device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import Checkpointer
from hookline.events import Callback
from hookline.loop import Task
from hookline.progress import Clock
from hookline.records.steps import FILE, StepRow, pack, read_steps, unpack
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, crash_at, fit, sgd, train_loop
from tests.support.inside import StepRecord


def samples() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    return DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)


class Losses(Callback):
    """Keeps the loss of each batch of the steps that count, by step."""

    def __init__(self) -> None:
        self.open: list[float] = []
        self.steps: list[tuple[int, float]] = []

    def on_train_step_start(self, run: Any) -> None:
        self.open.clear()

    def on_loss_ready(self, run: Any) -> None:
        self.open.append(run.loss.item())

    def on_train_step_end(self, run: Any) -> None:
        self.steps.append((run.clock.step, sum(self.open) / len(self.open)))


@given(st.lists(st.builds(StepRow, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.floats())), st.binary())
def test_rows_are_read_as_they_were_written_and_a_torn_row_is_left_out(rows: list[StepRow], torn: bytes) -> None:
    assert pack(unpack(pack(rows) + torn[:15])) == pack(rows)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("log_every", ["1st", "4st", "100st"])
def test_each_step_has_a_row_with_its_loss(accumulate: int, log_every: str, tmp_path: Path) -> None:
    losses = Losses()
    fit(losses, folder=tmp_path / "run", train=samples(), accumulate=accumulate, log_every=log_every)
    found = [(row.step, row.loss) for row in read_steps(tmp_path / "run")]
    assert [step for step, _ in found] == [step for step, _ in losses.steps]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in losses.steps])


def test_the_same_samples_have_the_same_digest_however_the_batches_come(tmp_path: Path) -> None:
    for name, options in (("one", {}), ("other", {"log_every": "3st"})):
        fit(folder=tmp_path / name, train=samples(), **options)
    one, other = read_steps(tmp_path / "one"), read_steps(tmp_path / "other")
    assert one == other
    assert len({row.samples for row in one}) == len(one) == 20
    fit(folder=tmp_path / "reseeded", train=samples(), seed=1)
    assert not {row.samples for row in one} & {row.samples for row in read_steps(tmp_path / "reseeded")}


def test_data_without_indices_has_no_digest(tmp_path: Path) -> None:
    fit(folder=tmp_path / "run", train=tiny_data())
    assert {row.samples for row in read_steps(tmp_path / "run")} == {0}


@pytest.mark.parametrize("stop_at", [3, 7, 13])
def test_a_resume_takes_back_the_rows_after_its_checkpoint(stop_at: int, tmp_path: Path) -> None:
    fit(Checkpointer("3st"), folder=tmp_path / "whole", train=samples())
    with pytest.raises(RuntimeError, match="planted"):
        fit(Checkpointer("3st"), crash_at(stop_at), folder=tmp_path / "run", train=samples())
    fit(Checkpointer("3st"), folder=tmp_path / "run", train=samples(), resume="auto")
    assert (tmp_path / "run" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_a_run_from_a_checkpoint_of_another_run_begins_with_its_rows(tmp_path: Path) -> None:
    fit(Checkpointer("4st", keep_last=None), folder=tmp_path / "whole", train=samples())
    checkpoint = tmp_path / "whole" / "checkpoints" / "step-00000008"
    fit(folder=tmp_path / "fork", train=samples(), resume=checkpoint)
    assert (tmp_path / "fork" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_a_rollback_leaves_the_rows_of_the_steps_that_it_undoes(tmp_path: Path) -> None:
    class GoBack(Callback):
        def on_step_settled(self, run: Any) -> None:
            if run.clock.batch == 4:
                self.snapshot = run.snapshot()
            if run.clock.batch == 9:
                run.roll_back(self.snapshot)

    fit(GoBack(), folder=tmp_path / "run", train=samples())
    steps = [row.step for row in read_steps(tmp_path / "run")]
    assert steps == [*range(1, 10), *range(5, 16)]


def test_a_step_that_is_skipped_has_no_row_and_its_samples_count_in_the_next(tmp_path: Path) -> None:
    class Skip(Callback):
        def on_gradients_ready(self, run: Any) -> None:
            if run.clock.batch == 5:
                run.skip_step()

    fit(folder=tmp_path / "whole", train=samples(), max_duration="10st")
    fit(Skip(), folder=tmp_path / "run", train=samples(), max_duration="9st")
    whole, run = read_steps(tmp_path / "whole"), read_steps(tmp_path / "run")
    assert [row.step for row in run] == list(range(1, 10))
    assert run[4].samples not in {row.samples for row in whole}
    assert [row.samples for row in run[5:]] == [row.samples for row in whole[6:]]


def test_a_loss_that_is_not_finite_has_its_row(tmp_path: Path) -> None:
    def spoil(run: Any) -> None:
        run.loss = run.loss * math.nan

    fit(at_step(5, spoil, "loss_ready"), folder=tmp_path / "run", train=samples(), max_duration="6st")
    assert [math.isnan(row.loss) for row in read_steps(tmp_path / "run")] == [False] * 5 + [True]


def test_a_custom_loop_and_several_optimizers_have_rows(tmp_path: Path) -> None:
    class Two(Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = TinyModel(), TinyModel()

        def configure_optimizers(self, run: Any) -> Any:
            return {"one": sgd(self.one.parameters()), "other": sgd(self.other.parameters())}

        def train_batch(self, run: Any, batch: tuple[Tensor, Tensor]) -> None:
            for name, model in (("one", self.one), ("other", self.other)):
                run.loop.backward(nn.functional.cross_entropy(model(batch[0]), batch[1]), run.optimizers[name])
                run.loop.step(run.optimizers[name])

    train_loop(folder=tmp_path / "loop", train=samples())
    fit(model=Two(), folder=tmp_path / "two", train=samples())
    for name in ("loop", "two"):
        assert [row.step for row in read_steps(tmp_path / name)] == list(range(1, 21))


def test_losses_of_a_long_interval_are_stacked_and_read_at_its_end(tmp_path: Path) -> None:
    reads: list[str] = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            reads.append(str(function)) if "_local_scalar_dense" in str(function) else None
            return function(*args, **kwargs or {})

    clock = Clock()
    record = StepRecord(clock, lambda position: 0)
    record.open(tmp_path)
    with Reads():
        for step in range(1, 601):
            window = [(None, torch.tensor(step / 2), 1), (None, torch.tensor(step * 2.0), torch.tensor(3))]
            record.losses.append(torch.tensor(step / 4) if step % 2 else window)
            record.positions.append(step)
            record.fold()
        assert reads == []
    clock.step = 600
    record.close()
    assert [row.loss for row in read_steps(tmp_path)] == [n / 4 if n % 2 else n * 6.5 / 4 for n in range(1, 601)]
