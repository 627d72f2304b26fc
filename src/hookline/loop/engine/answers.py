"""``LoopAnswers``: the methods of the loop that the methods and fields of ``run`` call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from hookline.checkpoint.plan import SavePlan
from hookline.distributed.guard import refuse_if_guarded
from hookline.errors import DurationError, Preempted, ScopeError, SetupError, error_text
from hookline.loop.data.batches import is_one_shot
from hookline.loop.data.loaders import LOADERS, check_loader, named_loaders
from hookline.loop.engine.edge import EpochPhase
from hookline.loop.engine.trial import trial
from hookline.loop.evaluation.eval_loader import without_intervals
from hookline.loop.evaluation.tasks import Returning
from hookline.progress import Duration
from hookline.run import Ending, EvalShard, Trial
from hookline.run.audience import Audience
from hookline.run.requests import signal_name

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.engine.engine import Engine
    from hookline.run import Run
    from hookline.run.ending import EndingKind

REDUCTIONS = ("sum", "mean", "max", "min")


class LoopAnswers:
    """Answers of the loop to ``run``.

    The results of ``run.evaluate`` and ``run.predict`` are cached until the weights change.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[tuple[object, ...], tuple[int, Any, Any]] = {}
        self._limits: dict[str, int] = {}  # The limits of the fit in which `_limits_by` was filled.
        self._limits_by: dict[str, dict[object, int]] = {}

    # -- evaluations and trials ------------------------------------------------------------------

    def evaluate(self, what: Any) -> dict[str, Any]:
        engine = self._engine
        self._need("eval_batch", "run.evaluate")
        loaders, stage = self._loaders(what)

        def compute() -> dict[str, Any]:
            refuse_if_guarded("run.evaluate()")  # A collective inside it would raise an error with another name.
            batches = Returning(engine.evaluator.evaluate(loaders, stage, Audience.ANSWER))
            engine.tasks.evaluate(batches)
            return batches.value.metrics  # type: ignore[no-any-return]

        return dict(self._keep(("evaluate", stage), loaders, compute))

    def predict(self, what: Any, *, targets: bool) -> Any:
        engine = self._engine
        self._need("predict_batch", "run.predict")
        loaders, _ = self._loaders(what)

        def compute() -> Any:
            refuse_if_guarded("run.predict()")
            found = {
                name: engine.tasks.predict(
                    engine.evaluator.predict(loader, Audience.ANSWER, name=name), targets=targets
                )
                for name, loader in loaders.items()
            }
            return found.get(None, found)

        return self._keep(("predict", *(["targets"] if targets else [])), loaders, compute)

    def trial(self) -> AbstractContextManager[Trial]:
        return trial(self._engine)

    # -- weights -----------------------------------------------------------------------------------

    def swap_weights(self, weights: Mapping[str, Any]) -> AbstractContextManager[None]:
        swapped = self._engine.weights
        if not swapped.is_watched:
            swapped.watch(self._engine.opening.restore)
        return swapped.swap(weights)

    def snapshot(self, member: Member[Run]) -> dict[str, Any]:
        engine = self._engine
        if engine.window.count or engine.state.stage != "train" or not engine.state.is_training:
            raise ScopeError(
                "run.snapshot(): inside a step or an evaluation there is no whole state; call it in on_train_start, "
                "on_train_step_start, on_train_step_end or on_step_settled"
            )
        return engine.snapshots.take(member)

    @contextmanager
    def prediction_weights(self) -> Iterator[None]:
        """Open the scopes in which callbacks swap weights for a prediction."""
        line, scopes = self._engine.line, self._engine.scopes
        around = line.fast.around_predict.only(lambda run: "weights" in run.member.callback.writes)
        mark = len(scopes)
        try:
            scopes.enter(around)
            yield
        finally:
            scopes.leave(mark)

    def raw_weights(self) -> dict[str, torch.Tensor]:
        return self._engine.tree.weights()

    # -- ranks -------------------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        refuse_if_guarded("run.gather()")
        world = self._engine.world
        return [value] if world.broken else world.group.exchange(value)

    def reduce(self, value: Any, op: str) -> Any:
        refuse_if_guarded("run.reduce()")
        if op not in REDUCTIONS:
            raise SetupError(f"run.reduce(…, op={op!r}): use one of {', '.join(map(repr, REDUCTIONS))}.")
        given, world = torch.as_tensor(value).detach(), self._engine.world
        found = given.to("cpu", torch.float64, copy=True)
        if not world.broken:
            if op in ("sum", "mean"):
                found = world.group.total(found) / (world.copies * (world.shares[0] if op == "mean" else 1))
            else:
                sign = 1 if op == "max" else -1
                found = world.group.largest(found * sign) * sign
        if not isinstance(value, torch.Tensor):
            return found.item()
        is_kept = given.is_floating_point() or op != "mean"
        return found.to(given.device, given.dtype if is_kept else torch.float64)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        refuse_if_guarded("run.broadcast()")
        if not self._engine.world.broken:
            self._engine.world.group.broadcast(tensors)

    def is_sharded(self) -> bool:
        return self._engine.world.is_sharded

    def data_parallel_size(self) -> int:
        return self._engine.state.world_size // self._engine.world.copies

    def is_padding(self) -> bool:
        return self._engine.book.muted

    @contextmanager
    def padding_counts(self) -> Iterator[None]:
        """Keep the values that are logged inside the block, also in a padding batch."""
        book = self._engine.book
        is_muted = book.muted
        book.unmute()
        try:
            yield
        finally:
            if is_muted:
                book.mute()

    # -- data --------------------------------------------------------------------------------------

    def limit_batches(self, stage: str, count: int | None, by: object, *, repeat: bool) -> int | None:
        """Set the limit of one callback, and return the limit of the stage: the smallest counts.

        Args:
            stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
            count: Number of batches. ``None`` removes the limit of the callback.
            by: The callback.
            repeat: True to train on the batches of the first epoch in every epoch.

        Raises:
            SetupError: If there is no such stage, or ``count`` is less than 1.
        """
        data, where = self._engine.data, f"run.limit_batches({stage!r}, {count!r})"
        if stage not in LOADERS:
            raise SetupError(f"{where}: no such stage. Use {', '.join(map(repr, LOADERS))}.")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise SetupError(f"{where}: give 1 batch or more, or None for no limit.")
        if self._limits is not data.limits:  # They belong to an earlier fit.
            self._limits, self._limits_by = data.limits, {}
        limits = self._limits_by.setdefault(stage, {})
        limits.pop(by, None)
        if count is not None:
            limits[by] = count
        data.limits.pop(stage, None)
        if limits:
            data.limits[stage] = min(limits.values())
        if repeat and stage == "train":
            data.repeat_first_epoch()
        self._engine.requests.note_change(f"run.limit_batches({stage!r})", str(data.limits.get(stage)))
        return data.limits.get(stage)

    def num_batches(self, stage: str, loader: Any) -> int | None:
        engine = self._engine
        if loader is None and stage == "train" and engine.edge.epoch_phase is not EpochPhase.CLOSED:
            return None if math.isinf(engine.data.length) else int(engine.data.length)
        loader = engine.state.loaders.get(stage) if loader is None else loader
        loaders = loader.values() if isinstance(loader, Mapping) else [loader]
        try:
            return sum(engine.data.shard_length(stage, one, len(one), engine.world) for one in loaders)
        except (TypeError, NotImplementedError):
            return None

    def batches_read(self) -> int:
        return self._engine.data.given

    def batch_size(self, batch: Any) -> int:
        return self._engine.steps.count_samples(batch)[0]

    def to_device(self, batch: Any) -> Any:
        return self._engine.move(batch)

    def sample_indices(self, batch: int) -> list[int] | None:
        """Return the indices of the samples of a batch, or ``None`` if they are not known.

        They are known for a plain ``DataLoader`` without replacement, whose order Hookline can compute again.

        Args:
            batch: Index of the batch in the epoch.
        """
        data = self._engine.data
        batches = data.loader.batch_sampler if type(data.loader) is DataLoader else None
        if type(batches) is not BatchSampler or type(batches.sampler) not in (RandomSampler, SequentialSampler):
            return None
        tickets: Any = getattr(data.feed, "tickets", None)
        if tickets is None or getattr(batches.sampler, "replacement", False):
            return None
        indices: list[int] = tickets.indices(0 if data.repeat_epoch else self._engine.clock.epoch, data.taken(batch))
        return indices

    def eval_shard(self) -> EvalShard | None:
        shard = self._engine.evaluator.shard
        return None if shard is None else EvalShard(shard.first, shard.is_final)

    # -- steps and settings ------------------------------------------------------------------------

    def accumulate(self) -> int:
        return self._engine.steps.accumulate

    def set_accumulate(self, batches: int) -> None:
        if self._engine.window.count:
            raise SetupError(
                f"run.accumulate = {batches!r}: a step is being accumulated. Set it at the edge of a step: in "
                f"on_train_start, on_train_epoch_start or on_train_step_end."
            )
        if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
            raise SetupError(f"run.accumulate = {batches!r}: give 1 batch or more.")
        self._engine.steps.set_accumulate(batches)
        self._engine.requests.note_change("run.accumulate", str(batches))

    def check_max_duration(self, duration: Duration | None) -> None:
        """Check a new length of training before it is set.

        Raises:
            SetupError: If an interval is a fraction of a length that the run then lacks, or if tokens are not counted.
        """
        where, clock = f"run.max_duration = {None if duration is None else str(duration)!r}", self._engine.clock
        try:
            self._engine.agenda.check(duration)
        except DurationError as error:
            raise SetupError(f"{where}: {error}") from None
        if duration is not None and duration.unit == "tok" and clock.batch and not clock.token:
            raise SetupError(
                f"{where}: this run does not count tokens. Give the task count(batch) -> (samples, tokens)."
            )

    def window_is_full(self) -> bool:
        return self._engine.window.is_last_batch

    def interval_may_end(self) -> bool:
        return self._engine.clock.step >= self._engine.agenda.wake

    def eval_every(self) -> Duration | None:
        return self._engine.settings.eval_every

    def log_every(self) -> Duration | None:
        return self._engine.settings.log_every

    def precision(self) -> str:
        return self._engine.settings.precision

    # -- beginning, saving and ending --------------------------------------------------------------

    def ending(self) -> Ending | None:
        """Return how training ends, or ``None`` if it does not end yet.

        A signal counts as soon as the loop leaves because of it.
        """
        engine, requests, error = self._engine, self._engine.requests, self._engine.state.failure
        if not engine.state.in_fit:
            return None
        stop, step, signal = requests.agreed.stop, engine.clock.step, requests.agreed.preempt
        is_finished = requests.is_trained and not (stop is not None and stop.goes_on)
        if isinstance(error, Preempted) or (signal is not None and (requests.is_leaving or not engine.is_open)):
            return Ending("signal", signal_name(signal or 0), "the system", step, can_resume=not is_finished)
        if error is not None:
            return Ending("error", error_text(error), None, step, can_resume=True)
        if stop is not None:
            kind: EndingKind = "break" if stop.left_body else "interrupt" if stop.interrupt else "stop"
            return Ending(kind, engine.stop_reason(), stop.by, stop.step, can_resume=stop.goes_on)
        is_reached = engine.agenda.is_duration_reached and (engine.state.is_training or requests.is_trained)
        if is_reached or engine.loaded_finished:
            return Ending("duration", engine.stop_reason(), None, step, can_resume=False)
        return None

    def will_resume(self) -> bool:
        return self._engine.will_resume

    def add_save_plan(self, plan: SavePlan) -> None:
        self._engine.saver.add(plan)

    def request_plan(self, plan: SavePlan) -> None:
        """Ask for a save by a plan of this fit.

        ``hookline verify-resume`` saves by its own plan only, and ignores the request.

        Raises:
            SetupError: If the plan was not added in this fit.
        """
        if not self._engine.saver.ask(plan):
            raise SetupError(f"run.request_save({plan!r:.60}): call run.add_save_plan(plan) in on_setup first.")

    def listen_to_signals(self, signals: Iterable[int]) -> None:
        self._engine.signals.add(signals)

    def when_written(self, call: Callable[[Path], None]) -> None:
        self._engine.record.then(call)

    def log_event(self, name: str, text: str) -> None:
        self._engine.records.note(name, text)

    # -- loaders -----------------------------------------------------------------------------------

    def replace_loader(self, stage: str, loader: Any) -> None:
        """Replace a loader, from the next epoch or evaluation on.

        Args:
            stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
            loader: The new loader, or a dict of named loaders for an evaluation.

        Raises:
            SetupError: If the run has no such loader, or does not use it any more.
        """
        engine, where = self._engine, f"run.loaders[{stage!r}] = …"
        in_fit = engine.state.in_fit
        if stage not in LOADERS:
            raise SetupError(f"{where}: no such loader. Use {', '.join(map(repr, LOADERS))}.")
        if stage not in engine.state.loaders and in_fit and not engine.is_custom:
            raise SetupError(f"{where}: this run has none. Pass one to fit(…, {stage}=…).")
        if stage == "train" and engine.requests.is_trained:
            raise SetupError(f"{where}: training is over. Pass the loader to the next fit(…).")
        if not in_fit and engine.clock.is_evaluating:
            raise SetupError(f"{where}: no evaluation follows this one. Replace the loader in on_setup.")
        if stage == "train":
            check_loader(loader, LOADERS[stage])
        else:
            named_loaders(without_intervals(loader, stage)[0], stage)
        engine.data.replace_loader(stage, loader)

    def _keep(self, asked: tuple[str, ...], loaders: dict[str | None, Any], compute: Any) -> Any:
        """Return the cached answer, or compute it.

        The stage and the names of the loaders are parts of the key, because the names in the answer depend on them.
        """
        version = self._engine.weights.version()
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] == version}
        key = (asked, *((name, id(loader)) for name, loader in loaders.items()))
        if key not in self._kept:
            self._kept[key] = (version, loaders, compute())  # Keep the loaders, so that no other object gets their ids.
        return self._kept[key][2]

    def _need(self, method: str, verb: str) -> None:
        if not hasattr(self._engine.state.task, method):
            raise SetupError(
                f"{verb}() needs a task with {method}(run, batch); a custom loop evaluates with loop.eval_batches()"
            )

    def _loaders(self, what: Any) -> tuple[dict[str | None, Any], str]:
        """Return the loaders that were asked for, by name, and their stage."""
        if not isinstance(what, str):
            named = named_loaders(what, "val")
            stage = "val"
        else:
            known = self._engine.state.loaders
            if what not in known:
                raise SetupError(f"there is no {what!r} loader in this run; there is {', '.join(known) or 'none'}")
            named, stage = named_loaders(known[what], what), what
        for loader in named.values():
            if is_one_shot(loader):
                raise SetupError(
                    "an answer would use up a loader that can be iterated over only once; pass a DataLoader or a list"
                )
        return named, stage
