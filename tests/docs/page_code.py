"""The Python code of the documentation pages.

The ``python`` blocks of a page belong together: they run in order, in one namespace. A word after ``python`` takes a
block out: ``no-run`` if it is only compiled, ``no-types`` if type checkers must not see it, because it is wrong on
purpose or because it is not a whole program.

``python tests/docs/page_code.py FOLDER`` writes one module per page, for the type checkers. The code is on the same
lines as in the page, so that an error message leads there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT)): page for page in (*ROOT.glob("README.md"), *sorted(ROOT.glob("docs/**/*.md")))}
BLOCK = re.compile(r"^```(.*)\n([\s\S]*?)^```$", re.MULTILINE)
WORDS = {"no-run", "no-types"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    info: str
    text: str
    line: int
    """Lines of the page before the text."""

    @property
    def is_python(self) -> bool:
        return self.info.split(" ")[0] == "python"

    @property
    def runs(self) -> bool:
        return self.is_python and "no-run" not in self.info.split(" ")

    @property
    def is_type_checked(self) -> bool:
        return self.is_python and "no-types" not in self.info.split(" ")


def blocks_of(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        info, text = found.groups()
        unknown = set(info.split(" ")[1:]) - WORDS if info.startswith("python") else ()
        if unknown:
            raise ValueError(f"```{info}: no such word; use {', '.join(sorted(WORDS))}")
        yield Block(info, text, page.count("\n", 0, found.start()) + 1)


def module_of(page: str) -> str:
    """The code for the type checkers, on the lines on which it stands in the page."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.is_type_checked:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def write_modules(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for name, path in PAGES.items():
        if code := module_of(path.read_text()):
            (folder / (re.sub(r"\W+", "_", name.removesuffix(".md")) + ".py")).write_text(code)


if __name__ == "__main__":
    write_modules(Path(sys.argv[1]))
