"""Callbacks and models of AIToolbox in a run of Hookline."""

from hookline.interop.aitoolbox.callback import AIToolboxAdapter
from hookline.interop.aitoolbox.model import TTModelSteps

__all__ = ["ADAPTER", "MODEL_STEPS"]

ADAPTER = AIToolboxAdapter
MODEL_STEPS = TTModelSteps
