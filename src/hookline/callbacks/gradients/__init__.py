"""Callbacks that change or show gradients."""

from hookline.callbacks.gradients.gradient_clip import GradientClip
from hookline.callbacks.gradients.gradient_monitor import GradientMonitor
from hookline.callbacks.gradients.gradient_plot import GradientPlot

__all__ = ["GradientClip", "GradientMonitor", "GradientPlot"]
