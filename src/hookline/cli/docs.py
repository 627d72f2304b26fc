"""Generate the hooks, the tables of the documentation, the API reference and the navigation of the site."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from hookline.callbacks import FAMILIES
from hookline.cli.callbacks_table import callback_rows
from hookline.cli.declarations_table import attributes_table, roles_table
from hookline.cli.interop_table import overview_page
from hookline.cli.site_pages import api_pages, decisions_page, site_config
from hookline.events.foreign import FOREIGN_HOOKS
from hookline.events.spec import EVENTS, SCOPES, Event

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs"
SITE_CONFIG = DOCS.parent / "mkdocs.yml"
LINE_LENGTH = 120
LIBRARIES = {
    "composer": "Composer",
    "torchtnt": "TorchTNT",
    "keras": "Keras",
    "transformers": "Hugging Face",
    "pytorch-accelerated": "pytorch-accelerated",
    "ignite": "ignite",
    "aitoolbox": "AIToolbox",
}
"""Pages of other libraries under ``docs/interop``, and their names in ``FOREIGN_HOOKS``."""


def hooks_source() -> str:
    """Return the source of the class with one empty, typed method per event and scope."""
    parts = [
        '"""Hooks of a callback or task. Generated from events/spec.py by `make docs`; do not edit."""\n\n'
        "from __future__ import annotations\n\n"
        "from collections.abc import Iterator\n"
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from hookline.run import Run\n\n\n"
        "class Hooks:\n"
        '    """Empty default of every hook. A hook that is not overridden costs nothing."""\n\n'
        "    def on_event(self, event: str, run: Run) -> None:\n"
        '        """Run at every event, before the named hook of the same callback."""\n'
    ]
    for event in EVENTS:
        parts.append(
            f'\n    def {event.hook}(self, run: Run) -> None:\n        """{_sentence(f"run when {event.when}")}"""\n'
        )
    for scope in SCOPES:
        parts.append(
            f"\n    def {scope.hook}(self, run: Run) -> Iterator[None]:\n"
            f'        """Wrap {scope.when}. Yield exactly once."""\n        yield\n'
        )
    return "".join(parts)


def family_source(family: str) -> str:
    """Return the ``__init__.py`` of a family of callbacks. Its first line is kept.

    Each module without an underscore has one callback, whose name is that of the module. A package inside the family
    exports its ``__all__``.
    """
    folder = PACKAGE / "callbacks" / family
    parts = [(folder / "__init__.py").read_text().partition("\n")[0], ""]
    exported: list[str] = []
    for module, names in sorted(_exports_of(folder).items()):
        parts += _import_lines(f"hookline.callbacks.{family}.{module}", names)
        exported += names
    return "\n".join([*parts, "", *_list_lines("__all__ = [", _in_order(exported), "]")]) + "\n"


def callbacks_source() -> str:
    """Return ``callbacks/__init__.py`` with the callbacks of all families."""
    path = PACKAGE / "callbacks" / "__init__.py"
    names = {
        family: [name for its in _exports_of(path.parent / family).values() for name in its] for family in FAMILIES
    }
    imports = {
        f"hookline.callbacks.{family}": _import_lines(f"hookline.callbacks.{family}", names[family])
        for family in FAMILIES
    }
    imports["hookline.callbacks"] = ["from hookline.callbacks import plugins as plugins"]
    imports["hookline.callbacks.plugins"] = ["from hookline.callbacks.plugins import from_plugins as from_plugins"]
    everything = _in_order([name for its in names.values() for name in its])
    text = path.read_text()
    text = _replaced(
        text,
        "    # The callbacks of the families:",
        [f"    {line}" for _, its in sorted(imports.items()) for line in its],
    )
    return _replaced(text, "# All callbacks:", _list_lines("__all__ = [", everything, "]"))


def _exports_of(folder: Path) -> dict[str, list[str]]:
    """Return the public names of each module of a family."""
    found = {}
    for path in folder.glob("[!_]*"):
        if (path / "__init__.py").exists():
            (names,) = [
                ast.literal_eval(node.value)
                for node in ast.parse((path / "__init__.py").read_text()).body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ]
            found[path.name] = list(names)
        elif path.suffix == ".py":
            classes = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
            found[path.stem] = [name for name in classes if name.lower() == path.stem.replace("_", "")]
    return found


def _in_order(names: list[str]) -> list[str]:
    """Return the names in the order that ruff wants: names in capitals first."""
    return sorted(names, key=lambda name: (not name.isupper(), name))


def _import_lines(module: str, names: list[str]) -> list[str]:
    names = sorted(names, key=lambda name: (not name.isupper(), name.lower()))
    line = f"from {module} import {', '.join(names)}"
    if len(line) + 4 <= LINE_LENGTH:
        return [line]
    return [f"from {module} import (", *[f"    {name}," for name in names], ")"]


def _list_lines(start: str, names: list[str], end: str) -> list[str]:
    line = start + ", ".join(f'"{name}"' for name in names) + end
    return [line] if len(line) <= LINE_LENGTH else [start, *[f'    "{name}",' for name in names], end]


def _replaced(text: str, marker: str, lines: list[str]) -> str:
    """Return the text with other lines between the marker and the next empty line."""
    before, _, rest = text.partition(f"{marker}\n")
    return before + "\n".join([marker, *lines]) + "\n\n" + rest.partition("\n\n")[2]


def events_page() -> str:
    """Return the content of ``docs/events.md``."""
    lines = [
        "# Events",
        "",
        "<!-- Generated from src/hookline/events/spec.py by `make docs`; do not edit. -->",
        "",
        "The hook of an event is `on_` plus the name of the event. Its only argument is `run`. The table",
        "does not list fields that always have a value (`model`, `clock`, `metrics`, `history`, …).",
        "",
        "| event | when | scope | also valid on `run` | `run.stage` |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(event) for event in EVENTS]
    lines += [
        "",
        "After a stop inside an epoch, `train_epoch_end` and `epoch_end` are sent, but `clock.epoch` does",
        "not count that epoch.",
        "",
        "Before step 1, the sanity check sends `sanity_check_start` and `sanity_check_end` only, and the",
        "trial steps of the [pre-flight](preflight.md) send nothing. So each `eval_end` belongs to a real",
        "evaluation.",
        "",
        "## Scopes",
        "",
        "Write setup and cleanup as one `around_*` generator with one `yield`. The code before the `yield`",
        "runs before the start hooks of the scope. The code after it runs after the end hooks, and also when",
        "the scope fails.",
        "",
        "| generator | wraps |",
        "|---|---|",
    ]
    lines += [f"| `{scope.hook}` | {scope.when} |" for scope in SCOPES]
    return "\n".join(lines) + "\n"


def callbacks_page() -> str:
    """Return the content of ``docs/callbacks/README.md``."""
    lines = [
        "# Callbacks",
        "",
        "<!-- Generated from the docstrings by `make docs`; do not edit. -->",
        "",
        "Every callback is `hl.callbacks.<name>`, and `hl.<name>` for short. Hookline disables an optional",
        "callback that fails, warns, and continues the run.",
    ]
    rows = callback_rows()
    for family in dict.fromkeys(row.family for row in rows):
        lines += ["", f"## {family}", "", "| callback | what it does | optional | ranks |", "|---|---|---|---|"]
        lines += [
            f"| [`{row.name}`]({row.page}.md) | {row.what} | {'yes' if row.optional else 'no'} | {row.ranks} |"
            for row in rows
            if row.family == family
        ]
    return "\n".join(lines) + "\n"


def writing_page() -> str:
    """The page ``docs/writing-callbacks.md``, with its generated tables."""
    page = (DOCS / "writing-callbacks.md").read_text()
    page = _filled(page, "table of attributes", "end of the attributes", attributes_table())
    return _filled(page, "table of roles", "end of the roles", roles_table())


def lightning_page() -> str:
    """The page ``docs/interop/lightning.md``, with its tables."""
    from hookline.interop.lightning import model, support  # It imports torch.

    path = DOCS / "interop" / "lightning.md"
    methods = [f"- `{name}`: {instead}" for name, instead in model.NOT_CALLED.items()]
    page = _filled(path.read_text(), "methods that are not called", "end of the list", methods)
    callbacks = _callbacks_table(support.RUNS, support.LIMITED, support.REFUSED, {})
    page = _filled(page, "table of callbacks", "end of the table", callbacks)
    return _filled(page, "table of hooks", "end of the hooks", _hooks_table(_fired("Lightning")))


def interop_page(name: str, library: str) -> str:
    """The page of another library under ``docs/interop``, with its tables.

    Args:
        name: Name of the page. The module in ``hookline.interop`` has underscores for hyphens.
        library: Name of the library in ``FOREIGN_HOOKS``.
    """
    support = import_module(f"hookline.interop.{name.replace('-', '_')}.support")  # It imports torch.
    page = (DOCS / "interop" / f"{name}.md").read_text()
    runs = getattr(support, "RUNS", None) or support.TESTED
    others = [getattr(support, table, {}) for table in ("LIMITED", "REFUSED", "NOT_TESTED")]
    callbacks = _callbacks_table(runs, *others)
    page = _filled(page, "table of callbacks", "end of the table", callbacks)
    methods = [f"- `{name}`: {instead}" for name, instead in getattr(support, "NOT_CALLED", {}).items()]
    page = _filled(page, "methods that are not called", "end of the list", methods)
    fired = getattr(support, "FIRED", None) or _fired(library)
    return _filled(page, "table of hooks", "end of the hooks", _hooks_table(fired))


def _callbacks_table(
    runs: Mapping[str, str],
    limited: Mapping[str, str],
    refused: Mapping[str, str],
    untested: Mapping[str, str],
) -> list[str]:
    """Callbacks of another library: those that run, those with a limit, and those that are refused."""
    kinds = (("runs", runs), ("not tested", untested), ("runs with a limit", limited), ("refused", refused))
    rows = [f"| `{name}` | {kind} | {note} |" for kind, table in kinds for name, note in table.items()]
    return ["| callback | | |", "|---|---|---|", *rows]


def _fired(library: str) -> dict[str, tuple[str, ...]]:
    """Hooks of another library's callback, and the events of Hookline at which an adapter calls them."""
    return {row.hook: row.fired for row in FOREIGN_HOOKS if row.system == library and row.fired}


def _hooks_table(fired: Mapping[str, tuple[str, ...]]) -> list[str]:
    rows = [f"| `{hook}` | {', '.join(f'`{event}`' for event in events)} |" for hook, events in fired.items()]
    return ["| hook | called at |", "|---|---|", *rows]


def _filled(page: str, begin: str, end: str, lines: list[str]) -> str:
    """Replace what is between two comments of a page."""
    text = "\n".join(["", *lines, ""])
    return re.sub(f"(?<=<!-- {begin} -->\n)[\\s\\S]*(?=<!-- {end} -->)", lambda _: f"{text}\n", page)


def _row(event: Event) -> str:
    valid = ", ".join(f"`{field}`" for field in event.valid)
    return f"| `{event.name}` | {event.when} | {event.scope} | {valid} | {', '.join(event.stages)} |"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    check = parser.parse_args().check
    stale = []
    for path, text in (
        (PACKAGE / "events" / "hooks.py", hooks_source()),
        *[(PACKAGE / "callbacks" / family / "__init__.py", family_source(family)) for family in FAMILIES],
        (PACKAGE / "callbacks" / "__init__.py", callbacks_source()),
        (DOCS / "events.md", events_page()),
        (DOCS / "callbacks" / "README.md", callbacks_page()),
        (DOCS / "writing-callbacks.md", writing_page()),
        (DOCS / "interop" / "README.md", overview_page(DOCS)),
        (DOCS / "interop" / "lightning.md", lightning_page()),
        *((DOCS / "interop" / f"{name}.md", interop_page(name, library)) for name, library in LIBRARIES.items()),
        *((DOCS / "api" / name, text) for name, text in api_pages().items()),
        (DOCS / "decisions" / "README.md", decisions_page(DOCS)),
        (SITE_CONFIG, site_config(SITE_CONFIG.read_text(), DOCS)),
    ):
        if not path.exists() or path.read_text() != text:
            stale.append(str(path))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if stale and check:
        print(f"not up to date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
