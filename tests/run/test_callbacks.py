"""``run.callbacks``: to look at, to find, to add to and to remove from, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import RegistrationError
from hookline.run import Callbacks
from hookline.testing import tiny_data
from tests.support import fit

evaluated_fit = partial(fit, val=tiny_data(batches=2))


class Counter(hl.Callback):
    def __init__(self, what: str = "steps") -> None:
        self.what = what
        self.seen: list[str] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        self.seen.append(event)


class Reader(hl.Callback):
    reads = ("*",)


class Doing(hl.Callback):
    """Does something with ``run.callbacks`` once, at one event."""

    def __init__(self, event: str, act: Callable[[Callbacks], object]) -> None:
        self.act = act
        setattr(self, f"on_{event}", self.do)

    def do(self, run: hl.Run) -> None:
        act, self.act = self.act, lambda callbacks: None
        act(run.callbacks)


def looking(look: Callable[[Callbacks], Any], *callbacks: hl.Callback) -> Any:
    found: list[Any] = []
    evaluated_fit(*callbacks, Doing("train_start", lambda these: found.append(look(these))))
    return found[0]


def test_they_are_iterated_in_the_order_in_which_they_run() -> None:
    reader, counter = Reader(), Counter()
    kinds = looking(lambda these: [type(callback).__name__ for callback in these], reader, counter)
    assert kinds == ["Counter", "Doing", "Reader"]
    assert looking(len, Reader(), Counter()) == 3


def test_one_is_found_by_itself_its_class_its_class_name_or_its_name() -> None:
    counter = Counter()
    counter.name = "mine"
    other = Counter("others")
    assert looking(
        lambda these: [what in these for what in (counter, other, Counter, Reader, "Counter", "mine", "", "Count")],
        counter,
    ) == [True, False, True, False, True, True, False, False]
    assert looking(lambda these: [these["mine"], these["Counter"]], counter) == [counter, counter]


def test_a_class_that_a_function_defines_is_found_by_its_plain_name() -> None:
    class Local(hl.Callback):
        pass

    local = Local()
    assert looking(lambda these: ("Local" in these, these["Local"]), local) == (True, local)


def error_of(act: Callable[[Callbacks], object], *callbacks: hl.Callback) -> str:
    with pytest.raises(RegistrationError) as caught:
        evaluated_fit(*callbacks, Doing("train_start", act))
    return str(caught.value)


def test_a_misspelt_name_is_refused_with_the_right_one_or_with_all() -> None:
    assert error_of(lambda these: these["Countr"], Counter()) == (
        "no callback 'Countr' in this run; did you mean 'Counter'?"
    )
    assert error_of(lambda these: these.remove("xyzzy"), Counter()) == (
        "no callback 'xyzzy' in this run; there is Counter, Doing"
    )


def test_a_name_that_means_two_is_refused() -> None:
    assert error_of(lambda these: these["Counter"], Counter("a"), Counter("b")) == (
        "2 callbacks are called 'Counter'; give each a name, or pass the object itself"
    )


def test_one_that_is_added_is_set_up_at_once_and_hears_the_next_event() -> None:
    added = Counter()
    evaluated_fit(Doing("train_start", lambda these: these.add(added)), max_duration="1st")
    assert added.seen[:3] == ["setup", "train_epoch_start", "batch_fetch_start"]
    assert added.seen[-1] == "teardown"


def test_a_module_that_an_added_callback_holds_goes_where_the_model_is() -> None:
    class Holding(hl.Callback):
        def __init__(self) -> None:
            self.metric = nn.Linear(1, 1).to(torch.float32)

        def on_setup(self, run: hl.Run) -> None:
            assert self.metric.weight.device == run.device

    evaluated_fit(Doing("train_start", lambda these: these.add(Holding())))


def test_one_that_is_removed_undoes_what_it_did_and_hears_nothing_more() -> None:
    """Its hooks on the model would stay there for ever."""
    counter = Counter()
    evaluated_fit(counter, Doing("train_epoch_start", lambda these: these.remove(counter)))
    assert counter.seen[-2:] == ["train_epoch_start", "teardown"]
    counter = Counter()
    evaluated_fit(counter, Doing("train_epoch_start", lambda these: these.remove("Counter")))
    assert counter.seen[-2:] == ["train_epoch_start", "teardown"]
    assert counter.seen.count("teardown") == 1


def test_a_wrong_callback_is_refused_and_the_list_stays_as_it_was() -> None:
    counter, lengths = Counter(), []

    def add_twice(these: Callbacks) -> None:
        with pytest.raises(RegistrationError, match="twice"):
            these.add(counter)
        lengths.append(len(these))

    evaluated_fit(counter, Doing("train_start", add_twice))
    assert lengths == [2]


class Broken(hl.Callback):
    def __init__(self, *, optional: bool) -> None:
        self.optional = optional

    def on_setup(self, run: hl.Run) -> None:
        raise ValueError("no")


def test_an_optional_one_that_fails_when_it_is_added_is_switched_off_and_the_run_goes_on() -> None:
    result = evaluated_fit(Doing("train_start", lambda these: these.add(Broken(optional=True))))
    assert [(failure.callback, failure.hook) for failure in result.failures] == [("Broken", "on_setup")]
    assert result.clock.epoch == 2


def test_a_required_one_that_fails_when_it_is_added_is_named_also_if_an_optional_one_added_it() -> None:
    adding = Doing("train_start", lambda these: these.add(Broken(optional=False)))
    adding.optional = True
    with pytest.raises(ValueError, match="no") as caught:
        evaluated_fit(adding)
    assert caught.value.__notes__ == [
        "in Broken.on_setup at step 0, epoch 0 (train)",
        "in Doing.on_train_start at step 0, epoch 0 (train)",
    ]


def test_those_that_were_switched_off_are_listed_and_no_longer_run() -> None:
    seen: list[Any] = []

    class Failing(hl.Callback):
        optional = True

        def on_train_start(self, run: hl.Run) -> None:
            raise ValueError("no")

    class Listener(hl.Callback):
        def on_callback_disabled(self, run: hl.Run) -> None:
            failure = run.callbacks.disabled[-1]
            seen.append((failure.hook, str(failure.error), "Failing" in run.callbacks))

    evaluated_fit(Failing(), Listener())
    assert seen == [("on_train_start", "no", False)]


def test_a_metric_that_nobody_feeds_any_more_is_known_as_lost() -> None:
    seen: list[bool] = []

    class Scoring(hl.Callback):
        optional = True
        writes = ("val/score_*",)

        def on_eval_end(self, run: hl.Run) -> None:
            seen.append(run.callbacks.lost("val/score_a"))
            raise ValueError("no")

    class Listener(hl.Callback):
        def on_callback_disabled(self, run: hl.Run) -> None:
            seen.extend([run.callbacks.lost("val/score_a"), run.callbacks.lost("val/loss")])

    evaluated_fit(Scoring(), Listener())
    assert seen == [False, True, False]
