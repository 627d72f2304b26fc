"""Resume: which checkpoint a run goes on from, and what is said about it."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.checkpoint import Checkpoint, Snapshot, Store
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.request import Resume
from hookline.errors import CheckpointMismatchError, CheckpointNotFoundError, HooklineWarning
from hookline.loop.capture import load_callback_states, restore
from hookline.loop.environment import environment
from hookline.loop.media import forget_pictures
from hookline.records import FileRow, ImageRow, MetricRow
from hookline.run import MISSING

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

logger = logging.getLogger("hookline")


def has_checkpoint(loop: Loop, resume: Resume) -> bool:
    """Whether there is something to go on from; a path that was given is one."""
    return resume.path != "auto" or (loop.state.folder is not None and bool(Store(loop.state.folder / FOLDER).latest()))


def load_checkpoint(loop: Loop, resume: Resume) -> bool:
    """Load what the run goes on from, after ``setup`` and before ``model_ready``. Whether there was anything."""
    state = loop.state
    store, found = _find(loop, resume)
    if found is None:
        _begin_anew(loop)
        return False
    checkpoint, snapshot = found
    restore(loop, snapshot)
    loop.course.step_pending = snapshot.about.pending_eval and not loop.course.edge_pending
    if snapshot.about.pending_eval and snapshot.state and snapshot.state["save"]:
        loop.requests.save = loop.requests.attention = True  # it was due after the evaluation that was left
    _say_callbacks(loop, snapshot)
    load_callback_states(loop, snapshot.state["callbacks"] if snapshot.state else {}, structural=False)
    _say_environment(loop, checkpoint)
    # The folder may be a link, or the path may lead there on another way.
    own = state.folder is not None and checkpoint.path.resolve().is_relative_to(state.folder.resolve())
    _rewind(loop, checkpoint, snapshot, own=own)
    if own:
        loop.saving.run_id = checkpoint.about.run
        newest = store.checkpoints()[-1].about
        about = checkpoint.about
        newer = (newest.generation, newest.step) > (about.generation, about.step)
        loop.saving.generation = newest.generation + 1 if newer else about.generation
    loop.saving.began_at = state.clock.step
    loop.finished = checkpoint.about.finished and loop.extend is None
    if loop.finished:
        loop.ended = snapshot.state["ended"] if snapshot.state else None
    elif checkpoint.about.finished:
        loop.requests.stop = None  # it had stopped; now it is asked for more
    logger.info("going on from %s: step %d, epoch %d", checkpoint.path, state.clock.step, state.clock.epoch)
    for path in _passed_over(store, checkpoint, resume):
        state.checkpoint = path
        loop.line.emit(loop.line.hooks.checkpoint_rejected)
    state.checkpoint = checkpoint.path
    loop.line.emit(loop.line.hooks.checkpoint_loaded)
    state.checkpoint = MISSING
    return True


def _find(loop: Loop, resume: Resume) -> tuple[Store, tuple[Checkpoint, Snapshot] | None]:
    if resume.path == "auto":
        store = Store(loop.state.folder / FOLDER) if loop.state.folder else Store(FOLDER)
        return store, _newest(store, resume)
    path = Path(resume.path).absolute()
    if (path / MANIFEST).exists() or not path.is_dir():
        store = Store(path.parent)
        snapshot = store.load(path)
        checkpoint = next(c for c in store.checkpoints() if c.path == path)
        if not snapshot.about.exact:
            _warn(f"{path} was saved after an error inside a step: what follows is not what would have followed")
        return store, (checkpoint, snapshot)
    store = Store(path / FOLDER if (path / FOLDER).is_dir() else path)
    found = _newest(store, resume)
    if found is None:
        raise CheckpointNotFoundError(f"resume={str(resume.path)!r}: there is no checkpoint in {store.folder}")
    return store, found


def _newest(store: Store, resume: Resume) -> tuple[Checkpoint, Snapshot] | None:
    found = store.load_newest(strict=resume.strict)
    if found is None and any(checkpoint.weights_only for checkpoint in store.checkpoints()):
        raise CheckpointMismatchError(
            f"{store.folder} holds weights only, so a run cannot go on from there; start a new run with "
            f"callbacks=[hl.LoadWeights(path)]"
        )
    return found


def _passed_over(store: Store, checkpoint: Checkpoint, resume: Resume) -> list[Path]:
    """The damaged ones that the newest was looked for among; none where a checkpoint was named."""
    if resume.path != "auto" and (Path(resume.path) / MANIFEST).exists():
        return []
    there = [found.path for found in store.checkpoints() if found.about.exact and not found.weights_only]
    newer = there[there.index(checkpoint.path) + 1 :]  # whole by their sizes, but not by their hashes
    return [*(rejected.path for rejected in store.rejected()), *newer]


def _begin_anew(loop: Loop) -> None:
    """An earlier process was killed before it had saved anything."""
    rows = loop.session.stream.rows
    if rows is not None and rows.size:
        logger.info("there is no checkpoint in %s: the run begins anew, and its metrics too", loop.state.folder)
        rows.rewind(0)


def _rewind(loop: Loop, checkpoint: Checkpoint, snapshot: Snapshot, *, own: bool) -> None:
    """``metrics.jsonl`` as it was when the checkpoint was saved, and the history in memory with it."""
    rows = loop.session.stream.rows
    size = snapshot.state["history"]["bytes"] if snapshot.state else 0
    if rows is None:
        return
    theirs = checkpoint.path.parent.parent / rows.path.name
    if not own and theirs.is_file():
        rows.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(theirs, rows.path)
    if rows.size < size:
        _warn(f"{rows.path} is shorter ({rows.size} bytes) than when the checkpoint was saved ({size}): rows are lost")
    _take_back(loop, size, own=own)
    if not own:
        for row in rows.read(size):
            if isinstance(row, ImageRow | FileRow) and (theirs.parent / row.file).is_file():
                (rows.path.parent / row.file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(theirs.parent / row.file, rows.path.parent / row.file)


def rewind_rows(loop: Loop, size: int) -> None:
    """In the middle of a run: take back the rows that were written since; sinks take up the run anew."""
    rows = loop.session.stream.rows
    if rows is None:
        loop.state.history.go_back(loop.clock.step)
    elif rows.size == size:
        return
    else:
        _take_back(loop, size, own=True)
    loop.session.restart_stream(loop.saving.run_id)


def _take_back(loop: Loop, size: int, *, own: bool) -> None:
    rows, history = loop.session.stream.rows, loop.state.history
    if rows is None:
        return
    rows.rewind(size)
    history.clear()
    pictures = set()
    for row in rows.read(size):
        if isinstance(row, MetricRow):
            history.record(row)
        elif isinstance(row, ImageRow | FileRow):
            pictures.add(row.file)
    if own:
        forget_pictures(rows.path.parent, keep=pictures)


def _say_callbacks(loop: Loop, snapshot: Snapshot) -> None:
    saved = set(snapshot.state["callbacks"]) if snapshot.state else set()
    here = {member.key for member in loop.line.members if not member.is_task}
    if new := sorted(here - saved):
        logger.info("callbacks that the checkpoint does not know, and that begin anew: %s", ", ".join(new))
    with_state = [key for key in saved - here if _has_state(snapshot.state["callbacks"][key])]  # type: ignore[index]
    if missing := sorted(with_state):
        _warn(f"the checkpoint has the state of callbacks that this run lacks: {', '.join(missing)}")


def _has_state(saved: Any) -> bool:
    return any(saved.values())


def _say_environment(loop: Loop, checkpoint: Checkpoint) -> None:
    here, saved = environment(loop), checkpoint.about.environment
    differs = [f"{key} {saved[key]} → {here[key]}" for key in here if key in saved and saved[key] != here[key]]
    if differs:
        _warn(f"the run goes on, but not bitwise as it would have: {', '.join(differs)}")


def _warn(text: str) -> None:
    warnings.warn(text, HooklineWarning, stacklevel=2)
