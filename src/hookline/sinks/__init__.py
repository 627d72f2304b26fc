"""Where metrics go: one file per kind of sink."""

from hookline.sinks.jsonl import JsonLines

__all__ = ["JsonLines"]
