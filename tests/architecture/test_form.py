"""The form of the engine: who may write a field, who may ask how many processes there are."""

from __future__ import annotations

from tests.architecture.facts import comparisons_of_the_world_with_none, uses_of_the_loop


def test_nobody_compares_the_world_with_none() -> None:
    assert comparisons_of_the_world_with_none() == []


def test_no_callback_or_sink_reaches_into_the_engine() -> None:
    """A callback of another package can do all that ours can: with the fields and methods of ``run``."""
    assert uses_of_the_loop() == []
