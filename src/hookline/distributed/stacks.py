"""Descriptions of stacks and errors, and the exit of a process that hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from hookline.distributed.last_words import leave_last_words
from hookline.errors import error_text

_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_HOOKLINE: Final = str(Path(__file__).parents[1]) + os.sep
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep
_COLLECTIVE: Final = tuple(
    str(Path(folder, name)) + os.sep
    for folder, name in ((_TORCH, "distributed"), (_TORCH, "autograd"), (_HOOKLINE, "distributed"))
)
"""Folders of code that waits for other ranks. A backward (``autograd``) averages gradients."""


def stack_of(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first."""
    frame, found = sys._current_frames().get(thread), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def is_in_collective(stack: list[FrameType]) -> bool:
    """True if the stack is in a collective, and not in user code that the collective calls."""
    for frame in stack:
        if not frame.f_code.co_filename.startswith((_TORCH, _HOOKLINE)):
            return False
        if frame.f_code.co_filename.startswith(_COLLECTIVE):
            return True
    return False


def rose_in_collective(error: BaseException) -> bool:
    """True if a collective raised the error, and not user code."""
    return is_in_collective([frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1])


def place_of(stack: list[FrameType]) -> str:
    """Return the innermost function of user code, or the innermost function if there is none."""
    inside = (_TORCH, _HOOKLINE, _STANDARD)
    own = [frame for frame in stack if not frame.f_code.co_filename.startswith(inside)]
    if not stack:
        return "an unknown place"
    frame = (own or stack)[0]
    return f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def words_for_others(error: BaseException, step: int) -> str:
    """Describe an error of this rank for the other ranks, with the step or hook that raised it."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(("in ", "while "))]
    where = f"{notes[0]} " if notes else f"at step {step} "
    return f"failed {where}with {error_text(error)[:2000]}"


def end_process(words: str, *, code: int) -> None:
    """Print the reason and the stacks of all threads, and end the process at once.

    No more code of the program runs: no ``finally`` block and no exit handler.

    Args:
        words: The reason.
        code: The exit code.
    """
    leave_last_words(words)
    try:
        with suppress(OSError, ValueError, AttributeError):  # A replaced stream may not be a file.
            screen = sys.__stderr__
            if screen is not None:
                screen.write(f"hookline: {words}; the stacks of this process:\n")
                screen.flush()
                faulthandler.dump_traceback(file=screen, all_threads=True)
                screen.flush()
            sys.stdout.flush()
    finally:
        os._exit(code)
