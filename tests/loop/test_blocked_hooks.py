"""A hook that blocks the run is named, with its line; what is not a callback's is not blamed on one."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, train_loop
from tests.support.inside import set_blocked_after

LIMIT_S = 0.05
ENOUGH_S = 10 * LIMIT_S
"""Time in which a warning would have come."""

train_and_evaluate = partial(fit, val=tiny_data(), max_duration="1ep")


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warned]:
    set_blocked_after(monkeypatch, LIMIT_S)
    handler = Warned()
    logging.getLogger("hookline").addHandler(handler)
    yield handler
    logging.getLogger("hookline").removeHandler(handler)
    assert not [thread.name for thread in threading.enumerate() if "hookline-hooks" in thread.name]


class Warned(logging.Handler):
    """The warnings about hooks, and a way to wait for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._came = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        if "blocks the run" in record.getMessage():
            self.texts.append(record.getMessage())
            self._came.release()

    def wait(self) -> None:
        assert self._came.acquire(timeout=60), "no warning came"


class Slow(hl.Callback):
    """Blocks in one hook until it was named."""

    def __init__(self, warned: Warned, optional: bool) -> None:
        self._warned, self.optional, self._done = warned, optional, False

    def block(self) -> None:
        if not self._done:
            self._done = True
            self._warned.wait()


class InHook(Slow):
    def on_train_step_end(self, run: Any) -> None:
        self.block()


class InScope(Slow):
    def around_epoch(self, run: Any) -> Iterator[None]:
        yield
        self.block()


class InAnyEvent(Slow):
    def on_event(self, event: str, run: Any) -> None:
        if event == "epoch_end":
            self.block()


class AtTheEnd(Slow):
    def on_teardown(self, run: Any) -> None:
        self.block()


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        (InHook, "on_train_step_end"),
        (InScope, "around_epoch"),
        (InAnyEvent, "on_event"),
        (AtTheEnd, "on_teardown"),
    ],
)
def test_a_hook_that_blocks_is_named_with_its_line(warned: Warned, kind: type[Slow], hook: str, optional: bool) -> None:
    train_and_evaluate(hl.LambdaCallback(on_train_step_end=lambda run: None), kind(warned, optional))
    source, first = inspect.getsourcelines(getattr(kind, hook))
    line = first + next(index for index, text in enumerate(source) if "self.block()" in text)
    (text,) = warned.texts
    assert text.startswith(f"{kind.__name__}.{hook} blocks the run: ")
    assert f"(test_blocked_hooks.py:{line})" in text


def test_one_of_two_alike_a_function_and_an_own_loop_are_named_once_each(warned: Warned) -> None:
    idle = InHook(warned, optional=True)
    idle.name, idle._done = "idle", True

    @hl.on("train_step_end", every="2st")
    def second(run: Any) -> None:
        warned.wait()
        time.sleep(ENOUGH_S)  # it is named once, however long it blocks

    train_loop(idle, InHook(warned, optional=True), second, max_duration="3st")
    names = [text.partition(" blocks")[0] for text in warned.texts]
    assert names == ["InHook.on_train_step_end", f"{second.name}.on_train_step_end"]


class SlowModel(TinyModel):
    """One forward takes long."""

    def forward(self, x: Any) -> Any:
        if self.training and not hasattr(self, "waited"):
            self.waited = True
            time.sleep(ENOUGH_S)
        return super().forward(x)


class SlowData:
    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(tiny_data()):
            if index == 1:
                time.sleep(ENOUGH_S)
            yield batch

    def __len__(self) -> int:
        return len(tiny_data())


class Evaluates(hl.Callback):
    """A hook that asks the run for an evaluation, of which one batch takes long."""

    def on_epoch_end(self, run: Any) -> None:
        run.model.train_waited, run.model.waited_in_eval = True, False
        run.evaluate("val")


class SlowInEvaluation(TinyModel):
    waited_in_eval = True

    def forward(self, x: Any) -> Any:
        if not self.waited_in_eval:
            self.waited_in_eval = True
            time.sleep(ENOUGH_S)
        return super().forward(x)


class Around(hl.Callback):
    """Open around everything, and heard in every step."""

    def around_train(self, run: Any) -> Iterator[None]:
        yield

    def on_train_step_start(self, run: Any) -> None:
        pass

    def on_train_step_end(self, run: Any) -> None:
        pass


@pytest.mark.parametrize("what", ["model", "data", "evaluation in a hook"])
def test_a_slow_model_and_slow_data_are_not_blamed_on_a_callback(warned: Warned, what: str) -> None:
    if what == "model":
        train_and_evaluate(Around(), model=SlowModel())
    elif what == "data":
        train_and_evaluate(Around(), train=SlowData())
    else:
        train_and_evaluate(Around(), Evaluates(), model=SlowInEvaluation())
    assert warned.texts == []
