"""Random states apart: seeds that have nothing in common, and nothing left changed, whatever interrupts."""

from __future__ import annotations

import pickle
import random
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookline.loop.data.seeding import Apart, PythonRandom, mix, seed_process


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), np.random.rand()


def states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]


@given(st.lists(st.integers(), min_size=1, max_size=5), st.lists(st.integers(), min_size=1, max_size=5))
def test_different_numbers_give_different_seeds(one: list[int], other: list[int]) -> None:
    assert (mix(*one) == mix(*other)) == (one == other)
    assert 0 <= mix(*one) < 2**64


def test_the_same_seed_draws_the_same_in_a_process_of_its_own_and_apart_from_the_program() -> None:
    apart = Apart().at(123).run(draws)

    def seeded() -> tuple[float, float, float]:
        seed_process(123)
        return draws()

    assert Apart().at(9).run(seeded) == apart


def test_torch_and_numpy_do_not_draw_the_same_bits() -> None:
    def bits() -> tuple[set[int], set[int]]:
        drawn = torch.randint(0, 2**32, (600,)), np.random.randint(0, 2**32, 600, dtype=np.uint32)
        return set(drawn[0].tolist()), set(drawn[1].tolist())

    for seed in range(5):
        ours, theirs = Apart().at(mix(seed)).run(bits)
        assert not ours & theirs
    np.random.seed(7), torch.manual_seed(7)
    ours, theirs = bits()
    assert ours & theirs  # as they would with the same seed, which is what is tested here


def test_it_goes_on_only_where_it_is_to() -> None:
    going, anew = Apart(goes_on=True).at(4), Apart().at(4)
    first = going.run(draws)
    assert anew.run(draws) == anew.run(draws) == first
    second = going.run(draws)
    assert second != first
    assert going.at(4).run(lambda: (draws(), draws())) == (first, second)


def test_a_generator_that_was_given_is_seeded_by_its_own_seed_and_put_back() -> None:
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    before = one.get_state()
    drawn = [Apart([g]).at(0).run(lambda g=g: torch.rand(3, generator=g).tolist()) for g in (one, other)]
    assert drawn[0] != drawn[1]
    assert torch.equal(before, one.get_state())
    assert one.initial_seed() == 1


def test_the_program_may_reseed_inside_and_keeps_its_own_numbers() -> None:
    before = states()

    def reseeding() -> None:
        random.seed(0), torch.manual_seed(0), np.random.seed(0)

    Apart().at(1).run(reseeding)
    assert states() == before


@pytest.mark.skipif(sys.gettrace() is not None, reason="the signal would raise inside coverage, which then hangs")
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_signal_whose_handler_raises_at_any_moment_leaves_the_random_states_as_they_were(goes_on: bool) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    apart, before = Apart(goes_on=goes_on).at(1), states()
    apart.run(draws)  # imports are made once, and take longer than the moments that are tried here
    handler = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for turn in range(1000):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + turn * 1e-7)
                try:
                    while True:
                        apart.run(draws)
                except KeyboardInterrupt:
                    interrupted += 1
                    raise
            assert states() == before, turn
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted > 500  # the others came before the first run


@given(st.integers(0, 2**64), st.integers(0, 700), st.booleans())
def test_the_bytes_of_pythons_state_are_all_of_it(seed: int, drawn: int, gauss: bool) -> None:
    """Also between two numbers of ``gauss``, which makes two at once, and where the 624 numbers are made anew."""
    python, theirs = PythonRandom(), random.getstate()
    try:
        random.seed(seed)
        for _ in range(drawn):
            random.random()
        if gauss:
            random.gauss(0, 1)
        kept, state = python.get(), random.getstate()
        random.seed(seed + 1), random.gauss(0, 1)
        python.set(kept)
        assert random.getstate() == state
        following = random.random(), random.gauss(0, 1), random.getrandbits(70)
        random.setstate(state)
        assert (random.random(), random.gauss(0, 1), random.getrandbits(70)) == following
    finally:
        random.setstate(theirs)


def test_a_copy_in_another_process_is_of_that_process() -> None:
    before = random.getstate()
    copied = pickle.loads(pickle.dumps(PythonRandom()))
    copied.set(copied.get())
    assert random.getstate() == before


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the memory is laid out in another way")
def test_a_run_apart_makes_no_objects_of_pythons_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """That took 32 of the 45 µs that a batch of a loader with an own ``__iter__`` cost."""
    apart, made = Apart(goes_on=True).at(3), []
    apart.run(draws)
    with monkeypatch.context() as patched:  # pytest's own plugins use them between tests
        for name in ("getstate", "setstate"):
            patched.setattr(random, name, made.append)
        first, second = apart.run(draws), apart.run(draws)
    assert made == []
    assert first != second
