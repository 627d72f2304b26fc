"""What counts as a remote address, and where a relative path is."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from hookline.errors import ArgumentError
from hookline.run import paths


def test_doctests() -> None:
    assert doctest.testmod(paths).failed == 0


def test_a_home_folder_is_expanded() -> None:
    assert paths.path_to_write("~/runs", "folder", "Trainer") == Path.home() / "runs"


def test_a_relative_path_may_leave_the_folder_of_the_run() -> None:
    assert paths.in_run_folder(Path("../shared.csv"), Path("/runs/one"), "path", "CSV") == Path(
        "/runs/one/../shared.csv"
    )


def test_a_file_address_that_pathlib_has_shortened_is_given_back_as_a_path() -> None:
    with pytest.raises(ArgumentError, match=r"Write '/data/run'\.$"):
        paths.path_to_write(Path("file:///data/run"), "folder", "Trainer")
