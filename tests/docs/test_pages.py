"""Every page of the documentation runs, and what it shows is what its code prints.

The ``python`` blocks of a page run in order, in one namespace and in a folder of their own. One that is marked
``python no-run`` is only compiled. A block marked ``text output`` is what the block before it must print.

``python tests/docs/test_pages.py`` writes the table of hooks into ``docs/coming-from.md``.
"""

import re
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path

import pytest

from hookline.events.foreign import FOREIGN_HOOKS
from hookline.run import Run

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT)): page for page in (*ROOT.glob("README.md"), *sorted(ROOT.glob("docs/**/*.md")))}
BLOCK = re.compile(r"^```(.*)\n([\s\S]*?)^```$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
TABLE = re.compile(r"(?<=<!-- table of hooks -->\n)[\s\S]*(?=<!-- end of the table -->)")
COMING_FROM = ROOT / "docs" / "coming-from.md"


@pytest.mark.parametrize("name", PAGES)
def test_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page, namespace, printed = PAGES[name].read_text(), {"__name__": "__main__"}, ""
    for block in BLOCK.finditer(page):
        info, text = block.groups()
        if info.split(" ")[0] == "python":
            line = page.count("\n", 0, block.start()) + 1
            code = compile("\n" * line + text, PAGES[name], "exec")
            if info != "python no-run":
                with redirect_stdout(StringIO()) as stdout:
                    exec(code, namespace)
                printed = stdout.getvalue()
        elif info == "text output":
            assert printed == text


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    links = [link for link in LINK.findall(BLOCK.sub("", PAGES[name].read_text())) if "://" not in link]
    assert [link for link in links if not (PAGES[name].parent / link).exists()] == []


def test_the_guide_names_every_field_and_verb_of_run() -> None:
    guide = (ROOT / "docs" / "writing-callbacks.md").read_text()
    names = [name for name in vars(Run) if not name.startswith("_") and name != "member"]
    assert [name for name in names if not re.search(rf"^\| .*`run\.{name}\b", guide, re.MULTILINE)] == []


def hooks_table() -> str:
    """The map of the hooks of other systems, one table for each."""
    lines = []
    for system, rows in groupby(FOREIGN_HOOKS, key=lambda row: row.system):
        lines += ["", f"### Hooks of {system}", "", "| there | here | what differs |", "|---|---|---|"]
        lines += [f"| `{row.hook}` | `on_{row.event}` | {row.note} |" for row in rows]
    return "\n".join([*lines, "", ""])


def test_the_table_of_hooks_is_that_of_the_code() -> None:
    assert TABLE.findall(COMING_FROM.read_text()) == [hooks_table()]


if __name__ == "__main__":
    COMING_FROM.write_text(TABLE.sub(lambda _: hooks_table(), COMING_FROM.read_text()))
