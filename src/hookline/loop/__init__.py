"""The engine: ``Loop``, ``Task``, ``SupervisedTask`` and ``Trainer``."""

from hookline.loop.evaluation.eval_loader import EvalLoader
from hookline.loop.loop import Loop
from hookline.loop.model.schedulers import Scheduler
from hookline.loop.result import Result
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.tasks.task import Task
from hookline.loop.trainer import Trainer

__all__ = ["EvalLoader", "Loop", "Result", "Scheduler", "SupervisedTask", "Task", "Trainer"]
