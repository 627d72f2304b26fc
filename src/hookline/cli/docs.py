"""Write what is generated: hooks and a page from the table of events, and a table of callbacks from their classes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hookline.cli.callbacks_table import callback_rows
from hookline.events.spec import EVENTS, SCOPES, Event

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs"


def hooks_source() -> str:
    """The class with one empty, typed method per event and scope."""
    parts = [
        '"""The hooks of a callback or task. Generated from events/spec.py by `make docs`; do not edit."""\n\n'
        "from __future__ import annotations\n\n"
        "from collections.abc import Iterator\n"
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from hookline.run import Run\n\n\n"
        "class Hooks:\n"
        '    """Every hook, empty. A hook that is not overridden costs nothing."""\n\n'
        "    def on_event(self, event: str, run: Run) -> None:\n"
        '        """Every event, by name, before the named hook of the same callback."""\n'
    ]
    for event in EVENTS:
        parts.append(f'\n    def {event.hook}(self, run: Run) -> None:\n        """{_sentence(event.when)}"""\n')
    for scope in SCOPES:
        parts.append(
            f"\n    def {scope.hook}(self, run: Run) -> Iterator[None]:\n"
            f'        """Wrap {scope.when}: one ``yield``."""\n        yield\n'
        )
    return "".join(parts)


def events_page() -> str:
    """The page ``docs/events.md``."""
    lines = [
        "# Events",
        "",
        "<!-- Generated from src/hookline/events/spec.py by `make docs`; do not edit. -->",
        "",
        "The hook of an event is `on_` + its name; every hook gets `run` and nothing else. Fields that are always",
        "there (`model`, `clock`, `metrics`, `history`, …) are not listed.",
        "",
        "| event | when | scope | also valid on `run` | `run.stage` |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(event) for event in EVENTS]
    lines += [
        "",
        "## Scopes",
        "",
        "What must be undone is one generator with one `yield`: the part before it runs before the start hooks of the",
        "scope, the part after it runs after the end hooks, and also when the scope fails.",
        "",
        "| generator | wraps |",
        "|---|---|",
    ]
    lines += [f"| `{scope.hook}` | {scope.when} |" for scope in SCOPES]
    return "\n".join(lines) + "\n"


def callbacks_page() -> str:
    """The page ``docs/callbacks/README.md``."""
    lines = [
        "# Callbacks",
        "",
        "<!-- Generated from the docstrings by `make docs`; do not edit. -->",
        "",
        "All of them are `hl.<name>`. An optional one that fails is switched off and reported, and the run goes on.",
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
        (DOCS / "events.md", events_page()),
        (DOCS / "callbacks" / "README.md", callbacks_page()),
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
