"""Imports torch and Hookline once, then forks a child for each run. Read by a test over a pipe, a line at a time.

``{"run": plan}`` forks and answers ``{"pid": …}``; ``{"wait": pid, "limit": seconds}`` answers ``{"code": …}`` as
``subprocess`` does, or ``{"code": null}`` if it runs still.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import training_runs

POLL = 0.002


def wait(pid: int, limit: float) -> int | None:
    end = time.monotonic() + limit
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(POLL)


def answer(answered: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answered) + "\n")
    sys.stdout.flush()


def serve() -> dict[str, Any] | None:
    """In the parent: serve until the pipe is closed. In a child: what it has to do."""
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "wait" in asked:
            answer({"code": wait(asked["wait"], asked["limit"])})
            continue
        pid = os.fork()
        if not pid:
            begin(asked["run"])
            return asked["run"]  # type: ignore[no-any-return]
        answer({"pid": pid})
    return None


def begin(plan: dict[str, Any]) -> None:
    """A session of its own, its own output, and the signals as a shell gives them."""
    os.setsid()
    folder = Path(plan["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_as_python_does(plan: dict[str, Any]) -> None:
    """Run it and exit as an interpreter does, but without taking torch apart, which takes two seconds."""
    code = 0
    try:
        training_runs.run(plan)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are left
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    training_runs.warm_up()
    answer({"ready": os.getpid()})
    plan = serve()
    if plan is not None:
        end_as_python_does(plan)
