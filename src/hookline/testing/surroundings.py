"""Global state that a callback must not change, and a comparable form of any value."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

GRACE = 5.0
"""Seconds for threads and child processes to end after the run."""

MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def surroundings() -> dict[str, Any]:
    """Return the global settings of the process."""
    return {
        "a signal handler": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the warnings filters": list(warnings.filters),
        "an environment variable": dict(os.environ),
        "the working directory": os.getcwd(),
        "sys.excepthook": sys.excepthook,
        "sys.path": list(sys.path),
        "sys.stdout or sys.stderr": (sys.stdout, sys.stderr),
        "the handlers of a logger": {
            name: (logger.level, list(logger.handlers), list(logger.filters)) for name, logger in _loggers().items()
        },
        "a setting of torch": {
            "grad mode": torch.is_grad_enabled(),
            "threads": torch.get_num_threads(),
            "default dtype": torch.get_default_dtype(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "anomaly": torch.is_anomaly_enabled(),
            "matmul precision": torch.get_float32_matmul_precision(),
            "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        },
    }


def _loggers() -> dict[str, logging.Logger]:
    return {"root": logging.getLogger(), "hookline": logging.getLogger("hookline")}


def running() -> dict[str, frozenset[Any]]:
    """Return the current threads and child processes."""
    return {
        "a thread": frozenset(thread for thread in threading.enumerate() if thread.is_alive()),
        "a child process": frozenset(_children()),
    }


def left_running(before: dict[str, frozenset[Any]]) -> list[str]:
    """Return the new threads and child processes that have not ended after ``GRACE`` seconds."""
    end = time.monotonic() + GRACE
    while True:
        left = [
            f"{what} ({sorted(map(str, new))[0]})" for what, now in running().items() if (new := now - before[what])
        ]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def _children() -> list[str]:
    """Return the process ids of the child processes on Linux, and nothing on other systems."""
    found: list[str] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # The thread has ended in the meantime.
            found += children.read_text().split()
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that differ, with the part that differs."""
    found = []
    for what, value in before.items():
        if after[what] == value:
            continue
        if isinstance(value, dict):
            parts = [key for key in {**value, **after[what]} if value.get(key) != after[what].get(key)]
            found.append(f"{what} ({', '.join(_named(part) for part in parts)})")
        else:
            found.append(what)
    return found


def _named(part: Any) -> str:
    return part.name if isinstance(part, signal.Signals) else str(part)


def hooks_on(module: nn.Module) -> dict[str, int]:
    """Return the number of hooks on each part of a module."""
    found = {}
    for name, part in module.named_modules():
        found[name] = sum(len(getattr(part, kind, None) or ()) for kind in MODULE_HOOKS)
    for name, parameter in module.named_parameters():
        kinds = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
        found[f"{name} (a parameter)"] = sum(len(kind or ()) for kind in kinds)
    return found


def random_states() -> dict[str, Any]:
    """Return the global random states."""
    numpy: Any = sys.modules.get("numpy")
    states = {"random": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    if numpy:
        _, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (keys.tobytes(), *rest)
    return states


def plain(value: Any) -> Any:
    """Return a comparable form of a value: tensors as bits, unknown objects as class names."""
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):  # Such as a quantized weight.
        return [type(value).__qualname__, *(plain(getattr(value, name)) for name in value.__tensor_flatten__()[0])]
    if isinstance(value, torch.Tensor):
        held = value.detach().cpu().contiguous()
        return ("tensor", str(value.dtype), tuple(value.shape), held.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(plain(item)) for item in value)
    if isinstance(value, float):
        return repr(value)  # So that NaN equals NaN.
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value) if isinstance(value, Path) else f"<{type(value).__qualname__}>"
