"""What a program prints during a run goes above the bars and into the log, and afterwards all is as it was."""

from __future__ import annotations

import builtins
import io
import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from hookline.callbacks.watch.progress.redirect import LONGEST, Lines, above, beneath_tees, has_bars, kept


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 42


class Shown(list[str]):
    """The bars of a terminal, as far as what the program writes is concerned."""

    print_above = list.append

    def hold(self, text: str) -> None:
        self.append(f"{text}…")

    def lift(self) -> None:
        self.append("(lifted)")


@pytest.fixture
def screen() -> Screen:
    return Screen()


@contextmanager
def both_on(screen: Screen | None) -> Iterator[None]:
    """Inside the test itself: between a fixture and its test pytest puts its own standard output back."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = screen  # type: ignore[assignment]
    try:
        yield
        assert sys.stdout is sys.stderr is screen
    finally:
        sys.stdout, sys.stderr = before


# ------------------------------------------------------------------------------------ lines


def test_of_what_is_written_over_only_the_last_is_left() -> None:
    lines = Lines()
    for text in ("epoch 1", "\r", "epoch 2", "\r"):
        assert lines.add(text) == ""
    assert lines.add("\nnext\r\n") == "epoch 2\nnext\n"


def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    lines = Lines()
    shown = "".join(lines.add("." * 100) for _ in range(1000))
    assert shown.count(".") + len(lines.rest()) == 100_000
    assert max(map(len, shown.splitlines())) <= LONGEST + 100


def test_the_lines_of_two_threads_do_not_mix() -> None:
    lines, halfway, shown = Lines(), threading.Barrier(2), []

    def write(name: str) -> None:
        lines.add(f"{name} begins ")
        halfway.wait(300)
        shown.append(lines.add(f"and {name} ends\n"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shown) == ["a begins and a ends\n", "b begins and b ends\n"]


def test_a_process_that_was_forked_does_not_go_on_with_a_line_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    lines.add("of the parent")
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        assert lines.add("of the worker\n") == "of the worker\n"
    assert lines.rest() == "of the parent"


# ------------------------------------------------------------------------------------ above and kept


def test_bars_see_whole_lines_and_the_log_sees_them_too(screen: Screen) -> None:
    shown = Shown()
    log: list[str] = []
    with both_on(screen), kept(log.append), above(shown):
        print("one", "two")
        print("three", end="")
    assert shown == ["one two"]
    assert log == ["one two", "three"]
    assert screen.getvalue() == "three"  # what has no end is not lost with the bars


def test_a_line_without_an_end_is_shown_when_it_is_flushed_and_not_again_at_the_end(screen: Screen) -> None:
    shown = Shown()
    with both_on(screen), above(shown):
        print("loading ", end="")
        assert shown == []
        print("the data ", end="", flush=True)
        print("done")
        print("saving ", end="", flush=True)
        print("done\nsaving ", end="")
    assert shown == ["loading the data …", "loading the data done", "saving …", "saving done"]
    assert screen.getvalue() == "saving "  # the second one, which was not shown


def test_the_bars_go_away_for_a_question_and_input_is_the_old_one_afterwards(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, before = Shown(), builtins.input
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    with both_on(screen), above(shown):
        assert input("go on? ") == "yes"
    assert shown == ["(lifted)", "go on? …"]
    assert builtins.input is before


def test_what_bars_draw_is_not_in_the_log(screen: Screen) -> None:
    log: list[str] = []
    with both_on(screen), kept(log.append):
        terminal, shown = beneath_tees(sys.stdout), Shown()
        with above(shown):
            terminal.write("a bar")
            print("a print")
    assert terminal is screen
    assert screen.getvalue() == "a bar"
    assert shown == ["a print"]
    assert log == ["a print"]


def test_they_can_end_in_any_order() -> None:
    wrong = {}
    for order in itertools.permutations(range(4)):
        logs: list[list[str]] = [[], []]
        kinds: list[Any] = [kept(logs[0].append), above(Shown()), kept(logs[1].append), above(Shown())]
        with both_on(Screen()):
            stacks = [ExitStack() for _ in kinds]
            for stack, kind in zip(stacks, kinds, strict=True):
                stack.enter_context(kind)
            for index in order:
                print("still here")
                stacks[index].close()
        if logs != [["still here"] * (order.index(0) + 1), ["still here"] * (order.index(2) + 1)]:
            wrong[order] = logs
    assert wrong == {}


def test_a_stream_of_the_users_own_is_not_taken_away(screen: Screen) -> None:
    own = io.StringIO()
    log: list[str] = []
    with both_on(screen):
        with kept(log.append):
            sys.stdout = own
            print("to my own")
        assert sys.stdout is own
        sys.stdout = screen
    assert own.getvalue() == "to my own\n"
    assert log == []


def test_whoever_keeps_the_stand_in_longer_writes_to_the_stream(screen: Screen) -> None:
    log: list[str] = []
    with both_on(screen), kept(log.append), above(Shown()):
        mine = sys.stdout
    mine.write("late\n")
    mine.flush()
    assert screen.getvalue() == "late\n"
    assert log == []
    assert not has_bars(mine)


def test_the_stand_in_is_the_stream_in_all_else(screen: Screen) -> None:
    shown = Shown()
    with both_on(screen), kept(lambda text: None), above(shown):
        out: Any = sys.stdout
        assert (out.isatty(), out.fileno(), out.encoding) == (True, 42, "utf-8")
        assert not hasattr(out, "no_such_thing")
        out.writelines(["a\n", "b\n"])
    assert shown == ["a", "b"]


def test_handlers_follow_and_come_back(screen: Screen) -> None:
    logger = logging.getLogger("tests.redirect")
    log: list[str] = []
    with both_on(screen):
        handler = logging.StreamHandler()  # made before: it keeps the stream of that time
        logger.addHandler(handler)
        try:
            with kept(log.append):
                logger.warning("one")
                with above(Shown()):
                    late = logging.StreamHandler()  # made meanwhile: it must not keep a stand-in
                    logger.addHandler(late)
                    logger.warning("two")
            assert handler.stream is screen
            assert late.stream is screen
        finally:
            logger.removeHandler(handler)
            logger.removeHandler(late)
    assert log == ["one", "two", "two"]


def test_a_print_that_fails_without_a_log_fails_with_one(screen: Screen) -> None:
    log: list[str] = []
    with both_on(screen), kept(log.append):
        screen.close()
        with pytest.raises(ValueError, match="closed file"):
            print("anybody there?")


def test_a_program_without_standard_output_is_left_alone() -> None:
    with both_on(None), kept(lambda text: None), above(Shown()):
        assert sys.stdout is None
