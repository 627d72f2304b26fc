"""Two machines: two network namespaces with a cable between them, which is cut and mended. With ``HOOKLINE_CHAOS=1``.

Where a machine does not permit namespaces (they need root), the tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.torchrun import Launched

pytestmark = pytest.mark.skipif(not os.environ.get("HOOKLINE_CHAOS"), reason="long: make chaos")

CARD = "cable"


class Nodes:
    """Two namespaces, each with one end of a cable."""

    def __init__(self) -> None:
        self.names = [f"hookline-{os.getpid()}-{side}" for side in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self._made: list[str] = []
        self._launched: list[Launched] = []

    def open(self) -> None:
        for name in self.names:
            run("ip", "netns", "add", name)
            self._made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run(
            "ip", "-n", self.names[0], "link", "add", CARD, "type", "veth", "peer", "name", CARD, "netns", self.names[1]
        )
        for name, address in zip(self.names, self.addresses, strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", CARD)
            run("ip", "-n", name, "link", "set", CARD, "up")

    def close(self) -> None:
        for launched in self._launched:
            launched.kill()
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def cut(self) -> None:
        run("ip", "-n", self.names[1], "link", "set", CARD, "down")

    def mend(self) -> None:
        run("ip", "-n", self.names[1], "link", "set", CARD, "up")

    def launch(self, node: int, function: str, args: dict[str, Any], output: Path, restarts: int = 0) -> Launched:
        """torchrun on one of them, with one worker."""
        launched = Launched(
            function,
            args,
            output,
            *("--nnodes", "2", "--max-restarts", str(restarts), "--rdzv-backend", "c10d", "--rdzv-id", "test"),
            *("--rdzv-endpoint", f"{self.addresses[0]}:29400", "--local-addr", self.addresses[node]),
            *("--rdzv-conf", f"is_host={int(node == 0)}"),
            processes=1,
            # Torch's way to share its store goes wrong when a node comes back with another number.
            env={"GLOO_SOCKET_IFNAME": CARD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            prefix=("ip", "netns", "exec", self.names[node]),
        )
        self._launched.append(launched)
        return launched


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    try:
        if shutil.which("ip") is None:
            raise FileNotFoundError("there is no command ip")
        found.open()
    except (OSError, subprocess.CalledProcessError) as error:
        found.close()
        said = getattr(error, "stderr", "") or str(error)
        sys.stderr.write(f"NOT TESTED: two nodes in two network namespaces: {said}\n")
        pytest.skip(f"NOT TESTED here: this machine does not permit network namespaces: {said.strip()}")
    yield found
    found.close()


def weights(*launched: Launched) -> list[str]:
    return [its["weights"] for one in launched for its in one.results()]


def test_a_cable_that_is_cut_for_a_moment_is_not_felt(ranks: Any, nodes: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    args = {"place": "on_train_step_end", "action": "wait", "who": 0, "folder": str(folder)}
    both = [nodes.launch(node, "train", args, tmp_path / f"out-{node}.txt") for node in range(2)]
    both[0].wait_for(folder / "here")
    nodes.cut()
    (folder / "sent").touch()
    time.sleep(3)
    nodes.mend()
    assert [one.finish(300) for one in both] == [0, 0], both[0].text + both[1].text
    assert weights(*both) == [its["weights"] for its in ranks.values("cases_of_failures.py:train", 2)]


def test_a_node_that_is_cut_off_for_longer_comes_back_and_the_weights_are_the_same(
    ranks: Any, nodes: Nodes, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    args = {
        "folder": str(folder),
        "kills": [(0, "on_train_step_end", 5)],
        "action": "wait",
        "limits": {"timeout": "30s", "hang_after": "20s"},
    }
    outputs = [tmp_path / "out-0.txt", tmp_path / "out-1.txt"]
    one, other = (nodes.launch(node, "elastic", args, outputs[node], restarts=3) for node in range(2))
    one.wait_for(folder / "here", 200)
    nodes.cut()
    (folder / "sent").touch()
    end = time.monotonic() + 200
    while "ends, because" not in one.text and time.monotonic() < end:
        time.sleep(0.2)
    assert "ends, because" in one.text, one.text
    nodes.mend()
    while one.process.poll() is None and time.monotonic() < end + 200:
        if other.process.poll() not in (None, 0):  # as a scheduler does
            outputs.append(tmp_path / f"out-{len(outputs)}.txt")
            other = nodes.launch(1, "elastic", args, outputs[-1], restarts=3)
        time.sleep(0.2)
    texts = "\n".join(path.read_text(errors="replace") for path in outputs)
    assert (one.finish(60), other.finish(60)) == (0, 0), texts
    assert weights(one, other) == [its["weights"] for its in ranks.values("cases_of_failures.py:train", 2)]
