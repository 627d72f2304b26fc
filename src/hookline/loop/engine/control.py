"""``Control``: requests of ``hookline stop``, ``save``, ``eval`` and ``set``, which come from other processes.

A thread on rank zero looks once per second whether there are requests in the run's folder, and asks the end of the step
to read them. So no step does anything for it, and all ranks do what is asked for at the same step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from hookline.errors import ArgumentError, HooklineError, SetupError
from hookline.events import Callback
from hookline.events.arguments import check_types
from hookline.events.callback import adopt_settings, with_settings
from hookline.loop.engine.agenda import Agenda
from hookline.loop.model.learning_rate import check_learning_rate, learning_rate, set_learning_rate
from hookline.loop.record.records import Records
from hookline.loop.world.world import World
from hookline.progress import Duration
from hookline.records.control import ControlRequest, has_requests, remove_empty_folder, shown, take_requests
from hookline.records.redact import redact_text
from hookline.records.run_file import ControlEntry
from hookline.run import MISSING, RunState, StopRequest

logger = logging.getLogger("hookline")

LOOK_INTERVAL_S = 1.0
"""Seconds between two looks into the run's folder."""
JOIN_S = 5.0
ENDED = "the run ended before it took the request"
NOT_SAVED = "no checkpoint of this step was written. The run has logged the reason."

Apply = Callable[[], None]


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The learning rate of an optimizer, with the rest of its schedule."""

    name: str
    state: RunState
    optimizer: Optimizer

    @property
    def value(self) -> float:
        """The learning rate of the first parameter group."""
        return learning_rate(self.optimizer)

    @property
    def is_scheduled(self) -> bool:
        """True if a scheduler changes the learning rate."""
        return any(its.scheduler.optimizer is self.optimizer for its in self.state.schedulers)

    def prepare(self, value: Any) -> Apply:
        """Check a new value. Return a function that sets it."""
        lr = check_learning_rate(self.optimizer, self.state.schedulers, value, self.name)
        return lambda: set_learning_rate(self.optimizer, self.state.schedulers, lr)


@dataclass(frozen=True, slots=True)
class MaxDuration:
    """How long the run trains."""

    state: RunState

    @property
    def value(self) -> str | None:
        """The duration as a string."""
        return None if self.state.max_duration is None else str(self.state.max_duration)

    def prepare(self, value: Any) -> Apply:
        """Check a new value. Return a function that sets it."""
        duration = Duration.parse(value, f"max_duration={value!r}")
        if duration.unit == "dur":
            raise ArgumentError(f"max_duration={value!r}: 'dur' is a fraction of max_duration itself. Use ep, st, s …")
        return lambda: self.state.set_max_duration(duration)


@dataclass(frozen=True, slots=True)
class CallbackSetting:
    """An argument of a callback that its class lists in ``settings``."""

    callback: Callback
    argument: str

    @property
    def value(self) -> Any:
        """The current value, as a plain value."""
        found = getattr(self.callback, self.argument)
        if found is None or isinstance(found, str | int | float):
            return found
        return str(found) if isinstance(found, Duration) else repr(found)


Setting = LearningRate | MaxDuration | CallbackSetting


class Control:
    """Do what other processes ask this run to do.

    Args:
        state: The state of the run.
        world: The processes of the run.
        records: The record of the run.
        agenda: When something is due.
        write: Writes the requests and the current settings to ``run.json``.
    """

    def __init__(
        self,
        state: RunState,
        world: World,
        records: Records,
        agenda: Agenda,
        write: Callable[[Path, tuple[ControlEntry, ...], Mapping[str, Any]], None],
    ) -> None:
        self._state, self._world, self._records, self._agenda, self._write = state, world, records, agenda, write
        self.entries: tuple[ControlEntry, ...] = ()
        """All requests of the run so far."""
        self._repeats: list[ControlEntry] = []  # Settings of the run before a resume, at later steps.
        self._saving: list[ControlEntry] = []  # Saves whose outcome is not known yet.
        self._notes: list[str] = []  # For the timeline, once it is open.
        self._since = 0
        self._reads_eval_due = False
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None

    # -- opening and closing ---------------------------------------------------------------------

    def begin(self) -> None:
        """The folder is about to be taken. Requests so far were for an earlier run."""
        self._since, self._reads_eval_due = time.time_ns(), False
        self._saving.clear()

    def note_eval_due(self) -> None:
        """The body of a custom loop has read ``eval_due``, so it makes the evaluations that are asked for."""
        self._reads_eval_due = True

    def resume(self, entries: Sequence[ControlEntry], generation: int, *, evaluates: bool = False) -> None:
        """Repeat the settings of the run that continues. All ranks must call it.

        Settings up to the current step are set now, except for learning rates, which the checkpoint has restored. Later
        settings are set at their steps.

        Args:
            entries: The requests in ``run.json``, on rank zero.
            generation: The generation of the checkpoint. Rollbacks after it have not happened yet.
            evaluates: Also repeat evaluations at later steps, as a replay does.
        """
        step, known = self._state.clock.step, self._settings()
        said = self._world.group.from_zero([asdict(entry) for entry in entries])
        self.entries = _before_rollbacks([ControlEntry(**entry) for entry in said], generation)
        counting = [entry for entry in self.entries if _counts(entry)]
        for entry in [entry for entry in counting if entry.step <= step]:
            rates = {name for name in entry.settings if isinstance(known.get(name), LearningRate)}
            for name in entry.settings.keys() - rates:
                self._repeat(entry, name, known.get(name))
        if evaluates:
            counting = [its for its in self.entries if _counts(its) or (its.command == "eval" and not its.refused)]
        self._repeats = [entry for entry in counting if entry.step > step]
        self._agenda.look_at(entry.step for entry in self._repeats)

    def _repeat(self, entry: ControlEntry, name: str, setting: Setting | None) -> None:
        """Set a value of an earlier session, unless the script has changed what it replaced."""
        value, before = shown(entry.settings[name]), entry.before.get(name)
        if setting is None or setting.value != before:
            now = "has no such setting" if setting is None else f"gives {shown(setting.value)}"
            logger.warning(
                "%s=%s of step %d is not set again: it replaced %s, and the script now %s",
                *(name, value, entry.step, shown(before), now),
            )
            return
        for change in _prepared({name: entry.settings[name]}, {name: setting}):
            change()
        self._notes.append(f"set {name}={value}, again after a resume (by {entry.by} at step {entry.step})")

    def open(self) -> None:
        """Look for requests from now on, until ``close``."""
        for text in self._notes:
            self._note(text)
        self._notes.clear()
        if self._state.folder is None or self._state.rank:
            return
        self._end = threading.Event()
        arguments = (self._end, self._state.folder, self._state.requests.ask_control)
        self._thread = threading.Thread(target=_watch, args=arguments, name="hookline-control", daemon=True)
        self._thread.start()

    def close(self, *, is_saved: bool) -> None:
        """Look for requests no more. Requests that are left are refused.

        Args:
            is_saved: True if the last step is saved.
        """
        if self._end is None or self._thread is None:
            return
        self._end.set()
        self._thread.join(JOIN_S)
        self._end = self._thread = None
        folder = self._state.folder
        if folder is not None:
            self.saves_ended(is_saved=is_saved)
            left = [self._entry(asdict(one)) for one in take_requests(folder) if isinstance(one, ControlRequest)]
            self.entries += tuple(replace(entry, refused=ENDED) for entry in left)
            if left:
                self._record()
            remove_empty_folder(folder)

    # -- at the end of a step ----------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if there is anything to do at the end of this step."""
        is_asked = self._state.requests.agreed.control
        return is_asked or bool(self._repeats and self._repeats[0].step <= self._state.clock.step)

    def take(self) -> None:
        """Do what was asked for. All ranks must call it, at the same step."""
        while self._repeats and self._repeats[0].step <= self._state.clock.step:
            entry = self._do(self._repeats.pop(0))
            self._note(f"{_words(entry)}, again after a resume")
        if self._state.requests.take_control():
            folder = self._state.folder
            found = take_requests(folder) if folder is not None and not self._state.rank else []
            for wrong in [one for one in found if isinstance(one, str)]:
                logger.warning("a request was ignored: %s", wrong)
            asked = [asdict(one) for one in found if isinstance(one, ControlRequest)]
            asked.sort(key=lambda one: one["command"] == "eval")  # A stop among them leaves no step to evaluate at.
            for one in self._world.group.from_zero(asked):
                self._take(self._entry(one))

    @property
    def is_saving(self) -> bool:
        """True if a request to save has no outcome yet."""
        return bool(self._saving)

    def saves_ended(self, *, is_saved: bool) -> None:
        """Record the outcome of requests to save, which the command waits for.

        Args:
            is_saved: True if the step is saved.
        """
        if self._saving:
            if not is_saved:
                failed = self._saving
                self.entries = tuple(replace(its, refused=NOT_SAVED) if its in failed else its for its in self.entries)
            self._saving = []
            self._record()

    def rolled_back(self, generation: int) -> None:
        """After a rollback, set again what was set at steps that are undone. All ranks must call it.

        Args:
            generation: The generation of the checkpoints that follow.
        """
        step, known = self._state.clock.step, self._settings()
        undone = [
            entry for entry in self.entries if _counts(entry) and entry.step > step and entry not in self._repeats
        ]
        self.entries = tuple(replace(entry, undone=True) if entry in undone else entry for entry in self.entries)
        for entry in undone:
            values = {name: _after_rollback(known.get(name), name, entry) for name in entry.settings}
            again = self._do(replace(entry, settings=values, step=step))
            kept = {name: entry.before[name] for name in entry.before if not isinstance(known.get(name), LearningRate)}
            self.entries += (replace(again, before={**again.before, **kept}, generation=generation),)
            self._note(f"{_words(again)}, again after a rollback")
        if undone:
            self._record()

    def _entry(self, request: dict[str, Any]) -> ControlEntry:
        return ControlEntry(**request, step=self._state.clock.step)

    def _take(self, entry: ControlEntry) -> None:
        """Do what a new request asks for, and record it."""
        if int(entry.id.partition("-")[0]) < self._since:
            entry = replace(entry, refused="an earlier run in this folder " + ENDED.removeprefix("the run "))
        else:
            entry = self._do(entry)
        if _counts(entry):  # The newest request wins against one that is to be repeated.
            replaced = [other for other in self._repeats if other.settings.keys() & entry.settings.keys()]
            self._repeats = [other for other in self._repeats if other not in replaced]
            self.entries = tuple(replace(its, undone=True) if its in replaced else its for its in self.entries)
        self.entries += (entry,)
        self._note(_words(entry))
        if entry.command == "save" and not entry.refused:
            self._saving.append(entry)
        else:
            self._record()

    def _do(self, entry: ControlEntry) -> ControlEntry:
        """Do what a request asks for. Return it with the outcome, which is the same on all ranks."""
        try:
            return self._set(entry) if entry.command == "set" else self._ask(entry)
        except HooklineError as error:
            return replace(entry, refused=redact_text(str(error)))

    def _set(self, entry: ControlEntry) -> ControlEntry:
        """Set all values of a request, or none of them if one is invalid on any rank."""
        known, problem = self._settings(), ""
        try:
            found = {_full_name(name, known): value for name, value in entry.settings.items()}
            changes = _prepared(found, known)
        except HooklineError as error:
            problem = str(error)
        for other in self._world.group.exchange(problem):
            if other:
                raise ArgumentError(other)
        before = {name: known[name].value for name in found}
        for change in changes:
            change()
        return replace(entry, settings=found, before=before)

    def _ask(self, entry: ControlEntry) -> ControlEntry:
        requests = self._state.requests
        match entry.command:
            case "stop":
                requests.agree_on_stop(StopRequest("hookline stop", entry.by, entry.step))
            case "save":
                if not requests.can_save:
                    raise SetupError("this run cannot save")
                requests.agree(save=True)
            case "eval":
                if not requests.can_evaluate:
                    raise SetupError("there is nothing to evaluate on. Pass a validation loader to fit.")
                if self._state.task is MISSING and not all(self._world.group.exchange(self._reads_eval_due)):
                    raise SetupError(
                        "the loop has not read loop.eval_due so far. Evaluate in it whenever loop.eval_due is true."
                    )
                if self._is_over:
                    raise SetupError("training ends at this step, and an evaluation would come at the next one.")
                requests.agree(evaluate=True)
        return entry

    @property
    def _is_over(self) -> bool:
        """True if no step follows. A request of this step may have changed ``max_duration``."""
        duration = self._state.max_duration
        is_reached = duration is not None and self._state.clock.reached(duration)
        return is_reached or self._state.requests.agreed.stop is not None

    def _record(self) -> None:
        """Write all requests with an outcome to ``run.json``, on rank zero."""
        if self._state.folder is not None and not self._state.rank:
            ended = tuple(entry for entry in self.entries if entry not in self._saving)
            self._write(self._state.folder, ended, self.live())

    def _note(self, text: str) -> None:
        self._records.note("control", text)
        if not self._state.rank:
            logger.info("step %d: %s", self._state.clock.step, redact_text(text))

    # -- settings ----------------------------------------------------------------------------------

    def live(self) -> dict[str, Any]:
        """Return the current value of each setting, by its full name."""
        return {name: setting.value for name, setting in self._settings().items()}

    def _settings(self) -> dict[str, Setting]:
        return dict(self._find_settings())

    def _find_settings(self) -> Iterator[tuple[str, Setting]]:
        optimizers = self._state.optimizers
        for name, optimizer in optimizers.items():
            full = "lr" if len(optimizers) == 1 else f"{name}.lr"
            if "lr" in optimizer.param_groups[0]:  # A custom optimizer may have no learning rate.
                yield full, LearningRate(full, self._state, optimizer)
        yield "max_duration", MaxDuration(self._state)
        members = [m for m in self._state.line.members if isinstance(m.callback, Callback) and not m.disabled]
        names = [member.callback.name or type(member.callback).__name__ for member in members]
        for member, name in zip(members, names, strict=True):
            owner = name if names.count(name) == 1 else member.key
            for argument in type(member.callback).settings:
                yield f"{owner}.{argument}", CallbackSetting(member.callback, argument)


def _counts(entry: ControlEntry) -> bool:
    """True if a resume repeats the request."""
    return entry.command == "set" and not entry.refused and not entry.undone


def _before_rollbacks(entries: list[ControlEntry], generation: int) -> tuple[ControlEntry, ...]:
    """Return the requests as they were before the rollbacks that follow a checkpoint of this generation.

    The entries that these rollbacks have added are left out, and those that they have marked as undone count again.

    >>> first, second = ControlEntry("1", "set", 6, undone=True), ControlEntry("1", "set", 4, generation=1)
    >>> [(its.step, its.undone) for its in _before_rollbacks([first, second], 0)]
    [(6, False)]
    >>> [(its.step, its.undone) for its in _before_rollbacks([first, second], 1)]
    [(6, True), (4, False)]
    """
    later = {entry.id for entry in entries if entry.generation > generation}
    kept = [entry for entry in entries if entry.generation <= generation]
    newest = {entry.id: entry for entry in kept}
    return tuple(replace(its, undone=False) if its.id in later and its is newest[its.id] else its for its in kept)


def _words(entry: ControlEntry) -> str:
    """Return a request and its outcome for the timeline.

    >>> _words(ControlEntry("1", "set", 20, {"lr": 0.1}, by="ann"))
    'set lr=0.1 (by ann)'
    """
    words = " ".join([entry.command, *(f"{name}={shown(value)}" for name, value in entry.settings.items())])
    return f"{words} (by {entry.by}){f', refused: {entry.refused}' if entry.refused else ''}"


def _after_rollback(setting: Setting | None, name: str, entry: ControlEntry) -> Any:
    """Return the value of a setting whose step was undone. A schedule is at another value now: it keeps the factor."""
    value, before = entry.settings[name], entry.before.get(name)
    is_scaled = isinstance(setting, LearningRate) and setting.is_scheduled and before
    return setting.value * value / before if is_scaled and isinstance(setting, LearningRate) else value


def _prepared(values: Mapping[str, Any], known: Mapping[str, Setting]) -> list[Apply]:
    """Check new values by full name. Return the functions that set them.

    Raises:
        HooklineError: If a value is invalid.
    """
    changes: list[Apply] = []
    by_callback: dict[int, tuple[Callback, dict[str, Any]]] = {}
    for name, value in values.items():
        setting = known[name]
        if isinstance(setting, CallbackSetting):
            arguments = by_callback.setdefault(id(setting.callback), (setting.callback, {}))[1]
            arguments[setting.argument] = value
        else:
            changes.append(setting.prepare(value))
    return [*changes, *(_change_of(callback, arguments) for callback, arguments in by_callback.values())]


def _change_of(callback: Callback, arguments: dict[str, Any]) -> Apply:
    """Let the constructor of a callback check new values. Return a function that sets them."""
    cls = type(callback)
    check_types(cls.__name__, cls.__init__, arguments)
    try:
        changed = with_settings(callback, arguments)
    except HooklineError:
        raise
    except Exception as error:  # A request from outside must not end the run.
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ArgumentError(f"{cls.__name__}({given}): {error}") from error
    return partial(adopt_settings, callback, changed, tuple(arguments))


def _watch(end: threading.Event, folder: Any, ask: Callable[[], None]) -> None:
    """Ask for the requests of other processes as long as there are any."""
    while not end.wait(LOOK_INTERVAL_S):
        if has_requests(folder):
            ask()


def _full_name(name: str, known: dict[str, Setting]) -> str:
    """Return the full name of a setting: ``patience`` is ``EarlyStopping.patience``.

    Raises:
        ArgumentError: If there is no such setting, or more than one.
    """
    if name in known:
        return name
    found = [full for full in known if full.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ArgumentError(f"{name}: several settings have this name. Write {' or '.join(found)}.")
    close = get_close_matches(name, [*known, *(full.rpartition(".")[2] for full in known)], n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(known)}."
    raise ArgumentError(f"{name}: this run has no such setting. {hint}")
