"""Who a callback is: its identity, which a resume goes by, its state, and copies of it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import RegistrationError
from hookline.events import Callback, on
from hookline.events.spec import EVENTS, SCOPES


class Plain(Callback):
    pass


class Counter(Callback):
    state = ("count", "seen")

    def __init__(self, what: str = "epochs", *, limit: int | None = None, labels: Any = (), hook: Any = None) -> None:
        self.what = what
        self.limit = limit
        self.labels = labels
        self.hook = hook
        self.count = 0
        self.seen: list[int] = []


class Forwarding(Counter):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Pushes(Callback):
    def __init__(self, token: str = "", pad_token: str = "", to: tuple[str, ...] = ()) -> None: ...


@dataclass
class Data(Callback):
    what: str = "epochs"


# -- identity ----------------------------------------------------------------------------------


def test_identity_is_the_class_and_its_plain_constructor_arguments() -> None:
    table: list[tuple[Callback, str]] = [
        (Plain(), "Plain()"),
        (Counter(), "Counter()"),
        (Counter("steps"), "Counter(what='steps')"),
        (Counter(what="steps"), "Counter(what='steps')"),
        (Counter(limit=3, what="steps"), "Counter(what='steps', limit=3)"),
        (Counter(limit=None), "Counter(limit=None)"),
        (Counter(labels=("a", 1, [True, 2.5])), "Counter(labels=('a', 1, [True, 2.5]))"),
        (Counter(hook=print), "Counter()"),
        (Counter(labels=("a", print)), "Counter()"),
        (Forwarding("steps"), "Forwarding(args=('steps',))"),
        (Forwarding(what="steps", limit=3, hook=print), "Forwarding(what='steps', limit=3)"),
        (Pushes("abc", "<pad>"), "Pushes(token='[redacted]', pad_token='<pad>')"),
        (Pushes(to=("s3://me:pw@a", "b")), "Pushes(to=['s3://[redacted]@a', 'b'])"),
    ]
    assert [callback.state_key for callback, _ in table] == [key for _, key in table]
    assert [repr(callback) for callback, _ in table] == [key for _, key in table]


def test_a_dataclass_can_be_a_callback() -> None:
    assert Data("steps").state_key == "Data(what='steps')"


def test_a_name_takes_the_place_of_the_arguments() -> None:
    callback = Counter("steps")
    callback.name = "mine"
    assert callback.state_key == "Counter[mine]"


def test_an_argument_that_is_changed_later_does_not_change_under_which_name_the_state_is_saved() -> None:
    labels = ["a"]
    callback = Counter(labels=labels)
    labels.append("b")
    assert callback.labels == ["a", "b"]
    assert callback.state_key == "Counter(labels=['a'])"


def test_wrong_arguments_fail_with_pythons_own_message() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'which'"):
        Counter(which="steps")  # type: ignore[call-arg]


@given(
    what=st.text(),
    limit=st.none() | st.integers() | st.floats(),
    labels=st.lists(st.booleans() | st.text(), max_size=3),
)
def test_the_same_arguments_give_the_same_identity_in_the_next_process(
    what: str, limit: Any, labels: list[Any]
) -> None:
    one, two = (Counter(what, limit=limit, labels=list(labels)) for _ in range(2))
    assert one.state_key == two.state_key
    assert one.state_key != Counter(what + "x", limit=limit, labels=labels).state_key


# -- state -------------------------------------------------------------------------------------


def test_the_state_is_the_attributes_that_are_named() -> None:
    one, two = Counter(), Counter()
    one.count, one.seen = 3, [1, 2]
    assert one.state_dict() == {"count": 3, "seen": [1, 2]}
    two.load_state_dict(one.state_dict())
    assert (two.count, two.seen) == (3, [1, 2])


def test_a_saved_state_that_lacks_something_says_what_it_lacks_and_has_and_changes_nothing() -> None:
    callback = Counter("steps")
    with pytest.raises(RegistrationError) as caught:
        callback.load_state_dict({"count": 3})
    assert str(caught.value) == "Counter(what='steps'): the saved state lacks seen; it has count"
    assert callback.count == 0
    with pytest.raises(RegistrationError, match="lacks count, seen; it has nothing"):
        callback.load_state_dict({})


def test_one_without_state_saves_nothing_and_loads_anything() -> None:
    assert Plain().state_dict() == {}
    Plain().load_state_dict({"old": 1})


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_is_the_same_callback_with_its_identity_and_state(duplicate: Any) -> None:
    for callback in (Counter("steps", limit=3), Forwarding(what="steps"), Plain(), Data("x")):
        callback.count = 7  # type: ignore[union-attr]
        copied = duplicate(callback)
        assert type(copied) is type(callback)
        assert copied.state_key == callback.state_key
        assert copied.count == 7


def module_level(run: Any) -> None: ...


def test_a_function_callback_can_be_copied_and_pickled() -> None:
    callback = on("train_step_end", every="10st", ranks={0})(module_level)
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert (copied.state_key, copied.when, copied.function) == (callback.state_key, callback.when, module_level)


# -- the base class ----------------------------------------------------------------------------


def test_every_hook_is_there_to_be_called_with_super_and_does_nothing() -> None:
    hooks = [event.hook for event in EVENTS]
    assert [hook for hook in hooks if getattr(Callback(), hook)(None) is not None] == []
    assert [hook for hook in hooks if not getattr(Callback, hook).__doc__] == []


def test_every_scope_is_there_to_be_called_with_super_and_yields_once() -> None:
    assert [scope.hook for scope in SCOPES if list(getattr(Callback(), scope.hook)(None)) != [None]] == []


def test_a_users_callback_is_required_on_all_ranks_and_declares_nothing_until_it_says_so() -> None:
    callback = Plain()
    assert (callback.optional, callback.ranks, callback.name) == (False, "all", "")
    assert callback.reads == callback.writes == callback.before == callback.after == callback.events == ()
    assert callback.state == ()
    assert callback.per_rank_state is False


def test_a_state_that_the_callback_does_not_have_is_named() -> None:
    class Forgets(Callback):
        state = ("count",)

    with pytest.raises(RegistrationError, match=r"Forgets\(\).state lists 'count'.*set self.count in __init__"):
        Forgets().state_dict()
