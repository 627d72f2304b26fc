"""Pages and navigation of the documentation site that follow from the code and from the files in ``docs``."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import hookline
from hookline import errors
from hookline.callbacks import FAMILIES
from hookline.cli.callbacks_table import callback_rows

GROUPS = {
    "training": (
        "Training",
        "The entry points, and the values that they take and return.",
        (
            *("Trainer", "fit", "train", "evaluate", "test", "predict", "Result", "Resume", "Task", "SupervisedTask"),
            *("Scheduler", "EvalLoader", "Loop", "DDP", "FSDP", "replay", "Replay"),
        ),
    ),
    "hooks": (
        "Callbacks, events and run",
        "The base class of callbacks, the events, and what a hook receives.",
        ("Callback", "on", "Event", "Run", "History", "callbacks.from_plugins"),
    ),
    "progress": ("Clock and durations", "How Hookline counts, and how it states lengths.", ("Clock", "Duration")),
}
"""Pages of the API reference with names of ``hookline``: title, first sentence, names."""

MODULES = {
    "sinks": ("Sinks", "Sinks receive the metrics of a run."),
    "interop": ("Other libraries", "Functions that adapt callbacks of other libraries."),
    "testing": ("Testing", "Helpers to test callbacks and training scripts."),
}
"""Pages of the API reference with all public names of a module of ``hookline``."""

NOTE = "<!-- Generated from the docstrings by `make docs`; do not edit. -->"


def api_pages() -> dict[str, str]:
    """Return the pages under ``docs/api``: file names and contents.

    Each public name has a directive, from which mkdocstrings makes the parameter table.
    """
    pages = {}
    for page, (title, first, names) in GROUPS.items():
        pages[page] = _api_page(title, first, [f"hookline.{name}" for name in names])
    for family in FAMILIES:
        names = import_module(f"hookline.callbacks.{family}").__all__
        first = f"The callbacks of the family `{family}`. [Callbacks](../callbacks/README.md) has one page each."
        pages[f"callbacks-{family}"] = _api_page(
            f"Callbacks: {family}", first, [f"hookline.{name}" for name in sorted(names)], members=False
        )
    for module, (title, first) in MODULES.items():
        names = import_module(f"hookline.{module}").__all__
        pages[module] = _api_page(title, first, [f"hookline.{module}.{name}" for name in names])
    kinds = [
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    ]
    first = "All exceptions, and the class of all warnings. [Error messages](../errors.md) lists common messages."
    pages["errors"] = _api_page("Errors", first, [f"hookline.errors.{name}" for name in kinds])
    rows = [re.match(r"# (.*)", text) for text in pages.values()]
    index = [f"- [{found[1]}]({page}.md)" for page, found in zip(pages, rows, strict=True) if found]
    pages["README"] = "\n".join(
        ["# API reference", "", NOTE, "", f"Every public name of Hookline {hookline.__version__}.", "", *index, ""]
    )
    return {f"{page}.md": text for page, text in pages.items()}


def _api_page(title: str, first: str, names: list[str], *, members: bool = True) -> str:
    lines = [f"# {title}", "", NOTE, "", first]
    for name in names:
        home = _home_of(name)
        lines += ["", f"::: {home}"]
        options = [] if members else ["      members: false"]
        if name.count(".") > 1 and home != name:  # The heading would be the last part, which is not enough to import.
            options += [f"      heading: {name}"]
        lines += ["    options:", *options] if options else []
    return "\n".join(lines) + "\n"


def _home_of(name: str) -> str:
    """Return the path under which a name is defined. mkdocstrings reads the source and needs that path."""
    *modules, last = name.split(".")
    found = getattr(import_module(".".join(modules)), last)
    return f"{found.__module__}.{found.__qualname__}" if hasattr(found, "__qualname__") else name


def decisions_page(docs: Path) -> str:
    """Return the content of ``docs/decisions/README.md``: the titles of all decisions."""
    lines = [
        *("# Decisions", "", "<!-- Generated from the titles by `make docs`; do not edit. -->", ""),
        "Each page says what was decided, why, and which alternatives were rejected.",
        "",
        *("| | |", "|---|---|"),
    ]
    for page in sorted((docs / "decisions").glob("0*.md")):
        number, _, title = page.read_text().partition("\n")[0].removeprefix("# ").partition(": ")
        lines.append(f"| [{number}]({page.name}) | {title} |")
    return "\n".join(lines) + "\n"


def site_config(config: str, docs: Path) -> str:
    """Return ``mkdocs.yml`` with the pages of the folders in its navigation.

    Args:
        config: Current content of the file. The lines between the comments of a folder are replaced.
        docs: The folder of the pages.
    """
    tutorials = re.findall(r"\]\((\w+)\.md\)", (docs / "tutorials" / "README.md").read_text())
    first = ["README", *GROUPS, *tutorials]  # The table of the tutorials is in the order in which to read them.
    for folder, indent in (("tutorials", 6), ("interop", 6), ("api", 10), ("decisions", 10)):
        pages = sorted(
            (docs / folder).glob("*.md"),
            key=lambda page: (first.index(page.stem) if page.stem in first else len(first), page.stem),
        )
        lines = [f"{' ' * indent}- {page.relative_to(docs)}" for page in pages]
        config = _filled(config, folder, lines)
    rows = callback_rows()
    lines = []
    for family in FAMILIES:
        lines += [f"      - {family.capitalize()}:"]
        lines += [f"          - {row.name}: callbacks/{row.page}.md" for row in rows if row.family == family]
    return _filled(config, "callbacks", lines)


def _filled(config: str, name: str, lines: list[str]) -> str:
    """Replace the lines between two comments."""
    text = "".join(f"{line}\n" for line in lines)
    region = rf"( *# pages of {name}\n)(?:.*\n)*?( *# end of {name}\n)"
    return re.sub(region, lambda found: f"{found[1]}{text}{found[2]}", config)
