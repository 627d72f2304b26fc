"""Objects that a hook sees: ``Run``, the history and the callbacks. No torch at run time."""

from hookline.run.callbacks import Callbacks
from hookline.run.history import History
from hookline.run.requests import BREAK, Requests, StopRequest
from hookline.run.run import Run, Stage
from hookline.run.state import MISSING, RunState

__all__ = ["BREAK", "MISSING", "Callbacks", "History", "Requests", "Run", "RunState", "Stage", "StopRequest"]
