"""Any sequence of adding, removing, emitting and failing does what a naive list of callbacks would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hookline.events import Callback

EVENTS = ("train_start", "train_step_end", "eval_end")


class BoomError(Exception):
    pass


class Actor(Callback):
    """At each event it hears it writes its name; then it does what ``plan`` says."""

    def __init__(self, name: str, optional: bool, heard: frozenset[str]) -> None:
        self.name = name
        self.optional = optional
        self.plan: tuple[str, Any] = ("nothing", None)
        for event in heard:
            setattr(self, f"on_{event}", self.act)

    def act(self, run: Any) -> None:
        run.world.log.append(self.name)
        (what, whom), self.plan = self.plan, ("nothing", None)
        if what == "raise":
            raise BoomError(self.name)
        if what == "add":
            run.world.line.add([whom])
        if what == "remove":
            run.world.remove(whom)


class Machine(RuleBasedStateMachine):
    """The model: ``live`` is a plain list, in the order of adding, since nothing declares an order."""

    make: ClassVar[Callable[[], Any]]

    @initialize()
    def begin(self) -> None:
        self.world = type(self).make()
        self.live: list[tuple[Actor, frozenset[str]]] = []
        self.disabled: list[str] = []
        self.count = 0

    def new(self, optional: bool, heard: frozenset[str]) -> tuple[Actor, frozenset[str]]:
        self.count += 1
        return Actor(f"c{self.count}", optional, heard), heard

    @rule(optional=st.booleans(), heard=st.frozensets(st.sampled_from(EVENTS)))
    def add(self, optional: bool, heard: frozenset[str]) -> None:
        made = self.new(optional, heard)
        self.world.line.add([made[0]])
        self.live.append(made)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(self.live))
        self.world.remove(victim[0])
        self.live.remove(victim)

    @rule(event=st.sampled_from(EVENTS))
    def emit(self, event: str) -> None:
        self.world.emit(event)
        self.expect(self.hearing(event))

    @precondition(lambda self: any(heard for _, heard in self.live))
    @rule(data=st.data())
    def emit_and_raise(self, data: st.DataObject) -> None:
        actor, heard = data.draw(st.sampled_from([one for one in self.live if one[1]]))
        event = data.draw(st.sampled_from(sorted(heard)))
        actor.plan = ("raise", None)
        if actor.optional:
            expected = self.hearing(event)
            self.world.emit(event)
            self.expect(expected)
            self.disabled.append(actor.name)
            self.live.remove((actor, heard))
        else:
            names = self.hearing(event)
            with pytest.raises(BoomError) as caught:
                self.world.emit(event)
            assert caught.value.__notes__ == [f"in {actor.name}.on_{event} at step 0"]
            self.expect(names[: names.index(actor.name) + 1])

    @precondition(lambda self: any(heard for _, heard in self.live))
    @rule(data=st.data(), optional=st.booleans(), new_heard=st.frozensets(st.sampled_from(EVENTS)))
    def emit_and_add(self, data: st.DataObject, optional: bool, new_heard: frozenset[str]) -> None:
        actor, heard = data.draw(st.sampled_from([one for one in self.live if one[1]]))
        event = data.draw(st.sampled_from(sorted(heard)))
        expected, made = self.hearing(event), self.new(optional, new_heard)
        actor.plan = ("add", made[0])
        self.world.emit(event)
        self.expect(expected)
        self.live.append(made)

    @precondition(lambda self: any(heard for _, heard in self.live))
    @rule(data=st.data())
    def emit_and_remove(self, data: st.DataObject) -> None:
        actor, heard = data.draw(st.sampled_from([one for one in self.live if one[1]]))
        victim = data.draw(st.sampled_from(self.live))
        event = data.draw(st.sampled_from(sorted(heard)))
        expected = self.hearing(event)
        actor.plan = ("remove", victim[0])
        self.world.emit(event)
        self.expect(expected)
        self.live.remove(victim)

    def hearing(self, event: str) -> list[str]:
        return [actor.name for actor, heard in self.live if event in heard]

    def expect(self, names: list[str]) -> None:
        assert self.world.log == names
        self.world.log.clear()

    @invariant()
    def the_tables_are_those_of_the_list(self) -> None:
        if not hasattr(self, "world"):
            return
        for event in EVENTS:
            assert self.world.heard(event) == self.hearing(event)
        assert [failure.callback for failure in self.world.line.failures] == self.disabled


def test_the_line_is_a_list_of_callbacks(world: Callable[[], Any]) -> None:
    Machine.make = staticmethod(world)
    Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    Machine.TestCase().runTest()
