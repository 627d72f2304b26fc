"""``launch``: a run under the real torchrun, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("torchrun_worker.py")


class Launched:
    """A torchrun that runs: its output goes to a file, so that it never waits for a reader."""

    def __init__(
        self,
        function: str,
        args: dict[str, Any],
        output: Path,
        *options: str,
        processes: int = 2,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.output = output
        torchrun = [*prefix, sys.executable, "-m", "torch.distributed.run"]
        command = [*torchrun, "--nproc-per-node", str(processes), *options]
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [*command, str(WORKER), function, json.dumps(args)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, path: Path, limit: float = 200.0) -> None:
        end = time.monotonic() + limit
        while not path.exists():
            if time.monotonic() > end or self.process.poll() is not None:
                self.kill()
                raise AssertionError(f"{path} did not come\n{self.text}")
            time.sleep(0.01)

    def finish(self, limit: float = 300.0) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"torchrun did not end in {limit} s\n{self.text}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def results(self) -> list[Any]:
        """What the ranks returned, by rank."""
        lines = [line.partition("RESULT ")[2] for line in self.text.splitlines() if "RESULT " in line]
        return [value for _, value in sorted(map(json.loads, lines))]

    def exit_codes(self) -> list[int]:
        """As torchrun tells them, of those that failed."""
        found = [line.split()[2] for line in self.text.splitlines() if line.strip().startswith("exitcode")]
        return [int(code) for code in found]
