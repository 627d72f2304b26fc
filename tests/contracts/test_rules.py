"""Each rule of the contract catches a callback that breaks it: a contract that cannot fail is worth nothing."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import hookline as hl
from hookline.errors import SetupError
from hookline.events.spec import EVENTS, SCOPES
from hookline.testing import Recorder, check_callback, drive, surroundings
from hookline.testing.rules import RULES
from hookline.testing.scenes import every_event

ENDS: list[Callable[[], object]] = []
"""What the broken callbacks left behind, to be ended after each test."""


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(surroundings, "GRACE", 0.2)
    handler, environment, directory = signal.getsignal(signal.SIGUSR1), dict(os.environ), os.getcwd()
    with warnings.catch_warnings():
        yield
    signal.signal(signal.SIGUSR1, handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    while ENDS:
        ENDS.pop()()


def leave_handler() -> None:
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    ENDS.append(lambda: logging.getLogger().removeHandler(handler))


def leave_thread() -> None:
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    ENDS.append(done.set)


def leave_process() -> None:
    process = subprocess.Popen(["sleep", "60"])
    ENDS.append(process.wait)
    ENDS.append(process.kill)


# -- what it is ----------------------------------------------------------------------------------


class Constructing(hl.Callback):
    def __init__(self, act: Callable[[], object]) -> None:
        act()


SAME = Recorder()

CONSTRUCTS: dict[str, Callable[[], Any]] = {
    "writes files: x.txt": lambda: Constructing(lambda: Path("x.txt").write_text("")),
    "starts a thread": lambda: Constructing(leave_thread),
    "starts a child process": lambda: Constructing(leave_process),
    "an environment variable \\(PLANTED\\)": lambda: Constructing(lambda: os.environ.update(PLANTED="1")),
    "a signal handler \\(SIGUSR1\\)": lambda: Constructing(lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
    "the warnings filters": lambda: Constructing(lambda: warnings.simplefilter("ignore", UserWarning)),
    "a setting of torch \\(default dtype\\)": lambda: Constructing(lambda: torch.set_default_dtype(torch.float64)),
    "uses the global random state": lambda: Constructing(lambda: torch.rand(())),
    "the same object twice": lambda: SAME,
    "not a Callback": lambda: "EarlyStopping",
    "ValueError: (.*)no such model": lambda: Constructing(lambda: int("no such model")),
}


class Declaring(hl.Callback):
    def __init__(self, **declared: Any) -> None:
        for name, value in declared.items():
            setattr(self, name, value)


DECLARES: dict[str, Callable[[], Any]] = {
    "reads = 'val/loss'": lambda: Declaring(reads="val/loss"),
    "writes = \\['weights'\\]": lambda: Declaring(writes=["weights"]),
    "state = 'best'": lambda: Declaring(state="best"),
    "before = 'EarlyStopping'": lambda: Declaring(before="EarlyStopping"),
    "after = \\(1,\\)": lambda: Declaring(after=(1,)),
    "events = \\('verify',\\)": lambda: Declaring(events=("verify",)),
    "optional = 1": lambda: Declaring(optional=1),
    "name = 3": lambda: Declaring(name=3),
    "ranks = \\(0, 2\\)": lambda: Declaring(ranks=(0, 2)),
    "ranks = 'first'": lambda: Declaring(ranks="first"),
}


class Misspelt(hl.Callback):
    def on_train_stepend(self, run: hl.Run) -> None: ...


class WrongArity(hl.Callback):
    def on_train_step_end(self, run: hl.Run, batch: Any) -> None: ...


class NoGenerator(hl.Callback):
    def around_eval(self, run: hl.Run) -> None: ...  # type: ignore[override]


class Foreign(hl.Callback):
    def on_validation_epoch_end(self, run: hl.Run) -> None: ...


class Undocumented(hl.Callback):
    pass


class NoExample(hl.Callback):
    """Counts steps."""


class WrongExample(hl.Callback):
    """Counts steps.

    >>> 1 + 1
    3
    """


class KeyOfAddress(hl.Callback):
    @property
    def state_key(self) -> str:
        return f"KeyOfAddress at {id(self)}"


class NoKey(hl.Callback):
    state_key = ""  # type: ignore[assignment]


class WithLock(hl.Callback):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class CopyIsItself(hl.Callback):
    def __deepcopy__(self, memo: Any) -> CopyIsItself:
        return self


class CopyLosesState(hl.Callback):
    def __init__(self) -> None:
        self.seen = [1]

    def __deepcopy__(self, memo: Any) -> CopyLosesState:
        other = CopyLosesState()
        other.seen = []
        return other


# -- what it does in a run -------------------------------------------------------------------------


class At(hl.Callback):
    """Does something at some events."""

    def __init__(self, *where: str, do: Callable[[Any], object], **declared: Any) -> None:
        self.where, self.do = where, do
        for name, value in declared.items():
            setattr(self, name, value)

    def on_event(self, event: str, run: hl.Run) -> None:
        if event in self.where:
            self.do(run)


def fail(run: hl.Run) -> None:
    raise LookupError("planted")


def move_weights(run: hl.Run) -> None:
    with torch.no_grad():
        next(run.model.parameters()).add_(1e-7)


def change_rate(run: hl.Run) -> None:
    for optimizer in run.optimizers.values():
        optimizer.param_groups[0]["lr"] *= 0.5


def part(run: hl.Run, name: str) -> torch.nn.Module:
    """A layer of the tiny model, whether ``run.model`` is that model or the task around it."""
    return next(module for path, module in run.model.named_modules() if path.rpartition(".")[2] == name)


def set_batch(run: hl.Run) -> None:
    run.batch = run.batch


class FirstFitOnly(hl.Callback):
    def __init__(self) -> None:
        self.fits = 0

    def on_fit_start(self, run: hl.Run) -> None:
        self.fits += 1
        if self.fits > 1:
            raise LookupError("planted")


class OneBatchAStep(hl.Callback):
    def on_train_step_end(self, run: hl.Run) -> None:
        if run.clock.step < run.clock.batch:
            raise LookupError("planted")


class SharedList(hl.Callback):
    seen: list[int] = []  # noqa: RUF012 (the mistake)

    def on_train_step_end(self, run: hl.Run) -> None:
        self.seen.append(run.clock.step)


class SharedCounter(hl.Callback):
    runs = 0

    def on_fit_start(self, run: hl.Run) -> None:
        type(self).runs += 1


class SharedDefault(hl.Callback):
    def __init__(self, seen: list[int] = []) -> None:  # noqa: B006 (the mistake)
        self.seen = seen

    def on_train_step_end(self, run: hl.Run) -> None:
        self.seen.append(run.clock.step)


class Stateful(hl.Callback):
    state = ("value",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.value: Any = None

    def on_train_step_end(self, run: hl.Run) -> None:
        self.value = self.make()


class NoSuchAttribute(hl.Callback):
    state = ("best",)


class LoadsNothing(Stateful):
    def load_state_dict(self, state: Any) -> None:
        pass


class NeedsDeque(hl.Callback):
    """A deque is a list after a resume, and it forgets to make a deque of it again."""

    state = ("recent",)

    def __init__(self) -> None:
        self.recent: deque[int] = deque()

    def on_train_step_end(self, run: hl.Run) -> None:
        self.recent.append(run.clock.step)
        if len(self.recent) > 2:
            self.recent.popleft()


class RestoresAtFitEnd(hl.Callback):
    """Puts a handler back, but not when the run fails."""

    def on_fit_start(self, run: hl.Run) -> None:
        self.handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def on_fit_end(self, run: hl.Run) -> None:
        signal.signal(signal.SIGUSR1, self.handler)


class NeedsSetup(hl.Callback):
    """Closes what it never opened, if the run fails before it was set up."""

    def on_setup(self, run: hl.Run) -> None:
        self.opened = [1]

    def on_teardown(self, run: hl.Run) -> None:
        self.opened.clear()


class Hides(hl.Callback):
    """Raises an error of its own on top of that of the run."""

    def on_exception(self, run: hl.Run) -> None:
        raise LookupError("planted")


class HidesOptional(Hides):
    optional = True


class PicklesAsAnother(hl.Callback):
    def __reduce__(self) -> Any:
        return Named, ()


class Named(hl.Callback):
    name = "another"


class Speechless(hl.Callback):
    def __reduce__(self) -> Any:
        raise TypeError


class CountsUnsaved(hl.Callback):
    """Stops at a step that it counts itself, and does not save its count."""

    def __init__(self) -> None:
        self.seen = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.seen += 1
        if self.seen == 6:
            run.stop("six")


class NeverResets(hl.Callback):
    """Counts steps, and keeps its count for another run."""

    state = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.seen += 1

    def reset_state(self) -> None:
        pass


class SavesLess(hl.Callback):
    """Has a state that begins anew with each process."""

    state = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def on_train_start(self, run: hl.Run) -> None:
        self.seen = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.seen += 1


class LogsTheFirst(hl.Callback):
    """Logs once in a process, whatever was logged before it."""

    def __init__(self) -> None:
        self.logged = False

    def on_metrics_ready(self, run: hl.Run) -> None:
        if not self.logged:
            self.logged = True
            run.log({"extra/first": 1.0})


class LogsMore(hl.Callback):
    writes = ("extra/*",)

    def on_epoch_end(self, run: hl.Run) -> None:
        run.log({"extra/one": 1.0, "other/two": 2.0})


BROKEN: dict[str, dict[str, Callable[[], Any]]] = {
    "constructs": CONSTRUCTS,
    "declares": DECLARES,
    "registers": {
        "did you mean on_train_step_end": Misspelt,
        "takes \\(run, batch\\)": WrongArity,
        "must be a generator": NoGenerator,
        "is on_\\w+ here": Foreign,
    },
    "docstring": {"has no docstring": Undocumented, "has no example": NoExample, "Expected:\\s+3": WrongExample},
    "state_key": {"KeyOfAddress at \\d+": KeyOfAddress, "Make it a string": NoKey},
    "copies": {"cannot pickle": WithLock, "is itself": CopyIsItself, "other attributes": CopyLosesState},
    "optional": {
        "run.stop\\(\\)": lambda: At("step_settled", do=lambda run: run.stop("why"), optional=True),
        "run.request_save\\(\\)": lambda: At("rollback", do=lambda run: run.request_save(), optional=True),
        "set run.batch|run.batch =": lambda: At("train_batch_start", do=set_batch, optional=True),
        "declares writes = \\['weights'\\]": lambda: At(do=print, optional=True, writes=("weights",)),
    },
    "events": {
        "LookupError: planted": lambda: At("rollback", do=fail),
        "LookupError: planted ?": lambda: At("checkpoint_failed", do=fail, optional=True),
    },
    "fit": {
        "LookupError: planted": lambda: At("eval_end", do=fail),
        "it failed and was disabled: At.on_eval_end": lambda: At("eval_end", do=fail, optional=True),
    },
    "accumulate": {"LookupError: planted": OneBatchAStep},
    "stop": {"LookupError: planted": lambda: At("stop", do=fail)},
    "second_fit": {"LookupError: planted": FirstFitOnly},
    "evaluate": {"KeyError: 'SGD'": lambda: At("eval_end", do=lambda run: run.optimizers["SGD"])},
    "predict": {"no metric 'val/loss'": lambda: At("predict_end", do=lambda run: run.metrics["val/loss"])},
    "own_loops": {"run.task has no value": lambda: At("train_start", do=lambda run: run.task)},
    "files": {
        "outside of run.folder: x.txt": lambda: At("fit_end", do=lambda run: Path("x.txt").write_text("")),
        "this run has no folder": lambda: At("fit_end", do=lambda run: run.folder / "x.txt"),
        "the run has no folder and it writes x.txt": lambda: At(
            "fit_end", do=lambda run: (run.folder if run.has_folder else Path()).joinpath("x.txt").write_text("")
        ),
    },
    "fresh": {
        "a run changed SharedList.seen": SharedList,
        "a run changed SharedCounter.runs": SharedCounter,
        "starts with a different seen": SharedDefault,
    },
    "state": {
        "state\\['value'\\] is a set": lambda: Stateful(lambda: {1, 2}),
        "state\\['value'\\]\\['at'\\]\\[0\\] is a function": lambda: Stateful(lambda: {"at": [fail]}),
        "has keys that are not strings: 1": lambda: Stateful(lambda: {1: "one"}),
        "differs in value": lambda: LoadsNothing(lambda: 1),
        "lists 'best', which it lacks": NoSuchAttribute,
        "no attribute 'popleft'": NeedsDeque,
    },
    "weights": {
        "model.hidden.weight": lambda: At("train_epoch_end", do=move_weights),
        "SGD \\(optimizer\\)": lambda: At("fit_end", do=change_rate),
        "model.out.bias": lambda: At("train_step_start", do=lambda run: torch.rand(())),
        "model.out.weight": lambda: At("loss_ready", do=lambda run: setattr(run, "loss", run.loss * 1.001)),
    },
    "random": {
        "the global random state of torch": lambda: At("train_end", do=lambda run: torch.rand(())),
        "the global random state of random": lambda: At("train_step_end", do=lambda run: random.random()),
        "the global random state of numpy.random": lambda: At("epoch_end", do=lambda run: numpy.random.rand()),
    },
    "modes": {
        "the mode of the model": lambda: At("train_epoch_start", do=lambda run: run.model.eval()),
        "drop": lambda: At("eval_start", do=lambda run: part(run, "drop").train()),
        "the mode of grad mode": lambda: At("train_end", do=lambda run: torch.set_grad_enabled(False)),
    },
    "leaves": {
        "a signal handler \\(SIGUSR1\\)": lambda: At("setup", do=lambda run: signal.signal(signal.SIGUSR1, fail)),
        "after a run that failed it leaves .*SIGUSR1": RestoresAtFitEnd,
        "the warnings filters": lambda: At("setup", do=lambda run: warnings.simplefilter("ignore", UserWarning)),
        "an environment variable": lambda: At("train_end", do=lambda run: os.environ.update(PLANTED="1")),
        "the working directory": lambda: At("fit_end", do=lambda run: os.chdir("/")),
        "the handlers of a logger \\(root\\)": lambda: At("setup", do=lambda run: leave_handler()),
        "a thread": lambda: At("fit_start", do=lambda run: leave_thread()),
        "a child process": lambda: At("fit_start", do=lambda run: leave_process()),
        "hooks on model.hidden": lambda: At(
            "model_ready", do=lambda run: part(run, "hidden").register_forward_hook(lambda *args: None)
        ),
        "hooks on model.out.weight": lambda: At(
            "model_ready", do=lambda run: part(run, "out").weight.register_hook(lambda grad: None)
        ),
    },
    "pickles": {"the state_key 'Named\\[another\\]'": PicklesAsAnother, "has no message": Speechless},
    "interrupt": {"LookupError: planted": lambda: At("interrupt", do=fail)},
    "reuse": {"reset_state\\(\\) leaves seen as another run has left it": NeverResets},
    "resume": {
        "the run ends with a different": CountsUnsaved,
        "its state differs in seen": SavesLess,
        "an extra row of extra/first": LogsTheFirst,
        "it failed: At.on_checkpoint_loaded": lambda: At("checkpoint_loaded", do=fail, optional=True),
    },
    "metrics": {"it logs other/two": LogsMore},
    "failure": {
        "after an error in setup: .*also failed: AttributeError": NeedsSetup,
        "also failed: LookupError: planted": Hides,
        "it failed and was disabled: HidesOptional.on_exception": HidesOptional,
    },
}

CASES = [
    pytest.param(rule, message, factory, id=f"{rule}: {message}")
    for rule, factories in BROKEN.items()
    for message, factory in factories.items()
]


@pytest.mark.parametrize(("rule", "message", "factory"), CASES)
def test_a_rule_catches_who_breaks_it(rule: str, message: str, factory: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError, match=f"breaks the rule '{rule}': (.|\n)*{message}"):
        check_callback(factory, skip=set(RULES) - {rule})


def test_every_rule_has_somebody_who_breaks_it() -> None:
    assert set(BROKEN) == set(RULES)


class Good(hl.Callback):
    """Counts steps, and keeps the contract.

    >>> Good().steps
    0
    """

    state = ("steps",)

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps = 0

    def on_train_step_end(self, run: hl.Run) -> None:
        self.steps += 1
        run.log({"steps": self.steps}, reduce="last")


def test_a_good_callback_keeps_all_rules() -> None:
    check_callback(Good)


def test_a_good_callback_may_come_from_a_lambda() -> None:
    about_the_object = {"constructs", "declares", "registers", "state_key", "copies", "pickles", "fresh", "state"}
    check_callback(lambda: Good(every=2), rules=about_the_object)


def test_one_that_declares_what_it_changes_may_change_it() -> None:
    def freeze(run: hl.Run) -> None:
        move_weights(run)
        run.model.eval()
        torch.rand(())

    # What it does to the modes of the model is not there again after a resume in the middle of an epoch.
    skip = ("docstring", "events", "resume")
    check_callback(lambda: At("train_epoch_start", do=freeze, writes=("weights",), name="freeze"), skip=skip)


def test_one_that_refuses_a_run_without_a_folder_is_fine() -> None:
    def refuse(run: hl.Run) -> None:
        if not run.has_folder:
            raise SetupError("a folder is needed: Trainer(folder=…)")

    check_callback(lambda: At("setup", do=refuse), skip=set(RULES) - {"files", "fit"})


def test_one_that_stops_the_run_keeps_the_weights_of_the_steps_that_were_made() -> None:
    check_callback(
        lambda: At("train_step_end", do=lambda run: run.stop("enough")),
        skip=set(RULES) - {"weights", "random", "modes"},
    )


def test_the_error_names_the_callback_the_rule_and_the_cause() -> None:
    with pytest.raises(AssertionError) as caught:
        check_callback(lambda: At("eval_end", do=fail, name="planted"), skip="docstring")
    assert str(caught.value) == "At[planted] breaks the rule 'events': it raised LookupError: planted"
    assert isinstance(caught.value.__cause__, LookupError)


def test_the_error_makes_no_further_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does when it is made happens in a folder that is thrown away."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="writes files"):
        check_callback(lambda: Constructing(lambda: Path("x.txt").write_text("")))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_rule_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(SetupError, match=r"skip='wieghts'.*: no such rule. Did you mean 'weights'"):
        check_callback(Good, skip=("wieghts",))


def test_the_contract_leaves_the_process_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, drawn = surroundings.surroundings(), surroundings.random_states()
    check_callback(Good)
    assert surroundings.differences(before, surroundings.surroundings()) == []
    assert surroundings.random_states() == drawn
    assert list(tmp_path.iterdir()) == []


def test_the_rules_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    assert [name for name in RULES if f"`{name}`" not in page] == []
    assert [name for name in RULES if f"``{name}``" not in str(check_callback.__doc__)] == []


def test_every_event_and_every_scope_is_sent(tmp_path: Path) -> None:
    recorder = Recorder()
    sequence = every_event(tmp_path)
    driven = drive(recorder, sequence)
    assert set(driven.sent) == {event.name for event in EVENTS}
    assert recorder.names == driven.sent
    assert {scope.hook for scope in SCOPES} == _scopes(sequence)


def _scopes(items: Any) -> set[str]:
    pairs = [item for item in items if isinstance(item, tuple) and item[0].startswith("around_")]
    return {name for name, _ in pairs} | {scope for _, inner in pairs for scope in _scopes(inner)}
