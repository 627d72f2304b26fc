"""Callbacks that save and load weights, checkpoints, predictions and exported models."""

from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.export_model import ExportModel
from hookline.callbacks.saving.load_weights import LoadWeights
from hookline.callbacks.saving.prediction_writer import PredictionWriter
from hookline.callbacks.saving.save_at_end import SaveAtEnd
from hookline.callbacks.saving.save_best import SaveBest
from hookline.callbacks.saving.upload import Upload

__all__ = ["Checkpointer", "ExportModel", "LoadWeights", "PredictionWriter", "SaveAtEnd", "SaveBest", "Upload"]
