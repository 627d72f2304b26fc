"""The names inside the engine that tests need. Only this file knows them: a change of the engine changes it here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from hookline.distributed.checksums import checksums
from hookline.distributed.links import Links
from hookline.distributed.random_states import random_states, set_random_states
from hookline.distributed.votes import FIELDS, Votes
from hookline.events.spec import STEP_EVENTS
from hookline.loop import Loop, Trainer
from hookline.loop.data.batches import count, first_tensor, is_one_shot, sure_length, to_device
from hookline.loop.engine.steps import Steps
from hookline.loop.keywords import ARGUMENTS, OPTIONS
from hookline.loop.metrics.series import FOLD, LARGEST_ARRAY, Series
from hookline.loop.model.gradients import is_of_torch
from hookline.loop.record.media import delete_media
from hookline.loop.record.pictures import pixels_of
from hookline.loop.record.png import encode_png, png_size
from hookline.loop.record.run_file import reached
from hookline.loop.record.run_settings import _loader as loader_settings
from hookline.loop.record.steps import StepRecord
from hookline.loop.saving.tree import RunTree
from hookline.loop.tasks.task_methods import FOREIGN_METHODS, TAKES
from hookline.loop.world.joining import roots_of
from hookline.records.control import ControlRequest

UNITS = (
    *(checksums, count, first_tensor, is_one_shot, sure_length, to_device, is_of_torch, roots_of),
    *(delete_media, pixels_of, encode_png, png_size, random_states, set_random_states, reached, Series),
    StepRecord,
    loader_settings,
)
"""Functions and classes that have unit tests in files about behaviour."""

TABLES = (ARGUMENTS, FOREIGN_METHODS, OPTIONS, TAKES, FOLD, LARGEST_ARRAY)
"""Tables and limits that tests of messages and sizes go through."""


# -- the run of a trainer -----------------------------------------------------------------------------


def loop_of(trainer: Trainer) -> Loop:
    """The loop of the trainer's last run."""
    assert trainer._loop is not None, "the trainer has not run"
    return trainer._loop


def is_quiet(trainer: Trainer) -> bool:
    """True if no callback of the last run has heard anything between the start and the end of a step."""
    hooks = loop_of(trainer).engine.line.fast
    inside = STEP_EVENTS - {"train_step_start", "train_step_end"}
    return not any(getattr(hooks, name) for name in (*inside, "around_step", "around_batch"))


def set_entry_point(loop: Loop, name: str) -> None:
    """Let a custom loop open as a trainer opens it in ``evaluate``, ``test`` or ``predict``."""
    loop.engine.entry_point = name


# -- inside a hook ------------------------------------------------------------------------------------


def set_time(run: Any, now: Callable[[], float]) -> None:
    """Let the clock of the run read this function instead of ``time.monotonic``."""
    run.loop.engine.clock._now = now


def restart_clock(run: Any) -> None:
    """Let the seconds of the run count from now, on this rank."""
    run.loop.engine.clock.start()


def interrupt(run: Any, reason: str = "left", by: str = "the user") -> None:
    """End the run as Ctrl-C does, from inside a hook."""
    run.loop.engine.state.ask_stop(reason, by, interrupt=True)


def signal_arrived(run: Any) -> bool:
    """True if a signal that ends the run has arrived, and all ranks know."""
    return run.loop.engine.requests.agreed.preempt is not None


def signal_arrived_here(run: Any) -> bool:
    """True if a signal that ends the run has arrived at this rank. The other ranks may not know yet."""
    return run.loop.engine.requests.asked.preempt is not None


def ask_from_outside(run: Any, command: Any, **settings: Any) -> None:
    """Let another process ask this run for something, which the end of this step takes."""
    if not run.rank:
        ControlRequest.new(command, settings).write(run.folder)
        run.loop.engine.requests.ask_control()  # The thread of the run does this within a second.


def accumulation_of(run: Any) -> int:
    """The number of batches per step, at the moment."""
    batches: int = run.accumulate
    return batches


def set_accumulation(run: Any, batches: Any) -> None:
    """Change the number of batches per step, as ``AccumulationSchedule`` does."""
    run.accumulate = batches


def trial_of(run: Any) -> AbstractContextManager[Any]:
    """Training steps that leave no trace, as ``LRFinder`` makes them."""
    trial: AbstractContextManager[Any] = run.trial()
    return trial


def save_now(run: Any, checkpointer: Any) -> None:
    """Let one rank ask this checkpointer for a save, as its own schedule does on all ranks."""
    run.request_save(checkpointer._plan)


def is_padding(run: Any) -> bool:
    """True if the batch is only there so that this rank does what the other ranks do."""
    return bool(run.is_padding)


def weights_and_state(run: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that a checkpoint would hold at this moment."""
    return run.loop.engine.tree.weights(), run.loop.engine.tree.capture()


def values_held(run: Any, metric: str) -> int:
    """The number of values of a metric that wait for the end of its interval."""
    return len(run.loop.engine.book._layers[0].series[metric].values)


def loss_scale_of(loop: Loop) -> float:
    """The factor by which a loop in fp16 multiplies the loss."""
    scale: float = loop.engine.precision.scaler.get_scale()
    return scale


def bytes_held_by_saves(run: Any) -> int:
    """The size of the copies that saves in the background have made and not freed."""
    return sum(slot._writer._copies.size for slot in run.loop.engine.saver._slots)


# -- ranks --------------------------------------------------------------------------------------------

VOTE_LENGTH = len(FIELDS) + 1
"""The number of values in the vector of a vote."""


def votes_of(run: Any) -> int:
    """The number of votes that the ranks have held."""
    votes: int = run.loop.engine.world._votes.held
    return votes


def votes_kept(run: Any) -> int:
    """The number of votes of other ranks that this rank has received and not used."""
    links = getattr(getattr(run.loop.engine.world, "group", None), "_links", None)
    return 0 if links is None else sum(map(len, links._heard.values()))


def watch_votes(notify: Callable[[], None]) -> None:
    """Call a function at the beginning of each vote, until the process ends."""
    begin = Votes.begin

    def watched(votes: Votes, *given: Any) -> None:
        notify()
        begin(votes, *given)

    Votes.begin = watched  # type: ignore[method-assign]


def import_strategies() -> None:
    """Import what a run of several ranks imports at its start."""
    import hookline.distributed.ddp
    import hookline.distributed.fsdp  # noqa: F401


@contextmanager
def watch_links(notify: Callable[[], None]) -> Iterator[None]:
    """Call a function each time that a vote is sent over the sockets between ranks."""
    send = Links.send
    Links.send = lambda links, values: (notify(), send(links, values))[1]  # type: ignore[method-assign]
    try:
        yield
    finally:
        Links.send = send  # type: ignore[method-assign]


# -- what the engine does in a whole test --------------------------------------------------------------


def set_sink_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the end of a run wait this long for a sink that hangs, instead of five seconds."""
    monkeypatch.setattr("hookline.loop.record.stream.WAIT", seconds)


def set_control_interval(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a run look for requests of other processes this often, instead of once per second."""
    monkeypatch.setattr("hookline.loop.engine.control.LOOK_INTERVAL_S", seconds)


def set_blocked_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let Hookline warn about a hook that has not returned after this time."""
    monkeypatch.setattr("hookline.loop.engine.blocked_hooks.BLOCKED_AFTER_S", seconds)


def change_saved_state(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let checkpoints hold what the function makes of the state of the run."""
    capture = RunTree.capture
    monkeypatch.setattr(RunTree, "capture", lambda tree, **how: change(capture(tree, **how)))


def watch_folds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of values each time that waiting values of a metric are added up."""
    folds: list[int] = []
    fold = Series.fold
    monkeypatch.setattr(Series, "fold", lambda series: (folds.append(len(series.values)), fold(series))[1])
    return folds


@contextmanager
def steps_by_halves() -> Iterator[None]:
    """Let a trainer make its steps with the halves that custom loops use, and not with the text of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "fits_of_task", False)
        yield


def watch_general_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of each step that is made with the halves."""
    made: list[int] = []
    step = Steps.step
    monkeypatch.setattr(Steps, "step", lambda self, *a, **k: (made.append(self._clock.step), step(self, *a, **k))[1])
    return made
