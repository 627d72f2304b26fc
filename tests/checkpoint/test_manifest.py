"""The manifest: what is written is read back in every value, and any other byte is found."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.checkpoint import About, Manifest
from hookline.checkpoint.hashed_file import FileRecord
from hookline.errors import CheckpointCorruptError

FILES = {"model.safetensors": FileRecord(10, "ab" * 32)}
counts = st.integers(0, 2**63 - 1)
abouts = st.builds(
    About,
    step=counts,
    epoch=counts,
    batch=counts,
    sample=counts,
    seconds=st.floats(allow_nan=False, allow_infinity=False),
    run=st.text(),
    generation=counts,
    metrics=st.dictionaries(st.text(), st.floats(), max_size=4),
    exact=st.booleans(),
    pending_eval=st.booleans(),
    finished=st.booleans(),
    environment=st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.none()), max_size=4),
)


@given(abouts, st.floats(0, 1e12), st.integers(0, 2**63 - 1))
def test_every_value_comes_back(about: About, created: float, size: int) -> None:
    files = {name: FileRecord(size, "0f" * 32) for name in ("model.safetensors", "state.json", "state.safetensors")}
    back = Manifest.from_bytes(Manifest(about, files, created).to_bytes(), "manifest.json")
    assert repr(back.about) == repr(about)
    assert (back.created, dict(back.files), back.format) == (created, files, 1)


@given(st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    about = About(step=3, epoch=0, batch=0, sample=0, seconds=0.5, run="r", metrics={"loss": math.nan})
    text = bytearray(Manifest(about, FILES, 1.5).to_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CheckpointCorruptError, match=r"^it/manifest\.json: "):
        Manifest.from_bytes(bytes(text), "it/manifest.json")


@given(st.binary() | st.text().map(str.encode))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        Manifest.from_bytes(data, "manifest.json")


def test_it_can_be_read_by_a_person_and_by_any_json_parser() -> None:
    import json

    about = About(step=3, epoch=0, batch=0, sample=0, seconds=0.5, run="r", metrics={"loss": 0.25})
    text = Manifest(about, FILES, 1.5).to_bytes().decode()
    assert text.count("\n") > 20
    assert json.loads(text)["about"]["metrics"] == {"loss": 0.25}


def test_every_field_of_about_has_a_kind_that_can_be_checked() -> None:
    values: dict[str, Any] = {"step": 1, "epoch": 1, "batch": 1, "sample": 1, "seconds": 1.0, "run": "r"}
    back = Manifest.from_bytes(Manifest(About(**values), FILES, 0.0).to_bytes(), "manifest.json").about
    assert [type(getattr(back, field.name)) for field in dataclasses.fields(About)].count(type(None)) == 0
