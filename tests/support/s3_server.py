"""An S3 server for tests of uploads and downloads."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

from tests.support.processes import wait_until

ONCE = {"connect_timeout": 20, "read_timeout": 20, "retries": {"max_attempts": 1}}
"""A busy server is waited for; what fails is tried again by us, and not by the client."""


class Server:
    """An S3 server in a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.port}"
        return {"endpoint_url": address, "key": "user", "secret": "word", "config_kwargs": ONCE}

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, "the start of the S3 server")

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def make_bucket(self, name: str) -> None:
        self.client().mkdir(name)

    def client(self) -> Any:
        import s3fs  # Only this needs it, and the fast tests do not.

        return s3fs.S3FileSystem(**self.options, skip_instance_cache=True, use_listings_cache=False)

    def found(self, below: str) -> dict[str, bytes]:
        client = self.client()
        return {path.removeprefix(f"{below}/"): client.cat_file(path) for path in client.find(below)}

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
