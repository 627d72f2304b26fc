"""A mistake in a callback fails when it is registered, with a text that says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import DurationError, OrderError, RegistrationError
from hookline.events import EVENTS, SCOPES, Callback, Event, on
from hookline.events.foreign import FOREIGN_HOOKS
from hookline.events.hooks import Hooks
from hookline.events.spec import BY_NAME

World = Callable[..., Any]


@contextmanager
def refused(text: str, error: type[Exception] = RegistrationError) -> Iterator[None]:
    """The whole message, word for word: it is what the user reads."""
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == text


def callback_with(class_name: str = "Mine", /, **members: Any) -> Callback:
    cls = type(class_name, (Callback,), members)
    made: Callback = cls()
    return made


class EpochMonitor(Callback):
    def on_train_stepend(self, run: Any) -> None: ...


# -- names of hooks ----------------------------------------------------------------------------


def test_a_misspelt_hook_would_never_be_called_so_it_is_refused_with_the_right_name(world: World) -> None:
    with refused("EpochMonitor.on_train_stepend: no such event; did you mean on_train_step_end?"):
        world(EpochMonitor())


def test_a_name_like_nothing_we_have_sends_the_user_to_the_list_of_events(world: World) -> None:
    with refused(
        "Mine.on_xyzzy: no such event; `hookline events` lists them, and a new one is declared "
        "with events = (hl.Event(…),)"
    ):
        world(callback_with(on_xyzzy=lambda self, run: None))


@given(event=st.sampled_from(EVENTS), data=st.data())
def test_one_letter_left_out_of_any_hook_still_leads_to_it(world: World, event: Event, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(event.name) - 1))
    misspelt = event.name[:place] + event.name[place + 1 :]
    if misspelt in BY_NAME or any(row.hook in (misspelt, f"on_{misspelt}") for row in FOREIGN_HOOKS):
        return
    with pytest.raises(RegistrationError, match=r"; did you mean on_\w+\?$"):
        world(callback_with(**{f"on_{misspelt}": lambda self, run: None}))


def test_a_hook_of_another_system_is_refused_with_our_name_for_it(world: World) -> None:
    wrong = []
    for row in FOREIGN_HOOKS:
        with pytest.raises(RegistrationError) as caught:
            world(callback_with(**{row.hook: lambda self, state, logger: None}))
        said = str(caught.value)
        if row.hook.startswith("on_") and row.hook.removeprefix("on_") in BY_NAME:
            # We have a hook of this name: docs say where its moment differs. Its parameters are other ones.
            is_right = "takes (state, logger) and is called with (run" in said
        else:
            note = f" ({row.note})" if row.note else ""
            is_right = said.startswith(f"Mine.{row.hook}: no such ")
            is_right &= f"{row.system}'s {row.hook} is on_{row.event} here{note}" in said
        if not is_right:
            wrong.append((row, said))
    assert wrong == []


def test_the_bare_setup_of_lightning_is_not_taken_for_a_method_of_the_users_own(world: World) -> None:
    with refused(
        "Mine.setup: no such hook; Lightning's setup is on_setup here (its stage argument is run.entry_point)"
    ):
        world(callback_with(setup=lambda self, trainer, pl_module, stage: None))


def test_the_bare_epoch_start_of_composer_is_named_as_composers(world: World) -> None:
    with refused("Mine.epoch_start: no such hook; Composer's epoch_start is on_train_epoch_start here"):
        world(callback_with(epoch_start=lambda self, state, logger: None))


def test_our_own_name_without_its_prefix_is_told_to_take_it(world: World) -> None:
    with refused("Mine.train_step_end: a hook starts with on_; did you mean on_train_step_end?"):
        world(callback_with(train_step_end=lambda self, run: None))


def test_methods_of_the_users_own_are_not_mistaken_for_hooks(world: World) -> None:
    class Helper(Callback):
        on_gpu = True  # no callable

        def compute_loss(self, a: int, b: int) -> None: ...
        def _on_train_stepend(self) -> None: ...
        def close(self) -> None: ...
        def init(self, path: str) -> None: ...
        def setup(self) -> None: ...
        def stop(self) -> None: ...
        def epoch_end(self, epoch: int) -> None: ...
        def on_train_start(self, run: Any) -> None: ...

    assert world(Helper()).line.hooks.train_start


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("setup", lambda self, args: None),
        ("init", lambda self, args, *, x=1: None),
        ("close", lambda self, logger: None),
        ("teardown", lambda self, stage: None),
        ("stop", lambda self, state: None),
    ],
)
def test_one_parameter_of_a_common_name_does_not_make_a_hook(world: World, name: str, method: Any) -> None:
    assert world(callback_with(**{name: method, "on_train_start": lambda self, run: None})).line.hooks.train_start


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("setup", lambda self, trainer: None),
        ("on_init", lambda self, train_loop_obj: None),
        ("setup", lambda self, run: None),
        ("close", lambda self, state, logger: None),
        ("teardown", lambda self, pl_module, stage: None),
    ],
)
def test_a_parameter_that_only_hooks_have_is_refused(world: World, name: str, method: Any) -> None:
    with pytest.raises(RegistrationError, match=rf"^Mine\.{name}: "):
        world(callback_with(**{name: method}))


def test_a_misspelt_hook_is_found_wherever_in_the_classes_it_stands(world: World) -> None:
    class Mixin:
        def on_epochend(self, run: Any) -> None: ...

    class Mine(Mixin, Callback): ...

    with pytest.raises(RegistrationError, match=r"on_epochend: no such event; did you mean on_epoch_end\?"):
        world(Mine())


@pytest.mark.parametrize(
    "method",
    [
        staticmethod(lambda run: None),
        classmethod(lambda cls, run: None),
        partialmethod(lambda self, how, run: None, "how"),
    ],
    ids=["staticmethod", "classmethod", "partialmethod"],
)
def test_a_misspelt_hook_is_found_whatever_kind_of_method_it_is(world: World, method: Any) -> None:
    with pytest.raises(RegistrationError, match=r"did you mean on_train_start\?"):
        world(callback_with(on_train_strat=method))
    assert world(callback_with(on_train_start=method)).heard("train_start") == ["Mine"]


def test_a_misspelt_hook_on_the_object_itself_is_found(world: World) -> None:
    callback = callback_with()
    callback.on_train_strat = lambda run: None  # type: ignore[attr-defined]
    with pytest.raises(RegistrationError, match=r"did you mean on_train_start\?"):
        world(callback)


def test_a_hook_that_a_subclass_has_switched_off_is_not_called(world: World, hearing: Any) -> None:
    loud = type(hearing("train_start"))
    quiet = type("Quiet", (loud,), {"on_train_start": None})()
    assert world(quiet).heard("train_start") == []


# -- what a hook takes -------------------------------------------------------------------------

CALLED_WITH_RUN = "and is called with (run): {}; everything else (batch, loss, model, clock, …) is on run"


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (
            lambda self, trainer, pl_module: None,
            "Mine.on_train_start takes (trainer, pl_module) "
            + CALLED_WITH_RUN.format("missing a required argument: 'pl_module'"),
        ),
        (
            lambda self: None,
            "Mine.on_train_start takes (nothing) " + CALLED_WITH_RUN.format("too many positional arguments"),
        ),
        (
            lambda self, run, *, batch: None,
            "Mine.on_train_start takes (run, batch) " + CALLED_WITH_RUN.format("missing a required argument: 'batch'"),
        ),
        (
            lambda self, *, run: None,
            "Mine.on_train_start takes (run) " + CALLED_WITH_RUN.format("too many positional arguments"),
        ),
    ],
    ids=["too many", "too few", "keyword-only without default", "keyword-only run"],
)
def test_a_hook_that_could_not_be_called_fails_now_and_not_after_an_epoch(
    world: World, hook: Any, problem: str
) -> None:
    with pytest.raises(RegistrationError) as caught:
        world(callback_with(on_train_start=hook))
    # Python 3.11 and 3.12 word a missing keyword differently.
    assert str(caught.value).replace("keyword-only argument", "argument") == problem


@pytest.mark.parametrize(
    "hook",
    [
        lambda self, run: None,
        lambda self, state: None,
        lambda self, *args: None,
        lambda self, *args, **kwargs: None,
        lambda self, run, extra=1: None,
        lambda self, run, *, extra=1: None,
        staticmethod(lambda run: None),
        classmethod(lambda cls, run: None),
    ],
)
def test_a_hook_that_can_take_run_is_accepted_however_it_is_written(world: World, hook: Any) -> None:
    made = world(callback_with(on_train_start=hook))
    made.emit("train_start")
    assert made.heard("train_start") == ["Mine"]


@pytest.mark.parametrize(
    ("hook", "takes", "here"),
    [
        (lambda self, epoch, logs=None: None, "epoch, logs=None", "epoch is elsewhere, is run.clock.epoch"),
        (lambda self, trainer, **kwargs: None, "trainer, **kwargs", "trainer is elsewhere, is run, with"),
        (lambda self, batch: None, "batch", "batch is elsewhere, is run.batch"),
        (lambda self, logs=None: None, "logs=None", "logs is elsewhere, is run.metrics"),
    ],
)
def test_a_first_parameter_that_is_something_else_elsewhere(world: World, hook: Any, takes: str, here: str) -> None:
    problem = f"Mine.on_epoch_end takes ({takes}), and its first argument is the run: write (self, run); what {here}"
    with pytest.raises(RegistrationError, match=re.escape(problem)):
        world(callback_with(on_epoch_end=hook))


def test_on_without_its_parentheses() -> None:
    with refused("hl.on(show): say when it runs, as in @hl.on('train_step_end'); `hookline events` lists the events"):

        @on  # type: ignore[arg-type]
        def show(run: Any) -> None: ...


def test_a_duration_of_a_filter_says_where_it_is() -> None:
    with pytest.raises(DurationError, match=r"^hl\.on\('epoch_end', every=…\): 3 has no unit"):
        on("epoch_end", every=3)  # type: ignore[arg-type]


def test_a_value_in_place_of_a_hook_is_refused(world: World) -> None:
    with pytest.raises(RegistrationError, match=r"on_eval_start is 3, not a method: a name that starts with on_"):
        world(callback_with(on_eval_start=3))


def test_on_event_takes_the_events_name_first(world: World) -> None:
    with pytest.raises(RegistrationError, match=r"Mine.on_event takes \(run\) and is called with \(event, run\)"):
        world(callback_with(on_event=lambda self, run: None))


def test_a_generator_as_a_hook_would_never_run_so_it_is_refused(world: World) -> None:
    def on_eval_start(self: Any, run: Any) -> Iterator[None]:
        yield

    with pytest.raises(RegistrationError, match=r"Mine.on_eval_start: is a generator, .* use one of .*around_eval"):
        world(callback_with(on_eval_start=on_eval_start))


def test_an_async_hook_would_never_run_so_it_is_refused(world: World) -> None:
    async def on_eval_start(self: Any, run: Any) -> None: ...

    with pytest.raises(RegistrationError, match=r"Mine.on_eval_start: is async"):
        world(callback_with(on_eval_start=on_eval_start))


# -- scopes ------------------------------------------------------------------------------------


def test_a_scope_that_is_no_generator_would_run_only_before(world: World) -> None:
    with refused("Mine.around_eval: must be a generator with one yield: what is before it runs first, the rest last"):
        world(callback_with(around_eval=lambda self, run: None))


def test_a_misspelt_scope_is_refused_with_the_right_name(world: World) -> None:
    def generator(self: Any, run: Any) -> Iterator[None]:
        yield

    with refused("Mine.around_evaluation: no such scope; did you mean around_eval?"):
        world(callback_with(around_evaluation=generator))
    scopes = ", ".join(scope.hook for scope in SCOPES)
    with refused(f"Mine.around_xyzzy: no such scope; the scopes are {scopes}"):
        world(callback_with(around_xyzzy=generator))


def test_a_scope_that_takes_a_trainer_is_refused(world: World) -> None:
    def around_eval(self: Any, trainer: Any, module: Any) -> Iterator[None]:
        yield

    with pytest.raises(RegistrationError, match=r"takes \(trainer, module\) and is called with \(run\)"):
        world(callback_with(around_eval=around_eval))


# -- what is registered ------------------------------------------------------------------------


class Counter(Callback):
    state = ("count",)

    def __init__(self, what: str = "epochs", **_: object) -> None:
        self.what = what
        self.count = 0


def test_a_class_in_place_of_an_object(world: World) -> None:
    with refused("Counter is a class, not a callback; write Counter(…)"):
        world(Counter)


def show(run: Any) -> None: ...


def test_a_plain_function_does_not_say_when_it_runs(world: World) -> None:
    with refused("show is a function; say when it runs: hl.on('train_step_end')(show)"):
        world(show)


def test_an_object_of_another_kind_is_told_what_to_subclass(world: World) -> None:
    with refused("3 is an int, not a callback; make its class a subclass of hl.Callback"):
        world(3)


def test_one_object_twice_would_run_twice(world: World) -> None:
    counter = Counter(what="steps")
    with refused("Counter(what='steps') is in the list of callbacks twice; the same object can be there once"):
        world(counter, counter)


def test_two_that_a_resume_could_not_tell_apart_are_asked_for_a_name(world: World) -> None:
    with refused(
        "two callbacks are both Counter(what='steps'); give one of them a name, so that a resume can tell them "
        "apart: callback.name = 'second'"
    ):
        world(Counter("steps"), Counter(what="steps"))


def test_the_name_that_was_asked_for_solves_it(world: World) -> None:
    second = Counter("steps")
    second.name = "second"
    made = world(Counter("steps"), second, Counter("epochs"))
    assert [member.key for member in made.line.members] == [
        "Counter(what='steps')",
        "Counter[second]",
        "Counter(what='epochs')",
    ]


@pytest.mark.parametrize("ranks", ["first", 0, [0, 2], {"zero"}, None, ("zero",)])
def test_ranks_that_mean_nothing_would_run_nowhere(world: World, ranks: Any) -> None:
    with refused(f"Mine.ranks = {ranks!r}; use 'all', 'zero', 'local_zero' or a set such as {{0, 2}}"):
        world(callback_with(ranks=ranks))
    with pytest.raises(RegistrationError, match=r"ranks = "):
        world(on("train_start", ranks=ranks)(show))


@pytest.mark.parametrize("field", ["reads", "writes", "state"])
def test_one_text_in_place_of_a_tuple_would_be_read_letter_by_letter(world: World, field: str) -> None:
    with refused(f"Mine.{field} = 'val/loss' is one text; make it a tuple: {field} = ('val/loss',)"):
        world(callback_with(**{field: "val/loss"}))


@pytest.mark.parametrize("optional", ["yes", 1, None])
def test_optional_that_is_no_bool_might_mean_anything(world: World, optional: Any) -> None:
    with refused(f"Mine.optional = {optional!r}; use True or False"):
        world(callback_with(optional=optional))


def test_a_name_that_is_no_text_could_not_be_shown_or_found(world: World) -> None:
    with refused("Mine.name = 3; a name is a text"):
        world(callback_with(name=3))


# -- hl.on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["show", "_show", "on_train_step_end"])
@pytest.mark.parametrize("as_task", [False, True])
def test_hl_on_over_a_method_would_never_be_called_so_it_is_refused(world: World, name: str, as_task: bool) -> None:
    def show(self: Any, run: Any) -> None: ...

    mine = type("Mine", (Hooks if as_task else Callback,), {name: on("train_step_end", every="2st")(show)})()
    with refused(
        f"Mine.{name}: hl.on makes a callback of a function, and nothing would run that of a method; write "
        f"on_train_step_end(self, run) and look at run.clock in it, or put a function outside of the class into the "
        f"list of callbacks"
    ):
        world(task=mine) if as_task else world(mine)


@pytest.mark.parametrize(
    ("event", "stage", "sent"),
    [
        ("train_step_end", "val", "train"),
        ("eval_end", ("train", "predict"), "val or test"),
        ("epoch_end", "val", "train"),
    ],
)
def test_a_stage_in_which_the_event_is_never_sent_is_refused(world: World, event: str, stage: Any, sent: str) -> None:
    def show(run: Any) -> None: ...

    show.__qualname__ = "show"
    wrong = stage if isinstance(stage, str) else stage[0]
    with refused(f"hl.on({event!r}, stage={wrong!r}) on show would never run: {event} is sent in the stage {sent}"):
        world(on(event, stage=stage)(show))


def test_a_stage_of_an_event_of_ones_own_is_not_known_before(world: World) -> None:
    declares = callback_with(events=(Event("verify"),))
    world(
        declares, on("verify", stage="val")(lambda run: None), on("eval_end", stage=("val", "train"))(lambda run: None)
    )


def test_a_misspelt_event_in_on_is_refused_with_the_name_to_write_there(world: World) -> None:
    with refused("hl.on('train_stepend'): no such event; did you mean train_step_end?"):
        world(on("train_stepend")(show))


def test_an_event_in_on_has_no_prefix_and_the_text_says_so(world: World) -> None:
    with refused("hl.on('on_train_step_end'): no such event; did you mean train_step_end?"):
        world(on("on_train_step_end")(show))


def test_a_foreign_event_in_on_gets_our_name_as_it_is_written_there(world: World) -> None:
    with refused("hl.on('epoch_start'): no such event; Composer's epoch_start is train_epoch_start here"):
        world(on("epoch_start")(show))


def test_a_function_for_on_must_take_run(world: World) -> None:
    def two(trainer: Any, module: Any) -> None: ...

    with pytest.raises(
        RegistrationError,
        match=r"^hl.on\(.train_start.\) on .*two takes \(trainer, module\) and is called",
    ):
        world(on("train_start")(two))


def test_on_something_that_cannot_be_called() -> None:
    with refused("hl.on('train_start'): 3 is not callable; decorate a function of one argument, run"):
        on("train_start")(3)  # type: ignore[arg-type]


def test_an_unknown_stage_would_never_fire() -> None:
    with refused("stage='validation': no such stage; use one of train, val, test, predict"):
        on("eval_end", stage="validation")
    with refused("stage='eval': no such stage; use one of train, val, test, predict"):
        on("eval_end", stage=("val", "eval"))


@pytest.mark.parametrize("keyword", ["every", "at"])
def test_an_unknown_unit_lists_the_units(keyword: str) -> None:
    with pytest.raises(DurationError, match="ep"):
        on("train_step_end", **{keyword: "10x"})  # type: ignore[arg-type]


def test_every_and_at_exclude_each_other() -> None:
    with refused("every='2ep' and at='1ep': give one of the two"):
        on("epoch_end", every="2ep", at="1ep")


@pytest.mark.parametrize("function", [print, partial(show), Counter, len])
def test_any_callable_can_be_a_callback(world: World, function: Any) -> None:
    assert len(world(on("train_start")(function)).line.hooks.train_start) == 1


def test_one_function_can_hear_two_events_and_two_lambdas_need_no_names(world: World) -> None:
    made = world(
        on("train_start")(show),
        on("train_end")(show),
        on("epoch_end", every="2ep")(show),
        on("epoch_end", every="3ep")(show),
        on("train_start")(lambda run: None),
        on("train_end")(lambda run: None),
    )
    assert [member.key for member in made.line.members[:3]] == [
        "hl.on('train_start')(show)",
        "hl.on('train_end')(show)",
        "hl.on('epoch_end', every='2ep')(show)",
    ]


def test_one_function_twice_on_one_event_is_refused_only_where_a_resume_must_tell_them_apart(world: World) -> None:
    world(
        on("train_start")(show),
        on("train_start")(show),
        on("eval_end", stage="val")(show),
        on("eval_end", stage="val")(show),
    )
    both = re.escape("two callbacks are both hl.on('train_start', once=True)(show); give")
    with pytest.raises(RegistrationError, match=both):
        world(on("train_start", once=True)(show), on("train_start", once=True)(show))


# -- events of one's own -----------------------------------------------------------------------


def test_a_wrong_declaration_of_an_event_is_refused(world: World) -> None:
    table: list[tuple[Any, str]] = [
        (
            Event("verify"),
            "Mine.events is one Event; make it a tuple: events = (hl.Event('verify'),)",
        ),
        ("verify", "Mine.events is 'verify'; make it a tuple: events = (hl.Event('name'),)"),
        (None, "Mine.events is None; make it a tuple: events = (hl.Event('name'),)"),
        (("verify",), "Mine.events holds 'verify'; use hl.Event('name', gives=(…))"),
        ((Event("my event"),), "Mine: an event cannot be called 'my event'"),
        ((Event("2nd"),), "Mine: an event cannot be called '2nd'"),
        ((Event(""),), "Mine: an event cannot be called ''"),
        ((Event("event"),), "Mine: an event cannot be called 'event'"),
        ((Event("__dict__"),), "Mine: an event cannot be called '__dict__'"),
        ((Event("around_eval"),), "Mine: an event cannot be called 'around_eval'"),
        (
            (Event("verify", gives="xb"),),  # type: ignore[arg-type]
            "Mine: hl.Event('verify', gives='xb'): give a tuple of names for the keywords that follow run",
        ),
        (
            (Event("verify", gives=("run",)),),
            "Mine: hl.Event('verify', gives=('run',)): give a tuple of names for the keywords that follow run",
        ),
        (
            (Event("train_start", gives=("x",)),),
            "Mine.events declares 'train_start', which is an event of every run already",
        ),
        (
            (Event("verify", gives=("x",)), Event("verify", gives=("y",))),
            "Mine.events declares 'verify', which exists already with other keywords",
        ),
    ]
    for events, problem in table:
        with refused(problem):
            world(callback_with(events=events))


def test_an_event_that_another_callback_declares_with_other_keywords_is_refused(world: World) -> None:
    made = world(callback_with("First", events=(Event("verify", gives=("x",)),)))
    with refused("Second.events declares 'verify', which exists already with other keywords"):
        made.line.add([callback_with("Second", events=(Event("verify", gives=("x", "y")),))])


def test_two_may_declare_one_event_alike_and_describe_it_differently(world: World) -> None:
    made = world(
        callback_with("First", events=(Event("verify", "when it is due", gives=("x",)),)),
        callback_with("Second", events=[Event("verify", gives=("x",))]),
    )
    assert made.line.known["verify"].when == "when it is due"


def test_a_hook_for_a_custom_event_must_take_its_payload(world: World) -> None:
    declared = callback_with("Source", events=(Event("verify", gives=("xb", "yb")),))
    with pytest.raises(RegistrationError, match=r"Sink.on_verify takes \(run, x\) and is called with \(run, xb, yb\)"):
        world(declared, callback_with("Sink", on_verify=lambda self, run, x: None))
    with pytest.raises(RegistrationError, match=r"Sink.on_verify takes \(run\)"):
        world(declared, callback_with("Sink", on_verify=lambda self, run: None))


def test_a_misspelt_custom_event_is_suggested_too(world: World) -> None:
    declared = callback_with("Source", events=(Event("verify_train_batch"),))
    with refused("Sink.on_verify_train_batsh: no such event; did you mean on_verify_train_batch?"):
        world(declared, callback_with("Sink", on_verify_train_batsh=lambda self, run: None))


# -- all or none -------------------------------------------------------------------------------


def mistakes() -> dict[str, Callable[[], list[object]]]:
    return {
        "misspelt": lambda: [EpochMonitor()],
        "class": lambda: [Counter],
        "ranks": lambda: [callback_with(ranks="first")],
        "event": lambda: [callback_with(events=(Event("my event"),))],
        "double": lambda: [Counter("new"), Counter("new")],
        "already there": lambda: [Counter("old")],
        "cycle": lambda: [callback_with("A", after=("B",)), callback_with("B", after=("A",))],
        "writers": lambda: [callback_with("A", writes=("x",)), callback_with("B", writes=("x",))],
    }


@pytest.mark.parametrize("mistake", mistakes())
@pytest.mark.parametrize("place", [0, 1])
def test_a_failed_registration_changes_nothing(world: World, hearing: Any, mistake: str, place: int) -> None:
    old = Counter("old")
    first = hearing("train_start", name="first")
    made = world(old, first)
    before = (list(made.line.members), dict(made.line.known), made.line.order, made.line.hooks.train_start)
    new: list[object] = [hearing("train_start", name="good", events=(Event("fresh"),))]
    new[place:place] = mistakes()[mistake]()
    with pytest.raises((RegistrationError, OrderError)):
        made.line.add(new)
    assert (list(made.line.members), dict(made.line.known), made.line.order, made.line.hooks.train_start) == before
    made.emit("train_start")
    assert made.log == [("first", "train_start")]
