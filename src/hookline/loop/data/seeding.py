"""Random states apart from the program's own: where they begin is a seed, and nothing is left changed behind them."""

from __future__ import annotations

import _random
import ctypes
import random
import sys
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from typing import Any, Self, TypeVar

import torch

T = TypeVar("T")
Kept = tuple[list[tuple[torch.Generator, torch.Tensor]], Any]


def mix(*numbers: int) -> int:
    """One seed of 64 bits out of several numbers; near numbers give seeds that have nothing in common.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0), 0 <= mix(-1) < 2**64
    (True, False, True)
    """
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def seed_process(seed: int) -> None:
    """Seed Python, NumPy if it is loaded, and torch on the CPU: 10 µs, where ``torch.manual_seed`` takes 200.

    >>> seed_process(mix(1, 2))
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        _seed_numpy(numpy, seed)


class Apart:
    """Runs functions on random states of their own: torch's, Python's and NumPy's, if it is loaded.

    They begin at the seed that ``at`` was given. With ``goes_on`` a later run goes on where the last one ended;
    else each begins anew. The ``generators`` are seeded and put back like the global ones.

    What the program drew itself is not disturbed, but for one thing: the second of two normal numbers that
    ``numpy.random`` makes at once and keeps is dropped. To keep it would cost 100 µs each time.

    >>> apart, before = Apart(), torch.get_rng_state()
    >>> torch.equal(apart.at(5).run(torch.rand, 3), apart.at(5).run(torch.rand, 3))
    True
    >>> torch.equal(before, torch.get_rng_state())
    True
    """

    __slots__ = ("_bits", "_goes_on", "_kept", "_own", "_python", "_seed", "_their_bits", "_theirs")

    def __init__(self, generators: Iterable[torch.Generator] = (), *, goes_on: bool = False) -> None:
        # The seed that the user gave is read now: seeding changes it for as long as a run lasts.
        self._own = [(each, each.initial_seed()) for each in generators if each is not torch.default_generator]
        self._goes_on = goes_on
        self._python = PythonRandom()
        self._seed = 0
        self._kept: Kept | None = None
        self._theirs: Kept | None = None
        self._bits: Any = None
        self._their_bits: Any = None

    def at(self, seed: int) -> Self:
        """Begin at this seed the next time."""
        self._seed, self._kept = seed, None
        return self

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function. A signal whose handler raises may come at any line: all is put back then, too."""
        try:
            self._enter()
            result = function(*args)
            if self._goes_on:
                self._kept = self._states()
            self._put_back()
        except BaseException:
            self._put_back()
            raise
        return result

    def _enter(self) -> None:
        numpy: Any = sys.modules.get("numpy")
        self._theirs = theirs = self._states()
        if numpy:
            if self._bits is None:
                self._bits = numpy.random.MT19937(0)
            # To read and set its state takes 100 µs; to exchange what it draws from takes one.
            self._their_bits = numpy.random.get_bit_generator()
            numpy.random.set_bit_generator(self._bits)
        if self._kept is not None:
            self._put(self._kept)
            return
        seed = self._seed
        for generator, _ in theirs[0]:
            generator.manual_seed(seed)
        for generator, initial in self._own:
            generator.manual_seed(mix(seed, initial))
        random.seed(seed)
        if numpy:
            _seed_numpy(numpy, seed)

    def _put_back(self) -> None:
        """What is put back is forgotten last, so that an interrupted call can be made again."""
        if self._their_bits is not None:
            sys.modules["numpy"].random.set_bit_generator(self._their_bits)
            self._their_bits = None
        if self._theirs is not None:
            self._put(self._theirs)
            self._theirs = None

    def _states(self) -> Kept:
        generators = (*_global_generators(), *(generator for generator, _ in self._own))
        return [(generator, generator.get_state()) for generator in generators], self._python.get()

    def _put(self, kept: Kept) -> None:
        generators, python = kept
        for generator, state in generators:
            generator.set_state(state)
        self._python.set(python)


class PythonRandom:
    """The state of the module ``random``, copied as bytes: 1 µs, where ``getstate`` takes 12 and ``setstate`` 4.

    Its generator holds 625 numbers in C. ``getstate`` makes an object of each, at every batch of a loader. Where the
    memory is laid out in another way than in CPython, the two functions are used.

    >>> python = PythonRandom()
    >>> before, first = python.get(), random.random()
    >>> python.set(before)
    >>> random.random() == first
    True
    """

    __slots__ = ("_instance", "_memory")

    def __init__(self) -> None:
        self._instance: Any = random.random.__self__  # type: ignore[attr-defined]  # that the module draws from
        self._memory = _state_of(self._instance) if _can_be_copied() else None

    def get(self) -> Any:
        if self._memory is None:
            return random.getstate()
        return bytes(self._memory), self._instance.gauss_next

    def set(self, state: Any) -> None:
        if self._memory is None:
            random.setstate(state)
        else:
            self._memory[:], self._instance.gauss_next = state

    def __reduce__(self) -> tuple[type[PythonRandom], tuple[()]]:
        """A worker process has another generator."""
        return PythonRandom, ()


def _state_of(generator: Any) -> memoryview:
    """The bytes between the head of the object and the end of what C knows of it; the generator must stay alive."""
    first, size = object.__basicsize__, _random.Random.__basicsize__
    return memoryview((ctypes.c_ubyte * (size - first)).from_address(id(generator) + first)).cast("B")


@cache
def _can_be_copied() -> bool:
    """Whether these bytes are the whole state: tried with two generators that are nobody's."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] > (3, 14):
        return False
    one, other = random.Random(1), random.Random(2)
    one.random()
    _state_of(other)[:] = _state_of(one)
    return one.getstate() == other.getstate() and one.random() == other.random()


def _global_generators() -> tuple[torch.Generator, ...]:
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *cuda)


def _seed_numpy(numpy: Any, seed: int) -> None:
    # Torch uses the lower 32 bits. NumPy would draw the very same numbers from them, so it gets the upper ones.
    numpy.random.seed(seed >> 32 & 0xFFFFFFFF)
