"""One row per library whose callbacks run in Hookline, from the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import hookline.interop
from hookline.events.foreign_classes import CALLBACKS, DATA, MODELS


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One library."""

    name: str
    page: str
    """Name of the page under ``docs/interop``."""
    versions: str
    runs: int
    limited: int
    untested: int
    refused: int
    loss: str
    """Name of the metric ``val/loss`` in the library."""
    models: tuple[str, ...]
    """Classes of models and data that run as they are."""
    guest: str
    """Function that makes a callback of the library from callbacks of Hookline, if there is one."""
    needs: str
    third_party: Mapping[str, tuple[str, ...]]
    """Callbacks of other packages that the tests run, by package."""

    @property
    def shipped(self) -> int:
        """Number of callbacks that the library ships. 0 if any handler of the user runs."""
        return self.runs + self.limited + self.untested + self.refused


def library_rows() -> list[LibraryRow]:
    """Return the rows of all libraries, those with most callbacks first."""
    rows = [_row(module) for module in sorted(set(CALLBACKS.values()))]
    return sorted(rows, key=lambda row: (-row.shipped, row.page))


def overview_page(docs: Path) -> str:
    """Return the content of ``docs/interop/README.md``.

    Args:
        docs: The folder of the documentation.
    """
    rows = library_rows()
    lines = [
        "# Other libraries in Hookline",
        "",
        "<!-- Generated from the adapters by `make docs`; do not edit. -->",
        "",
        "Put callbacks of other libraries into `callbacks=[…]`, in any mixture with Hookline's own. Unless its",
        "page says otherwise, the tests run each callback twice, in its own trainer and in Hookline, and",
        "compare the effect and the weights.",
        "",
        "| library | version tested | callbacks shipped | run | run with a limit | not tested | refused |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_link(row, docs)} | {row.versions} | {row.shipped} | {row.runs} | {row.limited} | {row.untested} "
        f"| {row.refused} |"
        for row in rows
        if row.shipped
    ]
    lines += [f"\n{_link(row, docs)} {row.versions}: any handler of an engine runs." for row in rows if not row.shipped]
    lines += [
        "",
        "Each page lists the callbacks, the limits, the reasons for refusals and the differences. A callback",
        "that is not tested needs an account or a service. By its source, it needs nothing that Hookline does",
        "not offer.",
        "",
        "## What each library needs",
        "",
        "Hookline has no dependency on these libraries, and imports an adapter only for a callback or a model",
        "of its library.",
        "",
        "| library | the metric `val/loss` there | runs as a model or as data | Hookline's callbacks there | needs |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | `{row.loss}` | {_codes(row.models)} | {_codes((row.guest,) if row.guest else ())} "
        f"| {row.needs} |"
        for row in rows
    ]
    lines += [
        "",
        "`hl.interop.adapt(callback, names={…})` gives other names of metrics.",
        "",
        "## Callbacks of other packages",
        "",
        "Callbacks that other packages have written for these libraries run as well. Tested:",
        "",
        "| for | package | callbacks |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {package} | {_codes(names)} |" for row in rows for package, names in row.third_party.items()
    ]
    return "\n".join(lines) + "\n"


def _row(module: str) -> LibraryRow:
    support, name = import_module(f"{module}.support"), module.rpartition(".")[2]
    adapter = import_module(module).ADAPTER

    def count(table: str) -> int:
        return len(getattr(support, table, ()))

    classes = {cls: None for table in (MODELS, DATA) for (_, cls), its in table.items() if its == module}
    return LibraryRow(
        name=getattr(support, "TITLE", adapter.library),
        page=name.replace("_", "-"),
        versions=support.VERSIONS,
        runs=count("RUNS"),
        limited=count("LIMITED"),
        untested=count("NOT_TESTED"),
        refused=count("REFUSED"),
        loss=adapter.rule.theirs("val/loss"),
        models=(*classes, *getattr(support, "MODELS", ())),
        guest=f"hl.interop.to_{name}" if f"to_{name}" in hookline.interop.__all__ else "",
        needs=getattr(support, "NEEDS", ""),
        third_party=getattr(support, "THIRD_PARTY", {}),
    )


def _link(row: LibraryRow, docs: Path) -> str:
    page = docs / "interop" / f"{row.page}.md"
    return f"[{row.name}]({page.name})" if page.exists() else row.name


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
