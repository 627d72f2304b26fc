"""Resume: which checkpoint a run goes on from, and what is said about it."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from hookline.checkpoint import Checkpoint, Snapshot, Store
from hookline.checkpoint.agreement import agreed, by_zero
from hookline.checkpoint.inspect import inspect
from hookline.checkpoint.names import MANIFEST, STATE
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.request import Resume
from hookline.distributed.solo import AnyGroup
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    HooklineWarning,
)
from hookline.loop.record.folder import is_inside
from hookline.loop.record.media import rewind_rows_and_media
from hookline.loop.record.notices import log_resumed, warn_if_nothing_saves
from hookline.loop.record.stream import METRICS
from hookline.loop.saving.callback_matching import for_this_run, holds_state
from hookline.loop.saving.environment import environment
from hookline.loop.saving.placing import rooms
from hookline.loop.saving.resharding import of_this_rank
from hookline.loop.saving.state_shape import StateSource, check_shape, names_state_file
from hookline.loop.saving.tree import load_callback_states, restore
from hookline.progress import Duration
from hookline.records import FileRow, ImageRow, MetricRow
from hookline.run import MISSING
from hookline.sinks.jsonl import JsonLines

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

T = TypeVar("T")
logger = logging.getLogger("hookline")


def load_checkpoint(loop: Loop, resume: Resume) -> bool:
    """Load what the run goes on from, after ``setup`` and before ``model_ready``. Whether there was anything."""
    with names_state_file() as source:
        return _load_checkpoint(loop, resume, source)


def _load_checkpoint(loop: Loop, resume: Resume, source: StateSource) -> bool:
    state = loop.state
    saves = loop.saving.is_asked_to_save or loop.saving.verification is not None
    warn_if_nothing_saves(state, loop.settings.resume, saves=saves)
    store, found = _find(loop, resume)
    if found is None:
        _begin_anew(loop)
        return False
    checkpoint, snapshot = found
    source.path = checkpoint.path / STATE
    if snapshot.state is not None:
        of_rank = of_this_rank(loop, snapshot.state, snapshot.about.step)
        check_shape(loop, of_rank, source.path)
        snapshot = replace(snapshot, state=for_this_run(loop, of_rank))
    restore(loop, snapshot)
    loop.course.step_pending = snapshot.about.pending_eval and not loop.course.edge_pending
    if snapshot.about.pending_eval and snapshot.state and snapshot.state["save"]:
        loop.requests.agree(save=True)  # it was due after the evaluation that was left
    _say_callbacks(loop, snapshot)
    load_callback_states(loop, snapshot.state["callbacks"] if snapshot.state else {}, structural=False)
    _say_environment(loop, checkpoint)
    linked = [target.store.folder for target in loop.saving.targets]
    own = state.folder is not None and is_inside(checkpoint.path, state.folder, *linked)
    _rewind(loop, checkpoint, snapshot, own=own)
    if own:
        loop.saving.run_id = checkpoint.about.run
        loop.saving.generation = _told(loop, lambda: _generation(store, checkpoint))
    else:
        loop.saving.run_id = loop.session.world.group.from_zero(loop.saving.run_id)
    loop.saving.began_at = state.clock.step
    loop.finished = checkpoint.about.finished and loop.extend is None and not _asks_for_more(loop, snapshot)
    if loop.finished:
        loop.ended = snapshot.state["ended"] if snapshot.state else None
    elif checkpoint.about.finished:
        loop.requests.drop_stop()  # it had stopped; now it is asked for more
    source.path = None  # what follows is not read from it
    if not loop.finished:
        log_resumed(state, checkpoint.path)
    for path in _told(loop, lambda: list(map(str, _passed_over(store, checkpoint, resume)))):
        state.checkpoint = Path(path)
        loop.line.emit(loop.line.hooks.checkpoint_rejected)
    state.checkpoint = checkpoint.path
    loop.line.emit(loop.line.hooks.checkpoint_loaded)
    state.checkpoint = MISSING
    return True


def _asks_for_more(loop: Loop, snapshot: Snapshot) -> bool:
    """Whether an own loop, which has no ``extend=``, is given more time than the run that has come to its end.

    What scripts give is compared, not what hooks have made of it: the same script, started again, does not go on.
    """
    given, saved = loop.settings.max_duration, snapshot.state
    if not loop.is_own or given is None or loop.clock.reached(given) or saved is None:
        return False
    if "given_duration" not in saved:  # of an older version, which saved what hooks had made of it
        stopped = saved["course"]["stop"] is not None
        return not stopped or saved.get("max_duration", str(given)) != str(given)
    before = None if saved["given_duration"] is None else Duration.parse(saved["given_duration"])
    return before is None or before.unit != given.unit or before < given


def _find(loop: Loop, resume: Resume) -> tuple[Store, tuple[Checkpoint, Snapshot] | None]:
    group, room = loop.session.world.group, rooms(loop)

    def load(store: Store, checkpoint: Checkpoint | Path) -> Snapshot:
        found: list[Snapshot] = []
        # Each rank reads what it needs; what one rank cannot read, none takes.
        agreed(group, lambda: found.append(store.load(checkpoint, room, (group.rank, group.size))))
        return found[0]

    if resume.path == "auto":
        store = Store(loop.state.folder / FOLDER) if loop.state.folder else Store(FOLDER)
        return store, _newest(loop, store, resume, partial(load, store))
    path = Path(resume.path).absolute()
    if (path / MANIFEST).exists() or not path.is_dir():
        store = Store(path.parent)
        snapshot = load(store, path)
        checkpoint = next(c for c in store.checkpoints() if c.path == path)
        if not snapshot.about.exact:
            _warn(loop, f"{path} was saved after an error inside a step: what follows is not what would have followed")
        return store, (checkpoint, snapshot)
    store = Store(path / FOLDER if (path / FOLDER).is_dir() else path)
    found = _newest(loop, store, resume, partial(load, store))
    if found is None:
        raise CheckpointNotFoundError(f"resume={str(resume.path)!r}: there is no checkpoint in {store.folder}")
    return store, found


def _newest(
    loop: Loop, store: Store, resume: Resume, load: Callable[[Checkpoint], Snapshot]
) -> tuple[Checkpoint, Snapshot] | None:
    group = loop.session.world.group
    found = _leading(group, store, resume, load) if not group.rank else _following(group, load)
    if found is None and any(checkpoint.weights_only for checkpoint in store.checkpoints()):
        raise CheckpointMismatchError(
            f"{store.folder} holds weights only, so a run cannot go on from there; start a new run with "
            f"callbacks=[hl.LoadWeights(path)]"
        )
    return found


def _leading(
    group: AnyGroup, store: Store, resume: Resume, load: Callable[[Checkpoint], Snapshot]
) -> tuple[Checkpoint, Snapshot] | None:
    """Rank zero: it looks for the newest, and tells the others which one it tries."""
    found, errors = None, []

    def try_one(checkpoint: Checkpoint) -> Snapshot:
        group.from_zero(str(checkpoint.path))
        return load(checkpoint)

    try:
        found = store.load_newest(strict=resume.strict, load=try_one)
    except CheckpointError as error:
        errors.append(error)
    group.from_zero(None)  # there are no more
    by_zero(group, partial(_raise_one_of, errors))
    return found


def _raise_one_of(errors: list[CheckpointError]) -> None:
    for error in errors:
        raise error


def _following(group: AnyGroup, load: Callable[[Checkpoint], Snapshot]) -> tuple[Checkpoint, Snapshot] | None:
    """The others: try what rank zero tries, until it has found one that all can read."""
    found = None
    while (path := group.from_zero(cast(str | None, None))) is not None:
        checkpoint = Checkpoint(Path(path), MISSING)  # type: ignore[arg-type]  # it is looked at when it is loaded
        try:
            snapshot = load(checkpoint)
            found = inspect(checkpoint.path), snapshot
        except (CheckpointCorruptError, CheckpointNotFoundError):
            found = None  # rank zero passes it over, too
    by_zero(group, partial(_raise_one_of, []))
    return found


def _told(loop: Loop, act: Callable[[], T]) -> T:
    """What rank zero finds; in one process, what is found."""
    found: T = by_zero(loop.session.world.group, act)
    return found


def _generation(store: Store, checkpoint: Checkpoint) -> int:
    newest, about = store.checkpoints()[-1].about, checkpoint.about
    newer = (newest.generation, newest.step) > (about.generation, about.step)
    return newest.generation + 1 if newer else about.generation


def _passed_over(store: Store, checkpoint: Checkpoint, resume: Resume) -> list[Path]:
    """The damaged ones that the newest was looked for among; none where a checkpoint was named."""
    if resume.path != "auto" and (Path(resume.path) / MANIFEST).exists():
        return []
    there = [found.path for found in store.checkpoints() if found.about.exact and not found.weights_only]
    newer = there[there.index(checkpoint.path) + 1 :]  # whole by their sizes, but not by their hashes
    return [*(rejected.path for rejected in store.rejected()), *newer]


def _begin_anew(loop: Loop) -> None:
    """An earlier process was killed before it had saved anything."""
    rows = loop.session.records.stream.rows
    if rows is not None and rows.size:
        logger.info("there is no checkpoint in %s: the run begins anew, and its metrics too", loop.state.folder)
        rewind_rows_and_media(rows, 0)


def _rewind(loop: Loop, checkpoint: Checkpoint, snapshot: Snapshot, *, own: bool) -> None:
    """``metrics.jsonl`` as it was when the checkpoint was saved, and the history in memory with it."""
    rows, group = loop.session.records.stream.rows, loop.session.world.group
    size = snapshot.state["history"]["bytes"] if snapshot.state else 0
    if group.rank:
        group.barrier()  # until rank zero, who alone writes it, has done the same
        if loop.state.folder is not None:
            _read_history(loop, checkpoint, size, own=own)
    if rows is None:
        if not group.rank:
            group.barrier()
        return
    theirs = checkpoint.path.parent.parent / rows.path.name
    if not own and theirs.is_file():
        rows.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(theirs, rows.path)
    if rows.size < size:
        _warn(
            loop,
            f"{rows.path} is shorter ({rows.size} bytes) than when the checkpoint was saved ({size}): rows are lost",
        )
    _take_back(loop, size, own=own)
    if not own:
        for row in rows.read(size):
            if isinstance(row, ImageRow | FileRow) and (theirs.parent / row.file).is_file():
                (rows.path.parent / row.file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(theirs.parent / row.file, rows.path.parent / row.file)
    group.barrier()


def _read_history(loop: Loop, checkpoint: Checkpoint, size: int, *, own: bool) -> None:
    """A rank that writes no rows: its history is that of rank zero."""
    folder = loop.state.folder if own else checkpoint.path.parent.parent
    if folder is not None:
        loop.state.history.clear()
        for row in JsonLines(folder / METRICS).read(size, quietly=True):
            if isinstance(row, MetricRow):
                loop.state.history.record(row)


def rewind_rows(loop: Loop, size: int) -> None:
    """In the middle of a run: take back the rows that were written since; sinks take up the run anew."""
    rows = loop.session.records.stream.rows
    if rows is None:
        loop.state.history.go_back(loop.clock.step)
    elif rows.size == size:
        return
    else:
        _take_back(loop, size, own=True)
    loop.session.records.restart(loop.saving.run_id)


def _take_back(loop: Loop, size: int, *, own: bool) -> None:
    rows, history = loop.session.records.stream.rows, loop.state.history
    if rows is None:
        return
    if own:
        rewind_rows_and_media(rows, size)
    else:
        rows.rewind(size)
    history.clear()
    for row in rows.read(size):
        if isinstance(row, MetricRow):
            history.record(row)


def _say_callbacks(loop: Loop, snapshot: Snapshot) -> None:
    saved = set(snapshot.state["callbacks"]) if snapshot.state else set()
    here = {member.key for member in loop.line.members if not member.is_task}
    if (new := sorted(here - saved)) and not loop.state.rank:
        logger.info("callbacks that the checkpoint does not know, and that begin anew: %s", ", ".join(new))
    with_state = [key for key in saved - here if holds_state(snapshot.state["callbacks"][key])]  # type: ignore[index]
    if missing := sorted(with_state):
        _warn(loop, f"the checkpoint has the state of callbacks that this run lacks: {', '.join(missing)}")


def _say_environment(loop: Loop, checkpoint: Checkpoint) -> None:
    here, saved = environment(loop), checkpoint.about.environment
    # In another number of processes not all is bitwise the same, which was said (`of_this_rank`). How many threads each
    # has follows from it: torchrun gives each of several one.
    left_out = {"world_size"} if saved.get("world_size") == here["world_size"] else {"world_size", "threads"}
    compared = [key for key in here if key in saved and key not in left_out]
    differs = [f"{key} {saved[key]} → {here[key]}" for key in compared if saved[key] != here[key]]
    if differs:
        _warn(loop, f"the run goes on, but not bitwise as it would have: {', '.join(differs)}")


def _warn(loop: Loop, text: str) -> None:
    if not loop.state.rank:  # the others would say the same
        warnings.warn(text, HooklineWarning, stacklevel=2)
