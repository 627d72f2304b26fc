"""Seeds, and functions that run with separate random states."""

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
    """Return a seed of 64 bits from several numbers. Similar numbers give unrelated seeds.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0), 0 <= mix(-1) < 2**64
    (True, False, True)
    """
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def seed_process(seed: int) -> None:
    """Seed Python, NumPy if it is loaded, and torch on the CPU.

    It takes 10 µs; ``torch.manual_seed`` takes 200 µs.

    >>> seed_process(mix(1, 2))
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        _seed_numpy(numpy, seed)


class Apart:
    """Run functions with separate random states of torch, Python and, if it is loaded, NumPy.

    The states of the program do not change, with one exception: ``numpy.random`` draws two normal numbers at once and
    keeps the second, which is dropped. To keep it would take 100 µs in each call.

    Args:
        generators: Other generators, which are seeded and restored like the global ones.
        goes_on: True if a call continues with the states at the end of the last call. False if each call starts from
            the seed of ``at``.

    Example:
        >>> apart, before = Apart(), torch.get_rng_state()
        >>> torch.equal(apart.at(5).run(torch.rand, 3), apart.at(5).run(torch.rand, 3))
        True
        >>> torch.equal(before, torch.get_rng_state())
        True
    """

    __slots__ = ("_bits", "_goes_on", "_kept", "_own", "_python", "_seed", "_their_bits", "_theirs")

    def __init__(self, generators: Iterable[torch.Generator] = (), *, goes_on: bool = False) -> None:
        # Read the initial seeds now, because a call changes them until it ends.
        self._own = [(each, each.initial_seed()) for each in generators if each is not torch.default_generator]
        self._goes_on = goes_on
        self._python = PythonRandom()
        self._seed = 0
        self._kept: Kept | None = None
        self._theirs: Kept | None = None
        self._bits: Any = None
        self._their_bits: Any = None

    def at(self, seed: int) -> Self:
        """Start the next call from this seed."""
        self._seed, self._kept = seed, None
        return self

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function. The states are restored also if a signal handler raises at any line."""
        try:
            self._enter()
            result = function(*args)
            if self._goes_on:
                self._kept = self._states()
            self._restore()
        except BaseException:
            self._restore()
            raise
        return result

    def _enter(self) -> None:
        numpy: Any = sys.modules.get("numpy")
        self._theirs = theirs = self._states()
        if numpy:
            if self._bits is None:
                self._bits = numpy.random.MT19937(0)
            # To get and set the state takes 100 µs. To replace the bit generator takes 1 µs.
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

    def _restore(self) -> None:
        """Restore the states of the program. An interrupted call can be repeated."""
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
    """Copy the state of the module ``random`` as bytes, in 1 µs.

    ``getstate`` takes 12 µs and ``setstate`` 4 µs, because they convert 625 numbers of C to objects. They are used if
    the memory layout is not that of CPython.

    >>> python = PythonRandom()
    >>> before, first = python.get(), random.random()
    >>> python.set(before)
    >>> random.random() == first
    True
    """

    __slots__ = ("_instance", "_memory")

    def __init__(self) -> None:
        self._instance: Any = random.random.__self__  # type: ignore[attr-defined]  # the module's generator
        self._memory = _state_of(self._instance) if _can_be_copied() else None

    def get(self) -> Any:
        """Return the state."""
        if self._memory is None:
            return random.getstate()
        return bytes(self._memory), self._instance.gauss_next

    def set(self, state: Any) -> None:
        """Set the state."""
        if self._memory is None:
            random.setstate(state)
        else:
            self._memory[:], self._instance.gauss_next = state

    def __reduce__(self) -> tuple[type[PythonRandom], tuple[()]]:
        """Create a new object in a worker process, which has another generator."""
        return PythonRandom, ()


def _state_of(generator: Any) -> memoryview:
    """Return the bytes of the C struct after the object header. The generator must stay alive."""
    first, size = object.__basicsize__, _random.Random.__basicsize__
    return memoryview((ctypes.c_ubyte * (size - first)).from_address(id(generator) + first)).cast("B")


@cache
def _can_be_copied() -> bool:
    """True if these bytes are the complete state, tested with two new generators."""
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
    # Torch uses the lower 32 bits, from which NumPy would draw the same numbers. So NumPy gets the upper ones.
    numpy.random.seed(seed >> 32 & 0xFFFFFFFF)
