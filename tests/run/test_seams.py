"""All that Hookline's own callbacks do with a run, a callback of another package can do as well.

Each callback here uses only public names of ``run``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.checkpoint import SavePlan
from hookline.errors import NotAvailableError, Preempted, RoleError, ScopeError, SetupError
from hookline.loop import Loop, Trainer
from hookline.run import Ending
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import CE, fit, json_lines, press_ctrl_c, same_tensors, saved_steps, sgd, state_of, train_loop


def seen_in(event: str, look: Callable[[Any], Any], **options: Any) -> list[Any]:
    """What a callback sees each time that it gets this event, in a short run."""
    found: list[Any] = []
    fit(hl.on(event)(lambda run: found.append(look(run))), **options)
    return found


# -- how training ends -------------------------------------------------------------------------------


class Endings(hl.Callback):
    """``run.ending`` at every event, without repetitions."""

    def __init__(self) -> None:
        self.seen: list[Ending | None] = []
        self.began_with: list[Ending | None] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        if event in ("setup", "fit_start"):
            self.began_with.append(run.ending)
        if not self.seen or self.seen[-1] != run.ending:
            self.seen.append(run.ending)


def stop(run: Any) -> None:
    run.stop("enough")


def fail(run: Any) -> None:
    raise RuntimeError("planted")


def terminate(run: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda run: None, Ending("duration", "max_duration (2ep) reached", None, 8, can_resume=False)),
        (stop, Ending("stop", "enough", "act", 3, can_resume=False)),
        (lambda run: run.pause("later"), Ending("interrupt", "later", "act", 3, can_resume=True)),
        (press_ctrl_c, Ending("interrupt", "keyboard interrupt", "the user", 3, can_resume=True)),
        (terminate, Ending("signal", "SIGTERM", "the system", 3, can_resume=True)),
        (fail, Ending("error", "RuntimeError: planted", None, 3, can_resume=True)),
    ],
    ids=["duration", "stop", "pause", "Ctrl-C", "signal", "error"],
)
def test_a_callback_knows_how_training_ends(act: Callable[[Any], None], expected: Ending) -> None:
    endings = Endings()
    act_once = hl.on("train_step_end", at="3st")(act)
    act_once.name = "act"
    with suppress(RuntimeError, Preempted):
        fit(endings, act_once)
    assert endings.seen == [None, expected]


def test_a_callback_knows_that_the_body_was_left() -> None:
    endings, model = Endings(), TinyModel()
    with Loop(model, sgd, callbacks=[endings], max_duration="2ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(CE(model(x), y))
            loop.step()
            break
    assert endings.seen[-1] == Ending("break", "break", "the body of the loop", 1, can_resume=True)


def test_the_last_evaluation_knows_that_it_is_the_last() -> None:
    endings = seen_in("eval_end", lambda run: run.ending and run.ending.kind, val=tiny_data(1))
    assert endings == [None, "duration"]


def test_a_fit_after_another_one_has_not_ended_when_it_begins() -> None:
    endings = Endings()
    trainer, model = Trainer(max_duration="1ep", folder=False, callbacks=[endings]), TinyModel()
    for extend in (None, "1ep"):
        trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd, extend=extend)
    trainer.evaluate(model, tiny_data(), loss=CE)
    assert endings.began_with == [None] * 5
    assert endings.seen[-1] is None


def test_a_run_that_was_finished_before_has_ended_when_it_is_resumed(tmp_path: Path) -> None:
    endings = Endings()
    fit(hl.Checkpointer(), folder=tmp_path)
    fit(hl.Checkpointer(), endings, folder=tmp_path, resume="auto")
    assert [ending and ending.kind for ending in endings.began_with] == [None, "duration"]


def test_an_error_of_a_checkpoint_is_no_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    endings: list[Any] = []
    spoil = hl.on("checkpoint_save", once=True)(lambda run: monkeypatch.setattr("os.fsync", full))
    mend = hl.on("checkpoint_failed")(lambda run: (endings.append(run.ending), monkeypatch.undo()))
    fit(hl.Checkpointer("2st", on_error="warn"), spoil, mend, folder=tmp_path)
    assert endings == [None]


def test_a_paused_run_continues_where_it_was(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "resume": "auto", "max_duration": "6st"}
    pause = hl.on("train_step_end", at="3st")(lambda run: run.pause("later"))
    paused = fit(pause, **options)
    assert (paused.interrupted, paused.clock.step) == (True, 3)
    assert same_tensors(state_of(fit(pause, **options).model), state_of(fit(max_duration="6st").model))


def test_a_stop_of_all_ranks_is_one_stop() -> None:
    result = fit(hl.on("train_step_end", at="3st")(lambda run: run.stop("enough", together=True)))
    assert (result.stop_reason, result.clock.step) == ("enough", 3)


def test_only_fits_are_training_runs() -> None:
    found: list[bool] = []
    look = hl.on("setup")(lambda run: found.append(run.is_training_run))
    trainer = Trainer(max_duration="1ep", folder=False, callbacks=[look])
    trainer.fit(model := TinyModel(), tiny_data(), loss=CE, optimizer=sgd)
    trainer.evaluate(model, tiny_data(), loss=CE)
    trainer.predict(model, [x for x, _ in tiny_data()])
    train_loop(look)
    assert found == [True, False, False, True]


def test_a_callback_knows_before_a_checkpoint_is_loaded_that_it_will_be(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "resume": "auto"}
    found = seen_in("setup", lambda run: run.will_resume, **options)
    fit(hl.Checkpointer(), **options)
    assert found + seen_in("setup", lambda run: run.will_resume, **options, max_duration="3ep") == [False, True]


def test_a_function_is_called_when_all_files_are_written(tmp_path: Path) -> None:
    found: list[Any] = []

    def look(folder: Path) -> None:
        found.append((folder == tmp_path, '"status": "finished"' in (folder / "run.json").read_text()))
        raise ValueError("of the function")

    ask = hl.on("teardown")(lambda run: run.when_written(look))
    fit(ask, folder=tmp_path)
    assert found == [(True, True)]


def test_more_signals_end_a_run() -> None:
    listen = hl.on("setup")(lambda run: run.listen_to_signals([signal.SIGUSR2]))
    with pytest.raises(Preempted) as caught:
        fit(listen, hl.on("train_step_end", at="2st")(lambda run: signal.raise_signal(signal.SIGUSR2)))
    assert caught.value.code == 128 + signal.SIGUSR2


# -- saving ------------------------------------------------------------------------------------------


class SaveAfterEvaluations(hl.Callback):
    plan = SavePlan(folder="evaluated", at_end=False)

    def on_setup(self, run: hl.Run) -> None:
        run.add_save_plan(self.plan)

    def on_eval_end(self, run: hl.Run) -> None:
        run.request_save(self.plan)


def test_a_callback_saves_by_its_own_plan(tmp_path: Path) -> None:
    fit(SaveAfterEvaluations(), hl.Checkpointer("7st"), val=tiny_data(1), folder=tmp_path)
    steps = sorted(path.name for path in (tmp_path / "evaluated").iterdir() if path.is_dir())
    assert steps == ["step-00000004", "step-00000008"]
    assert saved_steps(tmp_path) == [7, 8]


def test_a_plan_must_be_added_before_it_is_asked_for(tmp_path: Path) -> None:
    ask = hl.on("train_step_end")(lambda run: run.request_save(SavePlan()))
    with pytest.raises(SetupError, match=r"call run.add_save_plan\(plan\) in on_setup first"):
        fit(ask, folder=tmp_path)


def test_a_relative_path_is_inside_the_folder_of_the_run(tmp_path: Path) -> None:
    given = ["plots/loss.png", tmp_path / "elsewhere.png"]
    found = seen_in("setup", lambda run: list(map(run.path, given)), folder=tmp_path / "run")
    assert found == [[tmp_path / "run/plots/loss.png", tmp_path / "elsewhere.png"]]
    for name, options in (("../loss.png", {"folder": tmp_path / "other"}), ("loss.png", {"folder": False})):
        with pytest.raises(SetupError, match=r"run\.path\("):
            seen_in("setup", lambda run, name=name: run.path(name), **options)  # type: ignore[misc]


def test_an_event_is_in_the_timeline(tmp_path: Path) -> None:
    fit(hl.on("train_step_end", at="3st")(lambda run: run.log_event("thaw", "layer 2")), folder=tmp_path)
    rows = [row for row in json_lines(tmp_path / "events.jsonl") if row["name"] == "thaw"]
    assert [(row["step"], row["text"]) for row in rows] == [(3, "layer 2")]


# -- metrics -----------------------------------------------------------------------------------------


def test_metrics_of_this_step_are_told_from_older_ones() -> None:
    options: dict[str, Any] = {"val": tiny_data(1), "eval_every": "1ep", "log_every": "2st", "max_duration": "6st"}
    assert seen_in("eval_end", lambda run: sorted(run.metrics.new()), **options)[0] == [
        "train/loss",
        "train/loss_epoch",
        "val/loss",
    ]
    steps = seen_in(
        "metrics_ready", lambda run: [run.metrics.step_of(f"{of}/loss") for of in ("train", "val")], **options
    )
    assert steps == [[2, None], [4, None], [6, 4]]


def test_a_metric_of_the_open_interval_is_pending() -> None:
    class Pending(hl.Callback):
        found: Any = None

        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"train/mine": 1.0})
            self.found = "train/mine" in run.metrics.new(), "train/mine" in run.metrics.new(pending=True)

    fit(pending := Pending(), max_duration="1st", log_every="4st")
    assert pending.found == (False, True)


@pytest.mark.parametrize(("keep", "expected"), [(False, {"val/nll"}), (True, {"val/nll", "val/loss"})])
def test_a_metric_can_have_another_name(keep: bool, expected: set[str]) -> None:
    rename = hl.on("setup")(lambda run: run.rename_metric("val/loss", "val/nll", keep=keep))
    assert {name for name in fit(rename, val=tiny_data()).metrics if name.startswith("val/")} == expected


def test_a_costly_metric_is_measured_only_where_an_interval_may_end() -> None:
    asked = seen_in("train_step_end", lambda run: run.interval_may_end, train=tiny_data(40), log_every="20st")
    rows = seen_in("metrics_ready", lambda run: run.clock.step, train=tiny_data(40), log_every="20st")
    assert rows == [20, 40, 60, 80]
    assert all(asked[step - 1] for step in rows)
    assert sum(asked) < len(asked) / 2


# -- settings and steps ------------------------------------------------------------------------------


def test_the_settings_of_the_trainer_are_known() -> None:
    options: dict[str, Any] = {"eval_every": "3st", "log_every": None, "precision": "bf16", "accumulate": 2}
    found = seen_in("setup", lambda run: (run.eval_every, run.log_every, run.precision, run.accumulate), **options)
    assert found == [(hl.Duration(3, "st"), None, "bf16", 2)]


def test_accumulation_can_be_changed_at_the_edge_of_a_step() -> None:
    class More(hl.Callback):
        def on_train_epoch_start(self, run: hl.Run) -> None:
            run.accumulate = 2

    class Inside(hl.Callback):
        def on_train_batch_start(self, run: hl.Run) -> None:
            run.accumulate = 3

    assert fit(More()).clock.step == 4
    with pytest.raises(SetupError, match=r"run.accumulate = 3: a step is being accumulated"):
        fit(Inside())


def test_a_callback_knows_which_batch_completes_a_step() -> None:
    options: dict[str, Any] = {"train": tiny_data(5), "max_duration": "1ep", "accumulate": 2}
    assert seen_in("train_batch_end", lambda run: run.window_is_full, **options) == [False, True, False, True, True]


def test_the_optimizer_that_steps_has_a_name() -> None:
    model, names = TinyModel(), []
    optimizer = {"body": sgd(model.hidden.parameters()), "head": sgd(model.out.parameters())}
    train_loop(
        hl.on("gradients_ready")(lambda run: names.append(run.optimizer_name)),
        model=model,
        optimizer=optimizer,
        max_duration="1st",
    )
    assert names == ["body", "head"]
    with pytest.raises(NotAvailableError, match=r"run\.optimizer has no value"):
        seen_in("train_start", lambda run: run.optimizer_name)


def test_a_step_is_skipped_once() -> None:
    class Skip(hl.Callback):
        writes = ("optimizer",)
        skips = 0

        def on_gradients_ready(self, run: hl.Run) -> None:
            if run.clock.batch == 2 and run.can_skip_step:
                run.skip_step(together=True)
                self.skips += run.skip_requested

    seen: list[bool] = []
    result = fit(skip := Skip(), hl.on("step_skipped")(lambda run: seen.append(run.skip_requested)), max_duration="1ep")
    assert (result.clock.step, result.clock.batch, skip.skips, seen) == (3, 4, 1, [True])
    assert not any(seen_in("train_step_end", lambda run: run.can_skip_step or run.skip_requested))


def test_training_without_a_duration_ends_with_a_stop() -> None:
    class Open(hl.Callback):
        def on_fit_start(self, run: hl.Run) -> None:
            run.max_duration = None

        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 20:
                run.stop("enough")

    assert fit(Open(), max_duration="1ep").clock.step == 20


# -- data --------------------------------------------------------------------------------------------


class Limit(hl.Callback):
    def __init__(self, stage: str, count: int | None, **options: Any) -> None:
        self.given, self.options = (stage, count), options
        self.counts: int | None = None

    def on_setup(self, run: hl.Run) -> None:
        self.counts = run.limit_batches(*self.given, **self.options)


def test_the_smallest_limit_counts() -> None:
    limits = Limit("train", 3), Limit("train", 2), Limit("train", 5), Limit("val", 1)
    found: list[int] = []
    look = hl.on("eval_end")(lambda run: found.append(run.clock.eval.batch))
    result = fit(*limits, look, train=tiny_data(8), val=tiny_data(4))
    assert (result.clock.step, found) == (4, [1, 1])
    assert [limit.counts for limit in limits] == [3, 2, 2, 1]


def test_a_limit_is_for_one_fit_and_can_be_removed() -> None:
    trainer = Trainer(max_duration="1ep", folder=False, callbacks=[limit := Limit("train", 2)])
    model = TinyModel()
    trainer.fit(model, tiny_data(8), loss=CE, optimizer=sgd)
    limit.given = ("train", None)
    assert trainer.fit(model, tiny_data(8), loss=CE, optimizer=sgd, extend="1ep").clock.step == 2 + 8


@pytest.mark.parametrize(("stage", "count"), [("training", 2), ("train", 0), ("train", 0.5)])
def test_a_limit_that_means_nothing_is_an_error(stage: str, count: Any) -> None:
    with pytest.raises(SetupError, match=r"run.limit_batches\("):
        fit(Limit(stage, count))


def test_an_epoch_can_be_repeated() -> None:
    data = TensorDataset(torch.arange(8.0).reshape(8, 1).expand(8, 4), torch.zeros(8, dtype=torch.long))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    found: list[list[float]] = []
    look = hl.on("train_batch_start")(lambda run: found.append(run.batch[0][:, 0].tolist()))
    fit(Limit("train", 2, repeat=True), look, train=loader)
    assert found[:2] == found[2:]


def test_the_number_of_batches_is_known_with_its_limits() -> None:
    options: dict[str, Any] = {
        "train": tiny_data(5),
        "val": {"a": tiny_data(2), "b": tiny_data(4)},
        "max_duration": "1ep",
    }
    ask = lambda run: (run.num_batches("train"), run.num_batches("val"), run.num_batches("train", tiny_data(3)))  # noqa: E731
    assert seen_in("fit_start", ask, **options) == [(5, 6, 3)]
    found: list[Any] = []
    fit(Limit("train", 2), hl.on("train_step_end")(lambda run: found.append(ask(run))), **options)
    assert found == [(2, 6, 2)] * 2


def test_a_loader_without_a_length_has_no_number_of_batches() -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(tiny_data(3))

    found = seen_in("train_step_end", lambda run: run.num_batches("train"), train=Stream(), max_duration="1ep")
    assert found == [None] * 3


def test_the_batches_that_are_read_include_the_current_one() -> None:
    read = seen_in("train_batch_start", lambda run: (run.clock.batch_in_epoch, run.batches_read))
    assert read == [(0, 1), (1, 2), (2, 3), (3, 4)] * 2


def test_the_size_of_a_batch_is_what_the_task_counts() -> None:
    data = tiny_data(2, batch_size=8, last=3)
    sizes = seen_in("train_batch_end", lambda run: run.batch_size, train=data, max_duration="1ep")
    assert sizes + seen_in("eval_batch_end", lambda run: run.batch_size, val=data, max_duration="1ep") == [8, 3, 8, 3]
    with pytest.raises(NotAvailableError, match=r"run\.batch has no value"):
        seen_in("train_start", lambda run: run.batch_size)


def test_a_callback_finds_the_samples_of_a_batch_in_the_data_set() -> None:
    data = TensorDataset(torch.arange(12.0).reshape(12, 1).expand(12, 4), torch.zeros(12, dtype=torch.long))
    found = seen_in(
        "train_batch_start",
        lambda run: (run.batch[0][:, 0].tolist(), run.sample_indices(run.clock.batch_in_epoch)),
        train=DataLoader(data, batch_size=3, shuffle=True),
    )
    assert len(found) == 8
    assert all(values == indices for values, indices in found)
    assert seen_in("train_batch_start", lambda run: run.sample_indices(0)) == [None] * 8


def test_a_batch_goes_to_the_device_of_the_model() -> None:
    moved = seen_in("train_start", lambda run: run.to_device({"x": torch.ones(2)})["x"].device == run.device)
    assert moved == [True]


# -- weights and trials ------------------------------------------------------------------------------


def test_raw_weights_are_those_that_training_changes() -> None:
    class Zeros(hl.Callback):
        writes = ("weights",)
        found: Any = None

        def around_eval(self, run: hl.Run) -> Iterator[None]:
            before = {name: value.clone() for name, value in run.raw_weights().items()}
            with run.swap_weights({name: torch.zeros_like(value) for name, value in before.items()}):
                self.found = same_tensors(before, run.raw_weights()), bool(run.model.out.weight.any())
                yield

    fit(zeros := Zeros(), val=tiny_data(1))
    assert zeros.found == (True, False)


def test_prediction_weights_are_the_averages() -> None:
    class Look(hl.Callback):
        reads = ("weights",)
        found: Any = None

        def on_train_end(self, run: hl.Run) -> None:
            raw = state_of(run.model)
            with run.prediction_weights():
                averaged = state_of(run.model)
            self.found = raw, averaged, state_of(run.model)

    fit(hl.EMA(decay=0.5), look := Look())
    raw, averaged, after = look.found
    assert not same_tensors(raw, averaged)
    assert same_tensors(raw, after)


def test_a_trial_leaves_no_trace() -> None:
    class Tries(hl.Callback):
        losses: list[float]

        def on_fit_start(self, run: hl.Run) -> None:
            with run.trial() as trial:
                self.losses = [float(trial.step(batch)) for batch in trial.batches(6)]

    class Late(hl.Callback):
        def on_train_epoch_start(self, run: hl.Run) -> None:
            with run.trial():
                pass

    model = TinyModel(dropout=0.5)
    result = fit(tries := Tries(), model=model)
    assert len(set(tries.losses)) == 6
    assert same_tensors(state_of(result.model), state_of(fit(model=TinyModel(dropout=0.5)).model))
    with pytest.raises(ScopeError, match="an epoch is under way"):
        fit(Late())


# -- ranks, in one process ---------------------------------------------------------------------------


def test_one_process_agrees_with_itself() -> None:
    class Alone(hl.Callback):
        found: Any = None

        def on_train_batch_end(self, run: hl.Run) -> None:
            given = torch.tensor([1.0, 2.0], dtype=torch.float16)
            run.broadcast([given])
            whole = torch.tensor([3, 4])
            reduced = [run.reduce(given, op).tolist() for op in ("sum", "mean", "max", "min")]
            assert reduced == [[1.0, 2.0]] * 4
            assert (run.reduce(given).dtype, run.reduce(whole).dtype) == (torch.float16, torch.int64)
            self.found = run.reduce(2), run.data_parallel_size, run.is_padding, run.eval_shard

    fit(alone := Alone(), max_duration="1st")
    assert alone.found == (2.0, 1, False, None)
    with pytest.raises(SetupError, match=r"run.reduce\(…, op='median'\)"):
        seen_in("train_start", lambda run: run.reduce(1, "median"))


# -- who may -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda run: run.pause("why"),
        lambda run: run.limit_batches("train", 1),
        lambda run: run.rename_metric("val/loss", "val/nll"),
        lambda run: run.add_save_plan(SavePlan()),
        lambda run: run.listen_to_signals([signal.SIGUSR2]),
        lambda run: setattr(run, "accumulate", 2),
    ],
)
def test_an_optional_callback_cannot_change_the_run(act: Callable[[Any], None]) -> None:
    class Optional(hl.Callback):
        optional = True

        def on_setup(self, run: hl.Run) -> None:
            act(run)

    (failure,) = fit(Optional()).failures
    assert isinstance(failure.error, RoleError)


@pytest.mark.parametrize("field", ["ending", "eval_every", "log_every", "precision", "skip_requested"])
def test_a_field_that_cannot_be_set_says_what_to_do(field: str) -> None:
    with pytest.raises(NotAvailableError, match=rf"run\.{field} = …: it cannot be replaced\. (Call|Give) "):
        seen_in("setup", lambda run: setattr(run, field, None))


# -- in a unit test of a callback --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (["train_start", "train_step_end"], None),
        (["train_start", ("train_step_end", {"stop_reason": "enough"})], "stop"),
        (["train_start", "train_end"], "duration"),
        (["train_start", "preempt"], "signal"),
        (["train_start", ("exception", {"exception": ValueError("planted")})], "error"),
    ],
)
def test_a_driven_callback_sees_how_training_ends(events: list[Any], kind: str | None) -> None:
    ending = drive(hl.Callback(), ["setup", "fit_start", *events]).run.ending
    assert (ending and ending.kind) == kind


def test_a_driven_callback_has_the_other_seams() -> None:
    class Third(hl.Callback):
        def on_setup(self, run: hl.Run) -> None:
            run.rename_metric("val/loss", "val/nll")

        def on_train_start(self, run: hl.Run) -> None:
            run.accumulate = 2

        def on_eval_end(self, run: hl.Run) -> None:
            self.seen = run.metrics.new(), run.metrics.step_of("val/nll"), run.is_training_run

        def on_gradients_ready(self, run: hl.Run) -> None:
            if run.can_skip_step and run.optimizer_name == "SGD":
                run.skip_step(together=True)

        def on_train_step_end(self, run: hl.Run) -> None:
            run.pause("later")

    evaluation = ("eval_end", {"step": 7, "metrics": {"val/loss": 0.5}})
    third = drive(Third(), ["setup", "train_start", evaluation, "gradients_ready", "train_step_end"], accumulate=1)
    assert third.callback.seen == ({"val/nll": 0.5}, 7, True)
    assert third.requests == [("gradients_ready", "skip")]
    assert (third.run.accumulate, third.stops[0].interrupt) == (2, True)
