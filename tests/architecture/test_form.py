"""The form of the engine: its layers, who may write a field, who may ask how many processes there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline.events.spec import STEP_EVENTS
from tests.architecture.facts import (
    LAYERS,
    LOOP,
    comparisons_of_the_world_with_none,
    foreign_assignments,
    functions_of_the_whole_loop,
    imports_upwards,
    largest_cycle,
    lines_in_callbacks,
    misnamed_modules,
    orderings_by_name,
    private_uses,
    questions_about_the_number_of_processes,
    senders,
    story_functions,
    updates,
    uses_of_the_loop,
)

WRITERS = {
    "loop/engine/steps.py": "the hot path of a step, where a method call for each field would take a microsecond",
    "loop/engine/engine.py": "the checkpoint and the result of an error that is about to be raised",
}
"""The modules that write fields of other objects, with the reasons."""

PRIVATE = {
    "events/order.py": "an attribute of `Callback` without an underscore could clash with one of a user's class",
    "loop/tasks/supervised.py": "a task is a part of the engine, and reads the state behind `run` in every step",
    "presets.py": "`hl.fit` makes the call of `Trainer.fit` without its frames",
    "testing/recorder.py": "records what `run` has, and reads the state to see what has no value",
    "testing/scenes.py": "looks at the loop that a trainer keeps between two calls",
    "testing/stage.py": "plays a rank of several processes in one process",
}
"""The modules that use private attributes of other modules, with the reasons."""

ASKS_FOR_PROCESSES = {
    "loop/data/training_data.py": "which feed reads the data",
    "loop/engine/engine.py": "an evaluation is left after a signal, and collectives are guarded, only in some worlds",
    "loop/engine/joining.py": "one process joins nothing",
    "loop/engine/opening.py": "one process opens no world",
    "loop/engine/steps.py": "the text of a step is that of one process; its second half calls the world",
    "loop/engine/training.py": "`StopTraining` of the data is an error on one of several ranks",
    "loop/evaluation/evaluate.py": "shards of evaluations, and predictions that are gathered",
    "loop/metrics/book.py": "whether metrics are reduced over ranks",
    "loop/record/run_settings.py": "run.json names the number of processes if there are several",
    "loop/saving/saver.py": "which class writes checkpoints, and what is saved after an error",
    "loop/saving/tree.py": "states that differ between ranks are gathered",
    "loop/settings.py": "the device of a local rank",
}
"""The modules outside ``world/`` that ask how many processes there are, with the reasons (decision 0027)."""

HALVES = {
    "batch_fetch_start": {"_announce_fetch"},
    "batch_fetch_end": {"next_batch"},
    "train_step_start": {"_open_step"},
    "train_batch_start": {"_open_batch"},
    "loss_ready": {"backward"},
    "backward_start": {"backward"},
    "backward_end": {"backward"},
    "train_batch_end": {"step"},
    "gradients_ready": {"_update", "_compute_again"},
    "optimizer_step_start": {"_update"},
    "optimizer_step_end": {"_update"},
    "zero_grad": {"_update"},
    "step_skipped": {"_update"},
    "train_step_end": {"_end_step"},
}
"""The functions of the two halves that send each event of a step. ``_compute_again`` is the closure of LBFGS."""

OUTSIDE_HALVES = {"forward_start", "forward_end", "scheduler_step", "step_settled", "rollback"}
"""Events of a step that the task sends (``SupervisedTask.call_model``), the schedulers, or the edge."""


def test_each_field_has_one_writer() -> None:
    """An object changes its own fields. Other parts call its methods."""
    found = foreign_assignments()
    strangers = [line for line in found if line.split(":")[0] not in WRITERS]
    assert strangers == []
    assert set(WRITERS) == {line.split(":")[0] for line in found}, "a reason for nothing"
    assert len(found) < 40, Counter(line.split(":")[0] for line in found)


def test_no_module_compares_the_world_with_none() -> None:
    assert comparisons_of_the_world_with_none() == []


def test_only_modules_with_a_reason_ask_how_many_processes_there_are() -> None:
    found = questions_about_the_number_of_processes()
    assert {line.split(":")[0] for line in found} == set(ASKS_FOR_PROCESSES)
    assert len(found) <= 26, found


def test_a_training_step_is_written_once_and_in_two_halves() -> None:
    """A third text of a step would send its events, or update the weights, in a third function."""
    sent = senders()
    assert {*HALVES} == STEP_EVENTS - OUTSIDE_HALVES, "a new event of a step: name the half that sends it"
    found = {event: {its for its in sent[event] if its.startswith("steps.py")} for event in HALVES}
    for event, halves in HALVES.items():
        assert found[event] - {"steps.py: of_task"} == {f"steps.py: {half}" for half in halves}, event
    elsewhere = {its.partition(":")[0] for event in HALVES for its in sent[event]} - {"steps.py"}
    assert elsewhere == {"evaluate.py"}, "an evaluation fetches batches also"
    assert updates() == ["precision.py: step", "steps.py: _update"]


def test_at_most_five_functions_may_be_long_stories() -> None:
    assert len(story_functions()) <= 5, story_functions()


def test_parts_get_what_they_need_and_not_the_whole_engine() -> None:
    assert len(functions_of_the_whole_loop()) < 15


def test_no_module_of_the_engine_imports_itself_through_others() -> None:
    """Imports for type checkers count."""
    assert len(largest_cycle()) == 1, largest_cycle()


def test_folders_of_the_engine_import_downwards_only() -> None:
    """Imports for type checkers count."""
    assert imports_upwards() == []


def test_every_folder_of_the_engine_has_its_layer() -> None:
    there = {path.stem for path in LOOP.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))} - {"__init__"}
    assert there == {name for layer in LAYERS for name in layer}


def test_no_private_attribute_of_another_module_is_used() -> None:
    found = private_uses()
    assert [line for line in found if line.split(":")[0] not in PRIVATE] == []
    assert set(PRIVATE) == {line.split(":")[0] for line in found}, "a reason for nothing"


def test_no_callback_or_sink_reaches_into_the_engine() -> None:
    """A callback of another package can do all that ours can: with the fields and methods of ``run``."""
    assert uses_of_the_loop() == []


def test_in_a_family_every_module_without_an_underscore_is_one_callback() -> None:
    assert misnamed_modules() == []


def test_callbacks_do_not_ask_which_function_the_user_called() -> None:
    """``run.is_training_run`` tells a fit from an evaluation. A list of entry points would miss a new one."""
    assert lines_in_callbacks(r"\bentry_point\b") == []


def test_callbacks_do_not_order_others_by_names_as_strings() -> None:
    """A role, or a class that is imported, is found by tools and survives a new name."""
    assert orderings_by_name() == []


# -- the facts see what they should see --------------------------------------------------------------

Fact = Callable[[Path], list[str]]


@pytest.mark.parametrize(
    ("fact", "allowed", "forbidden"),
    [
        (foreign_assignments, "self.epoch_phase = 1", "edge.epoch_phase = 1"),
        (foreign_assignments, "tensor.grad = None", "edge.stage, other = 1, 2"),
        (foreign_assignments, "edge.stage", "edge.stage += 1"),
        (foreign_assignments, "with edge.at(): pass", "with open_() as edge.stage: pass"),
        (foreign_assignments, "del here", "del edge.stage"),
        (comparisons_of_the_world_with_none, "world.is_open", "if self.world is not None: pass"),
        (comparisons_of_the_world_with_none, "group is None", "x = 1 if ranks is None else 2"),
        (questions_about_the_number_of_processes, "world.size", "if not self._world.is_alone: pass"),
        (questions_about_the_number_of_processes, "state.world_size // 2", "if state.world_size > 1: pass"),
        (functions_of_the_whole_loop, "def f(edge: Edge): pass", "def f(loop: Loop): pass"),
        (functions_of_the_whole_loop, "def f(its: Looper): pass", "def f(*, engine: 'Engine | None'): pass"),
        (private_uses, "self._update(name)", "steps._update(name)"),
        (private_uses, "tensor._version", "state.requests._observer"),
        (private_uses, "from hookline.loop import Loop", "from hookline.callbacks.watch._notify import _Mail, _short"),
        (uses_of_the_loop, "run.clock.step", "its = run\nits.loop.step()"),
        (uses_of_the_loop, "self._state = 1", "run._state.batch"),
        (uses_of_the_loop, "getattr(run, 'model')", "getattr(run, 'loop')"),
        (updates, "def f(): scheduler.step()", "def f(): self.optimizer.step()"),
        (story_functions, "def f(): pass  # noqa: E501", "def f(): pass  # noqa: C901"),
    ],
)
def test_a_fact_finds_a_planted_violation(fact: Fact, allowed: str, forbidden: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(allowed)
    assert fact(tmp_path) == []
    (tmp_path / "planted.py").write_text(forbidden)
    assert fact(tmp_path) != []


def test_a_planted_cycle_and_a_planted_sender_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("if TYPE_CHECKING:\n    from hookline.two import Two")
    (tmp_path / "two.py").write_text("def later():\n    import hookline.one")
    (tmp_path / "three.py").write_text("from hookline.one import One\ndef step(): line.emit(line.hooks.zero_grad)")
    assert largest_cycle(tmp_path) == ["hookline.one", "hookline.two"]
    assert senders(tmp_path) == {"zero_grad": ["three.py: step"]}
