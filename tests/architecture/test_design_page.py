"""``docs/design.md`` describes the code as it is: its map, its files, its functions and the owners of fields."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.architecture.facts import LAYERS, LOOP, SOURCE

ROOT = SOURCE.parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text()

NAMED = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
FILE = re.compile(r"`([\w/]+\.py)[`:]")
MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)")
MAP_LINE = re.compile(r"^( *)([\w.]+/?)(?: {2,}(\S.*))?$")


def section(title: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n([\s\S]*?)(?=^## |\Z)", PAGE, re.MULTILINE)
    assert found is not None, f"docs/design.md has no section {title!r}"
    return found[1]


def path_of(name: str) -> Path | None:
    """The file of a name in the page: inside ``loop/``, the package or the repository."""
    return next((folder / name for folder in (LOOP, SOURCE, SOURCE.parent, ROOT) if (folder / name).is_file()), None)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def find(file: str, name: str) -> ast.AST | None:
    """The class, method or function of a name such as ``Edge.decide`` in a file of the page."""
    path = path_of(file)
    node: ast.AST | None = None if path is None else tree_of(path)
    for part in name.split("."):
        body = getattr(node, "body", [])
        definitions = [its for its in body if isinstance(its, ast.ClassDef | ast.FunctionDef)]
        node = next((its for its in definitions if its.name == part), None)
    return node


def fields_of(owner: ast.AST) -> set[str]:
    """The fields that a class assigns on itself or declares."""
    found = set()
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def mapped() -> dict[str, str]:
    """The paths in the map of ``loop/`` with their descriptions. A folder ends with a slash."""
    block = re.search(r"^```text\nloop/\n([\s\S]*?)^```$", section("The map of `loop/`"), re.MULTILINE)
    assert block is not None, "the map is a block of text that begins with loop/"
    found: dict[str, str] = {}
    folder = ""
    for line in block[1].splitlines():
        row = MAP_LINE.match(line)
        assert row is not None, f"not a line of a map: {line!r}"
        indent, name, text = row.groups()
        folder = folder if len(indent) == 4 else ""
        path = folder + name
        assert path not in found, f"{path} is in the map twice"
        found[path] = text or ""
        if name.endswith("/"):
            folder = name
    return found


def test_the_map_names_exactly_the_files_of_the_engine() -> None:
    """A file that is added, moved or removed without the map would leave readers with a wrong one."""
    files = {path.relative_to(LOOP).as_posix() for path in LOOP.rglob("*.py") if path.name != "__init__.py"}
    folders = {path.parent.relative_to(LOOP).as_posix() + "/" for path in LOOP.glob("*/__init__.py")}
    assert sorted(mapped()) == sorted(files | folders)


def test_every_line_of_the_map_says_what_the_file_is_for() -> None:
    assert [path for path, text in mapped().items() if not text] == []


def test_every_function_that_the_page_names_exists() -> None:
    """A walk through the code that names a renamed function leads nowhere."""
    names = NAMED.findall(PAGE)
    assert names
    assert [f"{file}: {name}" for file, name in names if find(file, name) is None] == []


def test_every_file_that_the_page_names_exists() -> None:
    assert [name for name in FILE.findall(PAGE) if path_of(name) is None] == []


def test_every_member_that_the_page_names_without_its_file_exists() -> None:
    classes = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and node.name in {name for name, _ in MEMBER.findall(PAGE)}
    ]
    known = {(its.name, field) for its in classes for field in fields_of(its)}
    known |= {(its.name, part.name) for its in classes for part in its.body if isinstance(part, ast.FunctionDef)}
    assert sorted(set(MEMBER.findall(PAGE)) - known) == []


def test_owners_have_the_fields_that_the_page_gives_them() -> None:
    """The table says which object to look at for a field. A field that has moved would send readers to a wrong one."""
    rows = re.findall(r"^\| `([\w/]+\.py): (\w+)` \| .* \| (.*) \|$", section("Who owns which state"), re.MULTILINE)
    assert rows
    wrong = []
    for file, name, fields in rows:
        owner = find(file, name)
        own = set() if owner is None else fields_of(owner)
        wrong += [f"{name}.{field}" for field in re.findall(r"`(\w+)`", fields) if field not in own]
    assert wrong == []


def test_the_page_shows_the_layers_that_are_checked() -> None:
    """The layers in the page are those of the test that enforces them."""
    block = re.findall(r"^```text\n(trainer[\s\S]*?)^```$", section("Layers"), re.MULTILINE)
    assert len(block) == 1
    shown = [tuple(sorted(line.split("  ")[0].split(" | "))) for line in block[0].splitlines()]
    assert shown == [tuple(sorted(layer)) for layer in LAYERS]
