"""Callbacks and models of Composer in a run of Hookline."""

from hookline.interop.composer.callback import ComposerAdapter
from hookline.interop.composer.model import ComposerSteps

__all__ = ["ADAPTER", "MODEL_STEPS"]

ADAPTER = ComposerAdapter
MODEL_STEPS = ComposerSteps
