"""``run.json``: what was run, written when a fit begins and again when it ends."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hookline.errors import Preempted, words_of
from hookline.events.monitored import monitored_metrics
from hookline.loop.record.run_settings import loader_settings, run_settings
from hookline.loop.record.stream import EVENTS, METRICS, write_error
from hookline.records import EventRow, Record, from_json
from hookline.records.metric import losses_not_finite
from hookline.records.plain import public
from hookline.records.redact import redact_arguments, redact_text
from hookline.records.run_file import FILE, CallbackEntry, CostEntry, MonitorEntry, RunFile, SessionEntry, Status
from hookline.sinks.jsonl import JsonLines

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

logger = logging.getLogger("hookline")

PACKAGES = ("torch", "numpy", "safetensors", "rich", "torchmetrics", "transformers", "datasets", "lightning")
"""Whose versions are noted, if they are installed."""
TAIL = 1 << 16
"""So many bytes at the end of a file of rows tell how far a session came."""
KILLED = "it ended without a word: killed, or the machine went down"


class RunRecord:
    """Keeps ``run.json``. It is for people and reports: what cannot be written is said, and the run goes on."""

    def __init__(self) -> None:
        self._file: RunFile | None = None
        self._session: SessionEntry | None = None
        self._earlier: RunFile | None = None
        self._reached: Reached | None = None
        self.when_written: Callable[[Path], None] | None = None
        """Called with the run's folder when all is written, on every way out of a fit."""
        self.then: list[Callable[[Path], None]] = []
        """Called in the same way after it, at the end of this fit."""

    def look_back(self, loop: Loop) -> None:
        """Before a checkpoint is loaded, which takes rows back: how far a session came that was killed."""
        folder = loop.state.folder
        self.then.clear()
        if folder is None or loop.state.rank:
            return
        self._earlier = _earlier(folder)
        killed = self._earlier is not None and self._earlier.status == "running" and self._earlier.sessions
        self._reached = reached(folder) if killed else None

    def begin(self, loop: Loop) -> None:
        """After a checkpoint is loaded, if there is one."""
        folder = loop.state.folder
        if folder is None or loop.state.rank:
            return
        session = SessionEntry(started=_now(), first_step=loop.clock.step, last_step=loop.clock.step)
        facts = _facts(loop)
        if self._earlier is not None:
            facts = replace(facts, started=self._earlier.started, sessions=self._close_killed(folder, self._earlier))
            facts = facts if not loop.clock.step else _with_optimizers_of(self._earlier, facts)
        self._file, self._session = facts.with_session(session), session
        self._write(folder)

    def _close_killed(self, folder: Path, earlier: RunFile) -> tuple[SessionEntry, ...]:
        """The sessions of before; one that has not said how it ended was killed, and the timeline is told so."""
        if self._reached is None:
            return earlier.sessions
        *before, last = earlier.sessions
        step, epoch, seconds = self._reached
        step = max(step, last.first_step)
        try:
            rows = JsonLines(folder / EVENTS)
            rows.write([EventRow("killed", step, epoch, seconds, KILLED)])
            rows.close()
        except OSError as error:
            logger.warning("%s. The run continues without it", write_error(folder / EVENTS, error).problem)
        return *before, replace(last, status="killed", reason=KILLED, last_step=step, last_epoch=epoch, seconds=seconds)

    def end(self, loop: Loop, error: BaseException | None) -> None:
        folder = loop.state.folder
        if self._file is None or self._session is None or folder is None or loop.entry_point not in ("fit", "train"):
            return
        stop, clock = loop.requests.agreed.stop, loop.clock
        session = replace(
            self._session,
            ended=_now(),
            status=_status(loop, error),
            last_step=clock.step,
            last_epoch=clock.epoch,
            seconds=clock.seconds,
            reason=redact_text(loop.stop_reason() if error is None else words_of(error)),
            stopped_by=None if stop is None else stop.by,
            costs=tuple(CostEntry(c.callback, c.hook, c.calls, c.seconds) for c in loop.line.costs()),
            failures=tuple(redact_text(str(failure)) for failure in loop.line.failures),
            sinks=tuple(redact_text(str(report)) for report in loop.session.stream.reports),
            not_finite=tuple(losses_not_finite(loop.session.book.newest)),
        )
        settings = {**self._file.settings, **public(loader_settings(loop))}
        self._file = replace(
            self._file,
            callbacks=_callbacks(loop),
            monitors=_monitors(loop),
            monitored=_monitored(loop),
            settings=settings,
        )
        self._file = self._file.with_session(session, again=True)
        self._session = None
        self._write(folder)
        if self.when_written is not None:
            try:
                self.when_written(folder)
            except OSError as failed:
                logger.warning("the report of this run could not be written: %s", failed)
            except Exception:  # a run does not fail because of its report
                logger.warning("the report of this run could not be made", exc_info=True)
        for call in self.then:
            try:
                call(folder)
            except Exception:
                logger.warning("a function that a callback passed to run.when_written failed", exc_info=True)

    def _write(self, folder: Path) -> None:
        try:
            if self._file is not None:
                self._file.write(folder)
        except OSError as error:
            logger.warning("%s. The run continues without it", write_error(folder / FILE, error).problem)
        except (ValueError, TypeError) as error:
            logger.warning("run.json could not be written: %s", error)


def _with_optimizers_of(earlier: RunFile, facts: RunFile) -> RunFile:
    """After a resume: a checkpoint holds the settings of optimizers, too, so that others that are given go unused."""
    now, before = facts.settings.get("optimizers", {}), earlier.settings.get("optimizers")
    if not isinstance(before, dict) or before.keys() != now.keys():
        return facts
    for name, given in now.items():
        kept = before[name] if isinstance(before[name], dict) else {}
        # In groups it is not told apart what was given now and what the checkpoint has put there.
        for key in [key for key in given if key in kept and key != "groups" and given[key] != kept[key]]:
            logger.warning(
                "%s goes on with %s=%s from the checkpoint, and not with the %s that is given now; to change it, set "
                "it in run.optimizers[%r].param_groups in a hook",
                *(name, key, kept[key], given[key], name),
            )
    return replace(facts, settings={**facts.settings, "optimizers": before})


class Reached(NamedTuple):
    """How far a session came, as its rows tell."""

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0


def reached(folder: Path) -> Reached:
    """From the last rows, and from what the newest session has put on the timeline, which no resume takes back."""
    events = list(_last(folder / EVENTS))
    begins = [place for place, row in enumerate(events) if row.name in ("start", "resume")]
    rows = [*_last(folder / METRICS), *events[begins[-1] if begins else 0 :]]
    found = [(row, Reached(row.step, row.epoch, row.seconds + getattr(row, "took", 0.0))) for row in rows]
    # Any other row may have a step of its own: `run.log(step=…)`.
    of_loop = [one for row, one in found if isinstance(row, EventRow) or row.name.startswith("train/")]
    newest = max(of_loop or [one for _, one in found], key=lambda one: (one.seconds, one.step), default=Reached())
    return newest._replace(seconds=max((one.seconds for _, one in found), default=0.0))


def _last(path: Path) -> Iterator[Record]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # the first and the last may be parts of lines
            yield from_json(line.decode())


def _earlier(folder: Path) -> RunFile | None:
    try:
        return RunFile.read(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("the run.json of before cannot be read, and is written anew: %s", error)
        return None


def _status(loop: Loop, error: BaseException | None) -> Status:
    stop = loop.requests.agreed.stop
    if isinstance(error, Preempted):
        return "preempted"
    if error is not None:
        return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    if stop is None:
        return "finished"
    return "interrupted" if stop.interrupt else "stopped"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


# -- what was run --------------------------------------------------------------------------------


def _facts(loop: Loop) -> RunFile:
    state = loop.state
    parameters = list({id(p): p for p in state.model.parameters()}.values())
    sizes = [0 if _is_lazy(p) else p.numel() for p in parameters]
    return RunFile(
        project=redact_text(state.project),
        name=redact_text(state.name),
        run_id=loop.saving.run_id,
        started=state.started.isoformat(timespec="seconds"),
        seed=loop.session.seed,
        entry_point=state.entry_point,
        config=public(state.config),
        settings=public(run_settings(loop)),
        arguments=tuple(redact_arguments(sys.argv)),
        callbacks=_callbacks(loop),
        monitors=_monitors(loop),
        monitored=_monitored(loop),
        model={
            "class": type(state.model).__qualname__,
            "parameters": sum(sizes),
            "trainable": sum(size for size, p in zip(sizes, parameters, strict=True) if p.requires_grad),
        },
        versions=_versions(),
        platform=_platform(loop),
        git=_git(),
    )


def _is_lazy(parameter: Any) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)


def _callbacks(loop: Loop) -> tuple[CallbackEntry, ...]:
    """In the order in which they run; one that was switched off comes last."""
    ordered = loop.line.ordered(loop.line.order)
    members = [*ordered, *(member for member in loop.line.members if member not in ordered)]
    return tuple(CallbackEntry(m.name, redact_text(m.key), m.optional) for m in members if not m.is_task)


def _monitors(loop: Loop) -> tuple[MonitorEntry, ...]:
    plans = [target.plan for target in loop.saving.targets]
    return tuple(MonitorEntry(plan.folder, plan.monitor, plan.mode) for plan in plans if plan.monitor is not None)


def _monitored(loop: Loop) -> tuple[str, ...]:
    return tuple(monitored_metrics(loop.line.order.callbacks, loop.state.schedulers))


def _versions() -> dict[str, str]:
    from hookline import __version__

    installed = {package: _installed_version(package) for package in PACKAGES}
    found = {"python": platform.python_version(), "hookline": __version__, **installed}
    return {package: version for package, version in found.items() if version is not None}


@cache
def _installed_version(package: str) -> str | None:
    """The version of a package, which does not change while a process runs."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _platform(loop: Loop) -> dict[str, Any]:
    device = loop.state.device
    found = {
        "system": platform.platform(),
        "machine": platform.machine(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
    return found


def _git() -> dict[str, Any] | None:
    """The commit of the working directory, and whether files that git knows were changed since."""
    head = _ask_git("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None or len(head.split()) != 2:
        return None
    commit, branch = head.split()
    changed = _ask_git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": branch, "dirty": None if changed is None else bool(changed)}


def _ask_git(*question: str) -> str | None:
    """Git's answer; ``None`` without git, outside of a repository, or where it takes long."""
    # A repository's own settings could make git run a program.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
