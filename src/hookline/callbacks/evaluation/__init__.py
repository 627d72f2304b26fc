"""Callbacks that compute, rename, print and plot metrics."""

from hookline.callbacks.evaluation.derived_metric import DerivedMetric
from hookline.callbacks.evaluation.history_plot import HistoryPlot
from hookline.callbacks.evaluation.image_samples import ImageSamples
from hookline.callbacks.evaluation.metrics import Metrics
from hookline.callbacks.evaluation.print_metrics import PrintMetrics
from hookline.callbacks.evaluation.rename_metric import RenameMetric

__all__ = ["DerivedMetric", "HistoryPlot", "ImageSamples", "Metrics", "PrintMetrics", "RenameMetric"]
