"""Callbacks for learning rates, accumulation, frozen layers and the search for settings."""

from hookline.callbacks.schedule.accumulation_schedule import AccumulationSchedule
from hookline.callbacks.schedule.backbone_finetuning import BackboneFinetuning
from hookline.callbacks.schedule.batch_size_finder import BatchSizeFinder
from hookline.callbacks.schedule.finetuning import Finetuning
from hookline.callbacks.schedule.freeze import Freeze
from hookline.callbacks.schedule.lr_finder import LRFinder
from hookline.callbacks.schedule.lr_schedule import LRSchedule
from hookline.callbacks.schedule.micro_batches import MicroBatches

__all__ = [
    "AccumulationSchedule",
    "BackboneFinetuning",
    "BatchSizeFinder",
    "Finetuning",
    "Freeze",
    "LRFinder",
    "LRSchedule",
    "MicroBatches",
]
