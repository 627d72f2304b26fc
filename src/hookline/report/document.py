"""The HTML around the data: one file that loads nothing and sends nothing.

All strings from a run are untrusted. They are in a JSON block that they cannot close. The scripts insert them as text,
never as markup. The page's content security policy allows no other scripts and no requests.
"""

from __future__ import annotations

import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from hookline.records.metric import encode

STYLES = ("vendor/uplot.min.css", "page.css")
LIBRARY = "vendor/uplot.min.js"
SCRIPTS = (
    "elements.js",
    "format.js",
    "curves.js",
    "view.js",
    "ticks.js",
    "marks.js",
    "plot.js",
    "chart.js",
    "grid.js",
    "media.js",
    "timeline.js",
    "about.js",
    "report.js",
    "board.js",
    "compare.js",
)
"""Joined into one function, so that they define no globals. ``page.js`` comes last."""
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='none' "
    "stroke='%23155fa8' stroke-width='2.2' stroke-linecap='round' d='M10 2v8a3.5 3.5 0 1 1-7 0'/%3E%3C/svg%3E"
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def document(
    title: str, data: Mapping[str, Any], fallback: str, *, online: bool = False, scripts: Sequence[str] = ()
) -> str:
    """Return a complete page.

    Args:
        title: Title of the page.
        data: Data for the scripts.
        fallback: Markup for browsers without scripts.
        online: Allow requests to the server of the page.
        scripts: More assets, run before ``page.js``.
    """
    style, script = asset_text(STYLES), page_script(tuple(scripts))
    page = "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(online=online, scripts=scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{html.escape(title)}</title>",
            f'<link rel="icon" href="{ICON}">',
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<div id="page"></div>',
            f"<noscript>{fallback}</noscript>",
            f'<script type="application/json" id="data">{embedded(data)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )
    return _encodable(page)


def policy(*, online: bool = False, scripts: Sequence[str] = ()) -> str:
    """Return the content security policy. ``online`` allows requests to the server of the page."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(page_script(tuple(scripts))),
        "style-src": _hash(asset_text(STYLES)),
        "img-src": "data:",
        "connect-src": "'self'" if online else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def embedded(data: Any) -> str:
    r"""Return JSON that cannot close a script element or open another one.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    try:
        text = _ENCODER.encode(data)
    except ValueError:  # A NaN inside a setting is rare, so numbers are not checked in advance.
        text = _ENCODER.encode(encode_all(data))
    return _encodable(text.translate(_ESCAPES))


def _encodable(text: str) -> str:
    """Replace unpaired surrogates, for example from a file name: UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def encode_all(value: Any) -> Any:
    """Return the value with every NaN and infinity in it as a string."""
    if isinstance(value, Mapping):
        return {key: encode_all(its) for key, its in value.items()}
    if isinstance(value, list | tuple):
        return [encode_all(its) for its in value]
    return encode(value)


@cache
def asset_text(names: tuple[str, ...]) -> str:
    """Return the assets, joined."""
    folder = files("hookline.report") / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names)


@cache
def page_script(more: tuple[str, ...] = ()) -> str:
    """Return all scripts as one, after the license of the chart library."""
    licence = asset_text(("vendor/uplot.LICENSE",))
    library, own = asset_text((LIBRARY,)), asset_text((*SCRIPTS, *more, "page.js"))
    return f'/* uPlot:\n{licence}\n*/\n{library}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
