"""Requests are votes: the first reason counts, nothing is left over for the next run."""

from __future__ import annotations

import pytest

from hookline.errors import ScopeError, SetupError
from hookline.run import Requests, StopRequest


def test_the_first_stop_wins_and_calls_for_attention() -> None:
    requests = Requests()
    assert not requests.attention
    first = StopRequest("first", "a", 3)
    requests.ask_stop(first)
    requests.ask_stop(StopRequest("second", "b", 4))
    assert requests.agreed.stop is first
    assert requests.attention


def test_an_evaluation_can_be_asked_for_where_there_is_one() -> None:
    requests = Requests()
    requests.ask_eval()
    assert requests.agreed.evaluate
    assert requests.attention
    requests.can_evaluate = False
    with pytest.raises(SetupError, match="nothing to evaluate on"):
        requests.ask_eval()


def test_a_save_can_be_asked_for_where_something_saves() -> None:
    requests = Requests()
    with pytest.raises(SetupError, match="no folder to save in"):
        requests.ask_save()
    assert not requests.attention
    requests.can_save = True
    requests.ask_save()
    assert requests.agreed.save
    assert requests.attention


def test_a_step_allow_skip_only_while_it_is_prepared() -> None:
    requests = Requests()
    with pytest.raises(ScopeError, match="no update is being prepared"):
        requests.ask_skip("a")
    requests.can_skip = True
    requests.ask_skip("a")
    assert requests.agreed.skip == "a"


def test_a_new_run_begins_without_the_requests_of_the_last_and_with_what_it_can_do() -> None:
    requests = Requests()
    requests.can_save = requests.can_skip = True
    requests.ask_stop(StopRequest("first", "a", 3))
    requests.ask_eval()
    requests.ask_save()
    requests.ask_skip("a")
    requests.leave_evaluation = True
    requests.clear()
    assert (requests.agreed.stop, requests.agreed.skip) == (None, None)
    asked = (
        requests.agreed.evaluate,
        requests.agreed.save,
        requests.attention,
        requests.leave_evaluation,
        requests.can_skip,
    )
    assert not any(asked)
    assert requests.can_save
    assert requests.can_evaluate


def test_a_stop_request_is_a_plain_value() -> None:
    assert StopRequest("why", "who", 3) == StopRequest("why", "who", 3)
    assert not StopRequest("why", "who", 3).interrupt
