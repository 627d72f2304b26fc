"""Callbacks that change how a model trains, so that it generalizes better."""

from hookline.callbacks.regularization.cut_mix import CutMix
from hookline.callbacks.regularization.label_smoothing import LabelSmoothing
from hookline.callbacks.regularization.mix_up import MixUp
from hookline.callbacks.regularization.sam import SAM

__all__ = ["SAM", "CutMix", "LabelSmoothing", "MixUp"]
