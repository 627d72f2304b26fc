"""The checks of the pre-flight, in the order in which their findings are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hookline.loop.preflight import data, losses, parameters, saving, schedules
from hookline.loop.preflight.evidence import Evidence
from hookline.records.finding import Finding

CHECKS: Final[tuple[Callable[[Evidence], Iterable[Finding]], ...]] = (
    losses.check_loss_inputs,
    losses.check_targets,
    losses.check_broadcasts,
    losses.check_padding,
    losses.check_copied_tokens,
    data.check_batch_dimension,
    data.check_indices,
    data.check_finite,
    data.check_scale,
    data.check_constant_inputs,
    data.check_labels,
    data.check_order,
    data.check_shared_samples,
    data.check_random,
    parameters.check_optimizers,
    parameters.check_unregistered,
    parameters.check_weight_decay,
    parameters.check_gradients,
    parameters.check_losses,
    parameters.check_updates,
    parameters.check_modes,
    schedules.check_schedules,
    schedules.check_accumulation,
    schedules.check_durations,
    saving.check_failure,
    saving.check_disk,
    saving.check_train_metrics,
    saving.ask_callbacks,
)
"""Each check is a function of the evidence. Checks do not depend on one another."""
