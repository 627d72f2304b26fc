"""``SWA``: the mean of the weights of the last part of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookline.callbacks._ending import was_interrupted
from hookline.callbacks.weights._averaging import AveragingCallback
from hookline.callbacks.weights._batch_norm import Call, computed_statistics, statistics_of
from hookline.errors import ArgumentError, SetupError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class SWA(AveragingCallback):
    """Average the weights of the last part of training (stochastic weight averaging).

    All weights count the same in the mean. When training ends, the callback computes the batch norm statistics for
    the mean in one pass over the training data, before the last evaluation. Checkpoints hold the raw weights and,
    separately, the mean.

    Args:
        swa_lrs: Learning rate after annealing: one number, or one per parameter group. It replaces the learning rate
            of the schedulers. ``None``: do not change the learning rate.
        start: When averaging starts. ``"0.8dur"`` is after 80 % of the run. The weights at ``start`` are included.
        every: How often to add the weights to the mean.
        annealing: How long the learning rate takes to reach ``swa_lrs``.
        annealing_strategy: ``"cos"`` or ``"linear"``.
        update_bn: Compute the batch norm statistics. A function ``lambda model, batch: …`` sets how the model is
            called. ``True``: call it as ``eval_batch`` of the task does.
        use_buffers: Also average the buffers, as in ``EMA``.
        dtype: Floating-point dtype of the mean, as in ``EMA``.
        evaluate: Evaluate and predict with the mean as soon as it exists. ``False``: use the raw weights.
        apply_at_end: Load the mean into the model when ``fit`` returns.

    Raises:
        ArgumentError: If a learning rate is not above 0, or ``annealing_strategy`` is unknown.
        SetupError: If ``start`` is after the end of the run, or ``swa_lrs`` does not fit the parameter groups.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> swa = SWA(0.05, start="2ep", annealing="2ep")
        >>> trainer = Trainer(max_duration="5ep", callbacks=[swa], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> swa.updates, torch.equal(result.model.out.weight, swa.weights["out.weight"])
        (4, True)
    """

    def __init__(
        self,
        swa_lrs: float | Sequence[float] | None = None,
        *,
        start: str | Duration = "0.8dur",
        every: str | Duration = "1ep",
        annealing: str | Duration = "10ep",
        annealing_strategy: Literal["cos", "linear"] = "cos",
        update_bn: bool | Call = True,
        use_buffers: bool = True,
        dtype: torch.dtype | str | None = None,
        evaluate: bool = True,
        apply_at_end: bool = True,
    ) -> None:
        self.swa_lrs = list(swa_lrs) if isinstance(swa_lrs, Sequence) else swa_lrs
        given = self.swa_lrs if isinstance(self.swa_lrs, list) else [] if self.swa_lrs is None else [self.swa_lrs]
        if any(lr <= 0 for lr in given):
            raise ArgumentError(f"SWA(swa_lrs={swa_lrs!r}): must be > 0, or None for the learning rates of the run.")
        self.writes = ("weights",) if swa_lrs is None else ("weights", "optimizer")
        self.start = Duration.parse(start, "SWA(start=…)")
        self.annealing = Duration.parse(annealing, "SWA(annealing=…)")
        self.annealing_strategy = annealing_strategy
        self.update_bn = update_bn
        super().__init__(every, use_buffers=use_buffers, dtype=dtype, evaluate=evaluate, apply_at_end=apply_at_end)
        self._start = self._annealing = Duration(1, "st")
        self._anneal_from: float | None = None
        """Time at which annealing started, in the unit of ``annealing``. ``None`` before the start."""
        self._lrs: dict[str, list[float]] = {}
        """Learning rates by optimizer, when annealing started or when a later group was added."""

    # -- averaging -----------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if not run.is_training_run:
            return
        self._start = self.start.of(run.max_duration)
        self._annealing = self.annealing.of(run.max_duration)
        if (
            run.max_duration is not None
            and run.max_duration.unit == self._start.unit
            and self._start > run.max_duration
        ):
            raise SetupError(
                f"SWA(start={str(self.start)!r}) is after the end of the run, max_duration={str(run.max_duration)!r}; "
                f"give an earlier start, such as '0.8dur'"
            )

    def on_model_ready(self, run: Run) -> None:
        super().on_model_ready(run)
        if run.is_training_run:
            self._check_lrs(run)

    def on_train_step_start(self, run: Run) -> None:
        self._set_lrs(run)

    def on_train_step_end(self, run: Run) -> None:
        if self._schedule.due(run.clock):
            self._update(run)
        self._set_lrs(run)

    def on_metrics_ready(self, run: Run) -> None:
        # A scheduler has just stepped at the end of the epoch.
        self._set_lrs(run)

    def on_train_epoch_end(self, run: Run) -> None:
        # The clock counts an epoch after the last step of the epoch.
        if self._schedule.due(run.clock):
            self._update(run)
        self._set_lrs(run)

    def _has_started(self, run: Run) -> bool:
        """True if ``start`` is reached."""
        return run.clock.elapsed(self._start.unit) >= self._start.value

    def _update(self, run: Run) -> None:
        """Add the weights to the mean if ``start`` is reached."""
        self._schedule.fired(run.clock)
        if self._has_started(run):
            self.update(run.model, 1 / (self.updates + 1))

    # -- learning rate -------------------------------------------------------------------------

    def _check_lrs(self, run: Run) -> None:
        """Raise if the number of learning rates does not fit the parameter groups."""
        if isinstance(self.swa_lrs, list):
            groups = {name: len(optimizer.param_groups) for name, optimizer in run.optimizers.items()}
            # After a resume, there may be more groups, which were added during training.
            wanted = len(self.swa_lrs)
            if any(count < wanted or (count > wanted and not run.clock.step) for count in groups.values()):
                have = ", ".join(f"{name} has {count}" for name, count in groups.items())
                raise SetupError(f"SWA(swa_lrs={self.swa_lrs}): {len(self.swa_lrs)} rates for the groups; {have}")

    def _set_lrs(self, run: Run) -> None:
        """Set the annealed learning rates of all optimizers."""
        if self.swa_lrs is None:
            return
        if self._anneal_from is None:
            if not self._has_started(run):
                return
            self._anneal_from = run.clock.elapsed(self._annealing.unit)
        share = self._share(run.clock.elapsed(self._annealing.unit) - self._anneal_from)
        for name, optimizer in run.optimizers.items():
            groups, firsts = optimizer.param_groups, self._lrs.setdefault(name, [])
            # This is the start of annealing, or a callback has added a group.
            if len(groups) > len(firsts):
                firsts += [float(group["lr"]) for group in groups[len(firsts) :]]
            goals = self.swa_lrs if isinstance(self.swa_lrs, list) else [self.swa_lrs] * len(groups)
            for group, goal, first in zip(groups, goals, firsts, strict=False):
                lr = goal * share + first * (1 - share)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr

    def _share(self, elapsed: float) -> float:
        """Return the progress of the annealing, from 0 to 1."""
        done = min(1.0, elapsed / self._annealing.value)
        return done if self.annealing_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    # -- evaluation and end of the fit ----------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        if self.evaluate and run.is_training_run and run.stage == "val" and run.ending is not None:
            # The last evaluation measures the model that `fit` returns.
            self._compute_statistics(run)
        yield from super().around_eval(run)

    def on_train_end(self, run: Run) -> None:
        # After Ctrl-C, the user does not want to wait for a pass over the data.
        if not was_interrupted(run):
            self._compute_statistics(run)
        super().on_train_end(run)

    def _compute_statistics(self, run: Run) -> None:
        """Compute the batch norm statistics for the mean, once."""
        if not self.update_bn or self._averages is None or self.statistics or not statistics_of(run.model):
            return
        self._constrain(run)
        call = None if self.update_bn is True else self.update_bn
        self.statistics = computed_statistics(run, self.weights, call)

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "anneal_from": self._anneal_from, "lrs": self._lrs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._anneal_from, self._lrs = state["anneal_from"], {name: list(lrs) for name, lrs in state["lrs"].items()}
