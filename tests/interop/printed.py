"""Run code as a document prints it."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any


def run_printed(code: str, names: Mapping[str, Any], changes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run printed code, and return its names.

    Args:
        code: The code, as the document prints it.
        names: What the document leaves open, such as a model.
        changes: Text that cannot run today, and what replaces it. Each of them must occur.

    Returns:
        The names after the code has run.
    """
    for old, new in (changes or {}).items():
        assert old in code, old
        code = code.replace(old, new)
    namespace = {"__name__": "document", **names}
    exec(compile(dedent(code), "document", "exec"), namespace)
    return namespace
