"""The content for browsers without scripts: the final values, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

MAX_METRICS = 500
"""Maximum number of metrics in the table."""


def fallback(data: Mapping[str, Any]) -> str:
    """Return the markup. All strings from a run are escaped."""
    parts = [f"<main class=plain><h1>{escape(str(data['title']))}</h1>"]
    if data["page"] == "report":
        status = data["status"]
        reason = f": {status['reason']}" if status["reason"] else ""
        parts.append(f"<p>{escape(status['label'] + reason)}</p>")
        parts.append("<p>The curves need JavaScript. These are the final values.</p>")
        parts.append(
            _table(("metric", "last", "step", "lowest", "highest"), map(_number, data["numbers"][:MAX_METRICS]))
        )
        if data["metrics"] > MAX_METRICS:
            parts.append(f"<p>{data['metrics'] - MAX_METRICS:,} more metrics are in metrics.jsonl.</p>")
    elif data["page"] == "compare":
        titles = [run["title"] for run in data["runs"]]
        for heading, key in (("Settings that differ", "settings"), ("Final metrics that differ", "metrics")):
            parts.append(f"<h2>{heading}</h2>")
            parts.append(_table(("name", *titles), map(_difference, data[key]["rows"])))
    parts.append("</main>")
    return "\n".join(parts)


def _number(number: Mapping[str, Any]) -> tuple[Any, ...]:
    last, lowest, highest = (_short(number[key]) for key in ("last", "lowest", "highest"))
    return number["name"], last, number["last"]["step"], lowest, highest


def _short(point: Mapping[str, Any] | None) -> str:
    value = point["value"] if point else ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _difference(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["name"], *("—" if text is None else text for text in row["texts"])


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
