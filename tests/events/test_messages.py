"""Messages between callbacks live as long as the sender said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import RegistrationError
from hookline.events import Messages


@pytest.fixture
def messages() -> Messages:
    return Messages()


def test_a_message_for_once_is_read_once(messages: Messages) -> None:
    messages.send("plots", "loss.png", keep="once")
    assert messages.read("plots") == ["loss.png"]
    assert messages.read("plots") == []


def test_a_message_for_once_waits_over_the_end_of_the_epoch_until_it_is_read(messages: Messages) -> None:
    messages.send("plots", "loss.png", keep="once")
    messages.end_epoch()
    assert messages.read("plots") == ["loss.png"]


def test_a_message_lives_until_the_epoch_ends_if_nothing_is_said(messages: Messages) -> None:
    messages.send("plots", 1)
    assert messages.read("plots") == messages.read("plots") == [1]
    messages.end_epoch()
    assert messages.read("plots") == []


def test_a_message_for_ever_outlives_epochs_and_readers(messages: Messages) -> None:
    messages.send("plots", 1, keep="forever")
    messages.end_epoch()
    assert messages.read("plots") == messages.read("plots") == [1]


def test_all_messages_under_a_key_are_read_oldest_first_and_other_keys_are_left_alone(messages: Messages) -> None:
    messages.send("a", 1)
    messages.send("b", 2, keep="once")
    messages.send("a", 3)
    assert messages.read("a") == [1, 3]
    assert messages.read("b") == [2]


def test_replace_drops_the_earlier_ones_under_its_key_whatever_their_lifetime(messages: Messages) -> None:
    messages.send("a", 1, keep="forever")
    messages.send("b", 2)
    messages.send("a", 3, replace=True)
    assert messages.read("a") == [3]
    assert messages.read("b") == [2]


def test_nobody_wrote_is_an_empty_list_and_not_an_error(messages: Messages) -> None:
    assert messages.read("nothing") == []


def test_a_misspelt_lifetime_would_live_for_ever_so_it_is_refused(messages: Messages) -> None:
    with pytest.raises(RegistrationError) as caught:
        messages.send("a", 1, keep="epochs")  # type: ignore[arg-type]
    assert str(caught.value) == "keep='epochs': a message is kept 'once', for the 'epoch', or 'forever'"
    assert messages.read("a") == []


def test_what_is_read_is_the_readers_own_list(messages: Messages) -> None:
    messages.send("a", 1)
    messages.read("a").append(2)
    assert messages.read("a") == [1]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("ab"), st.sampled_from(["once", "epoch", "forever"]), st.booleans()),
        st.tuples(st.just("read"), st.sampled_from("ab")),
        st.tuples(st.just("end")),
    ),
    max_size=30,
)


@given(actions=ACTIONS)
def test_any_sequence_does_what_a_list_of_messages_would_do(actions: list[tuple]) -> None:  # type: ignore[type-arg]
    messages, model = Messages(), []
    for number, (what, *rest) in enumerate(actions):
        if what == "send":
            key, keep, replace = rest
            messages.send(key, number, keep=keep, replace=replace)
            model = [m for m in model if not (replace and m[0] == key)] + [(key, number, keep)]
        elif what == "read":
            assert messages.read(rest[0]) == [number for key, number, _ in model if key == rest[0]]
            model = [m for m in model if m[0] != rest[0] or m[2] != "once"]
        else:
            messages.end_epoch()
            model = [m for m in model if m[2] != "epoch"]
