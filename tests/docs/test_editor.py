"""An editor completes every name of ``run`` in a hook, and shows its text on hover. Asked over LSP, as editors do."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hookline as hl

NAMES = sorted(name for name in dir(hl.Run) if not name.startswith("_"))
INDENT = "        run."
HEAD = "import hookline as hl\n\n\nclass Mine(hl.Callback):\n    def on_eval_end(self, run: hl.Run) -> None:\n"
MODULE = HEAD + "".join(f"{INDENT}{name}\n" for name in (*NAMES, ""))
FIRST_LINE = HEAD.count("\n")


class Editor:
    """A module that is open in an editor, which asks pyright's language server about it."""

    def __init__(self, server: subprocess.Popen[bytes], module: Path, text: str) -> None:
        self._server, self._asked, self._uri = server, 0, module.as_uri()
        workspace = {"uri": module.parent.as_uri(), "name": "user"}
        self.ask("initialize", processId=None, capabilities={}, workspaceFolders=[workspace])
        self._send(method="initialized", params={})
        document = {"uri": self._uri, "languageId": "python", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def at(self, method: str, line: int, column: int) -> Any:
        """Ask about a position in the module."""
        position = {"line": line, "character": column}
        return self.ask(f"textDocument/{method}", textDocument={"uri": self._uri}, position=position)

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result. Answer the questions of the server that come in between."""
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self._asked:
                return message["result"]
            if "method" in message and "id" in message:
                items = message["params"].get("items")
                self._send(id=message["id"], result=None if items is None else [{} for _ in items])

    def close(self) -> None:
        self.ask("shutdown")
        self._send(method="exit")

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._server.stdin is not None
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._server.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        length = 0
        while header := self._server.stdout.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the language server has ended"
        found: dict[str, Any] = json.loads(self._server.stdout.read(length))
        return found


@contextmanager
def editor(folder: Path, text: str) -> Iterator[Editor]:
    (folder / "mine.py").write_text(text)
    config = {"pythonPath": sys.executable, "extraPaths": [str(Path(hl.__file__).parents[1])]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            opened = Editor(server, folder / "mine.py", text)
            yield opened
            opened.close()
        finally:
            server.terminate()


def test_an_editor_completes_and_explains_every_name_of_run(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="make check installs pyright")
    with editor(tmp_path, MODULE) as opened:
        shown = {
            name: opened.at("hover", FIRST_LINE + number, len(INDENT) + 1)["contents"]["value"]
            for number, name in enumerate(NAMES)
        }
        found = opened.at("completion", FIRST_LINE + len(NAMES), len(INDENT))
    completed = {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}
    assert set(NAMES) <= completed
    first_lines = {name: (inspect.getdoc(getattr(hl.Run, name)) or "").partition("\n")[0] for name in NAMES}
    assert [name for name in NAMES if not first_lines[name] or first_lines[name] not in shown[name]] == []
