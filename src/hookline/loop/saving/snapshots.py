"""A snapshot of a run for a checkpoint: what it is, the weights, and everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.checkpoint import About, Snapshot
from hookline.loop.saving.environment import environment
from hookline.loop.saving.resharding import gathered
from hookline.loop.saving.tree import capture_state, capture_weights
from hookline.loop.saving.verification import told_to_command
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine


def take_snapshot(loop: Engine, *, weights_only: bool, **about: Any) -> Snapshot:
    """At the edge of a step, by all ranks. Tensors are not copied."""
    clock, world = loop.clock, loop.world
    facts = About(
        step=clock.step,
        epoch=clock.epoch,
        batch=clock.batch,
        sample=clock.sample,
        seconds=clock.seconds,
        passes=clock.elapsed(PASSES),
        run=loop.saving.run_id,
        generation=loop.saving.generation,
        metrics=loop.book.measured_now(),
        environment=environment(loop),
        **about,
    )
    world.before_evaluation()  # statistics of a batch norm are rank zero's, as in an evaluation
    state = None
    if not weights_only:
        state = capture_state(loop) if world.is_alone else gathered(loop, world, capture_state)
    if state is not None and loop.saving.verification is not None:
        state["verification"] = told_to_command(loop)
    return Snapshot(facts, capture_weights(loop), state)
