"""The pre-flight of a run: collect evidence before step 1 without a trace, and report what is probably wrong."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from copy import deepcopy
from functools import partial
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from hookline.checkpoint import Store
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.commit import free_bytes
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.snapshot import Snapshot
from hookline.errors import HooklineError, HooklineWarning, Preempted, StopTraining, error_text
from hookline.loop.data.batches import count, is_one_shot, sure_length
from hookline.loop.data.notes import data_parts
from hookline.loop.engine.trial import Trial, trial
from hookline.loop.preflight.checks import CHECKS
from hookline.loop.preflight.evidence import (
    Evidence,
    Failure,
    GradientWatch,
    Plan,
    SaveFacts,
    TrialFacts,
    place_of,
    unregistered_tensors,
)
from hookline.loop.preflight.plain_state import PlainState
from hookline.loop.preflight.report import Inspection, distinct, refused
from hookline.loop.preflight.samples import LoaderFacts, facts_of
from hookline.loop.preflight.watch import CallWatch, tensors_in
from hookline.loop.tasks.supervised import SupervisedTask, title_of
from hookline.records.finding import Finding, table
from hookline.run import MISSING

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine

logger = logging.getLogger("hookline")

BATCHES: Final = 2
MAX_SAVE_BYTES: Final = 64 * 2**20
"""Largest part of a checkpoint that the pre-flight writes."""
LONG_S: Final = 20.0
"""Seconds from which Hookline logs how long the pre-flight took."""
MAX_STEP_S: Final = 10.0
"""Seconds of a training step after which the pre-flight makes no further step."""
MEMORY_FACTOR: Final = 8
"""The free memory must hold the weights this often: a step needs gradients and the state of the optimizer."""
STOPPED: Final = "the task stops the run"
NO_MEMORY: Final = "the memory is not enough"
SLOW: Final = "slow"
FAILED: Final = "failed"
"""How a step may end."""
BATCH_EVENTS: Final = ("batch_fetch_end", "train_batch_start", "forward_start", "forward_end", "loss_ready")
"""Events at which a callback may replace the batch, the outputs or the loss."""
BATCH_RESOURCES: Final = {"batch", "outputs", "loss"}


class Preflight:
    """Collect the evidence of a run once, and check it.

    Args:
        engine: The engine.
        inspection: Options of ``hookline check``, or ``None``.
    """

    def __init__(self, engine: Engine, inspection: Inspection | None) -> None:
        self._engine, self._inspection = engine, inspection
        self._optimizer_bytes, self._untried = 0, "a custom loop has no train_batch"

    def run(self, train: Any, vals: Mapping[str | None, Any], tests: Mapping[str | None, Any]) -> None:
        """Check the run before its first step. All ranks must call it.

        Args:
            train: The training loader.
            vals: The validation loaders by name.
            tests: The test loaders by name.

        Raises:
            SetupError: If a check has found an error.
        """
        engine, began = self._engine, perf_counter()
        is_on = engine.settings.preflight is not False
        is_new, has_task = engine.clock.step == 0, engine.state.task is not MISSING
        if engine.loaded_finished or not (is_new or engine.training.is_resumed):
            return
        failure = None
        if is_new and has_task:
            failure = self._evaluate(vals, is_on=is_on)
        if not is_on or engine.requests.agreed.stop is not None:
            if failure is not None:
                raise failure
            return
        findings, evidence = self._findings(train, vals, tests, tries=is_new and has_task)
        self._report(findings, evidence, failure, perf_counter() - began)

    # -- evidence ----------------------------------------------------------------------------------

    def _evaluate(self, vals: Mapping[str | None, Any], *, is_on: bool) -> Exception | None:
        """Make the sanity check. Return its error if other findings can be reported with it."""
        engine = self._engine
        loaders = engine.data.named_loaders_of("val", dict(vals))
        kept = PlainState()  # Of the data only: a model keeps what an evaluation changes.
        _keep_data(kept, vals.values())
        if is_on and engine.world.shares[0] == 1 and not kept.doubt:  # Else each rank gets some of the batches.
            loaders = {name: _first_and_last(loader) for name, loader in loaders.items()}
        try:
            with _restored(kept):
                engine.check_sanity(loaders)
        except Exception as error:
            if not is_on:
                raise
            engine.world.refuse(error)  # Other ranks would wait for a rank that continues.
            return error
        return None

    def _findings(
        self, train: Any, vals: Mapping[str | None, Any], tests: Mapping[str | None, Any], *, tries: bool
    ) -> tuple[list[Finding], Evidence]:
        """Collect the evidence, and return what the checks find in it, on all ranks."""
        engine = self._engine
        state, settings = engine.state, engine.settings
        is_full = self._inspection is not None and self._inspection.is_full
        named = {"train": train, **_full_names("val", vals), **_full_names("test", tests)}
        loaders = tuple(facts_of(name, loader, is_full=is_full) for name, loader in named.items())
        plan = _plan(engine, loaders[0])
        steps = self._try(loaders[0]) if tries and hasattr(state.task, "train_batch") else None
        evidence = Evidence(
            state=state,
            title=title_of(state.module),
            brings_optimizer=engine.opening.brings_optimizer,
            drives_updates=bool(getattr(state.task, "drives_updates", False)),
            precision=settings.precision,
            plan=plan,
            loaders=loaders,
            trial=steps,
            saves=tuple(self._saves(plan)),
            doubts=engine.edge.doubts.monitored,
        )
        found = [finding for check in CHECKS for finding in check(evidence)]
        found += self._try_save(is_full=is_full)
        found += self._ask_sinks()
        return distinct(self._of_all_ranks(found)), evidence

    def _try(self, train: LoaderFacts) -> TrialFacts | None:
        """Make two training steps that leave no trace. ``None`` if they would show nothing."""
        engine = self._engine
        doubt = self._doubt(train.loader)
        if any(engine.world.group.exchange(bool(doubt))):
            self._skip(doubt or "another rank cannot make it")
            return None
        kept = _plain_state(engine, [train.loader])
        if any(engine.world.group.exchange(bool(kept.doubt))):
            self._skip(kept.doubt or "another rank cannot make it")
            return None
        with _unheard(), _restored(kept), trial(engine) as trying, engine.steps.alone():
            found, reason = self._steps(trying, train)
        if reason:
            self._skip(reason)
        return found

    def _doubt(self, loader: Any) -> str:
        """Return why a training step would show nothing, or may do harm. Empty if there is no such reason."""
        engine = self._engine
        module = engine.state.module
        if is_one_shot(loader) or _holds_iterator(loader):
            return "the training loader can be read only once"
        if engine.state.device.type == "meta":
            return "the model has no values"
        if engine.world.is_sharded:
            return "the model is sharded"
        if any(isinstance(part, torch.nn.SyncBatchNorm) for part in module.modules()):
            return "SyncBatchNorm exchanges values with other ranks"
        changing = _changing_batches(engine)
        return f"{changing} may change the batches" if changing else _memory_doubt(engine)

    def _skip(self, reason: str) -> None:
        """Note that no training step was made."""
        self._untried = reason
        logger.info("the pre-flight makes no training step: %s", reason)

    def _agree(self, act: Callable[[], str]) -> tuple[set[str], Exception | None]:
        """Call a function, and return how it ended on any rank, and its error on this rank. All ranks must call it.

        Args:
            act: Returns why no further step is made. Empty to continue.
        """
        raised: Exception | None = None
        try:
            outcome = act()
        except StopTraining:
            outcome = STOPPED
        except Exception as error:
            outcome, raised = (NO_MEMORY, None) if _is_out_of_memory(error) else (FAILED, error)
        return set(self._engine.world.group.exchange(outcome)) - {""}, raised

    def _steps(self, trying: Trial, train: LoaderFacts) -> tuple[TrialFacts | None, str]:
        """Make the steps of the trial. Return what they show, or the reason why they show nothing."""
        engine = self._engine
        module, rest = engine.state.module, train.rest if engine.world.shares[0] == 1 else 0
        before = _evaluating(module)
        watch = CallWatch()
        gradients, losses, seconds = GradientWatch(dict(module.named_parameters())), [], 0.0
        strays = GradientWatch(unregistered_tensors(module, engine.state.optimizers.values()))
        batches: list[Any] = []

        def read() -> str:
            # They may be the user's own tensors, and a model may change them in place.
            for batch in _with_last(trying.batches(BATCHES), rest):
                try:
                    batches.append(_copy_of(batch))
                except Exception as error:
                    return f"a batch cannot be copied: {error_text(error)}"
            return ""

        def step(number: int) -> str:
            nonlocal seconds
            if number >= len(batches):
                return ""
            batch, is_smaller = batches[number], number == BATCHES
            watch.begin(batch, count(batch)[0])
            began = perf_counter()
            with nullcontext() if is_smaller else watch:
                loss = trying.attempt(batch)
            if not is_smaller:
                seconds = perf_counter() - began
                losses.extend([] if loss is None else [loss])
            return SLOW if seconds > MAX_STEP_S else ""

        number, inputs = 0, {}
        try:
            said, error = self._agree(read)
            if batches:
                inputs = {path: tensor.detach() for path, tensor in tensors_in(batches[0])}
            while not said and number <= BATCHES:
                said, error = self._agree(partial(step, number))
                number += 1
        finally:
            gradients.close()
            strays.close()
            watch.end()
        failure = None
        if error is not None:
            failure = Failure.of(error, samples=train.rest if number > BATCHES else None)
        elif said - {SLOW, FAILED}:
            return None, min(said - {SLOW, FAILED})
        self._optimizer_bytes = sum(
            value.nbytes
            for optimizer in engine.state.optimizers.values()
            for state in optimizer.state.values()
            for value in (state.values() if isinstance(state, Mapping) else ())
            if isinstance(value, Tensor)
        )
        change, has_moved, is_finite = _change(engine.state.model, trying.weights)
        facts = TrialFacts(
            batch_size=count(batches[0])[0] if batches else 0,
            losses=tuple(float(loss) for loss in losses),
            calls=watch,
            gradients=gradients.facts(),
            is_finite=is_finite,
            has_moved=has_moved,
            change=change,
            inputs=inputs,
            evaluating_before=before,
            evaluating_after=_evaluating(module),
            unregistered=tuple(strays.facts()),
            logged=frozenset(engine.book.names()) | ({"train/loss"} if losses else frozenset()),
            seconds_per_batch=seconds,
            failure=failure,
        )
        return facts, ""

    # -- saving and sinks --------------------------------------------------------------------------

    def _saves(self, plan: Plan) -> Iterator[SaveFacts]:
        """Return how much the checkpoints of each plan need."""
        engine = self._engine
        folder = engine.state.folder
        if folder is None or not engine.saver.plans or engine.world.is_sharded:
            return
        weights = sum(tensor.nbytes for tensor in engine.tree.weights().values())
        for save in engine.saver.plans:
            target = _existing(self._target(folder) / save.folder)
            free = free_bytes(target)
            if free is not None:
                each = weights + (0 if save.weights_only else self._optimizer_bytes)
                yield SaveFacts(each, _kept(save, plan), free, str(target))

    def _target(self, folder: Path) -> Path:
        """Return the folder of the run. ``hookline check`` runs in another one."""
        if self._inspection is None:
            return folder
        return self._inspection.target or Path("runs")

    def _try_save(self, *, is_full: bool) -> list[Finding]:
        """Save and load a checkpoint in the folder of the run, and delete it. All ranks must call it."""
        engine = self._engine
        folder, plans = engine.state.folder, engine.saver.plans
        if folder is None or not plans or engine.world.is_sharded:
            return []
        limit = sys.maxsize if is_full else MAX_SAVE_BYTES
        about = engine.tree.about(engine.saver.run_id, engine.saver.generation)
        problem = ""
        if not engine.state.rank:
            weights, size = {}, 0
            for name, tensor in engine.tree.weights().items():
                size += tensor.nbytes
                if size > limit:
                    break
                weights[name] = tensor
            try:
                _save_and_load(_existing(self._target(folder) / plans[0].folder), Snapshot(about, weights))
            except (HooklineError, OSError) as error:
                problem = error_text(error)
        problem = by_zero(engine.world.group, lambda: problem)
        level, advice = "error", "Make the folder writable, free some space, or give another folder."
        if all(plan.on_error == "warn" for plan in plans):
            level = "warning"
        return [Finding(level, "save", f"A checkpoint cannot be saved: {problem}.", advice)] if problem else []  # type: ignore[arg-type]

    def _ask_sinks(self) -> list[Finding]:
        """Ask the sinks what they know, and note those that could not start. They are optional."""
        engine, found = self._engine, []
        if engine.state.rank:
            return []
        for sink in engine.settings.sinks:
            ask = getattr(sink, "preflight", None)
            try:
                found += list(ask()) if callable(ask) else []
            except Exception as error:
                message = f"{type(sink).__name__}.preflight raises {error_text(error)}."
                found.append(Finding("warning", "sink", message, "Correct the sink."))
        problems = [] if found else engine.records.stream.problems()
        advice = "Check its address and its credentials. Training continues without it."
        found += [Finding("warning", "sink", f"The sink {problem}.", advice) for problem in problems]
        return [Finding("warning", each.check, each.message, each.advice, each.where) for each in found]

    # -- the report --------------------------------------------------------------------------------

    def _of_all_ranks(self, found: Sequence[Finding]) -> list[Finding]:
        """Return the findings of all ranks. Those that not all ranks have say which rank has them."""
        world = self._engine.world
        mine = [[each.level, each.check, each.message, each.advice, each.where] for each in found]
        said: list[list[list[str]]] = world.group.exchange(mine)
        merged: dict[tuple[str, str, str], list[tuple[int, list[str]]]] = {}
        for rank, theirs in enumerate(said):
            for each in theirs:
                merged.setdefault((each[1], each[4], _without_numbers(each[2])), []).append((rank, each))
        all_found = []
        for several in merged.values():
            level, check, message, advice, where = several[0][1]
            ranks = sorted({rank for rank, _ in several})
            on = "" if len(ranks) == len(said) else f" (on rank {', '.join(map(str, ranks))} of {len(said)})"
            all_found.append(Finding(level, check, message + on, advice, where))  # type: ignore[arg-type]
        return all_found

    def _report(
        self, findings: Sequence[Finding], evidence: Evidence, failure: Exception | None, seconds: float
    ) -> None:
        """Warn about the findings, or raise an error."""
        engine, steps = self._engine, evidence.trial
        raised = failure
        if raised is None and steps is not None and steps.failure is not None and not steps.failure.samples:
            raised = steps.failure.error if not _may_be_prepared(engine) else None
        if self._inspection is not None:
            self._leave(findings, evidence, raised)
        is_strict = engine.settings.preflight == "strict"
        if any(each.level == "error" or is_strict for each in findings):
            raise refused(findings) from raised
        if seconds > LONG_S and not engine.state.rank:
            logger.warning("the pre-flight took %.0f seconds; preflight=False switches it off", seconds)
        if findings and not engine.state.rank:
            warnings.warn(f"The pre-flight has found:\n{table(findings)}", HooklineWarning, stacklevel=2)
        if raised is not None:
            raised.add_note("raised by the pre-flight, before step 1")
            raise raised

    def _leave(self, findings: Sequence[Finding], evidence: Evidence, raised: Exception | None) -> None:
        """Write the findings for ``hookline check``, and end the script."""
        found, steps = list(findings), evidence.trial
        if raised is not None:
            message = " ".join([error_text(raised), *getattr(raised, "__notes__", ())])
            found.append(Finding("error", type(raised).__name__, message, "See the error.", place_of(raised)))
        batches, took = evidence.plan.batches_per_epoch, 0.0 if steps is None else steps.seconds_per_batch
        if self._inspection is not None and not self._engine.state.rank:
            untried = self._untried if steps is None else ""
            facts = {"epoch_seconds": took * batches if batches and took else None, "untried": untried}
            self._inspection.write(found, facts)
        leave = Preempted(0)
        leave.code = 0
        raise leave


def _plain_state(engine: Engine, loaders: Iterable[Any]) -> PlainState:
    """Copy the Python state that a step, an evaluation or reading may change, and that no snapshot holds."""
    state = engine.state
    module, weights = state.module, engine.loss_weights
    kept = PlainState([*module.parameters(), *module.buffers(), *(each.scheduler for each in state.schedulers)])
    for name, optimizer in state.optimizers.items():
        kept.add(optimizer, name, but=("state", "param_groups"))
    for part in () if weights is None else weights.parts():
        kept.add(part, "the loss", but=("loss",))
    # Functions that make optimizers and schedulers are not called in a step.
    kept.add(module, title_of(module), but=("optimizer", "scheduler") if isinstance(module, SupervisedTask) else ())
    for name, parameter in module.named_parameters():
        hooks: Any = parameter
        kept.add((hooks._backward_hooks, hooks._post_accumulate_grad_hooks), f"a hook of {name}")
    _keep_data(kept, loaders)
    kept.read_code()
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        kept.refuse("the model has parameters without a shape")
    if any(tensor.layout != torch.strided for tensor in (*module.parameters(), *module.buffers())):
        kept.refuse("the model has sparse tensors")
    return kept


def _keep_data(kept: PlainState, loaders: Iterable[Any]) -> None:
    """Copy the Python state that reading may change."""
    for loader in loaders:
        if not _is_plain_data(loader):
            for part in data_parts(loader):
                kept.add(part, f"the {type(part).__name__}")


def _is_plain_data(loader: Any) -> bool:
    """True for a loader that calls no code of the user: reading changes nothing."""
    if type(loader) in (list, tuple):
        return True
    if type(loader) is not DataLoader or loader.collate_fn is not default_collate:
        return False
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    parts = dataset.datasets if type(dataset) is ConcatDataset else [dataset]
    return all(type(part) in (TensorDataset, list, tuple) or isinstance(part, Tensor) for part in parts)


def _memory_doubt(engine: Engine) -> str:
    """Return why memory may not be enough for a copy of the weights. Empty if it is."""
    device, needed = engine.state.device, sum(tensor.nbytes for tensor in engine.tree.weights().values())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if free is None or needed * MEMORY_FACTOR < free:
        return ""
    return f"the weights have {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free"


def _free_memory() -> int | None:
    """Return how many bytes of memory processes can still use. ``None`` if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * sizes[0] if sizes else None


def _copy_of(batch: Any) -> Any:
    """Return a copy of a batch. Its tensors get new values, also if they are not leaves of a graph."""
    copies = {id(each): each.detach().clone().requires_grad_(each.requires_grad) for _, each in tensors_in(batch)}
    return deepcopy(batch, copies)


def _is_out_of_memory(error: Exception) -> bool:
    """True for the errors of memory of a device, of Python, and of tensors on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@contextmanager
def _restored(kept: PlainState) -> Iterator[None]:
    """Restore the Python state after the block."""
    try:
        yield
    finally:
        kept.restore()


@contextmanager
def _unheard() -> Iterator[None]:
    """Print, log and compile nothing in the block."""
    level = logging.root.manager.disable
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(redirect_stdout(StringIO()))
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        yield


def _without_numbers(message: str) -> str:
    """Return a message without its numbers, in which the findings of two ranks may differ.

    >>> _without_numbers("3 of 20 samples")
    ' of  samples'
    """
    return "".join(each for each in message if not each.isdigit())


def _first_and_last(loader: Any) -> Any:
    """Return a loader of the first batch and the smaller last one, if a loader has one. Else the loader itself."""
    if type(loader) is not DataLoader or sure_length(loader) is None or loader.batch_size is None:
        return loader
    facts = _sizes(loader)
    if not facts:
        return loader
    first, last = facts
    return DataLoader(
        loader.dataset,
        batch_sampler=[first, last],
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )


def _sizes(loader: DataLoader[Any]) -> tuple[list[int], list[int]] | None:
    """Return the indices of the first batch, and of the smaller last one. ``None`` if all are equally large."""
    if type(loader.sampler) is not torch.utils.data.SequentialSampler or loader.drop_last:
        return None
    samples, size = len(loader.sampler), loader.batch_size or 1
    rest = samples % size
    if not rest or samples < size:
        return None
    return list(range(size)), list(range(samples - rest, samples))


def _with_last(batches: Iterator[Any], rest: int) -> Iterator[Any]:
    """Yield batches, and the first samples of the last one, as many as the last batch of an epoch has."""
    batch = None
    for batch in batches:
        yield batch
    if rest:
        size = count(batch)[0]
        smaller = _cut(batch, size, rest)
        if size > rest and smaller is not None:
            yield smaller


def _cut(batch: Any, size: int, rest: int) -> Any:
    """Return the first samples of a batch. ``None`` if its structure is unknown."""
    if isinstance(batch, Tensor):
        return batch[:rest] if batch.ndim and len(batch) == size else None
    if type(batch) is dict:
        parts = {key: _cut(value, size, rest) for key, value in batch.items()}
        return None if any(part is None for part in parts.values()) else parts
    if type(batch) in (list, tuple):
        some = [_cut(value, size, rest) for value in batch]
        return None if not some or any(part is None for part in some) else type(batch)(some)
    return None


def _plan(engine: Engine, train: LoaderFacts) -> Plan:
    """Return how long the run is."""
    longest, limit = engine.state.max_duration, engine.data.limit("train")
    length = train.batches if train.batches is not None else sure_length(train.loader)
    if length is None:
        batches = None
    else:
        batches = int(min(limit, engine.data.shard_length("train", train.loader, length, engine.world)))
    per_epoch = None if not batches else math.ceil(batches / engine.steps.accumulate)
    steps = epochs = None
    if longest is not None and longest.unit == "st":
        steps = longest.value
        epochs = None if per_epoch is None else steps / per_epoch
    elif longest is not None and longest.unit == "ep":
        epochs = longest.value
        steps = None if per_epoch is None else epochs * per_epoch
    return Plan(steps, epochs, batches, per_epoch, engine.steps.accumulate)


def _kept(save: SavePlan, plan: Plan) -> float:
    """Return how many checkpoints of a plan are on the disk at once, at most."""
    total = 1.0
    if save.every is not None:
        length = {"st": plan.steps, "ep": plan.epochs, "dur": 1.0}.get(save.every.unit)
        total = max(1.0, length // save.every.value) if length is not None and math.isfinite(length) else 1.0
    keep = save.keep
    if keep is None:
        return total
    return min(total, keep.last + keep.best + (total if keep.every is not None else 0)) + 1


def _change(model: torch.nn.Module, before: Mapping[str, Tensor]) -> tuple[float, bool, bool]:
    """Return the relative change of the parameters, whether one has changed, and whether all are finite."""
    moved, size, has_moved, is_finite = 0.0, 0.0, False, True
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            old = before.get(name)
            if not parameter.requires_grad or old is None or not parameter.is_floating_point():
                continue
            difference = (parameter - old).float().norm().item()
            is_finite &= math.isfinite(difference) and bool(parameter.isfinite().all())
            has_moved |= difference != 0
            moved += difference**2 if math.isfinite(difference) else 0.0
            size += old.float().norm().item() ** 2
    return (math.sqrt(moved / size) if size else 0.0), has_moved, is_finite


def _save_and_load(parent: Path, snapshot: Snapshot) -> None:
    """Save a snapshot into a new folder, load it, and delete the folder."""
    folder = parent / ".preflight"
    try:
        store = Store(folder)
        store.load(store.save(snapshot, None))
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _existing(folder: Path) -> Path:
    """Return the folder, or the closest parent that exists."""
    found = folder.absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    return found


def _full_names(stage: str, loaders: Mapping[str | None, Any]) -> dict[str, Any]:
    return {stage if name is None else f"{stage}/{name}": loader for name, loader in loaders.items()}


def _evaluating(module: torch.nn.Module) -> tuple[str, ...]:
    return tuple(name for name, part in module.named_modules() if not part.training)


def _holds_iterator(loader: Any) -> bool:
    """True for an iterable data set over an iterator, which is read only once."""
    dataset = getattr(loader, "dataset", loader)
    return not hasattr(dataset, "__getitem__") and any(
        isinstance(value, Iterator) for value in getattr(dataset, "__dict__", {}).values()
    )


def _changing_batches(engine: Engine) -> str:
    """Return the name of a callback that may change batches, outputs or losses in a step. Empty if none does."""
    heard: list[Any] = [getattr(engine.line.hooks, name) for name in BATCH_EVENTS]
    heard += [engine.line.hooks.around_batch, engine.line.hooks.around_step]
    for member in engine.line.members:
        callback: Any = member.callback
        if not any(run is member.view for hooks in heard for _, run in hooks or ()):
            continue
        if member.is_task:
            return member.name
        declared = {name.partition("/")[0] for name in callback.writes}
        if declared & BATCH_RESOURCES or not (declared or callback.reads):
            return member.name
    return ""


def _is_own(callback: object) -> bool:
    """True for a callback of Hookline. If it declares nothing, it prepares nothing."""
    return type(callback).__module__.startswith("hookline.")


def _may_be_prepared(engine: Engine) -> bool:
    """True if a hook of training may prepare what a step needs.

    No hook runs in a trial, so an error of the trial then proves nothing.
    """
    names = ("train_start", "train_epoch_start", "train_step_start", "train_batch_start", "batch_fetch_start")
    heard = [getattr(engine.line.hooks, name) for name in names]
    heard += [getattr(engine.line.hooks, name) for name in ("around_train", "around_epoch", "around_step")]
    undeclared = [
        member.view
        for member in engine.line.members
        if member.is_task or not (_is_own(member.callback) or member.callback.reads or member.callback.writes)
    ]
    return any(run is view for hooks in heard for _, run in hooks or () for view in undeclared)
