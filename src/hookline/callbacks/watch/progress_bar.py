"""``ProgressBar``: how far a run is."""

from __future__ import annotations

from hookline.events import Callback


class ProgressBar(Callback):
    """Shows how far a run is."""

    optional = True
