"""Ask a run to stop, save, evaluate or change a setting, and wait for the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from hookline.errors import SetupError
from hookline.records.control import Command, ControlRequest, check_owner, shown, withdraw
from hookline.records.run_file import ControlEntry, RunFile
from hookline.report.about import LABELS
from hookline.report.lock import is_held

POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request."""

    kind: Literal["done", "refused", "ended", "waiting"]
    text: str


def ask(folder: Path, command: Command, settings: dict[str, Any] | None = None, *, wait: float = 0.0) -> Outcome:
    """Ask a run for something.

    Args:
        folder: The run's folder.
        command: What to do.
        settings: New values by name, for ``set``.
        wait: Seconds to wait for the outcome.

    Raises:
        SetupError: If there is no such run, it belongs to another user, or its process does not exist.
    """
    check_can_ask(folder)
    request = ControlRequest.new(command, settings)
    path, end = request.write(folder), monotonic() + wait
    while True:
        is_alive = is_held(folder)  # Before run.json: a run writes it before it releases the lock.
        entry = next((entry for entry in requests_of(folder) if entry.id == request.id), None)
        if entry is not None:
            return outcome_of(entry)
        if not is_alive:
            withdraw(path)
            return Outcome("ended", f"{request.text}: the run ended before it took the request.")
        if monotonic() >= end:
            return Outcome("waiting", f"{request.text}: the run takes the request at the end of a step.")
        sleep(POLL_INTERVAL_S)


def check_can_ask(folder: Path) -> None:
    """Raise unless a process of this user trains in the folder.

    Args:
        folder: The run's folder.

    Raises:
        SetupError: If none does.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise SetupError(f"{folder} {what}. Give the folder of a run, such as runs/digits/first.")
    check_owner(folder)
    if is_held(folder):
        return
    try:
        file = RunFile.read(folder)
    except FileNotFoundError:
        raise SetupError(f"{folder} is not a run: it has no run.json. 'hookline ls' lists runs.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SetupError(f"{folder} is not a run that Hookline can read: {error}.") from error
    if file.status == "running":
        raise SetupError(f"{folder} is no longer running: its process was killed. Start the script again to resume it.")
    session = file.sessions[-1]
    why = f" ({session.reason})" if session.reason else ""
    raise SetupError(f"{folder} has ended at step {session.last_step}: {LABELS[file.status]}{why}.")


def requests_of(folder: Path) -> tuple[ControlEntry, ...]:
    """Return the requests that a run has taken.

    Args:
        folder: The run's folder.
    """
    try:
        return RunFile.read(folder).control
    except (OSError, ValueError, RecursionError):
        return ()


def outcome_of(entry: ControlEntry) -> Outcome:
    """Return the outcome of a request that the run has taken.

    >>> outcome_of(ControlEntry("1", "set", 20, {"lr": 0.1}, {"lr": 0.5})).text
    'set lr=0.1 (was 0.5) from step 21 on.'
    """
    words = [f"{name}={shown(value)}{_was(name, entry)}" for name, value in entry.settings.items()]
    what = " ".join([entry.command, *words])
    if entry.refused:
        return Outcome("refused", f"{what}: refused at step {entry.step}. {entry.refused}")
    if entry.command == "set":
        return Outcome("done", f"{what} from step {entry.step + 1} on.")
    return Outcome("done", f"{what} at step {entry.step + (entry.command == 'eval')}.")  # `eval` acts at the next step.


def _was(name: str, entry: ControlEntry) -> str:
    return f" (was {shown(entry.before[name])})" if name in entry.before else ""
