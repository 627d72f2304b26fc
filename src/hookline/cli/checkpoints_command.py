"""``hookline checkpoints``: list, show, verify, prune or consolidate checkpoints."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookline.cli.console import wide_console
from hookline.errors import CheckpointCorruptError, CheckpointNotFoundError, HooklineError, SetupError
from hookline.progress.counted import counted
from hookline.records.direction import direction
from hookline.records.run_file import FILE as RUN_FILE
from hookline.records.run_file import MonitorEntry, RunFile

if TYPE_CHECKING:
    from hookline.checkpoint import Checkpoint, Store

# Copies of constants in hookline.checkpoint, whose import of torch would delay ``--help``.
CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
LOCK = "run.lock"


def register(commands: Any) -> None:
    about = "list, show, verify, prune or consolidate the checkpoints of a run"
    parser = commands.add_parser("checkpoints", help=about)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = _verb(verbs, "ls", _ls, "list all checkpoints, and the damaged ones")
    listing.add_argument("--monitor", metavar="M", help="metric of the best one (default: the run's, or val/loss)")
    listing.add_argument("--mode", choices=["min", "max"], help="which value is better (default: by the metric's name)")
    listing.add_argument("--json", action="store_true", help="print JSON")
    showing = _verb(verbs, "show", _show, "show the content of one checkpoint, with its hashes verified")
    showing.add_argument("name", metavar="NAME", nargs="?", help="name of the checkpoint (default: the latest)")
    _verb(verbs, "verify", _verify, "compare every file with its hash (exit code 1 if one is damaged)")
    pruning = _verb(verbs, "prune", _prune, "delete checkpoints, except the last, the best and one per interval")
    pruning.add_argument("--keep-last", type=int, metavar="N", help="keep the newest N")
    pruning.add_argument("--keep-best", type=int, metavar="K", help="keep the best K by --monitor")
    pruning.add_argument("--monitor", metavar="M", help="the metric for --keep-best")
    pruning.add_argument("--mode", choices=["min", "max"], help="which value is better (default: by the metric's name)")
    pruning.add_argument("--keep-every", metavar="D", help="keep one per D of training, such as 1000st, 5ep or 2h")
    pruning.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    about = "write the weights of a checkpoint, sharded or not, as one safetensors file"
    joining = _verb(verbs, "consolidate", _consolidate, about, what="a checkpoint, or a run's folder for its newest")
    joining.add_argument("--to", metavar="FILE", type=Path, help="path (default: NAME.safetensors in the run's folder)")
    joining.add_argument("--force", action="store_true", help="replace an existing file")


def _verb(
    verbs: Any, name: str, run: Any, about: str, what: str = "the run's folder, or its checkpoints folder"
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.add_argument("folder", metavar="PATH" if name == "consolidate" else "RUN", type=Path, help=what)
    parser.set_defaults(run=lambda arguments: _guarded(run, arguments))
    return parser


def _guarded(run: Any, arguments: argparse.Namespace) -> int:
    """Print an error as one line and return the exit code 2."""
    try:
        return int(run(arguments))
    except HooklineError as error:
        print(f"hookline checkpoints {arguments.verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _store(folder: Path) -> Store:
    """Return the checkpoints of a run's folder, or of the folder itself."""
    from hookline.checkpoint import Store

    if not folder.is_dir():
        raise CheckpointNotFoundError(f"{folder} is not a folder. Give the folder of a run.")
    if (folder / MANIFEST).exists():
        raise SetupError(f"{folder} is one checkpoint. Give the run's folder, followed by the name for 'show'.")
    if _is_run(folder) or (folder / CHECKPOINTS).is_dir():
        return Store(folder / CHECKPOINTS)  # The other folders of a run are not checkpoints.
    store = Store(folder)
    if store.folder.name == CHECKPOINTS or store.checkpoints():
        return store
    beside = [found.path for found in store.rejected()]
    if runs := [path for path in beside if _is_run(path)]:
        raise SetupError(f"{folder} contains runs, but is not a run. Give one, such as {folder / runs[-1].name}.")
    if not any((path / MANIFEST).exists() for path in beside):
        raise CheckpointNotFoundError(f"{folder} contains neither a run nor checkpoints. Give the folder of a run.")
    return store


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (RUN_FILE, "metrics.jsonl"))


def _says_none(store: Store) -> bool:
    """Print a message and return True if there are no checkpoints, which is not an error."""
    from hookline.cli.checkpoint_tables import plain

    if store.checkpoints() or store.rejected():
        return False
    print(f"no checkpoints in {plain(str(store.folder))}")
    return True


def _run_folder(folder: Path) -> Path:
    """Return the nearest parent folder of the checkpoints that has the files of a run."""
    return next(_runs_above(folder), folder.parent if folder.name == CHECKPOINTS else folder)


def _runs_above(folder: Path) -> Iterator[Path]:
    return (part for part in folder.parents if (part / LOCK).exists() or (part / "metrics.jsonl").exists())


def _locked_folders(folder: Path) -> list[Path]:
    """Return the folders that a run with these checkpoints would lock.

    The path may contain links.
    """
    real = folder.resolve()
    found = [run for path in (folder, real) for run in [next(_runs_above(path), None)] if run is not None]
    if (real / LOCK).exists():
        found.append(real)
    return list(dict.fromkeys(run.resolve() for run in found or [_run_folder(real)]))


def _ls(arguments: argparse.Namespace) -> int:
    from hookline.cli import checkpoint_tables as tables

    store = _store(arguments.folder)
    checkpoints, rejected = store.checkpoints(), store.rejected()
    metric, mode = _monitor(store.folder, arguments.monitor, arguments.mode)
    best = _best(checkpoints, metric, mode)
    if arguments.monitor and best is None:
        have = sorted({name for checkpoint in checkpoints for name in checkpoint.about.metrics})
        raise SetupError(f"No checkpoint has a value of {metric!r}. Available: {', '.join(have) or 'no metrics'}.")
    marks = tables.marks(checkpoints, best)
    if arguments.json:
        found = tables.as_json(store.folder, checkpoints, rejected, marks)
        print(json.dumps(found | {"best_by": {"metric": metric, "mode": mode}}, allow_nan=False, indent=2))
        return 0
    if _says_none(store):
        return 0
    console = wide_console()
    if checkpoints:
        console.print(tables.listing(checkpoints, marks, time.time(), metric, wide=console.width >= 110))
    console.print(tables.total(checkpoints, store.folder))
    if best is not None:
        console.print(tables.chosen_by(metric, mode))
    if rejected:
        console.print(tables.damaged(rejected))
    return 0


def _monitor(folder: Path, monitor: str | None, mode: str | None) -> tuple[str, Literal["min", "max"]]:
    """Return the metric and mode for the best checkpoint: as given, of the run, or ``val/loss``."""
    own = _own_monitor(folder)
    metric = monitor or (own.metric if own else "val/loss")
    return metric, direction(metric, mode or (own.mode if own and own.metric == metric else None))


def _own_monitor(folder: Path) -> MonitorEntry | None:
    """Return the metric that the run's ``Checkpointer`` monitors, or ``None`` if it is unknown."""
    run = _run_folder(folder)
    try:
        entries = RunFile.read(run).monitors
    except (OSError, ValueError):  # The checkpoints may be in another folder, without a run.
        return None
    return next((entry for entry in entries if run / str(entry.folder) == folder), None)


def _best(checkpoints: list[Checkpoint], metric: str, mode: str) -> str | None:
    """Return the name of the best checkpoint, or ``None`` if no checkpoint has the metric."""
    from hookline.checkpoint.retention import best

    found = best(checkpoints, metric, mode, 1)
    return found[0].name if found else None


def _show(arguments: argparse.Namespace) -> int:
    from hookline.checkpoint.retention import resumable
    from hookline.cli import checkpoint_tables as tables

    store = _store(arguments.folder)
    checkpoints = store.checkpoints()
    if arguments.name is None:
        chosen = (resumable(checkpoints) or checkpoints)[-1:]
    else:
        chosen = [checkpoint for checkpoint in checkpoints if checkpoint.name == arguments.name]
    if not chosen:
        _raise_if_rejected(store, arguments.name)
        if not checkpoints:
            raise CheckpointNotFoundError(f"No checkpoints in {store.folder}.")
        known = ", ".join(checkpoint.name for checkpoint in checkpoints[-5:])
        raise CheckpointNotFoundError(f"No valid checkpoint {arguments.name} in {store.folder}. Newest: {known}.")
    checkpoint = chosen[0]
    marks = tables.marks(checkpoints, _best(checkpoints, *_monitor(store.folder, None, None)))[checkpoint.name]
    snapshot = store.load(checkpoint)
    wide_console().print(tables.details(checkpoint, snapshot, marks, time.time()))
    return 0


def _raise_if_rejected(store: Store, name: str | None) -> None:
    for rejected in store.rejected():
        if name in (None, rejected.path.name):
            raise CheckpointCorruptError(str(rejected.path), rejected.reason)


def _verify(arguments: argparse.Namespace) -> int:
    from hookline.cli.checkpoint_tables import plain, size

    store = _store(arguments.folder)
    if _says_none(store):
        return 0
    checkpoints, rejected = store.checkpoints(), store.rejected()
    bad = 0
    for checkpoint in checkpoints:
        try:
            store.verify(checkpoint)
        except CheckpointCorruptError as error:
            bad += 1
            print(f"damaged  {plain(checkpoint.name)}: {Path(error.path).name}: {plain(error.reason)}")
        else:
            print(f"ok       {plain(checkpoint.name)}", flush=True)
    for item in rejected:
        print(f"damaged  {plain(item.path.name)}: {plain(item.reason)}")
    bad += len(rejected)
    read = size(sum(checkpoint.size for checkpoint in checkpoints))
    all_of_them = counted(len(checkpoints) + len(rejected), "checkpoint")
    print(f"{all_of_them}, {read} read: " + (f"{bad} damaged" if bad else "all valid"))
    return 1 if bad else 0


def _prune(arguments: argparse.Namespace) -> int:
    from hookline.checkpoint import FolderLock
    from hookline.checkpoint.retention import Keep, resumable, to_delete

    if arguments.keep_last is None and arguments.keep_best is None and arguments.keep_every is None:
        raise SetupError("Nothing to keep is given. Add --keep-last N, --keep-best K --monitor M or --keep-every D.")
    last = 1 if arguments.keep_last is None else arguments.keep_last
    monitor = arguments.monitor
    mode = "min" if monitor is None else direction(monitor, arguments.mode)
    keep = Keep(last, arguments.keep_best or 0, monitor, mode, arguments.keep_every)
    store = _store(arguments.folder)
    if _says_none(store):
        return 0
    if arguments.dry_run:
        _report(to_delete(store.checkpoints(), keep, is_finished=True), store, "would delete")
        return 0
    with ExitStack() as locks:
        for folder in _locked_folders(store.folder):
            locks.enter_context(FolderLock(folder))
        checkpoints = store.checkpoints()
        gone = to_delete(checkpoints, keep, is_finished=True)
        left = [checkpoint for checkpoint in checkpoints if checkpoint not in gone]
        if gone:
            # The checkpoint that a resume will use must be valid before the others are deleted.
            store.verify((resumable(left) or left)[-1])
        for checkpoint in gone:
            store.delete(checkpoint)
    _report(gone, store, "deleted")
    return 0


def _consolidate(arguments: argparse.Namespace) -> int:
    from hookline.checkpoint.consolidate import consolidate
    from hookline.checkpoint.inspect import inspect
    from hookline.cli.checkpoint_tables import plain, size

    path: Path = arguments.folder.absolute()
    if (path / MANIFEST).exists():
        checkpoint = inspect(path)
    else:
        store = _store(path)
        newest = store.newest_valid(exact=False)
        if newest is None:
            raise CheckpointNotFoundError(f"No valid checkpoint in {store.folder}.")
        checkpoint = newest
    to = arguments.to or _run_folder(checkpoint.path.parent) / f"{checkpoint.name}.safetensors"
    done = consolidate(checkpoint, to, force=arguments.force)
    print(f"{plain(checkpoint.name)}: {done.tensors:,} tensors, {size(done.size)}, written to {plain(str(done.path))}")
    return 0


def _report(gone: list[Checkpoint], store: Store, done: str) -> None:
    from hookline.cli.checkpoint_tables import plain, size

    left = len([checkpoint for checkpoint in store.checkpoints() if checkpoint not in gone])
    for checkpoint in gone:
        print(f"{done}  {plain(checkpoint.name)}  {size(checkpoint.size)}")
    freed = sum(checkpoint.size for checkpoint in gone)
    print(f"{done} {counted(len(gone), 'checkpoint')}, {size(freed)} ({freed:,} bytes); {left} left")
    if rejected := store.rejected():
        print(f"not deleted: {len(rejected)} damaged, see 'hookline checkpoints ls'")
