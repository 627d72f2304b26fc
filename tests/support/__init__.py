"""Helpers that several test files share. A test imports them from here: ``from tests.support import fit, sgd``."""

from tests.support.errors import wrong_messages
from tests.support.files import json_lines, saved_steps, small_disk
from tests.support.inside import (
    ask_from_outside,
    interrupt,
    is_padding,
    is_quiet,
    loop_of,
    set_control_interval,
    set_sink_wait,
    set_time,
    signal_arrived,
)
from tests.support.processes import wait_until
from tests.support.tensors import full_tensor, is_sharded, local_tensor, same_tensors, state_of, weights_of
from tests.support.training import CE, at_step, crash_at, fit, literal, press_ctrl_c, sgd, train_loop

__all__ = [
    "CE",
    "ask_from_outside",
    "at_step",
    "crash_at",
    "fit",
    "full_tensor",
    "interrupt",
    "is_padding",
    "is_quiet",
    "is_sharded",
    "json_lines",
    "literal",
    "local_tensor",
    "loop_of",
    "press_ctrl_c",
    "same_tensors",
    "saved_steps",
    "set_control_interval",
    "set_sink_wait",
    "set_time",
    "sgd",
    "signal_arrived",
    "small_disk",
    "state_of",
    "train_loop",
    "wait_until",
    "weights_of",
    "wrong_messages",
]
