"""The page of all libraries says what runs, with the versions that the tests install."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookline.cli.interop_table import LibraryRow, library_rows

CONSTRAINTS = Path(__file__).parents[1] / "interop"
PROMISED = {
    "lightning": (23, 3),
    "transformers": (19, 2),
    "torchtnt": (22, 1),
    "pytorch-accelerated": (14, 5),
    "composer": (19, 4),
    "aitoolbox": (39, 5),
    "keras": (14, 2),
}
"""By page: the number of callbacks that the library ships, and how many of them may be refused."""
ROWS = {row.page: row for row in library_rows()}


def pins(page: str) -> dict[str, str]:
    text = (CONSTRAINTS / f"constraints-{page}.txt").read_text()
    return dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("row", [row for page, row in ROWS.items() if page in PROMISED], ids=lambda row: row.page)
def test_as_many_callbacks_run_as_promised(row: LibraryRow) -> None:
    shipped, refused = PROMISED[row.page]
    assert row.shipped >= shipped
    assert row.refused <= refused


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.page)
def test_the_versions_are_those_that_the_tests_install(row: LibraryRow) -> None:
    found = pins(row.page)
    assert any(f"{version}.".startswith(f"{row.versions}.") for version in found.values())
    for package in row.third_party:
        name, version = package.split()
        assert f"{found.get(name, version)}.".startswith(f"{version}.")


@pytest.mark.parametrize("page", ["lightning", "transformers", "keras"])
def test_three_callbacks_of_other_packages_are_tested(page: str) -> None:
    assert sum(len(names) for names in ROWS[page].third_party.values()) >= 3
