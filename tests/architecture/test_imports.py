"""An import is only an import: no torch where none is needed, and nothing happens behind the user's back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "rich", "safetensors")

AUDIT = """
import json, sys
seen = []
WATCHED = ("socket.", "_thread.start_new_thread", "subprocess.", "os.system", "os.fork", "os.exec", "os.posix_spawn",
           "os.putenv", "shutil.", "os.remove", "os.rename", "os.mkdir", "urllib.")
def audit(event, args):
    if event.startswith(WATCHED):
        seen.append([event, repr(args)[:200]])
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append([event, repr(args)[:200]])
sys.addaudithook(audit)
import hookline
import signal, threading, warnings, logging
print(json.dumps({
    "seen": seen,
    "threads": threading.active_count(),
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "handlers": len(logging.getLogger("hookline").handlers) + len(logging.getLogger().handlers),
    "filters": len(warnings.filters),
}))
"""


def python(code: str) -> str:
    """What a fresh interpreter prints; nothing is written, not even byte code."""
    found = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize(
    "module",
    [
        "hookline",
        "hookline.errors",
        "hookline.progress",
        "hookline.records",
        "hookline.events",
        "hookline.run",
        "hookline.report",
    ],
)
def test_the_core_can_be_imported_where_there_is_no_torch(module: str) -> None:
    loaded = python(f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.split() == []


def test_using_the_core_does_not_import_torch_later() -> None:
    code = """
import sys, hookline as hl
class Mine(hl.Callback):
    def on_train_start(self, run): ...
from hookline.events import Line, explain
line = Line(lambda member: None, where=str, stop=print)
line.add([Mine(), hl.on("epoch_end", every="2ep")(print)])
explain(line)
print(*[name for name in ("torch", "numpy") if name in sys.modules])
"""
    assert python(code).split() == []


def test_an_import_starts_no_thread_opens_no_socket_and_writes_no_file() -> None:
    found = json.loads(python(AUDIT))
    plain = json.loads(python(AUDIT.replace("import hookline\n", "")))
    assert found["seen"] == []
    assert found == plain


def test_importing_every_public_name_starts_no_thread_and_opens_no_socket_of_ours() -> None:
    torch_only = json.loads(python(AUDIT.replace("import hookline\n", "import torch\n")))
    everything = AUDIT.replace("import hookline\n", "import hookline\nfrom hookline import *\n")
    found = json.loads(python(everything))

    def events(audited: dict[str, list[list[str]]]) -> list[str]:
        return sorted({event for event, _ in audited["seen"] if not event.startswith("open")})

    assert events(found) == events(torch_only)
    assert found["threads"] == torch_only["threads"]
    assert found["sigint"]
    assert found["handlers"] == 0


def test_layers_and_cycles_are_as_declared() -> None:
    pytest.importorskip("importlinter", reason="make check installs import-linter")
    command = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run(
        [str(command), "--no-logo", "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout
