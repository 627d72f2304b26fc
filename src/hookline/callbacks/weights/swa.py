"""``SWA``: the mean of the weights along the end of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookline.callbacks.ending import was_interrupted
from hookline.callbacks.weights.averaged_weights import AveragedWeights
from hookline.callbacks.weights.batch_norm import Call, computed_statistics, statistics_of
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run


class SWA(Callback):
    """Stochastic weight averaging: the plain mean of the weights, taken every so often at the end of training.

    **What is averaged.** From ``start`` on (a duration; ``"0.8dur"`` is after four fifths of the run) the weights at
    the end of each epoch (``every``), those at ``start`` included. Each counts the same, as in
    ``torch.optim.swa_utils``. ``use_buffers`` and ``dtype`` are as in ``EMA``.

    **The learning rate.** With ``swa_lrs`` (one number, or one for each group of parameters) it goes from what it is at
    ``start`` to ``swa_lrs`` within ``annealing``, along a cosine or a line (``annealing_strategy``), as that of
    torch's ``SWALR``, and stays there. It counts in place of what the run's schedulers say. A group that a callback
    adds later also goes to the one number; with a list the group keeps its own learning rate. Without ``swa_lrs`` the
    learning rate is left alone.

    **Batch norm.** The mean of weights has other statistics than the mean of statistics. When training ends, they are
    computed in one pass over the training data (``update_bn``), before the last evaluation, which so measures the
    model that is given back. Evaluations before that use averaged statistics. A task's ``eval_batch`` is how the model
    is called; a function ``update_bn=lambda model, batch: …`` says another way, and an own loop without one calls it
    on the first part of each batch. A frozen batch norm keeps its own statistics. After Ctrl-C there is no such pass.
    In several processes each goes over its own part of the data, and the statistics are the mean over all batches.

    **Where it is used.** As with ``EMA``: evaluations and predictions are made with the average once there is one
    (``evaluate``), the model that ``fit`` gives back has it (``apply_at_end``), checkpoints hold the raw weights, and
    a further fit goes on from them.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> swa = SWA(0.05, start="2ep", annealing="2ep")
    >>> trainer = Trainer(max_duration="5ep", callbacks=[swa], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> swa.updates, torch.equal(result.model.out.weight, swa.weights["out.weight"])
    (4, True)
    """

    role = "average"
    state_depends_on = ("use_buffers",)

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
        if any(isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0 for lr in given):
            raise RegistrationError(
                f"SWA(swa_lrs={swa_lrs!r}): give learning rates above 0, or None to leave them alone"
            )
        if annealing_strategy not in ("cos", "linear"):
            raise RegistrationError(f"SWA(annealing_strategy={annealing_strategy!r}): give 'cos' or 'linear'")
        self.writes = ("weights",) if swa_lrs is None else ("weights", "optimizer")
        self.start = Duration.parse(start, "SWA(start=…)")
        self.every = Duration.parse(every, "SWA(every=…)")
        self.annealing = Duration.parse(annealing, "SWA(annealing=…)")
        self.annealing_strategy = annealing_strategy
        self.update_bn = update_bn
        self.evaluate = evaluate
        self.apply_at_end = apply_at_end
        self.use_buffers = use_buffers
        self._average = AveragedWeights("SWA", use_buffers=use_buffers, dtype=dtype)
        self._schedule = Schedule(Duration(1, "st"))
        self._start = self._annealing = Duration(1, "st")
        self._anneal_from: float | None = None
        """What the clock of ``annealing`` showed at the start; ``None`` before it."""
        self._lrs: dict[str, list[float]] = {}
        """The learning rates at the start, or of a group that was added later when it was added, by optimizer."""

    @property
    def updates(self) -> int:
        """How many models are in the average."""
        return self._average.updates

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The averaged weights and buffers by name; empty before the first."""
        return self._average.tensors

    # -- averaging -----------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._average.begin(run)
        if run.clock.step == 0:
            self._anneal_from, self._lrs = None, {}
        self._start = self.start.of(run.max_duration)
        self._annealing = self.annealing.of(run.max_duration)
        self._schedule = Schedule(self.every.of(run.max_duration))
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
        if run.is_training_run:
            self._average.get_ready(run)
            self._schedule.fired(run.clock)
            self._check_lrs(run)

    def on_rollback(self, run: Run) -> None:
        self._schedule.fired(run.clock)

    def on_train_step_start(self, run: Run) -> None:
        self._set_lrs(run)

    def on_train_step_end(self, run: Run) -> None:
        if self._schedule.due(run.clock):
            self._update(run)
        self._set_lrs(run)

    def on_metrics_ready(self, run: Run) -> None:
        self._set_lrs(run)  # a scheduler has just moved it at the edge of an epoch

    def on_train_epoch_end(self, run: Run) -> None:
        if self._schedule.due(run.clock):  # epochs are counted after the last step of theirs
            self._update(run)
        self._set_lrs(run)

    def _has_started(self, run: Run) -> bool:
        return run.clock.elapsed(self._start.unit) >= self._start.value

    def _update(self, run: Run) -> None:
        self._schedule.fired(run.clock)
        if self._has_started(run):
            self._average.update(run.model, 1 / (self._average.updates + 1))

    # -- the learning rate ---------------------------------------------------------------------

    def _check_lrs(self, run: Run) -> None:
        if isinstance(self.swa_lrs, list):
            groups = {name: len(optimizer.param_groups) for name, optimizer in run.optimizers.items()}
            wanted = len(self.swa_lrs)  # after a resume there may be groups that were added in training
            if any(count < wanted or (count > wanted and not run.clock.step) for count in groups.values()):
                have = ", ".join(f"{name} has {count}" for name, count in groups.items())
                raise SetupError(f"SWA(swa_lrs={self.swa_lrs}): {len(self.swa_lrs)} rates for the groups; {have}")

    def _set_lrs(self, run: Run) -> None:
        if self.swa_lrs is None:
            return
        if self._anneal_from is None:
            if not self._has_started(run):
                return
            self._anneal_from = run.clock.elapsed(self._annealing.unit)
        share = self._share(run.clock.elapsed(self._annealing.unit) - self._anneal_from)
        for name, optimizer in run.optimizers.items():
            groups, firsts = optimizer.param_groups, self._lrs.setdefault(name, [])
            if len(groups) > len(firsts):  # at the start, and when a callback has added a group since
                firsts += [float(group["lr"]) for group in groups[len(firsts) :]]
            goals = self.swa_lrs if isinstance(self.swa_lrs, list) else [self.swa_lrs] * len(groups)
            for group, goal, first in zip(groups, goals, firsts, strict=False):
                lr = goal * share + first * (1 - share)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr

    def _share(self, elapsed: float) -> float:
        """How far the learning rate has come, from 0 to 1."""
        done = min(1.0, elapsed / self._annealing.value)
        return done if self.annealing_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    # -- where it is used ----------------------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        if not self.evaluate:
            yield
            return
        if run.entry_point == "fit" and run.stage == "val" and run.ending is not None:
            self._compute_statistics(run)  # the last evaluation is that of the model that is given back
        with self._average.swapped_in(run):
            yield

    def around_predict(self, run: Run) -> Iterator[None]:
        if not self.evaluate:
            yield
            return
        with self._average.swapped_in(run):
            yield

    def on_train_end(self, run: Run) -> None:
        if not was_interrupted(run):  # a user who has pressed Ctrl-C does not want to wait for a pass
            self._compute_statistics(run)
        self._average.note_end(run)

    def on_teardown(self, run: Run) -> None:
        if self.apply_at_end:
            self._average.put_in(run)

    def _compute_statistics(self, run: Run) -> None:
        average = self._average
        if not self.update_bn or not average.exists or average.statistics or not statistics_of(run.model):
            return
        average.constrain(run)
        call = None if self.update_bn is True else self.update_bn
        average.statistics = computed_statistics(run, average.tensors, call)

    # -- in checkpoints ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**self._average.state_dict(), "anneal_from": self._anneal_from, "lrs": self._lrs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._average.load_state_dict(state)
        self._anneal_from, self._lrs = state["anneal_from"], {name: list(lrs) for name, lrs in state["lrs"].items()}
