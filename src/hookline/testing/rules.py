"""The rules of the contract: functions that raise if a callback breaks the rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, DocTestParser, DocTestRunner
from pathlib import Path
from sys import modules
from typing import Any

from hookline.errors import HooklineError, NotAvailableError, RoleError
from hookline.events import Callback, Event, Failure, on
from hookline.events.spec import is_resource
from hookline.loop import Loop
from hookline.testing.drive import drive
from hookline.testing.resume_rules import interrupt, metrics, pickles, resume
from hookline.testing.scenes import Fit, Watcher, every_event, files_here, own_loop, tried_out
from hookline.testing.states import RuleError, check_same_state, containers, need, shared
from hookline.testing.surroundings import (
    differences,
    hooks_on,
    left_running,
    plain,
    random_states,
    running,
    surroundings,
)
from hookline.testing.tiny import TinyModel

Factory = Callable[[], Callback]
RULES: dict[str, Callable[[Factory], None]] = {}
"""The rules by name, in the order in which they are checked."""


def rule(check: Callable[[Factory], None]) -> Callable[[Factory], None]:
    RULES[check.__name__] = check
    return check


def _no_failures(failures: tuple[Failure, ...]) -> None:
    """Raise the error of an optional callback, which a run would only disable."""
    if failures:
        raise RuleError(f"it failed and was disabled: {failures[0]}") from failures[0].error


# -- what it is ----------------------------------------------------------------------------------


@rule
def constructs(factory: Factory) -> None:
    """Check that the constructor has no side effects: they belong in ``on_setup``."""
    with tried_out():
        before, run_before, random_before = surroundings(), running(), random_states()
        callback, other = factory(), factory()
        need(isinstance(callback, Callback), f"the factory returned {callback!r}, which is not a Callback")
        need(callback is not other, "the factory returned the same object twice. Return a new callback at each call.")
        need(not files_here(), f"its constructor writes files: {', '.join(files_here())}")
        changed = differences(before, surroundings())
        need(not changed, f"its constructor changes {', '.join(changed)}")
        need(random_before == random_states(), "its constructor uses the global random state")
        started = left_running(run_before)
        need(not started, f"its constructor starts {', '.join(started)}")


@rule
def declares(factory: Factory) -> None:
    """Check types of declared attributes.

    For example, ``reads = "val/loss"`` would be eight metrics of one letter.
    """
    callback = factory()
    for field in ("reads", "writes", "state"):
        value = getattr(callback, field)
        well = isinstance(value, tuple) and all(isinstance(item, str) and item for item in value)
        need(well, f"{field} = {value!r}. Make it a tuple of strings.")
    for field in ("before", "after"):
        value = getattr(callback, field)
        well = isinstance(value, tuple) and all(isinstance(item, str | type) for item in value)
        need(well, f"{field} = {value!r}. Make it a tuple of names or classes.")
    events = callback.events
    well = isinstance(events, tuple) and all(isinstance(event, Event) for event in events)
    need(well, f"events = {events!r}. Make it a tuple of hl.Event.")
    need(isinstance(callback.optional, bool), f"optional = {callback.optional!r}. Make it True or False.")
    need(isinstance(callback.name, str), f"name = {callback.name!r}. Make it a string.")
    ranks: Any = callback.ranks
    listed = isinstance(ranks, set | frozenset) and all(isinstance(rank, int) and rank >= 0 for rank in ranks)
    well = listed or (isinstance(ranks, str) and ranks in ("all", "zero", "local_zero"))
    need(well, f"ranks = {ranks!r}. Use 'all', 'zero', 'local_zero' or a set of ranks.")


@rule
def registers(factory: Factory) -> None:
    """Check that registration accepts the callback: hooks, arities and order are valid."""
    with tried_out():
        Loop(TinyModel(), callbacks=[factory()], folder=False, device="cpu").explain()


@rule
def docstring(factory: Factory) -> None:
    """Check that the class has a docstring with an example that runs."""
    cls = type(factory())
    text = cls.__doc__ or ""
    need(bool(text.strip()), f"{cls.__qualname__} has no docstring")
    need(">>>" in text, f"the docstring of {cls.__qualname__} has no example (>>>)")
    module = modules.get(cls.__module__)
    names = {**(vars(module) if module else {}), cls.__name__: cls}
    example = DocTestParser().get_doctest(text, names, cls.__qualname__, None, 0)
    out: list[str] = []
    with tried_out():
        DocTestRunner(verbose=False, optionflags=ELLIPSIS | NORMALIZE_WHITESPACE).run(example, out=out.append)
    need(not out, f"the example in its docstring fails: {''.join(out)}")


@rule
def state_key(factory: Factory) -> None:
    """Check that two equal callbacks have the same key, by which a resume finds the state."""
    made = factory(), factory()  # Keep both, or they could have the same address.
    one, other = (callback.state_key for callback in made)
    need(isinstance(one, str) and bool(one), f"state_key = {one!r}. Make it a string.")
    need(one == other, f"two equal callbacks have the state_keys {one!r} and {other!r}")


@rule
def copies(factory: Factory) -> None:
    """Check that ``copy.deepcopy`` returns another, equal callback."""
    callback = factory()
    other = deepcopy(callback)
    need(other is not callback, "its deep copy is itself")
    need(other.state_key == callback.state_key, f"its deep copy has the state_key {other.state_key!r}")
    need(plain(vars(other)) == plain(vars(callback)), "its deep copy has other attributes")


# -- what it does in a run -------------------------------------------------------------------------


@rule
def optional(factory: Factory) -> None:
    """Check that an optional callback requests nothing and writes no resource."""
    callback = factory()
    if not callback.optional:
        return
    written = sorted(filter(is_resource, callback.writes))
    need(not written, f"it is optional and declares writes = {written}")
    with tried_out() as folder:
        failures = drive(callback, every_event(_checkpoint(folder)), tolerant=True, folder=folder).failures
    for failure in failures:
        if isinstance(failure.error, RoleError):
            raise RuleError(str(failure.error)) from failure.error


@rule
def events(factory: Factory) -> None:
    """Check every event and every scope of the table."""
    with tried_out() as folder:
        drive(factory(), every_event(_checkpoint(folder)), folder=folder, max_duration="2ep")


@rule
def fit(factory: Factory) -> None:
    """Check a fit with evaluations and a test at the end."""
    with tried_out() as folder:
        _no_failures(_done(Fit([factory()], folder)))


@rule
def accumulate(factory: Factory) -> None:
    """Check a fit with two batches per step and a shorter last step per epoch."""
    with tried_out() as folder:
        _no_failures(_done(Fit([factory()], folder, accumulate=2)))


@rule
def stop(factory: Factory) -> None:
    """Check a stop inside an epoch, and a second fit that continues."""
    stopper = on("train_step_end", at="2st")(lambda run: run.stop("in the middle"))
    with tried_out() as folder:
        run = Fit([stopper, factory()], folder)
        run()
        _no_failures(_done(run))


@rule
def second_fit(factory: Factory) -> None:
    """Check a second, longer fit with the same trainer."""
    with tried_out() as folder:
        run = Fit([factory()], folder)
        run()
        run(extend="1ep")
        _no_failures(run.failures)


@rule
def evaluate(factory: Factory) -> None:
    """Check ``evaluate`` and ``test``, without training and after a fit."""
    with tried_out() as folder:
        run = Fit([factory()], folder)
        run.evaluate()
        run()
        run.evaluate()
        _no_failures(run.failures)


@rule
def predict(factory: Factory) -> None:
    """Check ``predict``, without training and after a fit."""
    with tried_out() as folder:
        run = Fit([factory()], folder)
        run.predict()
        run()
        run.predict()
        _no_failures(run.failures)


@rule
def own_loops(factory: Factory) -> None:
    """Check a custom loop without a task: until its end, and left by ``break``."""
    with tried_out() as folder:
        _no_failures(own_loop(factory(), folder))
        _no_failures(own_loop(factory(), folder / "left", leave=True))


@rule
def files(factory: Factory) -> None:
    """Check that the callback writes to ``run.folder`` only.

    With ``folder=False`` it has to write nothing or to raise its own error.
    """
    with tried_out() as folder:
        Fit([factory()], folder)()
        need(not files_here(), f"it writes outside of run.folder: {', '.join(files_here())}")
    with tried_out() as folder:
        run = Fit([factory()], False)
        try:
            run()
        except NotAvailableError:  # The callback did not check run.has_folder and failed during the run.
            raise
        except HooklineError:
            return
        _no_failures(run.failures)
        need(not files_here(), f"the run has no folder and it writes {', '.join(files_here())}")


@rule
def fresh(factory: Factory) -> None:
    """Check that a run leaves nothing in the class or in a default argument."""
    before, made_before = shared(factory()), containers(factory())
    with tried_out() as folder:
        Fit([factory()], folder)()
    after, made_after = shared(factory()), containers(factory())
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    need(not changed, f"a run changed {', '.join(changed)}, which all instances share")
    changed = [name for name in made_before | made_after if made_before.get(name) != made_after.get(name)]
    need(not changed, f"after a run a new instance starts with a different {', '.join(changed)}")


@rule
def state(factory: Factory) -> None:
    """Check that another instance can load the state, saves the same state, and works."""
    with tried_out() as folder:
        callback = factory()
        check_same_state(callback, factory())
        Fit([callback], folder)()
        resumed = factory()
        check_same_state(callback, resumed)
        Fit([resumed], folder / "resumed")()


@rule
def reuse(factory: Factory) -> None:
    """Check that a callback which a run has used starts another run with the state of a new instance."""
    with tried_out() as folder:
        callback = factory()
        Fit([callback], folder)()
        callback.reset_state()
        reset, new = callback.state_dict(), factory().state_dict()
        left = [key for key in reset | new if plain(reset.get(key)) != plain(new.get(key))]
        need(not left, f"reset_state() leaves {', '.join(left)} as another run has left it. Set it in __init__.")
        again = Fit([callback], folder / "again")
        again()
        _no_failures(again.failures)


@rule
def weights(factory: Factory) -> None:
    """Check that the callback changes no weight, gradient, optimizer, batch or loss.

    A callback that declares writes to one of them is not checked.
    """
    if any(map(is_resource, factory().writes)):
        return
    for batches in (1, 2):
        with tried_out() as folder:
            run, bare, _, _ = _beside_a_bare_run(factory, folder, batches)
            changed = [name for name, bits in bare.weights().items() if run.weights()[name] != bits]
            need(not changed, f"the run ends with other weights than without it: {', '.join(changed)}")


@rule
def random(factory: Factory) -> None:
    """Check that the callback does not use the global random state."""
    if any(map(is_resource, factory().writes)):
        return
    with tried_out() as folder:
        _, _, seen, expected = _beside_a_bare_run(factory, folder, 1)
        for key in seen.random.keys() & expected.random.keys():
            parts = [name for name, value in expected.random[key].items() if seen.random[key].get(name) != value]
            need(not parts, f"it uses the global random state of {', '.join(parts)}, seen at {key[0]} in step {key[1]}")


@rule
def modes(factory: Factory) -> None:
    """Check that the callback does not change train, eval or grad mode.

    A callback that declares writes to the weights is not checked.
    """
    if "weights" in factory().writes:
        return
    with tried_out() as folder:
        _, _, seen, expected = _beside_a_bare_run(factory, folder, 1)
        for key in seen.modes.keys() & expected.modes.keys():
            parts = [name for name, mode in expected.modes[key].items() if seen.modes[key].get(name) != mode]
            need(not parts, f"it changes the mode of {', '.join(parts)}, seen at {key[0]} in step {key[1]}")


@rule
def leaves(factory: Factory) -> None:
    """Check that handlers, settings, threads and hooks on the model are restored after a run.

    This includes a run that failed.
    """
    for where in ("", "loss_ready"):
        with tried_out() as folder:
            before, run_before = surroundings(), running()
            callback = factory()
            run = Fit([*([_Bomb(where, PlantedError())] if where else []), callback], folder)
            hooks = hooks_on(run.task)
            with suppress(PlantedError):
                run()
            when = "a run that failed" if where else "a run"
            changed = differences(before, surroundings()) + left_running(run_before)
            need(not changed, f"after {when} it leaves changed or running: {', '.join(changed)}")
            if "weights" not in callback.writes:
                left = [name or "the model" for name, count in hooks_on(run.task).items() if count != hooks.get(name)]
                need(not left, f"after {when} it leaves hooks on {', '.join(left)}")


@rule
def failure(factory: Factory) -> None:
    """Check that the callback does not fail in ``on_exception`` or ``on_teardown``."""
    for where in ("setup", "fit_start", "train_start", "loss_ready", "eval_batch_start", "train_epoch_end"):
        for planted in (PlantedError(), KeyboardInterrupt()):
            with tried_out() as folder:
                bomb = _Bomb(where, planted)
                run = Fit([bomb, factory()], folder)
                try:
                    run()
                except BaseException as error:
                    if error is not planted:
                        raise
                else:
                    need(not bomb.fired, f"an error in {where} was lost")
                    continue
                _no_failures(run.failures)
                notes = [note for note in getattr(planted, "__notes__", ()) if "also failed" in note]
                need(not notes, f"after an error in {where}: {'; '.join(notes)}")


for _check in (pickles, interrupt, resume, metrics):
    rule(_check)


# ------------------------------------------------------------------------------------------------


class PlantedError(Exception):
    """The error that the contract raises inside a run."""


class _Bomb(Callback):
    """Run first, and raise an error at one event."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error, self.fired = where, error, False

    def on_event(self, event: str, run: Any) -> None:
        if event == self.where:
            self.fired = True
            raise self.error


def _done(run: Fit) -> tuple[Failure, ...]:
    run()
    return run.failures


def _checkpoint(folder: Path) -> Path:
    """Create and return a folder for a checkpoint."""
    path = folder / "checkpoints" / "step-00000001"
    path.mkdir(parents=True)
    return path


def _beside_a_bare_run(factory: Factory, folder: Path, batches: int) -> tuple[Fit, Fit, Watcher, Watcher]:
    """Train with the callback, and without it for as many steps, each with a watcher."""
    seen, expected = Watcher(), Watcher()
    run = Fit([factory(), seen], folder, accumulate=batches)
    steps = run().clock.step
    bare = Fit([expected], accumulate=batches, max_duration=f"{max(steps, 1)}st")
    if steps:
        bare()
    return run, bare, seen, expected
