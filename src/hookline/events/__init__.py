"""Events, callbacks and their dispatch, in pure Python without torch."""

from hookline.events.callback import Callback, Ranks
from hookline.events.cost import CostRow
from hookline.events.explain import explain
from hookline.events.hooks import Hooks
from hookline.events.line import Failure, Heard, Line, Member, check_callbacks
from hookline.events.messages import Messages
from hookline.events.scopes import Scopes
from hookline.events.spec import EVENTS, SCOPES, Event
from hookline.events.when import FunctionCallback, When, on

__all__ = [
    "EVENTS",
    "SCOPES",
    "Callback",
    "CostRow",
    "Event",
    "Failure",
    "FunctionCallback",
    "Heard",
    "Hooks",
    "Line",
    "Member",
    "Messages",
    "Ranks",
    "Scopes",
    "When",
    "check_callbacks",
    "explain",
    "on",
]
