"""Every page of the documentation runs, and what it shows is what its code prints.

The ``python`` blocks of a page run in order, in one namespace and in a folder of their own; ``page_code.py`` says which
words take a block out. A block marked ``text output`` is what the block before it must print, without the lines of the
progress bar. The tutorials have their own tests, in ``test_tutorials.py``.

``python tests/docs/test_pages.py`` writes the table of hooks into ``docs/coming-from.md``.
"""

import ast
import importlib.util
import re
import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from hookline.events import Callback
from hookline.events.foreign import FOREIGN_HOOKS
from hookline.run import Run


def _neighbour(name: str) -> ModuleType:
    """A module next to this one: tests are imported by their path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


page_code = _neighbour("page_code")
ROOT, PAGES, BLOCK = page_code.ROOT, page_code.PAGES, page_code.BLOCK
LINK = re.compile(r"(?:\]\(|<img src=\")([^)#\"]+)(?:#[^)]*)?[)\"]")
PROGRESS = re.compile(r"^\d\d:\d\d:\d\d .*\n", re.MULTILINE)
TABLE = re.compile(r"(?<=<!-- table of hooks -->\n)[\s\S]*(?=<!-- end of the table -->)")
COMING_FROM = ROOT / "docs" / "coming-from.md"


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("docs/tutorials/")])
def test_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("docs/interop/") and PAGES[name].stem != "README":
        pytest.importorskip(PAGES[name].stem.replace("-", "_"), reason="`make interop` runs this page")
        warnings.simplefilter("ignore")  # The libraries warn about their own dependencies. pytest undoes this.
    monkeypatch.chdir(tmp_path)
    page, namespace, printed = PAGES[name].read_text(), {"__name__": "__main__"}, ""
    for block in page_code.blocks_of(page):
        if block.is_python:
            code = compile("\n" * block.line + block.text, PAGES[name], "exec")
            if block.runs:
                with redirect_stdout(StringIO()) as stdout:
                    exec(code, namespace)
                printed = PROGRESS.sub("", stdout.getvalue())
        elif block.info == "text output":
            assert printed == block.text


def test_type_checkers_see_the_code_of_a_page_on_the_lines_of_the_page() -> None:
    page = "# Title\n\n```python\na = 1\n```\n\n```python no-types\na = 'wrong'\n```\n\n```python no-run\nb = a\n```\n"
    assert page_code.module_of(page).splitlines() == ["", "", "", "a = 1", *[""] * 7, "b = a"]
    with pytest.raises(ValueError, match="no-rnu: no such word; use no-run, no-types"):
        page_code.module_of("```python no-rnu\na = 1\n```\n")


def test_the_first_example_of_the_readme_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    blocks = [text for info, text in BLOCK.findall(PAGES["README.md"].read_text()) if info == "python"]
    exec(blocks[0], namespace)
    result = namespace["result"]
    assert result.stopped_by == "EarlyStopping"
    assert max(result.history["val/acc"]) > 0.95
    assert (result.folder / "report.html").exists()


def test_links_lead_somewhere() -> None:
    links = [(name, link) for name, page in PAGES.items() for link in LINK.findall(BLOCK.sub("", page.read_text()))]
    assert [row for row in links if "://" not in row[1] and not (PAGES[row[0]].parent / row[1]).exists()] == []


def test_each_page_is_once_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w./-]+\.md$", nav, re.MULTILINE)
    pages = [name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")]
    assert sorted(listed) == sorted(pages)


def anchors_of(page: str) -> set[str]:
    """The anchors of the headings, as Python-Markdown makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading)) for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading.strip().lower()) for heading in plain}


def test_links_to_headings_lead_to_a_heading() -> None:
    wrong = []
    for name, page in PAGES.items():
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", BLOCK.sub("", page.read_text())):
            path = page.parent / target if target else page
            if path.suffix == ".md" and anchor not in anchors_of(path.read_text()):
                wrong.append((name, f"{target}#{anchor}"))
    assert wrong == []


def test_the_site_loads_nothing_from_other_hosts() -> None:
    """The theme takes its fonts from another host by default."""
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config
    assert re.findall(r"https?://", config + (ROOT / "docs/assets/site.css").read_text()) == []


def test_each_listed_error_message_is_in_the_source() -> None:
    texts = []
    for module in (ROOT / "src" / "hookline").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    source = "\n".join(texts)
    listed = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(listed) >= 15
    assert [message for message in listed if message not in source] == []


def test_each_promise_has_a_command_and_the_test_that_it_runs_exists() -> None:
    sections = (ROOT / "docs" / "promises.md").read_text().split("\n## ")[1:]
    assert [section for section in sections if "```sh\nmake " not in section] == []
    assert len(sections) == 12
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"-k (\w+)\"", "\n".join(sections))
    assert [name for name in names if f"def {name}(" not in tests] == []
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = re.findall(r"^make ([a-z-]+)", "\n".join(sections), re.MULTILINE)
    assert set(used) <= set(targets)


def test_the_guide_names_every_field_and_verb_of_run() -> None:
    guide = (ROOT / "docs" / "writing-callbacks.md").read_text()
    names = [name for name in vars(Run) if not name.startswith("_") and name != "member"]
    assert [name for name in names if not re.search(rf"^\| .*`run\.{name}\b", guide, re.MULTILINE)] == []


def test_the_guide_lists_every_attribute_that_a_callback_may_declare() -> None:
    """The table has one row per attribute with a text in the source, which is the text that editors show."""
    guide = (ROOT / "docs" / "writing-callbacks.md").read_text()
    table = guide.partition("<!-- table of attributes -->")[2].partition("<!-- end of the attributes -->")[0]
    public = [name for name in Callback.__annotations__ if not name.startswith("_")]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == public


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
