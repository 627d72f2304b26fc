"""The form of the engine: its layers, who may write a field, who may ask how many processes there are."""

from __future__ import annotations

from collections import Counter

from tests.architecture.facts import (
    LAYERS,
    LOOP,
    comparisons_of_the_world_with_none,
    foreign_assignments,
    functions_of_the_whole_loop,
    imports_upwards,
    largest_cycle,
    misnamed_modules,
    private_uses,
    uses_of_the_loop,
)

WRITERS = {
    "loop/engine/steps.py": "the hot path of a step, where a method call for each field would take a microsecond",
    "loop/engine/engine.py": "the checkpoint and the result of an error that is about to be raised",
}
"""The modules that write fields of other objects, with the reasons."""

PRIVATE = {
    "loop/tasks/supervised.py": "a task is a part of the engine, and reads the state behind `run` in every step",
}
"""The modules that use private attributes of other modules, with the reasons."""


def test_each_field_has_one_writer() -> None:
    """An object changes its own fields. Other parts call its methods."""
    found = foreign_assignments()
    strangers = [line for line in found if line.split(":")[0] not in WRITERS]
    assert strangers == []
    assert set(WRITERS) == {line.split(":")[0] for line in found}, "a reason for nothing"
    assert len(found) < 40, Counter(line.split(":")[0] for line in found)


def test_nobody_compares_the_world_with_none() -> None:
    assert comparisons_of_the_world_with_none() == []


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
    assert [line for line in private_uses() if line.split(":")[0] not in PRIVATE] == []


def test_no_callback_or_sink_reaches_into_the_engine() -> None:
    """A callback of another package can do all that ours can: with the fields and methods of ``run``."""
    assert uses_of_the_loop() == []


def test_in_a_family_every_module_without_an_underscore_is_one_callback() -> None:
    assert misnamed_modules() == []
