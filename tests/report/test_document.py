"""The page holds all that it needs, and what a run is called can do nothing in it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from base64 import b64encode
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.report.document import SCRIPTS, document, embedded, policy

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PAYLOADS = ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028", "&lt;", "'\"", "</title><img src=x>"]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@settings(deadline=None)
@given(tree=TREES)
def test_data_comes_back_from_the_page_as_it_was(tree: Any) -> None:
    assert json.loads(embedded(tree)) == tree


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(PAYLOADS))
def test_nothing_in_the_data_can_end_its_element(text: str) -> None:
    assert not re.search("[<>&\u2028\u2029]", embedded({text: [text]}))


def test_text_that_is_no_unicode_does_not_stop_the_page() -> None:
    assert json.loads(embedded(["a\ud800b"])) == ["a?b"]


def test_nan_in_a_setting_does_not_make_the_page_unreadable() -> None:
    assert json.loads(embedded({"a": [math.nan, (1.0, -math.inf)]})) == {"a": ["nan", [1.0, "-inf"]]}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_title_stays_a_text_and_adds_no_element(payload: str) -> None:
    plain = Tags(document("title", {"name": "name"}, ""))
    hostile = Tags(document(payload, {payload: payload}, ""))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = Tags(document("title", {}, ""))
    assert [tag for tag, _ in page.found].count("script") == 2
    for _, attributes in page.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "data:").startswith("data:")


def test_the_policy_lets_only_our_own_script_and_style_run() -> None:
    page = document("title", {}, "")
    found = re.search('content="(default-src[^"]*)"', page)
    assert found is not None
    rules = dict(rule.split(" ", 1) for rule in found[1].split("; "))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name, element in (("script-src", "script"), ("style-src", "style")):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert rules[name] == f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_only_a_page_that_is_served_may_ask_and_only_its_server() -> None:
    assert "connect-src 'self'" in policy(online=True)
    assert "connect-src 'none'" in policy(online=False)


def test_scripts_never_make_markup_of_data() -> None:
    own = re.search(r"<script>.*?</script>", document("", {}, ""), re.DOTALL)
    assert own is not None
    ours = own[0][own[0].index('"use strict";\n// Elements') :]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http:",
        "https:",
    ):
        assert word not in ours


def test_the_licence_of_the_chart_library_is_in_the_page() -> None:
    assert "Permission is hereby granted, free of charge" in document("", {}, "")


def test_every_script_is_named_once() -> None:
    assert len(set(SCRIPTS)) == len(SCRIPTS)


def test_half_of_a_character_in_a_title_does_not_stop_the_page() -> None:
    assert "<title>a?b</title>" in document("a\ud800b", {}, "c\udfffd")
