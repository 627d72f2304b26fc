"""Progress of a run: durations, the clock, and schedules for periodic actions."""

from hookline.progress.clock import Clock, EvalClock
from hookline.progress.duration import Duration
from hookline.progress.schedule import Schedule

__all__ = ["Clock", "Duration", "EvalClock", "Schedule"]
