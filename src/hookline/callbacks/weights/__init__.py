"""Callbacks that change the weights: averages, pruning and quantization."""

from hookline.callbacks.weights.ema import EMA
from hookline.callbacks.weights.pruning import Pruning
from hookline.callbacks.weights.quantization_aware_training import QuantizationAwareTraining
from hookline.callbacks.weights.swa import SWA

__all__ = ["EMA", "SWA", "Pruning", "QuantizationAwareTraining"]
