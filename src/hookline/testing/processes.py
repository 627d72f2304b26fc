"""Scripts in real child processes: for signals, crashes, exit codes and fresh imports.

A script is a text and not a function: a child that is spawned from a test cannot import the test's module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from types import TracebackType
from typing import Self

POLL = 0.01


class Script:
    """A script that runs. Use it in a ``with``: at its end the process and its children are gone.

    >>> with start_script("print('ready', flush=True); input()") as script:
    ...     script.wait_for("ready")
    ...     script.send(signal.SIGTERM)
    ...     done = script.finish()
    >>> done.returncode == -signal.SIGTERM
    True
    """

    def __init__(self, source: str, *, args: Sequence[object] = (), env: Mapping[str, str] | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="hookline-script-")
        folder = Path(self._folder.name)
        path, self._out, self._err = folder / "script.py", folder / "stdout", folder / "stderr"
        path.write_text(dedent(source))
        # Output goes to files: a pipe that nobody reads would block the child.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *(str(arg) for arg in args)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **(env or {})},
                start_new_session=True,  # a group of its own, so that its children can be ended with it
            )

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 200) -> None:
        """Wait until the script has printed a text."""
        end = time.monotonic() + timeout
        while text not in self.stdout:
            ended = self.process.poll()
            if (ended is not None and text not in self.stdout) or time.monotonic() > end:
                why = f"did not print {text!r} in {timeout} s" if ended is None else f"ended ({ended}) without {text!r}"
                raise AssertionError(f"the script {why}\n{self._shown()}")
            time.sleep(POLL)

    def send(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process or, as a terminal does, to its whole group."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def finish(self, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Wait for its end: ``returncode`` (``-n`` after a signal ``n``), ``stdout`` and ``stderr``."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._kill()
            raise AssertionError(f"the script did not end in {timeout} s\n{self._shown()}") from None
        return subprocess.CompletedProcess(self.process.args, code, self.stdout, self.stderr)

    def _shown(self) -> str:
        return f"stdout: {self.stdout}\nstderr: {self.stderr}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # all of the group have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._folder.cleanup()


def start_script(source: str, *, args: Sequence[object] = (), env: Mapping[str, str] | None = None) -> Script:
    """Start a script in a new Python and go on, in order to send it signals. Use it in a ``with``.

    ``env`` is added to the environment. The script reads ``args`` from ``sys.argv[1:]``.
    """
    return Script(source, args=args, env=env)


def run_script(
    source: str, *, args: Sequence[object] = (), env: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a script in a new Python until it ends. After ``timeout`` seconds it is killed, and that is an error.

    >>> run_script("import sys; print(sys.argv[1]); sys.exit(3)", args=["hello"]).returncode
    3
    """
    with start_script(source, args=args, env=env) as script:
        return script.finish(timeout)
