"""Run scripts in child processes, to test signals, crashes, exit codes and fresh imports.

A script is a string, not a function: a spawned child cannot import the module of the test.
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
    """A running script.

    Use it in a ``with`` block, which kills the process and its children at the end.

    Args:
        source: Source code of the script.
        args: Arguments of the script, in ``sys.argv[1:]``.
        env: Environment variables to add.

    Example:
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
        # Output goes to files, because the child would block on a full pipe.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *(str(arg) for arg in args)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **(env or {})},
                start_new_session=True,  # A separate process group, to kill its children with it.
            )

    @property
    def stdout(self) -> str:
        """Output of the script so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 200) -> None:
        """Wait until the script has printed a string.

        Args:
            text: The string.
            timeout: Maximum number of seconds to wait.

        Raises:
            AssertionError: If the script ends or the time is over before it has printed the string.
        """
        end = time.monotonic() + timeout
        while text not in self.stdout:
            ended = self.process.poll()
            if (ended is not None and text not in self.stdout) or time.monotonic() > end:
                why = f"did not print {text!r} in {timeout} s" if ended is None else f"ended ({ended}) without {text!r}"
                raise AssertionError(f"The script {why}.\n{self._shown()}")
            time.sleep(POLL)

    def send(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process or, as a terminal does, to its process group.

        Args:
            number: The signal.
            group: Send it to the process group.
        """
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def finish(self, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Wait until the script ends, and return its exit code and output.

        Args:
            timeout: Maximum number of seconds to wait.

        Returns:
            An object with ``returncode`` (``-n`` after a signal ``n``), ``stdout`` and ``stderr``.

        Raises:
            AssertionError: If the script does not end in time. It is killed.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._kill()
            raise AssertionError(f"The script did not end in {timeout} s.\n{self._shown()}") from None
        return subprocess.CompletedProcess(self.process.args, code, self.stdout, self.stderr)

    def _shown(self) -> str:
        return f"stdout: {self.stdout}\nstderr: {self.stderr}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # All processes of the group have ended.
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
    """Start a script in a new Python process, for example to send it signals.

    Args:
        source: Source code of the script.
        args: Arguments of the script, in ``sys.argv[1:]``.
        env: Environment variables to add.

    Returns:
        The running script. Use it in a ``with`` block.
    """
    return Script(source, args=args, env=env)


def run_script(
    source: str, *, args: Sequence[object] = (), env: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a script in a new Python process until it ends.

    Args:
        source: Source code of the script.
        args: Arguments of the script, in ``sys.argv[1:]``.
        env: Environment variables to add.
        timeout: Seconds after which the script is killed.

    Returns:
        An object with ``returncode``, ``stdout`` and ``stderr``.

    Raises:
        AssertionError: If the script does not end in time.

    Example:
        >>> run_script("import sys; print(sys.argv[1]); sys.exit(3)", args=["hello"]).returncode
        3
    """
    with start_script(source, args=args, env=env) as script:
        return script.finish(timeout)
