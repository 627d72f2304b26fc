"""Write the pages and notebooks of the tutorials: ``make tutorials``.

A tutorial is one script, ``docs/tutorials/<name>.py``, in the percent format of Jupytext: ``# %% [markdown]`` starts a
text cell, ``# %%`` a code cell, and a cell of comments that start with ``# !`` is a shell command. The command runs the
script as a notebook in an empty folder, which holds a copy of the script, and writes

- the page ``<name>.md``, with what each cell printed;
- the notebook ``<name>.ipynb``, with the same text, code and output;
- the images of the page, ``images/<name>/*.png``, from files that the script has written under these names.

``fine_tuning`` needs transformers: run this file with ``.interop/transformers/bin/python``, which
``make interop ARGS=transformers`` installs.

Jupytext itself is not used: the split into cells is one line, and nbformat and nbclient, which the tests need in any
case, do the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import v4

TUTORIALS = Path(__file__).parent
SCRIPTS = {path.stem: path for path in sorted(TUTORIALS.glob("*.py")) if path != Path(__file__)}
OUTPUT = re.compile(r'\n\n```text title="Output"\n[\s\S]*?\n```')
"""A recorded output in a page."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a tutorial."""

    kind: str
    """``"markdown"``, ``"python"`` or ``"sh"``."""
    text: str

    @property
    def page(self) -> str:
        """The cell in the page."""
        return self.text if self.kind == "markdown" else f"```{self.kind}\n{self.text}\n```"

    @property
    def notebook(self) -> Any:
        """The cell in the notebook."""
        if self.kind == "markdown":
            return v4.new_markdown_cell(self.text)
        return v4.new_code_cell(self.text if self.kind == "python" else f"%%bash\n{self.text}")


def cells_of(script: str) -> list[Cell]:
    cells = []
    for head, body in re.findall(r"^# %%(.*)\n([\s\S]*?)(?=^# %%|\Z)", script, re.MULTILINE):
        text = body.strip()
        uncommented = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        if "[markdown]" in head:
            cells.append(Cell("markdown", uncommented))
        elif text.startswith("# !"):
            cells.append(Cell("sh", re.sub(r"^!", "", uncommented, flags=re.MULTILINE)))
        else:
            cells.append(Cell("python", text))
    return cells


def notebook_of(name: str) -> Any:
    """Return the notebook of a tutorial, without output."""
    cells = [cell.notebook for cell in cells_of(SCRIPTS[name].read_text())]
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"  # the default is a random number
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def page_of(name: str, printed: list[str]) -> str:
    """Return the page of a tutorial.

    Args:
        name: Name of the tutorial.
        printed: What each cell printed.
    """
    parts = []
    for cell, text in zip(cells_of(SCRIPTS[name].read_text()), printed, strict=True):
        parts.append(cell.page + (f'\n\n```text title="Output"\n{text}\n```' if text else ""))
    title, _, rest = parts[0].partition("\n")  # The title comes first: the navigation of the site shows it.
    parts[0] = f"{title}\n\n<!-- Generated from {name}.py by `make tutorials`; do not edit. -->\n{rest}"
    files = f"[the script]({name}.py) and [the notebook]({name}.ipynb)"
    return "\n\n".join([*parts, f"Download {files} of this page."]) + "\n"


def is_stale(name: str) -> bool:
    """True if the text or the code of a page or notebook is not that of its script. Output is not compared."""
    page, notebook = TUTORIALS / f"{name}.md", TUTORIALS / f"{name}.ipynb"
    if not page.exists() or not notebook.exists():
        return True
    cells = nbformat.read(notebook, as_version=4).cells
    expected = notebook_of(name).cells
    same = [(cell.cell_type, cell.source) for cell in cells] == [(cell.cell_type, cell.source) for cell in expected]
    return not same or OUTPUT.sub("", page.read_text()) != page_of(name, [""] * len(expected))


def write(name: str, *, run: bool) -> None:
    """Write the page, the notebook and the images of a tutorial.

    Args:
        name: Name of the tutorial.
        run: Also run a tutorial whose code has not changed. Without it, its recorded output stays.
    """
    notebook, path = notebook_of(name), TUTORIALS / f"{name}.ipynb"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    recorded = nbformat.read(path, as_version=4).cells if path.exists() else []
    recorded = [cell for cell in recorded if cell.cell_type == "code"]
    if run or [cell.source for cell in recorded] != [cell.source for cell in code]:
        print(f"running {name}", file=sys.stderr)
        execute(name, notebook)
    else:
        for cell, old in zip(code, recorded, strict=True):
            cell["outputs"], cell["execution_count"] = old.outputs, old.execution_count
    (TUTORIALS / f"{name}.md").write_text(page_of(name, [_printed(cell) for cell in notebook.cells]))
    nbformat.write(notebook, path)


def execute(name: str, notebook: Any) -> None:
    """Run a notebook, keep what its cells print, and copy its images."""
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copy(SCRIPTS[name], temporary)
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": temporary}}).execute()
        notebook["metadata"].pop("language_info")
        for cell in notebook.cells:
            cell["metadata"] = {}  # when each cell ran
            outputs = [output for output in cell.get("outputs", []) if output.get("name") == "stdout"]
            text = COLOUR.sub("", "".join(output["text"] for output in outputs)).replace(temporary, "/home/me")
            text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
            if cell.cell_type == "code":
                cell["outputs"] = [v4.new_output("stream", name="stdout", text=f"{text}\n")] if text else []
        for image in re.findall(rf"\]\((images/{name}/.*?)\)", SCRIPTS[name].read_text()):
            (TUTORIALS / image).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(next(Path(temporary).rglob(Path(image).name)), TUTORIALS / image)


def _printed(cell: Any) -> str:
    return "".join(output["text"] for output in cell.get("outputs", [])).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where hookline and torchrun are
    parser.add_argument("names", nargs="*", help=f"run some of {', '.join(SCRIPTS)}; by default those that are stale")
    names = parser.parse_args().names
    for name in names or filter(is_stale, SCRIPTS):
        write(name, run=bool(names))


if __name__ == "__main__":
    main()
