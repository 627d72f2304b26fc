"""Objects that a hook sees: ``Run``, the history and the callbacks. No torch at run time."""

from hookline.run.callbacks import Callbacks
from hookline.run.ending import Ending
from hookline.run.history import History
from hookline.run.requests import BREAK, Requests, StopRequest
from hookline.run.run import LatestMetrics, Run, Stage
from hookline.run.state import MISSING, EvalShard, RunState, Trial

__all__ = [
    "BREAK",
    "MISSING",
    "Callbacks",
    "Ending",
    "EvalShard",
    "History",
    "LatestMetrics",
    "Requests",
    "Run",
    "RunState",
    "Stage",
    "StopRequest",
    "Trial",
]
