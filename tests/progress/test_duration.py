"""Durations are read, printed, compared and added as a user means them, and refused with a reason."""

from __future__ import annotations

import copy
import decimal
import doctest
import math
import operator
import pickle
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline.errors import DurationError
from hookline.progress import Duration, duration
from hookline.progress.duration import PASSES

LARGEST = 2**63 - 1
counts = st.builds(Duration, st.integers(1, LARGEST), st.sampled_from(["ep", "st", "sp", "tok"]))
seconds = st.builds(Duration, st.integers(1, LARGEST) | st.floats(1e-9, 9e18), st.just("s"))
shares = st.builds(Duration, st.floats(0, 1, exclude_min=True), st.just("dur"))
durations = counts | seconds | shares


def error(text: object) -> str:
    with pytest.raises(DurationError) as caught:
        Duration.parse(text)  # type: ignore[arg-type]
    return str(caught.value)


def test_an_error_begins_with_the_argument_that_was_given() -> None:
    with pytest.raises(DurationError, match=r"^Checkpointer\(every=…\): 100 has no unit"):
        Duration.parse(100, "Checkpointer(every=…)")  # type: ignore[arg-type]
    assert Duration.parse("3ep", "Checkpointer(every=…)") == Duration(3, "ep")


def test_every_documented_spelling_is_read() -> None:
    table: list[tuple[str, float, str]] = [
        ("10ep", 10, "ep"),
        ("500st", 500, "st"),
        ("1000sp", 1000, "sp"),
        ("1_000sp", 1000, "sp"),
        ("1e6tok", 1_000_000, "tok"),
        ("1.5e3tok", 1500, "tok"),
        ("1e+3st", 1000, "st"),
        ("5.0ep", 5, "ep"),
        ("90s", 90, "s"),
        ("0.5s", 0.5, "s"),
        (".5s", 0.5, "s"),
        ("30m", 1800, "s"),
        ("1.5h", 5400, "s"),
        ("1h30m", 5400, "s"),
        ("1h 30m", 5400, "s"),
        ("1h0m", 3600, "s"),
        ("90m30s", 5430, "s"),
        ("2d", 172_800, "s"),
        ("1d12h", 129_600, "s"),
        ("1h0.1s", 3600.1, "s"),
        ("0.5dur", 0.5, "dur"),
        ("1dur", 1.0, "dur"),
        ("  10 ep\n", 10, "ep"),
    ]
    parsed = [Duration.parse(text) for text, _, _ in table]
    assert [(found.value, found.unit) for found in parsed] == [(value, unit) for _, value, unit in table]
    # Whole values are integers, so that they print without a point.
    assert [type(found.value) for found in parsed] == [type(value) for _, value, _ in table]


def test_a_duration_prints_as_a_person_would_write_it() -> None:
    table = [
        ("1e6tok", "1000000tok"),
        ("90s", "1m30s"),
        ("5400s", "1h30m"),
        ("60s", "1m"),
        ("36h", "1d12h"),
        ("86405s", "1d5s"),
        ("0.5s", "0.5s"),
        ("3600.25s", "1h0.25s"),
        ("5400.1s", "1h30m0.1s"),
        ("59.9s", "59.9s"),
        ("0.5dur", "0.5dur"),
        ("1.0dur", "1dur"),
    ]
    assert [str(Duration.parse(text)) for text, _ in table] == [printed for _, printed in table]
    assert [repr(Duration.parse(text)) for text, _ in table] == [f"Duration.parse('{printed}')" for _, printed in table]


@given(durations)
@example(Duration(5400.1, "s"))
@example(Duration(1e-9, "s"))
@example(Duration(5e-324, "dur"))
def test_what_is_printed_is_read_back_as_the_same_duration(d: Duration) -> None:
    assert Duration.parse(str(d)) == d
    assert hash(Duration.parse(str(d))) == hash(d)
    assert eval(repr(d)) == d


@given(durations)
def test_whitespace_around_and_before_the_unit_changes_nothing(d: Duration) -> None:
    spaced = re.sub(r"(?<=\d)(?=[a-df-z]|ep)", " ", str(d))
    assert Duration.parse(f"\t{spaced} \n") == d


@given(durations)
def test_a_duration_survives_pickling_and_copying(d: Duration) -> None:
    assert pickle.loads(pickle.dumps(d)) == d
    assert copy.deepcopy(d) == d


def test_a_duration_is_passed_through_parse_unchanged() -> None:
    d = Duration(3, "ep")
    assert Duration.parse(d) is d


def test_the_users_decimal_settings_do_not_change_what_is_read() -> None:
    with decimal.localcontext(decimal.Context(prec=1, traps=[decimal.Inexact, decimal.Rounded])):
        assert Duration.parse("1h30m0.25s") == Duration(5400.25, "s")


# --- refused


def check_read_or_refused(text: str) -> None:
    """Any other exception than DurationError breaks the test."""
    try:
        d: Duration | None = Duration.parse(text)
    except DurationError:
        d = None
    if d is None:
        assert "tok (tokens)" in error(text), "the error lists the units"
    else:
        assert d.value > 0
        assert Duration.parse(str(d)) == d


@given(st.text())
@example("")
@example("1e999999999999999999999st")
@example("1e-999999999999999999999s")
@example("9" * 5000 + "tok")
@example("٣ep")
@example("1h-30m")
@example("-1h30m")
@example("5ep\x00")
def test_any_text_is_a_duration_or_a_duration_error(text: str) -> None:
    check_read_or_refused(text)


numbers = st.sampled_from(
    ["0", "1", "10", "-1", "1.5", "1e6", "1e400", "1e-400", "nan", "inf", "-inf", "1_0", ".5", ""]
)
words = st.sampled_from(["ep", "st", "sp", "tok", "s", "m", "h", "d", "dur", "ba", "ms", "%", "e", "EP", "_", ".", ""])
nearly = st.lists(st.tuples(numbers, st.sampled_from(["", " "]), words), max_size=4)


@given(nearly)
def test_text_that_is_nearly_a_duration_is_one_or_a_duration_error(parts: list[tuple[str, str, str]]) -> None:
    check_read_or_refused("".join(map("".join, parts)))


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.lists(st.integers()))
def test_anything_but_text_is_a_duration_error(given: object) -> None:
    assert "tok (tokens)" in error(given)


def test_text_that_is_not_a_number_and_a_unit_is_refused() -> None:
    texts = ["", " ", "ep", "ten ep", "5", "+5ep", "5.ep", "1__0st", "_1st", "1_st"]
    texts += ["5ep!", "1:30:00", "5ep 3", "0x10st", "1e6.5tok"]
    assert [text for text in texts if "The units: ep (epochs), st (steps" not in error(text)] == []


@pytest.mark.parametrize("text", ["0ep", "0st", "0s", "0.0dur", "0h0m", "-5ep", "-0.5dur", "-1h30m", "1e-400s"])
def test_zero_and_less_are_refused(text: str) -> None:
    assert f"'{text}' is not a duration: a duration must be more than zero" in error(text)


@pytest.mark.parametrize("text", ["nanep", "infs", "-infst", "nandur", "inf s", "1e400dur"])
def test_what_is_not_a_finite_number_is_refused(text: str) -> None:
    assert "finite" in error(text)


@pytest.mark.parametrize("unit", ["ep", "st", "sp", "tok"])
def test_counts_must_be_whole(unit: str) -> None:
    message = error(f"1.5{unit}")
    assert "are integers" in message
    assert f"'2{unit}'" in message


def test_a_share_above_the_whole_is_refused() -> None:
    assert "at most 1" in error("1.5dur")


def test_numbers_that_no_checkpoint_could_hold_or_clock_measure_are_refused() -> None:
    assert Duration.parse(f"{LARGEST}tok").value == LARGEST
    assert "too large" in error(f"{LARGEST + 1}tok")
    assert "too large" in error("1e300d")
    assert "nanosecond" in error("1e-10s")


@pytest.mark.parametrize("text", ["1h2h", "30m1h", "1s1s", "5ep3st", "1h5st", "5st1h", "0.5dur1h"])
def test_only_times_can_be_joined_and_only_from_days_to_seconds(text: str) -> None:
    assert "only d, h, m and s can be joined, in this order" in error(text)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (5, "5 has no unit: write '5ep' (epochs) or '5st' (steps)"),
        ("5", "5 has no unit: write '5ep' (epochs) or '5st' (steps)"),
        ("1e6", "1e6 has no unit: write '1e6ep' (epochs) or '1e6st' (steps)"),
        (0.5, "0.5 has no unit: write '0.5dur' (a fraction of max_duration) or '0.5s' (seconds)"),
        (2.5, "2.5 has no unit: write '2.5h' (hours) or '2.5s' (seconds)"),
        (-5, "-5 has no unit: write a positive number and a unit, such as '5ep'"),
        (math.nan, "nan has no unit: write a positive number and a unit"),
        ("1h 30", "30 has no unit"),
        (True, "True (bool) is not a duration"),
        (None, "None (NoneType) is not a duration: write a text such as '10ep'"),
    ],
)
def test_a_number_without_a_unit_is_told_how_to_get_one(given: object, advice: str) -> None:
    assert advice in error(given)


def test_a_common_word_gets_the_right_unit_as_a_hint_that_works() -> None:
    table = [
        ("ba", "st"),
        ("e", "ep"),
        ("epoch", "ep"),
        ("epochs", "ep"),
        ("EP", "ep"),
        ("steps", "st"),
        ("it", "st"),
        ("iter", "st"),
        ("batches", "st"),
        ("samples", "sp"),
        ("tokens", "tok"),
        ("sec", "s"),
        ("min", "m"),
        ("hours", "h"),
        ("Days", "d"),
    ]
    said = {row: error(f"7{row[0]}") for row in table}
    assert [row for row in table if f"'{row[0]}' is not a unit: write '7{row[1]}' (" not in said[row]] == [], said
    for _, meant in table:
        Duration.parse(f"7{meant}")


def test_milliseconds_and_percent_get_advice_and_other_words_none() -> None:
    assert "'0.25s'" in error("250ms")
    assert "'0.5dur'" in error("50%")
    assert "'parsec' is not a unit. The units:" in error("12parsec")


@pytest.mark.parametrize(
    ("value", "unit", "reason"),
    [
        (30, "m", "the unit must be one of ep, st, sp, tok, s, dur; Duration.parse('30m')"),
        ("5", "ep", "must be an int or a float, not str"),
        (True, "ep", "must be an int or a float, not bool"),
        (0, "st", "more than zero"),
        (1.5, "st", "integers"),
        (math.inf, "s", "finite"),
        (10**400, "s", "too large"),
        (2, "dur", "at most 1"),
    ],
)
def test_the_constructor_refuses_what_parse_refuses(value: float, unit: str, reason: str) -> None:
    with pytest.raises(DurationError) as caught:
        Duration(value, unit)
    assert reason in str(caught.value)


def test_a_long_text_does_not_fill_the_screen() -> None:
    assert len(error("x" * 100_000)) < 500
    assert len(error("5" + "x" * 100_000)) < 500


# --- comparing and adding


@given(durations, durations)
def test_order_within_a_unit_is_that_of_the_values_and_between_units_an_error_that_names_both(
    a: Duration, b: Duration
) -> None:
    if a.unit == b.unit:
        assert (a < b, a <= b, a > b, a >= b) == (
            a.value < b.value,
            a.value <= b.value,
            a.value > b.value,
            a.value >= b.value,
        )
        return
    assert a != b
    for compare in (a.__lt__, a.__le__, a.__gt__, a.__ge__, a.__add__):
        with pytest.raises(DurationError) as caught:
            compare(b)
        assert f"'{a}'" in str(caught.value)
        assert f"'{b}'" in str(caught.value)


small = st.integers(1, 10**6)


@given(small, small, small, st.sampled_from(["ep", "st", "sp", "tok", "s"]))
def test_adding_is_commutative_associative_and_makes_longer(x: int, y: int, z: int, unit: str) -> None:
    a, b, c = (Duration(value, unit) for value in (x, y, z))
    assert a + b == b + a == Duration(x + y, unit)
    assert (a + b) + c == a + (b + c)
    assert a + b > a
    assert a + b > b


def test_shares_add_up_to_the_whole_and_no_further() -> None:
    half = Duration.parse("0.5dur")
    assert half + half == Duration(1, "dur")
    with pytest.raises(DurationError, match="at most 1"):
        half + half + half


def test_comparing_a_share_with_a_count_says_how_to_resolve_it() -> None:
    with pytest.raises(DurationError, match=r"'0.5dur' \(fraction\) and '5ep' \(epochs\).*\.of\(max_duration\)"):
        _ = Duration.parse("0.5dur") < Duration.parse("5ep")


def test_comparing_with_or_adding_something_else_is_a_type_error() -> None:
    d: Any = Duration.parse("5ep")
    for use in (operator.lt, operator.le, operator.gt, operator.ge, operator.add):
        with pytest.raises(TypeError):
            use(d, 5)
    assert d != 5
    assert d != "5ep"


def test_equal_durations_are_one_key_of_a_dict() -> None:
    assert {Duration.parse("1h30m"): "a", Duration.parse("90m"): "b"} == {Duration(5400, "s"): "b"}
    assert Duration.parse("60s") != Duration.parse("60st")


def test_a_duration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Duration(1, "ep").value = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1ep", True), ("1st", True), ("1sp", True), ("1tok", True), ("1s", False), ("1dur", False)],
)
def test_epochs_steps_samples_and_tokens_are_counts(text: str, counts: bool) -> None:
    assert Duration.parse(text).counts is counts


# --- shares


@pytest.mark.parametrize(
    ("share", "whole", "part"),
    [
        ("0.5dur", "10ep", "5ep"),
        ("0.07dur", "100st", "7st"),
        ("1dur", "7st", "7st"),
        ("0.001dur", "10st", "1st"),
        ("0.5dur", "1h", "30m"),
        ("0.1dur", "3s", "0.3s"),
        ("5ep", "100st", "5ep"),
    ],
)
def test_a_share_is_that_part_of_the_run(share: str, whole: str, part: str) -> None:
    assert Duration.parse(share).of(Duration.parse(whole)) == Duration.parse(part)


@given(shares, counts)
def test_a_share_of_a_count_is_rounded_up_and_stays_within_the_whole(share: Duration, whole: Duration) -> None:
    part = share.of(whole)
    exact = Fraction(repr(share.value)) * whole.value
    if part.unit == PASSES:
        assert whole.unit == "ep"
        assert part.value == float(exact)
        assert Duration.from_state(str(part)) == part
        return
    assert part.unit == whole.unit
    assert 1 <= part.value <= whole.value
    assert 0 <= part.value - exact < 1


def test_a_share_without_a_whole_is_an_error_that_asks_for_max_duration() -> None:
    with pytest.raises(DurationError, match=r"'0.5dur' is a fraction of max_duration, and the run has none"):
        Duration.parse("0.5dur").of(None)
    with pytest.raises(DurationError, match=r"itself a fraction \('1dur'\)"):
        Duration.parse("0.5dur").of(Duration.parse("1dur"))
    assert Duration.parse("5ep").of(None) == Duration.parse("5ep")


def test_the_examples_in_the_documentation_work() -> None:
    assert doctest.testmod(duration).failed == 0


def test_nobody_writes_the_unit_of_parts_of_epochs() -> None:
    with pytest.raises(DurationError, match="'pass' is not a unit"):
        Duration.parse("0.5pass")
