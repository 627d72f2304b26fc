"""Replay steps of a past run with other callbacks: ``hl.replay`` and ``hookline replay``."""

from hookline.replaying.start import Replay, replay

__all__ = ["Replay", "replay"]
