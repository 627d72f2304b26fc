"""Who hears what a part of a run does."""

from __future__ import annotations

from enum import Enum


class Audience(Enum):
    """Who hears the events and keeps the metrics of what is running now."""

    ALL = "all callbacks"
    ANSWER = "the hook that called run.evaluate() or run.predict()"
    SANITY_CHECK = "the sanity check"
    TRIAL = "the callback that opened loop.trial()"
