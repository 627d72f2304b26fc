"""``SpikeGuard``: what it takes for a spike, and that a run goes on as one that never saw it."""

from __future__ import annotations

import logging
import math
import pickle
import random
import statistics
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.callbacks.stopping import SpikeGuard, StopOnNaN
from hookline.callbacks.stopping._spikes import FOLDER, TABLE, UsualValues
from hookline.errors import ArgumentError, MetricError, SetupError
from hookline.loop import Trainer
from hookline.testing import Recorder, TinyModel, check_callback, tiny_data
from tests.support import CE, at_step, fit, interrupt, json_lines, same_tensors, train_loop

NAN, INF = math.nan, math.inf
Batch = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """Dropout, batch norm, and a buffer that is replaced in each forward pass."""

    def __init__(self, *, norm: bool = True) -> None:
        super().__init__()
        self.tiny = TinyModel(dropout=0.3)
        self.norm: nn.Module = nn.BatchNorm1d(3) if norm else nn.Identity()
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = self.seen + x.detach().mean()
        return self.norm(self.tiny(x))  # type: ignore[no-any-return]


class Noise(nn.Module):
    """A loss that draws from Python and NumPy too."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        scale = 1 + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return nn.functional.cross_entropy(outputs, targets) * scale


@pytest.fixture(autouse=True)
def same_numpy_state() -> Iterator[None]:
    before = np.random.get_state()
    yield
    np.random.set_state(before)


def planted(batches: int, bad: set[int], value: float) -> list[Batch]:
    """A list of batches, some of which are bad."""
    data = tiny_data(batches)
    return [(x.fill_(value) if i in bad else x, y) for i, (x, y) in enumerate(data)]


adam = partial(torch.optim.AdamW, lr=0.01)


def fit_on(data: Any, *callbacks: object, **options: Any) -> Any:
    return fit(*callbacks, train=data, **{"optimizer": adam, **options})


def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def same(one: nn.Module, other: nn.Module) -> bool:
    return same_tensors(one.state_dict(), other.state_dict())


# -- equal to a run that never saw them --------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bad", "norm"),
    [
        (NAN, {3, 4, 11, 17, 20, 21, 22, 23, 28, 29}, True),
        (INF, {0, 1, 2, 11, 17, 20, 22, 23, 28, 29}, True),
        (1e6, {21, 22, 23, 25, 27, 28, 30, 31, 34, 35}, False),  # after warm-up; batch norm would hide it from the loss
    ],
)
def test_twenty_spikes_leave_weights_bitwise_as_if_their_batches_had_not_been_there(
    value: float, bad: set[int], norm: bool
) -> None:
    """Dropout, batch norm, a replaced buffer, Python's and NumPy's random numbers, and a schedule."""
    data = planted(36, bad, value)
    guard, guarded, reference = SpikeGuard(max_spikes=20), Net(norm=norm), Net(norm=norm)
    result = fit_on(data, guard, model=guarded, loss=Noise(), scheduler=decay)
    clean = [batch for number, batch in enumerate(data) if number not in bad]
    expected = fit_on(clean, model=reference, loss=Noise(), scheduler=decay)
    assert [row["guilty"] for row in guard.spikes] == [[number] for _ in range(2) for number in sorted(bad)]
    assert result.stop_reason == "max_duration (2ep) reached"
    assert (result.clock.step, result.clock.batch) == (expected.clock.step, expected.clock.batch + 20)
    assert same(guarded, reference)


def test_without_the_guard_the_same_data_ruins_the_weights() -> None:
    """Else the test above would say nothing."""
    model = Net()
    fit_on(planted(10, {3}, NAN), model=model)
    assert any(not torch.isfinite(value).all() for value in model.state_dict().values())


def test_the_optimizer_and_the_random_states_are_those_of_the_run_without_the_batches() -> None:
    seen: list[Any] = []

    class Look(hl.Callback):
        def on_train_end(self, run: Any) -> None:
            (optimizer,) = run.optimizers.values()
            state = {i: {k: v.clone() for k, v in s.items()} for i, s in optimizer.state_dict()["state"].items()}
            seen.append((state, torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()))  # type: ignore[index]

    data = planted(8, {2, 7}, NAN)
    fit_on(data, SpikeGuard(), Look(), model=Net(), loss=Noise())
    fit_on([batch for i, batch in enumerate(data) if i not in (2, 7)], Look(), model=Net(), loss=Noise())
    (one, torch_one, python_one, numpy_one), (two, torch_two, python_two, numpy_two) = seen
    assert all(same_tensors(one[i], two[i]) for i in two)
    assert torch.equal(torch_one, torch_two)
    assert (python_one, numpy_one) == (python_two, numpy_two)


def test_with_accumulation_the_whole_step_is_left_out_and_the_guilty_batch_is_named() -> None:
    data, model, reference = planted(12, {5}, NAN), Net(), Net()
    guard = SpikeGuard()
    fit_on(data, guard, model=model, accumulate=3, max_duration="1ep")
    fit_on(
        [batch for i, batch in enumerate(data) if i not in (3, 4, 5)], model=reference, accumulate=3, max_duration="1ep"
    )
    assert same(model, reference)
    assert [(row["batches"], row["guilty"]) for row in guard.spikes] == [([3, 4, 5], [5])]


def test_a_callback_that_draws_random_numbers_for_the_batch_or_the_gradients_changes_nothing() -> None:
    """Their numbers are drawn before the forward pass, and after the spike was seen."""

    class Augment(hl.Callback):
        writes = ("batch",)

        def on_batch_fetch_end(self, run: Any) -> None:
            x, y = run.batch
            run.batch = (x + 0.1 * torch.randn_like(x), y)

    class Shake(hl.Callback):
        writes = ("gradients",)

        def on_gradients_ready(self, run: Any) -> None:
            for parameter in run.model.parameters():
                parameter.grad.add_(0.01 * torch.randn_like(parameter))

    data, model, reference = planted(8, {3}, NAN), Net(), Net()
    guard = SpikeGuard()
    fit_on(data, guard, Augment(), Shake(), model=model)
    fit_on([batch for i, batch in enumerate(data) if i != 3], Augment(), Shake(), model=reference)
    assert len(guard.spikes) == 2
    assert same(model, reference)


def test_an_evaluation_after_a_skipped_step_does_not_see_what_the_bad_batch_did_to_batch_norm() -> None:
    data, model, reference = planted(4, {3}, NAN), Net(), Net()
    result = fit_on(data, SpikeGuard(), model=model, val=tiny_data(2, seed=1))
    expected = fit_on(data[:3], model=reference, val=tiny_data(2, seed=1))
    assert result.history["val/loss"] == expected.history["val/loss"]


def test_in_the_own_loop() -> None:
    data, guard = planted(6, {4}, NAN), SpikeGuard()
    _, model = train_loop(guard, train=data)
    _, reference = train_loop(train=data[:4] + data[5:])
    assert len(guard.spikes) == 2
    assert same(model, reference)


# -- rollback ----------------------------------------------------------------------------------------


def test_a_rollback_takes_back_the_steps_since_the_snapshot_and_goes_on_with_the_next_batch() -> None:
    """Snapshots before steps 0, 4 and 8; the spike is in batch 10, so batches 8 to 10 are used up."""
    data, model, reference = planted(16, {10}, NAN), Net(), Net()
    guard, recorder = SpikeGuard(action="rollback", snapshot_every="4st"), Recorder(only=("rollback",))
    result = fit_on(
        data, guard, recorder, model=model, max_duration="1ep", loss=Noise(), scheduler=decay, log_every="1st"
    )
    clean = data[:8] + data[11:]
    expected = fit_on(clean, model=reference, max_duration="1ep", loss=Noise(), scheduler=decay, log_every="1st")
    assert same(model, reference)
    assert (result.clock.step, result.clock.batch) == (expected.clock.step, 16)
    assert recorder.count("rollback") == 1
    assert result.history["train/loss"] == expected.history["train/loss"]
    assert guard.spikes[0]["action"] == "rollback"


def test_one_snapshot_can_be_gone_back_to_twice() -> None:
    data, model, reference = planted(16, {5, 9}, NAN), Net(), Net()
    fit_on(data, SpikeGuard(action="rollback", snapshot_every="100st"), model=model, max_duration="1ep")
    fit_on(data[10:], model=reference, max_duration="1ep")
    assert same(model, reference)


def test_after_a_rollback_what_is_usual_is_what_was_usual_at_the_snapshot() -> None:
    guard = SpikeGuard(action="rollback", snapshot_every="4st")
    fit_on(planted(12, {6}, NAN), guard, max_duration="7st")
    # Four values before the snapshot at step 4; batches 4 and 5 are taken back; 7, 8 and 9 follow.
    assert [len(values) for values in guard.state_dict()["usual"].values()] == [7]


class Gan(hl.Task):
    """Two networks with an optimizer each, which the task steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def configure_optimizers(self, run: Any) -> Any:
        return {"one": torch.optim.SGD(self.one.parameters(), 0.1), "two": torch.optim.SGD(self.two.parameters(), 0.1)}

    def train_batch(self, run: Any, batch: Any) -> None:
        x, y = batch
        optimizers = run.optimizers
        run.loop.backward(nn.functional.cross_entropy(self.one(torch.nan_to_num(x)), y), optimizers["one"])
        run.loop.step(optimizers["one"])
        run.loop.backward(nn.functional.cross_entropy(self.two(x), y), optimizers["two"])
        run.loop.step(optimizers["two"])


def test_with_several_optimizers_a_rollback_undoes_the_update_that_was_made_before_the_spike_was_seen() -> None:
    data = planted(10, {4}, NAN)
    tasks = [Gan(), Gan()]
    tasks[1].load_state_dict(tasks[0].state_dict())
    guard = SpikeGuard(action="rollback", snapshot_every="1st")
    fit_on(data, guard, model=tasks[0], optimizer=None, max_duration="1ep")
    fit_on(data[:4] + data[5:], model=tasks[1], optimizer=None, max_duration="1ep")
    assert len(guard.spikes) == 1
    assert same(*tasks)
    assert guard.state_dict()["usual"].keys() == {"loss/0", "loss/1"}


def test_a_step_that_cannot_be_left_out_as_a_whole_is_refused_at_the_start() -> None:
    with pytest.raises(SetupError, match=r"a step of one, two: .* use action='rollback'"):
        fit_on(tiny_data(2), SpikeGuard(), model=Gan(), optimizer=None)
    with pytest.raises(SetupError, match=r"a step of LBFGS: .* use action='rollback'"):
        fit_on(tiny_data(2), SpikeGuard(), optimizer=torch.optim.LBFGS)


# -- resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 3, 6, 9])
@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 2, "window": 6, "threshold": 3.0},
        {"action": "rollback", "snapshot_every": "5st", "warmup": 2, "window": 6, "threshold": 3.0},
    ],
    ids=["skip", "rollback"],
)
def test_a_run_that_is_left_and_resumed_does_the_same_as_one_that_is_not(
    tmp_path: Path, options: dict[str, Any], step: int
) -> None:
    """With a rollback the snapshot is older than the checkpoint: it must be in it."""
    data = planted(7, {4}, 40.0) + planted(7, {3}, NAN)
    made: dict[str, tuple[Any, SpikeGuard, nn.Module]] = {}

    def part(name: str, *callbacks: object, resume: Any = None) -> None:
        guard, model = SpikeGuard(**options), Net()
        result = fit_on(
            data, guard, hl.Checkpointer("100st"), *callbacks, model=model, loss=Noise(), scheduler=decay,
            folder=tmp_path / name, resume=resume, log_every="1st",
        )  # fmt: skip
        made[name] = (result, guard, model)

    part("whole")
    part("parts", at_step(step, interrupt))
    assert made["parts"][0].interrupted
    part("parts", resume="auto")
    (whole, one, model), (parts, two, other) = made["whole"], made["parts"]
    assert len(one.spikes) >= 2
    assert same(model, other)
    assert one.spikes == two.spikes
    assert one.state_dict()["usual"] == two.state_dict()["usual"]
    assert whole.clock.step == parts.clock.step
    assert repr(whole.history["train/loss"]) == repr(parts.history["train/loss"])  # NaN is a value
    tables = [(tmp_path / name / FOLDER / TABLE).read_text() for name in made]
    assert tables[0] == tables[1]


def test_a_resume_from_before_a_spike_forgets_what_was_kept_of_it(tmp_path: Path) -> None:
    data = planted(8, {5}, NAN)
    fit_on(data, SpikeGuard(), hl.Checkpointer("2st", keep_last=None), folder=tmp_path, max_duration="7st")
    kept = tmp_path / FOLDER / "epoch-0-batch-5.safetensors"
    assert kept.exists()
    first = tmp_path / "checkpoints" / "step-00000002"
    guard = SpikeGuard()
    fit_on(data, guard, folder=tmp_path, max_duration="3st", resume=str(first))
    assert not kept.exists()
    assert (tmp_path / FOLDER / TABLE).read_text() == ""
    assert guard.spikes == []


def test_the_number_of_spikes_is_counted_over_a_resume(tmp_path: Path) -> None:
    data = planted(10, {1, 7, 8}, NAN)
    fit_on(data, SpikeGuard(max_spikes=2), hl.Checkpointer("100st"), at_step(3, interrupt), folder=tmp_path)
    result = fit_on(data, SpikeGuard(max_spikes=2), hl.Checkpointer("100st"), folder=tmp_path, resume="auto")
    assert result.stop_reason.startswith("3 spikes are more than max_spikes=2")


def test_another_run_with_the_same_object_begins_anew() -> None:
    guard = SpikeGuard()
    fit_on(planted(4, {1}, NAN), guard, max_duration="1ep")
    fit_on(tiny_data(4), guard, max_duration="1ep")
    assert guard.spikes == []
    assert guard.state_dict()["usual"] == {"loss/0": guard._usual["loss/0"].values}
    assert len(guard._usual["loss/0"].values) == 4


@pytest.mark.parametrize("other", [False, True])
def test_an_evaluation_between_two_fits_does_not_make_it_forget(other: bool) -> None:
    """With a new loss, or of another model, it is another loop with the same callbacks."""
    guard, model, data = SpikeGuard(max_spikes=1), TinyModel(), planted(6, {4}, NAN)
    trainer = Trainer(callbacks=[guard], max_duration="1ep", folder=False)
    fit_on(data, trainer=trainer, model=model)
    trainer.evaluate(TinyModel() if other else model, tiny_data(1), loss=CE)
    assert (len(guard.spikes), len(guard._usual["loss/0"].values)) == (1, 5)
    result = fit_on(data, trainer=trainer, model=model, extend="1ep")
    assert result.stop_reason.startswith("2 spikes are more than max_spikes=1")


def test_a_second_fit_takes_its_snapshots_where_one_long_fit_does() -> None:
    """A snapshot at its start would let a rollback go back less far than in one fit."""

    def snapshots(first: str, *more: str) -> list[int]:
        guard, model, taken = SpikeGuard(action="rollback", snapshot_every="8st"), TinyModel(), []

        class Note(hl.Callback):
            last: Any = None

            def on_train_step_end(self, run: Any) -> None:
                if guard._taken is not self.last:
                    self.last = guard._taken
                    taken.append(run.clock.step - 1)

        trainer = Trainer(callbacks=[guard, Note()], max_duration=first, folder=False)
        for extend in (None, *more):
            fit_on(tiny_data(10), trainer=trainer, model=model, extend=extend)
        return taken

    assert snapshots("30st") == snapshots("10st", "20st") == [0, 8, 16, 24]


def test_another_run_with_the_same_object_takes_its_snapshots_anew() -> None:
    guard = SpikeGuard(action="rollback", snapshot_every="8st")
    fit_on(tiny_data(30), guard, max_duration="30st")
    fit_on(tiny_data(30), guard, max_duration="10st")
    assert guard.state_dict()["snapshots"] == {"every": "8st", "multiple": 1}


# -- bounded -----------------------------------------------------------------------------------------


def test_more_than_max_spikes_stop_the_run_with_a_reason_that_names_the_last() -> None:
    model = TinyModel()
    result = fit_on(planted(10, {2, 3, 6}, NAN), SpikeGuard(max_spikes=2), model=model)
    assert result.stopped_by == "SpikeGuard"
    assert result.stop_reason == ("3 spikes are more than max_spikes=2; the last: the loss is nan in epoch 0, batch 6")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_max_spikes_themselves_are_allowed() -> None:
    assert fit_on(planted(10, {2, 3}, NAN), SpikeGuard(max_spikes=4)).stopped_by is None


def test_none_allowed_stops_at_the_first() -> None:
    result = fit_on(planted(10, {2}, NAN), SpikeGuard(max_spikes=0))
    assert (result.clock.step, result.stopped_by) == (2, "SpikeGuard")


def test_a_loss_that_goes_up_for_good_ends_the_run_and_does_not_skip_for_ever() -> None:
    """What is skipped does not become usual; so this is bounded."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return nn.functional.cross_entropy(outputs, targets) + (100.0 if self.calls > 30 else 0.0)

    result = fit_on(tiny_data(60), SpikeGuard(max_spikes=5), loss=Shift())
    assert (result.stopped_by, result.clock.step) == ("SpikeGuard", 30)


# -- what a spike is ---------------------------------------------------------------------------------


class Scripted(nn.Module):
    """Losses as they are written down, whatever the model says."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values, self.calls = values, 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = self.values[self.calls]
        self.calls += 1
        return outputs.sum() * 0 + value


def spikes_in(values: list[float], **options: Any) -> list[int]:
    guard = SpikeGuard(max_spikes=len(values), **options)
    fit_on(tiny_data(len(values)), guard, loss=Scripted(values), max_duration="1ep")
    return [row["guilty"][0] for row in guard.spikes]


def expected_spikes(values: list[float], threshold: float, window: int, warmup: int) -> list[int]:
    """The definition, computed anew from the good values at each step."""
    good: list[float] = []
    found = []
    for number, value in enumerate(values):
        last = good[-window:]
        spike = not math.isfinite(value)
        if not spike and len(last) >= warmup:
            median = statistics.median(last)
            spread = 1.4826 * statistics.median([abs(other - median) for other in last])
            spike = (value - median) / max(spread, 0.05 * abs(median), 1e-12) > threshold
        found += [number] if spike else []
        good += [] if spike else [value]
    return found


def noisy(seed: int, count: int) -> list[float]:
    """A loss that falls, with noise and some jumps, in the precision of a run."""
    generator = np.random.default_rng(seed)
    values = (2.0 * np.exp(-np.arange(count) / 80) + 0.1 * generator.standard_normal(count)).tolist()
    for number in generator.choice(count, count // 15, replace=False):
        values[number] += generator.choice([0.5, 1.0, 3.0, 50.0])
    values[-10] = NAN
    return torch.tensor(values).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("threshold", "window", "warmup"), [(8.0, 100, 20), (4.0, 10, 3), (6.0, 7, 7)])
def test_spikes_are_those_of_a_robust_score_over_the_last_good_values(
    threshold: float, window: int, warmup: int
) -> None:
    for seed in range(20):
        usual, found, values = UsualValues("zscore", threshold, window, warmup), [], noisy(seed, 200)
        for number, value in enumerate(values):
            if usual.judge(value).spike:
                found.append(number)
            else:
                usual.add(value)
        assert found == expected_spikes(values, threshold, window, warmup), f"seed {seed}"
        assert len(found) > 1


def test_in_a_run_the_spikes_are_the_same() -> None:
    values = noisy(0, 80)
    found = spikes_in(values, threshold=6.0, window=30, warmup=10)
    assert found == expected_spikes(values, 6.0, 30, 10)
    assert len(found) > 1


def test_by_factor_a_spike_is_so_many_times_the_mean_of_the_last_good_values() -> None:
    values = [1.0, 3.0, 2.0, 5.9, 6.1, 1.0, 0.1, 9.0]  # means: 2, then 3.63 of the last three, then 2.97, then 2.33
    assert spikes_in(values, method="factor", threshold=3.0, window=3, warmup=3) == [7]
    assert spikes_in(values, method="factor", threshold=2.0, window=3, warmup=3) == [3, 4, 7]


def test_in_warm_up_only_what_is_not_finite_is_a_spike() -> None:
    assert spikes_in([1.0, 1000.0, NAN, 1.0, -INF, 1.0, 1.0], warmup=6, window=10) == [2, 4]


def test_a_loss_that_falls_is_no_spike() -> None:
    assert spikes_in([5.0] * 10 + [0.001] + [5.0] * 3, warmup=5) == []


def test_a_loss_that_never_changed_may_change_a_little() -> None:
    """The spread of equal values is zero, and everything would be far from them."""
    assert spikes_in([1.0] * 10 + [1.1, 1.0, 1.3] + [1.0, 2.0], warmup=5) == [14]


def test_by_factor_values_that_are_not_positive_are_an_error_that_says_what_to_use() -> None:
    with pytest.raises(MetricError, match=r"mean is -1: use method='zscore'"):
        spikes_in([-1.0] * 5, method="factor", warmup=2)
    assert spikes_in([-1.0] * 5 + [3.0, -1.0], warmup=2) == [5]


def test_the_norm_of_the_gradients_is_that_of_a_plain_loop() -> None:
    guard, model = SpikeGuard("gradients"), TinyModel()
    data = tiny_data(3)
    fit_on(data, guard, model=model, optimizer=torch.optim.SGD, max_duration="1ep")
    plain, norms = TinyModel(), []
    optimizer = torch.optim.SGD(plain.parameters())
    for x, y in data:
        nn.functional.cross_entropy(plain(x), y).backward()
        norms.append(
            math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in plain.parameters() if p.grad is not None))
        )
        optimizer.step()
        optimizer.zero_grad()
    assert guard.state_dict()["usual"] == {"gradients/SGD": pytest.approx(norms, rel=1e-6)}


def test_gradients_are_seen_before_they_are_clipped() -> None:
    class Clip(hl.Callback):
        writes = ("gradients",)

        def on_gradients_ready(self, run: Any) -> None:
            nn.utils.clip_grad_norm_(run.model.parameters(), 1e-3)

    guard = SpikeGuard("gradients", warmup=5, threshold=5.0)
    data = tiny_data(12)
    data[9][0].mul_(500.0)
    fit_on(data, Clip(), guard, max_duration="1ep")
    assert [row["guilty"] for row in guard.spikes] == [[9]]


def test_usual_values_forget_the_oldest_also_when_values_repeat() -> None:
    usual = UsualValues("zscore", 8.0, window=4, warmup=2)
    for value in (1.0, 2.0, 1.0, 3.0, 1.0, 5.0, 5.0):
        usual.add(value)
    assert usual.values == [3.0, 1.0, 5.0, 5.0]
    assert usual._sorted == [1.0, 3.0, 5.0, 5.0]


# -- what is kept ------------------------------------------------------------------------------------


def test_the_batch_and_what_it_was_are_kept_in_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tiny_data(30)
    data[25][0].mul_(1000.0)
    guard = SpikeGuard()
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_on(data, guard, folder=tmp_path, max_duration="1ep")
    (row,) = json_lines(tmp_path / FOLDER / TABLE)
    assert row == guard.spikes[0]
    assert (row["step"], row["epoch"], row["batches"], row["samples"]) == (25, 0, [25], {"25": None})
    assert row["value"] > 8 * row["usual"] > 0
    assert row["score"] > 8
    kept = load_file(tmp_path / FOLDER / row["file"])
    assert torch.equal(kept["25/0"], data[25][0])
    assert torch.equal(kept["25/1"], data[25][1])
    assert f"spike 1: the loss is {row['value']:.6g}, usually {row['usual']:.6g}, in epoch 0, batch 25" in caplog.text


def test_the_indices_of_the_samples_are_those_that_a_shuffled_loader_gave(tmp_path: Path) -> None:
    x, y = (torch.cat(parts) for parts in zip(*tiny_data(10), strict=True))
    x[37] = NAN
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    guard = SpikeGuard()
    fit_on(loader, guard, folder=tmp_path)
    assert len(guard.spikes) == 2
    for row in guard.spikes:
        (number,) = row["guilty"]
        samples = row["samples"][str(number)]
        assert 37 in samples
        kept = load_file(tmp_path / FOLDER / row["file"])
        assert torch.equal(kept[f"{number}/0"].nan_to_num(), x[samples].nan_to_num())
        assert torch.equal(kept[f"{number}/1"], y[samples])


def test_a_batch_of_any_shape_is_kept_with_its_texts(tmp_path: Path) -> None:
    class Nested(hl.Task):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def configure_optimizers(self, run: Any) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_batch(self, run: Any, batch: Any) -> Any:
            return self.net(batch["x"]["inner"]).mean() * batch["scale"]

    def batch(scale: float) -> dict[str, Any]:
        return {"x": {"inner": torch.ones(2, 4)}, "ids": ["a", "b"], "scale": scale, "n": np.arange(3), "odd": object()}

    data = [batch(1.0), batch(NAN), batch(1.0)]
    fit_on(data, SpikeGuard(), model=Nested(), max_duration="1ep", folder=tmp_path)
    (row,) = json_lines(tmp_path / FOLDER / TABLE)
    kept = load_file(tmp_path / FOLDER / row["file"])
    assert kept.keys() == {"1/x/inner", "1/n"}
    assert kept["1/n"].tolist() == [0, 1, 2]
    assert row["others"]["1/ids"] == ["a", "b"]
    assert row["others"]["1/odd"].startswith("<object object")


def test_without_a_folder_nothing_is_written_and_the_rows_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guard = SpikeGuard()
    fit_on(planted(4, {1}, NAN), guard)
    assert list(tmp_path.iterdir()) == []
    assert [row["value"] for row in guard.spikes] == ["nan", "nan"]


def test_keep_batches_false_writes_nothing(tmp_path: Path) -> None:
    guard = SpikeGuard(keep_batches=False)
    fit_on(planted(4, {1}, NAN), guard, folder=tmp_path)
    assert len(guard.spikes) == 2
    assert not (tmp_path / FOLDER).exists()


def test_a_folder_that_cannot_be_written_to_is_said_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("a file in the way")
    with caplog.at_level(logging.ERROR, "hookline"):
        result = fit_on(planted(4, {1}, NAN), SpikeGuard(), folder=tmp_path)
    assert result.stopped_by is None
    assert "could not keep the batches of a spike, and the run continues" in caplog.text


@pytest.mark.parametrize("keep_batches", [True, False])
def test_batches_that_are_not_written_are_not_kept_in_memory(keep_batches: bool) -> None:
    def most_alive(*callbacks: object) -> int:
        made: list[weakref.ref[torch.Tensor]] = []
        most = 0

        class Data:
            def __len__(self) -> int:
                return 16

            def __iter__(self) -> Iterator[Batch]:
                nonlocal most
                for _ in range(16):
                    x = torch.randn(8, 4)
                    made.append(weakref.ref(x))
                    most = max(most, sum(batch() is not None for batch in made))
                    yield x, torch.zeros(8, dtype=torch.long)

        fit_on(Data(), *callbacks, accumulate=8, max_duration="1ep")
        return most

    assert most_alive(SpikeGuard(keep_batches=keep_batches)) == most_alive()


def test_the_number_of_spikes_is_logged() -> None:
    result = fit_on(planted(6, {1, 4}, NAN), SpikeGuard(), log_every="1st", max_duration="1ep")
    assert result.history["train/spikes"] == [1.0, 2.0]


# -- beside others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
def test_beside_stop_on_nan_a_spike_is_skipped_and_the_run_is_not_stopped(turned: bool) -> None:
    callbacks = [SpikeGuard(), StopOnNaN()]
    result = fit_on(planted(8, {3}, NAN), *(reversed(callbacks) if turned else callbacks))
    assert result.stopped_by is None


def test_a_step_that_another_callback_skips_is_not_judged() -> None:
    class Skip(hl.Callback):
        def on_train_step_start(self, run: Any) -> None:
            if run.clock.batch == 2:
                run.skip_step()

    guard = SpikeGuard()
    fit_on(planted(6, {2}, NAN), guard, Skip(), max_duration="1ep")
    assert guard.spikes == []


def test_in_fp16_an_overflow_of_the_gradients_is_left_to_the_scaler_and_a_loss_that_is_not_finite_is_a_spike() -> None:
    model = TinyModel()
    guard = SpikeGuard()
    result = fit_on(planted(8, {3}, NAN), guard, model=model, precision="fp16", max_duration="1ep")
    assert [row["guilty"] for row in guard.spikes] == [[3]]
    assert (result.clock.step, result.clock.batch) == (7, 8)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_one_that_takes_snapshots_keeps_the_contract() -> None:
    """All but one rule: a snapshot has times and the size of a file in it, which no two runs share.

    That a resume does the same is shown above.
    """
    check_callback(
        lambda: SpikeGuard(action="rollback", threshold=100.0, window=4, warmup=2, snapshot_every="2st"),
        skip=("resume",),
    )


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "val/loss"}, r"SpikeGuard\(monitor='val/loss'\): must be 'loss' or 'gradients'\."),
        ({"action": "stop"}, r"SpikeGuard\(action='stop'\): must be 'skip' or 'rollback'\."),
        ({"method": "mean"}, r"SpikeGuard\(method='mean'\): must be 'zscore' or 'factor'\."),
        ({"threshold": 0}, r"SpikeGuard\(threshold.*\): must be"),
        ({"threshold": NAN}, r"SpikeGuard\(threshold.*\): must be"),
        ({"method": "factor", "threshold": 1.0}, r"SpikeGuard\(threshold=1\.0\): must be finite and > 1\."),
        ({"warmup": 1}, r"SpikeGuard\(window="),
        ({"warmup": 200}, r"SpikeGuard\(window="),
        ({"max_spikes": -1}, r"SpikeGuard\(window="),
        ({"snapshot_every": "7 days ago"}, "not a duration"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SpikeGuard(**options)
    assert isinstance(caught.value, ArgumentError | hl.errors.DurationError)


def test_two_guards_do_not_hold_one_anothers_snapshots() -> None:
    """Each state was larger than the last: 3 GB after 24 steps of a tiny model."""
    sizes: list[int] = []

    @hl.on("train_step_end", every="8st")
    def measure(run: Any) -> None:
        sizes.append(len(pickle.dumps(loss.state_dict())))

    loss = SpikeGuard("loss", action="rollback", snapshot_every="2st")
    gradients = SpikeGuard("gradients", action="rollback", snapshot_every="2st")
    loss.name, gradients.name, gradients.after = "first", "second", ("first",)
    fit_on(tiny_data(24), loss, gradients, measure, max_duration="24st")
    assert len(sizes) == 3
    assert sizes[-1] < 1.5 * sizes[0]
