"""Where a thread is, or an error has risen, in words; and the end of a process that cannot end by itself."""

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
from hookline.errors import words_of

_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_HOOKLINE: Final = str(Path(__file__).parents[1]) + os.sep
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep
_COLLECTIVE: Final = tuple(
    str(Path(folder, name)) + os.sep
    for folder, name in ((_TORCH, "distributed"), (_TORCH, "autograd"), (_HOOKLINE, "distributed"))
)
"""A backward is here, too: it averages gradients while it goes on."""


def stack_of(thread: int) -> list[FrameType]:
    """The frames of a thread, the innermost first."""
    frame, found = sys._current_frames().get(thread), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def is_in_collective(stack: list[FrameType]) -> bool:
    """Whether it is inside of something that all ranks take part in, and not in code of the user's that this calls."""
    for frame in stack:
        if not frame.f_code.co_filename.startswith((_TORCH, _HOOKLINE)):
            return False
        if frame.f_code.co_filename.startswith(_COLLECTIVE):
            return True
    return False


def rose_in_collective(error: BaseException) -> bool:
    """Whether an error comes out of something that all ranks take part in, and not from the user's code."""
    return is_in_collective([frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1])


def place_of(stack: list[FrameType]) -> str:
    """The innermost function of the user's own; where there is none, the innermost one."""
    inside = (_TORCH, _HOOKLINE, _STANDARD)
    own = [frame for frame in stack if not frame.f_code.co_filename.startswith(inside)]
    if not stack:
        return "an unknown place"
    frame = (own or stack)[0]
    return f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def words_for_others(error: BaseException, step: int) -> str:
    """For the other ranks: where it rose, and what."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(("in ", "while "))]
    where = f"{notes[0]} " if notes else f"at step {step} "
    return f"failed {where}with {words_of(error)[:2000]}"


def end_process(words: str, *, code: int) -> None:
    """Say why, with the stacks of all threads, and end at once: nothing more of the program is run."""
    leave_last_words(words)
    try:
        with suppress(OSError, ValueError, AttributeError):  # what there is instead of the screen may be no file
            screen = sys.__stderr__
            if screen is not None:
                screen.write(f"hookline: {words}; the stacks of this process:\n")
                screen.flush()
                faulthandler.dump_traceback(file=screen, all_threads=True)
                screen.flush()
            sys.stdout.flush()
    finally:
        os._exit(code)
