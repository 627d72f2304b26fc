"""What a hook writes on ``run`` counts, or is an error: nothing is ignored in silence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, state_of


def weights_after(*callbacks: Any, **options: Any) -> dict[str, Tensor]:
    return state_of(fit(*callbacks, **{"max_duration": "1ep", **options}).model)


def on(event: str, act: Callable[[Any], Any]) -> hl.Callback:
    callback = hl.LambdaCallback(**{f"on_{event}": act})
    callback.name = f"{act.__name__} in {event}"
    return callback


def error_of(event: str, act: Callable[[Any], Any], **options: Any) -> str:
    """The message of what a hook raises at its first call."""
    with pytest.raises(hl.HooklineError) as caught:
        weights_after(on(event, act), val=tiny_data(), **options)
    return str(caught.value)


def doubled(data: Any) -> Any:
    return [(x * 2, y) for x, y in data]


# -- the batch and the outputs -------------------------------------------------------------------


def double(run: Any) -> None:
    x, y = run.batch
    run.batch = (x * 2, y)


@pytest.mark.parametrize("event", ["batch_fetch_end", "train_step_start", "train_batch_start", "forward_start"])
def test_a_batch_that_is_replaced_before_the_forward_is_the_one_that_is_trained_on(event: str) -> None:
    assert same_tensors(weights_after(on(event, double)), weights_after(train=doubled(tiny_data())))


def test_targets_that_are_replaced_before_the_forward_are_those_of_the_loss() -> None:
    def flip(run: Any) -> None:
        x, y = run.batch
        run.batch = (x, y.flip(0))

    assert same_tensors(
        weights_after(on("forward_start", flip)), weights_after(train=[(x, y.flip(0)) for x, y in tiny_data()])
    )


@pytest.mark.parametrize("event", ["batch_fetch_end", "eval_batch_start", "forward_start"])
def test_a_batch_of_an_evaluation_is_replaced_too(event: str) -> None:
    model, trainer = TinyModel(), hl.Trainer(folder=False)
    replaced = trainer.evaluate(model, tiny_data(), loss=CE, callbacks=[on(event, double)])
    assert replaced == trainer.evaluate(model, doubled(tiny_data()), loss=CE)


def test_a_smaller_batch_of_an_evaluation_counts_for_as_much_as_it_has() -> None:
    def cut(run: Any) -> None:
        if run.clock.eval.batch == 0:
            run.batch = tuple(part[:1] for part in run.batch)

    data = tiny_data()
    model, trainer, loss = TinyModel(), hl.Trainer(folder=False), CE
    first = tuple(part[:1] for part in data[0])
    found = trainer.evaluate(model, data, loss=loss, callbacks=[on("eval_batch_start", cut)])
    assert found == trainer.evaluate(model, [first, *data[1:]], loss=loss)


def test_an_optimizer_with_a_closure_computes_on_the_replaced_batch() -> None:
    lbfgs = partial(torch.optim.LBFGS, lr=0.1, max_iter=3)
    done: set[int] = set()

    def double_once(run: Any) -> None:
        if run.clock.batch not in done:
            done.add(run.clock.batch)
            double(run)

    replaced = weights_after(on("forward_start", double_once), optimizer=lbfgs)
    assert same_tensors(replaced, weights_after(train=doubled(tiny_data()), optimizer=lbfgs))


def test_outputs_that_are_replaced_after_the_forward_are_those_of_the_loss() -> None:
    class Halved(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0.5

    def halve(run: Any) -> None:
        run.outputs = run.outputs * 0.5

    assert same_tensors(weights_after(on("forward_end", halve)), weights_after(model=Halved()))


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"optimizer": partial(torch.optim.LBFGS, lr=0.1, max_iter=3)}])
def test_the_outputs_of_every_forward_can_be_replaced(options: dict[str, Any]) -> None:
    def keep(run: Any) -> None:
        run.outputs = run.outputs * 1

    assert same_tensors(weights_after(on("forward_end", keep), **options), weights_after(**options))


@pytest.mark.parametrize("event", ["loss_ready", "train_batch_end", "train_step_end"])
def test_outputs_cannot_be_replaced_once_the_loss_is_computed(event: str) -> None:
    found = error_of(event, lambda run: setattr(run, "outputs", run.outputs * 0))
    assert found == (
        "run.outputs = …: the loss of this batch is computed already. Replace the outputs in on_forward_end."
    )


def test_outputs_that_are_replaced_are_those_of_a_prediction() -> None:
    def zero(run: Any) -> None:
        run.outputs = run.outputs * 0

    found = hl.Trainer(folder=False, callbacks=[on("forward_end", zero)]).predict(TinyModel(), tiny_data())
    assert not found.any()


@pytest.mark.parametrize("event", ["forward_end", "loss_ready", "train_step_end", "eval_batch_end"])
def test_a_batch_that_has_gone_through_the_model_cannot_be_replaced(event: str) -> None:
    found = error_of(event, double)
    assert found.startswith("run.batch = …: the model has had this batch already.")
    assert "on_train_batch_start" in found


@pytest.mark.parametrize("field", ["batch", "outputs"])
def test_between_batches_there_is_nothing_to_replace(field: str) -> None:
    found = error_of("train_epoch_start", lambda run: setattr(run, field, 0))
    assert found.startswith(f"run.{field} = …: no batch is being processed now.")


def test_a_batch_of_another_size_comes_too_late_before_the_forward() -> None:
    found = error_of("forward_start", lambda run: setattr(run, "batch", tuple(part[:1] for part in run.batch)))
    assert found.startswith("run.batch = … in on_forward_start: the batch has 1 sample, and 8 are counted already.")


@pytest.mark.parametrize(("event", "field"), [("forward_start", "batch"), ("forward_end", "outputs")])
def test_a_task_that_sends_these_events_itself_has_taken_the_batch_already(event: str, field: str) -> None:
    class Own(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.model = TinyModel()

        def configure_optimizers(self, run: hl.Run) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
            run.emit("forward_start")
            run.outputs = self.model(batch[0])
            run.emit("forward_end")
            return nn.functional.cross_entropy(run.outputs, batch[1])

    trainer = hl.Trainer(max_duration="1ep", folder=False, callbacks=[on(event, lambda run: setattr(run, field, 0))])
    with pytest.raises(hl.HooklineError, match=rf"^run.{field} = … in on_{event}: Own sends this event itself"):
        trainer.fit(Own(), tiny_data())


def test_an_optional_callback_changes_nothing_that_is_trained_on() -> None:
    class Optional(hl.Callback):
        optional = True

        def on_forward_end(self, run: hl.Run) -> None:
            run.outputs = run.outputs * 0

        def on_train_step_start(self, run: hl.Run) -> None:
            run.loaders["train"] = doubled(tiny_data())

    plain = weights_after(max_duration="2ep")
    assert same_tensors(weights_after(Optional(), max_duration="2ep"), plain)


# -- learning rates and hyper-parameters -----------------------------------------------------------


@pytest.mark.parametrize("event", ["train_step_end", "step_settled"])
def test_a_learning_rate_that_is_changed_counts_from_the_next_step(event: str) -> None:
    def lower(run: Any) -> None:
        if run.clock.step == 2:
            run.optimizers["SGD"].param_groups[0]["lr"] = 0.01

    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(tiny_data(4)):
        optimizer.param_groups[0]["lr"] = 0.1 if step < 2 else 0.01
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()
    changed = weights_after(on(event, lower), train=tiny_data(4), optimizer=partial(torch.optim.SGD, lr=0.1))
    assert same_tensors(changed, state_of(model))


def test_a_hyper_parameter_that_is_changed_is_what_later_hooks_read() -> None:
    seen: list[Any] = []

    def change(run: Any) -> None:
        run.config["width"] = 64

    weights_after(
        on("setup", change), on("train_step_end", lambda run: seen.append(run.config["width"])), config={"width": 32}
    )
    assert seen == [64] * 4


# -- loaders -------------------------------------------------------------------------------------


def sizes_of(*callbacks: Any, train: Any, val: Any = None, **options: Any) -> list[tuple[int, str, int]]:
    """Epoch, stage and samples of each batch."""
    seen: list[tuple[int, str, int]] = []
    note = hl.LambdaCallback(
        on_train_batch_start=lambda run: seen.append((run.clock.epoch, "train", len(run.batch[0]))),
        on_eval_batch_start=lambda run: seen.append((run.clock.epoch, run.stage, len(run.batch[0]))),
    )
    weights_after(note, *callbacks, train=train, val=val, max_duration="3ep", **options)
    return seen


@pytest.mark.parametrize("event", ["train_step_start", "train_batch_end", "train_epoch_end", "epoch_end"])
def test_a_training_loader_that_is_replaced_counts_from_the_next_epoch(event: str) -> None:
    other = tiny_data(batches=2, batch_size=3)

    def replace(run: Any) -> None:
        if run.clock.epoch <= 1:
            run.loaders["train"] = other
            assert run.loaders["train"] is other

    seen = sizes_of(on(event, replace), train=tiny_data(batches=2))
    assert seen == [(0, "train", 8)] * 2 + [(1, "train", 3)] * 2 + [(2, "train", 3)] * 2


@pytest.mark.parametrize("event", ["setup", "fit_start"])
def test_a_loader_that_is_replaced_before_training_counts_from_the_first_epoch(event: str) -> None:
    def replace(run: Any) -> None:
        run.loaders["train"] = run.loaders["val"] = tiny_data(batches=1, batch_size=3)

    seen = sizes_of(on(event, replace), train=tiny_data(), val=tiny_data())
    assert {samples for _, _, samples in seen} == {3}


def test_a_validation_loader_that_is_replaced_counts_from_the_next_evaluation() -> None:
    def replace(run: Any) -> None:
        if run.stage == "val" and run.clock.epoch == 1:
            run.loaders["val"] = {"small": tiny_data(batches=1, batch_size=2)}

    seen = sizes_of(on("eval_batch_start", replace), train=tiny_data(batches=1), val=tiny_data(batches=2))
    assert [found for found in seen if found[1] == "val"] == [(1, "val", 8)] * 2 + [(2, "val", 2), (3, "val", 2)]


def test_a_shuffled_loader_in_place_of_another_has_the_order_of_its_epoch() -> None:
    """As if the run had had it from the beginning: the order is that of seed and epoch."""

    def loader() -> Any:
        numbers = torch.arange(32.0)
        return DataLoader(
            TensorDataset(numbers[:, None].repeat(1, 4), (numbers % 3).long()), batch_size=4, shuffle=True
        )

    def order(*callbacks: Any) -> list[list[float]]:
        seen: list[list[float]] = []
        note = on("train_batch_start", lambda run: seen.append(run.batch[0][:, 0].tolist()))
        weights_after(note, *callbacks, train=loader(), max_duration="2ep")
        return seen[8:]

    def replace(run: Any) -> None:
        if run.clock.epoch == 0:
            run.loaders["train"] = loader()

    assert order(on("train_step_end", replace)) == order()


class Curriculum(hl.Callback):
    """Harder data from the second epoch on; after a resume, too."""

    state = ("hard",)

    def __init__(self) -> None:
        self.hard = False

    def on_fit_start(self, run: hl.Run) -> None:
        if self.hard:
            run.loaders["train"] = harder()

    def on_epoch_end(self, run: hl.Run) -> None:
        if not self.hard:
            self.hard = True
            run.loaders["train"] = harder()


def harder() -> Any:
    return doubled(tiny_data(batches=6, batch_size=3))


@pytest.mark.parametrize("at", [2, 4, 7])
def test_a_run_that_replaces_its_loader_resumes_exactly(tmp_path: Path, at: int) -> None:
    whole = weights_after(Curriculum(), max_duration="3ep")
    saver, options = hl.Checkpointer(every=f"{at}st", keep_last=1), {"folder": tmp_path, "max_duration": "3ep"}
    with pytest.raises(RuntimeError, match="planted"):
        weights_after(Curriculum(), saver, crash_at(at + 1), **options)
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == [f"step-{at:08d}"]
    assert same_tensors(weights_after(Curriculum(), hl.Checkpointer(every="99ep"), resume="auto", **options), whole)


@pytest.mark.parametrize("again", [False, True])
def test_a_resume_without_the_replaced_loader_is_a_warning(tmp_path: Path, caplog: Any, again: bool) -> None:
    def replace(run: Any) -> None:
        run.loaders["train"] = harder()

    saver, options = hl.Checkpointer(every="6st"), {"folder": tmp_path, "max_duration": "3ep"}
    with pytest.raises(RuntimeError, match="planted"):
        weights_after(saver, on("epoch_end", replace), crash_at(7), **options)
    assert "was replaced" not in caplog.text
    replaced = [on("fit_start", replace)] if again else []
    weights_after(hl.Checkpointer(every="6st"), on("epoch_end", replace), *replaced, resume="auto", **options)
    said = "run.loaders['train'] was replaced before the checkpoint was saved, and not in this process"
    assert caplog.text.count(said) == (0 if again else 1)


def test_a_checkpoint_inside_an_epoch_knows_the_loader_that_the_epoch_is_of(tmp_path: Path, caplog: Any) -> None:
    """Not the one that follows: a resume with the loader of the epoch has nothing to warn about."""

    def replace_and_stop(run: Any) -> None:
        run.loaders["train"] = harder()
        run.stop("now")

    weights_after(hl.Checkpointer(), on("train_step_end", replace_and_stop), folder=tmp_path, max_duration="2ep")
    caplog.clear()
    weights_after(hl.Checkpointer(), folder=tmp_path, max_duration="2ep", resume="auto")
    assert "not that of before" not in caplog.text


@pytest.mark.parametrize(
    ("event", "act", "says"),
    [
        ("setup", lambda run: run.loaders.update(valid=[]), "run.loaders['valid'] = …: no such loader. Use 'train',"),
        ("setup", lambda run: run.loaders.update(train=5), "the training loader is an int"),
        ("train_step_end", lambda run: run.loaders.update(train=[]), "the training loader is empty"),
        ("setup", lambda run: run.loaders.update(test=tiny_data()), "run.loaders['test'] = …: this run has none"),
        ("setup", lambda run: run.loaders.pop("val"), "del run.loaders['val']: a run keeps its loaders"),
        ("fit_end", lambda run: run.loaders.update(train=tiny_data()), "run.loaders['train'] = …: training is over"),
    ],
)  # fmt: skip
def test_a_loader_that_cannot_be_used_is_an_error(event: str, act: Callable[[Any], Any], says: str) -> None:
    assert error_of(event, act).startswith(says)


def test_nothing_follows_an_evaluation_that_was_called_for_itself() -> None:
    late = on("eval_batch_end", lambda run: run.loaders.update(val=tiny_data()))
    with pytest.raises(hl.HooklineError, match=r"^run.loaders\['val'\] = …: no evaluation follows this one"):
        hl.Trainer(folder=False).evaluate(TinyModel(), tiny_data(), loss=CE, callbacks=[late])


# -- everything else -----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["epoch", "step", "batch", "sample", "token", "seconds", "updates", "step_in_epoch"])
def test_the_clock_is_the_loops(field: str) -> None:
    found = error_of("train_step_end", lambda run: setattr(run.clock, field, 3))
    assert found.startswith(f"run.clock.{field} = …: only the loop counts.")


@pytest.mark.parametrize("verb", ["start", "pause", "mark_epoch", "begin_eval", "end_eval"])
def test_nor_can_a_hook_move_the_clock(verb: str) -> None:
    assert error_of("train_step_end", lambda run: getattr(run.clock, verb)()).startswith(f"run.clock.{verb}(): only")


def test_the_clock_of_an_evaluation_is_the_loops_too() -> None:
    found = error_of("eval_batch_start", lambda run: setattr(run.clock.eval, "batch", 3))
    assert found.startswith("run.clock.eval.batch = …: only the loop counts.")


def test_a_hook_reads_and_copies_the_clock() -> None:
    seen: list[Any] = []

    def look(run: Any) -> None:
        clock = run.clock
        assert isinstance(clock, hl.Clock)
        assert clock.reached(hl.Duration.parse("1st"))
        seen.append(
            (
                clock.step,
                clock.step_in_epoch,
                clock.seconds > 0,
                dict(clock.updates),
                copy.copy(clock),
                pickle.dumps(clock),
            )
        )

    weights_after(on("train_step_end", look))
    assert [found[:4] for found in seen] == [(n, n, True, {"SGD": n}) for n in (1, 2, 3, 4)]
    assert [found[4].step for found in seen] == [1, 2, 3, 4]
    assert [pickle.loads(found[5]).step for found in seen] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("field", "key", "instead"),
    [
        ("optimizers", "x", "Change their param_groups in place, or return others from configure_optimizers."),
        ("metrics", "val/loss", "Write run.log({'name': value})."),
        ("clock.updates", "SGD", "Only the loop counts."),
    ],
)
def test_an_item_of_a_mapping_cannot_be_replaced_or_removed(field: str, key: str, instead: str) -> None:
    def write(run: Any) -> None:
        attrgetter(field)(run)[key] = 0

    def remove(run: Any) -> None:
        del attrgetter(field)(run)[key]

    assert error_of("epoch_end", write) == f"run.{field}[{key!r}] = …: it cannot be replaced. {instead}"
    assert error_of("epoch_end", remove) == f"del run.{field}[{key!r}]: it cannot be removed. {instead}"


OTHER_FIELDS = {
    "model": "run.model = …: it cannot be replaced.",
    "metrics": "run.metrics = …: it cannot be replaced. Write run.log({'name': value}).",
    "loaders": "run.loaders = …: it cannot be replaced. Write run.loaders['train'] = ….",
    "stop_reason": "run.stop_reason = …: it cannot be replaced. Call run.stop('why').",
    "should_stop": "run.should_stop = …: run has no such field. Call run.stop('why').",
    "stop": "run.stop = …: it is a method. Call run.stop(…).",
    "epoch": "run.epoch = …: run has no such field. Only the loop counts",
    "btach": "run.btach = …: run has no such field. Did you mean run.batch?",
    "mine": "run.mine = …: run has no such field. Keep your own values on the callback (self.mine = …)",
}


def test_any_other_field_is_an_error_that_says_what_to_write() -> None:
    wrong: list[str] = []

    def write(run: Any) -> None:
        for name, says in OTHER_FIELDS.items():
            with pytest.raises(hl.HooklineError) as caught:
                setattr(run, name, 3)
            if not str(caught.value).startswith(says):
                wrong.append(str(caught.value))

    weights_after(on("train_step_end", write), max_duration="1st")
    assert wrong == []


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (None, {"max_duration": "8st", "eval_every": "0.5dur"}, "max_duration = None: '0.5dur' is a fraction of"),
        ("100tok", {}, "max_duration = '100tok': this run does not count tokens"),
    ],
)
def test_a_max_duration_that_the_run_cannot_have_is_an_error_in_the_hook_that_sets_it(
    value: str | None, options: dict[str, Any], words: str
) -> None:
    class Sets(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            run.max_duration = value

    with pytest.raises(hl.errors.SetupError) as caught:
        fit(Sets(), val=tiny_data(), **options)
    assert words in str(caught.value)
    assert "Sets.on_train_step_end at step 1" in str(caught.value.__notes__)
