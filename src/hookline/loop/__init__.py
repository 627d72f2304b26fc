"""The engine: ``Loop``, ``Task``, ``SupervisedTask`` and ``Trainer``."""

from hookline.loop.loop import Loop
from hookline.loop.result import Result
from hookline.loop.schedulers import Scheduler
from hookline.loop.supervised import SupervisedTask
from hookline.loop.task import Task
from hookline.loop.trainer import Trainer

__all__ = ["Loop", "Result", "Scheduler", "SupervisedTask", "Task", "Trainer"]
