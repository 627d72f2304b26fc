"""How far a run is: durations, the clock that counts, and schedules that say when something is due."""

from hookline.progress.clock import Clock, EvalClock
from hookline.progress.duration import Duration
from hookline.progress.schedule import Schedule

__all__ = ["Clock", "Duration", "EvalClock", "Schedule"]
