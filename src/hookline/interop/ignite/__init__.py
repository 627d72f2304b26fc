"""Handlers of ignite in a run of Hookline, on an ``Engine`` that the run drives."""

from hookline.interop.ignite.engine import EngineAdapter

__all__ = ["ADAPTER"]

ADAPTER = EngineAdapter
