"""``run.json``: a description of the run, written when a fit begins and again when it ends."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hookline.checkpoint.plan import SavePlan
from hookline.errors import Preempted, error_text
from hookline.events import Line
from hookline.events.monitored import monitored_metrics
from hookline.loop.record.run_settings import loader_settings, run_settings
from hookline.loop.record.stream import EVENTS, METRICS, write_error
from hookline.loop.settings import Settings
from hookline.records import EventRow, Record, Value, from_json
from hookline.records.metric import losses_not_finite
from hookline.records.plain import public
from hookline.records.redact import redact_arguments, redact_text
from hookline.records.run_file import (
    FILE,
    CallbackEntry,
    ControlEntry,
    CostEntry,
    MonitorEntry,
    RunFile,
    SessionEntry,
    Status,
)
from hookline.run import RunState, StopRequest
from hookline.sinks.jsonl import JsonLines
from hookline.sinks.pump import SinkReport

logger = logging.getLogger("hookline")

PACKAGES = ("torch", "numpy", "safetensors", "rich", "torchmetrics", "transformers", "datasets", "lightning")
"""Packages whose versions are recorded, if they are installed."""
TAIL = 1 << 16
"""Number of bytes at the end of a file of rows that are read to find how far a session came."""
KILLED = "it ended without an error: killed, or the machine went down"


class RunRecord:
    """Write ``run.json``. If it cannot be written, Hookline warns and the run continues."""

    def __init__(self) -> None:
        self._file: RunFile | None = None
        self._session: SessionEntry | None = None
        self._earlier: RunFile | None = None
        self._reached: Reached | None = None
        self.when_written: Callable[[Path], None] | None = None
        """Called with the run's folder at the end of a fit, also after an error, when all files are written."""
        self._then: list[Callable[[Path], None]] = []

    def write_report_with(self, write: Callable[[Path], None]) -> None:
        """Call a function with the run's folder at the end of a fit, when all files are written."""
        self.when_written = write

    def then(self, call: Callable[[Path], None]) -> None:
        """Call a function of a callback after ``when_written``, at the end of this fit."""
        self._then.append(call)

    def look_back(self, state: RunState) -> None:
        """Read how far a killed session came, before a resume removes the rows after its checkpoint."""
        folder = state.folder
        if folder is None or state.rank:
            return
        self._earlier = _earlier(folder)
        killed = self._earlier is not None and self._earlier.status == "running" and self._earlier.sessions
        self._reached = reached(folder) if killed else None

    @property
    def earlier_requests(self) -> tuple[ControlEntry, ...]:
        """The requests of other processes to the run that continues."""
        return () if self._earlier is None else self._earlier.control

    def begin(
        self,
        state: RunState,
        settings: Settings,
        *,
        run_id: str,
        seed: int,
        plans: Iterable[SavePlan],
        loss: Any,
        schedulers: Iterable[Any],
        control: tuple[ControlEntry, ...],
        live: Mapping[str, Any],
    ) -> None:
        """Write the file when a session begins, after a checkpoint is loaded.

        Args:
            state: The state of the run.
            settings: The options.
            run_id: The id of the run.
            seed: The seed of the run.
            plans: The plans by which checkpoints are saved.
            loss: The loss function that was passed. ``None`` if there is none.
            schedulers: The schedulers that were passed, each an ``hl.Scheduler``.
            control: The requests of other processes so far.
            live: The settings that ``hookline set`` can change, with their values.
        """
        folder, step = state.folder, state.clock.step
        if folder is None or state.rank:
            return
        session = SessionEntry(started=_now(), first_step=step, last_step=step)
        options = public(run_settings(state, settings, loss, schedulers))
        facts = _facts(state, run_id, seed, options, _monitors(plans))
        if self._earlier is not None:
            facts = replace(facts, started=self._earlier.started, sessions=self._close_killed(folder, self._earlier))
            facts = facts if not step else _with_optimizers_of(self._earlier, facts)
        facts = replace(facts, control=control, live=live)
        self._file, self._session = facts.with_session(session), session
        self._write(folder)

    def _close_killed(self, folder: Path, earlier: RunFile) -> tuple[SessionEntry, ...]:
        """Return the earlier sessions.

        The last one was killed, if it is not closed: note it in the timeline.
        """
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

    def end(
        self,
        state: RunState,
        error: BaseException | None,
        *,
        reason: str,
        plans: Iterable[SavePlan],
        sinks: Iterable[SinkReport],
        newest: Mapping[str, Value],
    ) -> None:
        """Write the file when a session ends.

        Args:
            state: The state of the run.
            error: The error that ends the session.
            reason: Why training ended, if there is no error.
            plans: The plans by which checkpoints are saved.
            sinks: The reports of the sinks.
            newest: The newest value of each metric.
        """
        folder = state.folder
        if self._file is None or self._session is None or folder is None or not state.in_fit:
            return
        stop, clock, line = state.requests.agreed.stop, state.clock, state.line
        session = replace(
            self._session,
            ended=_now(),
            status=_status(stop, error),
            last_step=clock.step,
            last_epoch=clock.epoch,
            seconds=clock.seconds,
            reason=redact_text(reason if error is None else error_text(error)),
            stopped_by=None if stop is None else stop.by,
            costs=tuple(CostEntry(c.callback, c.hook, c.calls, c.seconds) for c in line.costs()),
            failures=tuple(redact_text(str(failure)) for failure in line.failures),
            sinks=tuple(redact_text(str(report)) for report in sinks),
            not_finite=tuple(losses_not_finite(newest)),
        )
        settings = {**self._file.settings, **public(loader_settings(state.loaders))}
        self._file = replace(
            self._file,
            callbacks=_callbacks(line),
            monitors=_monitors(plans),
            monitored=_monitored(state),
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
            except Exception:  # An error in the report must not end the run.
                logger.warning("the report of this run could not be made", exc_info=True)
        for call in self._then:
            try:
                call(folder)
            except Exception:
                logger.warning("a function that a callback passed to run.when_written failed", exc_info=True)

    def set_control(self, folder: Path, control: tuple[ControlEntry, ...], live: Mapping[str, Any]) -> None:
        """Write the requests of other processes, and the settings that they have changed.

        Args:
            folder: The run's folder.
            control: The requests so far.
            live: The settings that ``hookline set`` can change, with their values.
        """
        if self._file is not None:
            settings = {**self._file.settings, "max_duration": live["max_duration"]}
            self._file = replace(self._file, control=control, live=live, settings=settings)
            self._write(folder)

    def _write(self, folder: Path) -> None:
        try:
            if self._file is not None:
                self._file.write(folder)
        except OSError as error:
            logger.warning("%s. The run continues without it", write_error(folder / FILE, error).problem)
        except (ValueError, TypeError) as error:
            logger.warning("run.json could not be written: %s", error)


def _with_optimizers_of(earlier: RunFile, facts: RunFile) -> RunFile:
    """Keep the optimizer settings of the earlier session, which the checkpoint has restored.

    It warns about each setting that was passed with another value now, and has no effect.
    """
    now, before = facts.settings.get("optimizers", {}), earlier.settings.get("optimizers")
    if not isinstance(before, dict) or before.keys() != now.keys():
        return facts
    for name, given in now.items():
        kept = before[name] if isinstance(before[name], dict) else {}
        # A parameter group does not show which of its values were passed now and which the checkpoint has set.
        for key in [key for key in given if key in kept and key != "groups" and given[key] != kept[key]]:
            logger.warning(
                "%s resumes with %s=%s from the checkpoint, and not with the %s that is given now; to change it, set "
                "it in run.optimizers[%r].param_groups in a hook",
                *(name, key, kept[key], given[key], name),
            )
    return replace(facts, settings={**facts.settings, "optimizers": before})


class Reached(NamedTuple):
    """The last step of a session that its rows show."""

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0


def reached(folder: Path) -> Reached:
    """Return how far the newest session of a run came.

    It reads the last metrics, and the events of the newest session, which a resume never removes.
    """
    events = list(_last(folder / EVENTS))
    begins = [place for place, row in enumerate(events) if row.name in ("start", "resume")]
    rows = [*_last(folder / METRICS), *events[begins[-1] if begins else 0 :]]
    found = [(row, Reached(row.step, row.epoch, row.seconds + getattr(row, "took", 0.0))) for row in rows]
    # Any other row may have been logged with `run.log(step=…)`.
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
        with suppress(ValueError, KeyError, TypeError):  # The first and the last line may be incomplete.
            yield from_json(line.decode())


def _earlier(folder: Path) -> RunFile | None:
    try:
        return RunFile.read(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("the earlier run.json cannot be read, and a new one is written: %s", error)
        return None


def _status(stop: StopRequest | None, error: BaseException | None) -> Status:
    if isinstance(error, Preempted):
        return "preempted"
    if error is not None:
        return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    if stop is None:
        return "finished"
    return "interrupted" if stop.interrupt else "stopped"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


# -- description of the run --------------------------------------------------------------------------------


def _facts(
    state: RunState, run_id: str, seed: int, settings: dict[str, Any], monitors: tuple[MonitorEntry, ...]
) -> RunFile:
    parameters = list({id(p): p for p in state.model.parameters()}.values())
    sizes = [0 if _is_lazy(p) else p.numel() for p in parameters]
    return RunFile(
        project=redact_text(state.project),
        name=redact_text(state.name),
        run_id=run_id,
        started=state.started.isoformat(timespec="seconds"),
        seed=seed,
        entry_point=state.entry_point,
        config=public(state.config),
        settings=settings,
        arguments=tuple(redact_arguments(sys.argv)),
        callbacks=_callbacks(state.line),
        monitors=monitors,
        monitored=_monitored(state),
        model={
            "class": type(state.model).__qualname__,
            "parameters": sum(sizes),
            "trainable": sum(size for size, p in zip(sizes, parameters, strict=True) if p.requires_grad),
        },
        versions=_versions(),
        platform=_platform(state.device),
        git=_git(),
    )


def _is_lazy(parameter: Any) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)


def _callbacks(line: Line[Any]) -> tuple[CallbackEntry, ...]:
    """Return the callbacks in the order in which they run. Disabled callbacks come last."""
    ordered = line.ordered(line.order)
    members = [*ordered, *(member for member in line.members if member not in ordered)]
    return tuple(CallbackEntry(m.name, redact_text(m.key), m.optional) for m in members if not m.is_task)


def _monitors(plans: Iterable[SavePlan]) -> tuple[MonitorEntry, ...]:
    return tuple(MonitorEntry(plan.folder, plan.monitor, plan.mode) for plan in plans if plan.monitor is not None)


def _monitored(state: RunState) -> tuple[str, ...]:
    return tuple(monitored_metrics(state.line.order.callbacks, state.schedulers))


def _versions() -> dict[str, str]:
    from hookline import __version__

    installed = {package: _installed_version(package) for package in PACKAGES}
    found = {"python": platform.python_version(), "hookline": __version__, **installed}
    return {package: version for package, version in found.items() if version is not None}


@cache
def _installed_version(package: str) -> str | None:
    """Return the version of a package. It does not change while a process runs."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _platform(device: torch.device) -> dict[str, Any]:
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
    """Return the commit of the working directory, and whether tracked files have changed since."""
    head = _ask_git("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None or len(head.split()) != 2:
        return None
    commit, branch = head.split()
    changed = _ask_git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": branch, "dirty": None if changed is None else bool(changed)}


def _ask_git(*question: str) -> str | None:
    """Return the output of git. ``None`` without git, outside a repository, or after a timeout."""
    # The settings of a repository could make git run a program.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
