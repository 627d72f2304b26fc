"""The parts of a run around a driven callback: real hooks, ``run`` and metrics, set by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookline.errors import SetupError
from hookline.events import Callback, Event
from hookline.events.spec import BY_NAME
from hookline.loop import Loop, SupervisedTask, Task
from hookline.progress import Duration
from hookline.run import MISSING, Run, RunState, StopRequest
from hookline.testing.noting import NotedMessages, NotedMetrics
from hookline.testing.tiny import TinyModel, tiny_data

MOMENT = ("batch", "outputs", "loss", "optimizer", "loader_name", "exception", "checkpoint")
"""Fields that have a value at some events only, as in the table of events."""
COUNTERS = ("step", "epoch", "sample", "token")
MACHINERY = (
    *("line", "requests", "metrics", "answers", "loop", "clock", "history", "messages", "optimizers", "failure"),
    *("samples", "tokens", "audience", "failed_in"),
)
PLAIN = tuple(f.name for f in dataclass_fields(RunState) if f.name not in (*MOMENT, *MACHINERY))
FIELDS = (*COUNTERS, "seconds", "clock.batch", "metrics", "stop_reason", *MOMENT, *PLAIN)
IN_EVALUATION = frozenset({"batch_fetch_start", "batch_fetch_end", "forward_start", "forward_end", "callback_disabled"})
"""Events that also occur inside an evaluation."""
GRADIENTS = frozenset(
    {"backward_end", "train_batch_end", "gradients_ready", "optimizer_step_start", "optimizer_step_end"}
)
"""Events at which gradients exist."""
SKIPPABLE = frozenset({"train_step_start", "gradients_ready"})


class Stage:
    """The loop, its state before and after each event, and the actions of the callback."""

    def __init__(
        self,
        callback: Callback,
        model: nn.Module | None,
        loss: Callable[..., Any] | None,
        data: Sequence[Any] | None,
        *,
        rank: int,
        world_size: int,
        options: Mapping[str, Any],
    ) -> None:
        if data is None and model is None:
            data = tiny_data()
        loss = nn.CrossEntropyLoss() if loss is None and model is None else loss
        model = TinyModel() if model is None else model
        self._data = data
        self._moment: dict[tuple[str, str], Any] = {}  # Given or generated values, by stage and field.
        self._evaluation = ExitStack()
        self._evaluating = self._scoped = False
        self._now = ""
        self.stops: list[StopRequest] = []
        self.asked: list[tuple[str, str]] = []
        self.logged: dict[str, list[Any]] = {}
        self.sent_messages: dict[str, list[Any]] = {}
        self.emitted: list[tuple[str, dict[str, object]]] = []
        task = model if isinstance(model, Task) else SupervisedTask(model, loss, torch.optim.SGD)
        self.task = task
        self.loop = Loop(model, task=task, callbacks=[callback], **{"folder": False, "device": "cpu", **options})
        self.loop.engine.is_open = True  # As in a run, a callback that is added is set up at once.
        self.line, self.state, self.scopes = self.loop.engine.line, self.loop.engine.state, self.loop.engine.scopes
        self.run: Run = self.line.members[-1].view
        self._set_ranks(rank, world_size)
        self._set_notes()
        if data is not None:
            self.state.loaders.update(train=data, val=data)
        if self.state.folder is not None:
            self.state.folder.mkdir(parents=True, exist_ok=True)  # As in a run, the folder exists at setup.

    def _set_ranks(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self.state.rank, self.state.world_size):
            self.state.rank, self.state.world_size = rank, world_size
            self.line._rank = self.line._local_rank = rank
            self.line._compile()

    def _set_notes(self) -> None:
        """Install the parts that record the actions of the callback."""
        loop, line = self.loop, self.line
        self.requests, self.book = loop.engine.requests, loop.engine.book
        self.requests.observer, self.requests.can_save = self._note_request, True
        self.state.messages = NotedMessages(lambda key, value: self.sent_messages.setdefault(key, []).append(value))
        self.state.metrics = NotedMetrics(self.book, lambda name, value: self.logged.setdefault(name, []).append(value))
        emit_custom = line.emit_custom

        def note_and_emit(event: str, payload: dict[str, object]) -> None:
            self.emitted.append((event, payload))
            emit_custom(event, payload)

        line.emit_custom = note_and_emit  # type: ignore[method-assign]  # `run.emit` calls it.
        self.emit_custom = emit_custom

    def _note_request(self, what: str, stop: StopRequest | None = None) -> None:
        if stop is not None:
            self.stops.append(stop)
        else:
            self.asked.append((self._now, what))

    # -- one event -----------------------------------------------------------------------------

    def before(self, event: Event, fields: Mapping[str, Any]) -> None:
        """Set the state of the run for an event."""
        state, clock, self._now = self.state, self.state.clock, event.name
        if event.name == "setup" and state.in_fit:
            for member in self.line.members:
                self.line.begin_training(member, clock)
        elif event.name != "setup" and not state.optimizers:
            self.loop.engine.opening.make_optimizers()  # As in a run, after setup.
            self.loop.engine.steps.open()
        self._set_stage(event, fields)
        if event.name in ("train_start", "train_end"):
            state.is_training = event.name == "train_start"
            self.loop.engine.agenda.is_duration_reached = self.requests.is_trained = event.name == "train_end"
        if event.name == "train_epoch_start":
            clock.mark_epoch()
        clock.step += event.name == "train_step_end"
        clock.epoch += event.name == "train_epoch_end"
        if event.name == "eval_batch_end" or event.name == "predict_batch_end":
            clock.eval.batch += 1
        if event.name == "zero_grad":
            self.state.module.zero_grad()
        if "stop_reason" in event.valid and self.requests.agreed.stop is None:
            self.requests.agree_on_stop(StopRequest("drive() sent a stop", "drive", clock.step))
        if event.name == "preempt":
            self.requests.agree_on_signal(signal.SIGTERM)
            self.requests.leave_because_of_signal()
        self.requests.can_skip = state.stage == "train" and (event.scope == "batch" or event.name in SKIPPABLE)
        for name, value in fields.items():
            self._set(name, value)
        self._fill(event, fields)
        if event.name == "exception":
            state.failure = state.exception

    def send(self, event: Event, payload: dict[str, object]) -> None:
        line = self.line
        if event.gives:
            self.emit_custom(event.name, payload)
        elif event.name in ("exception", "teardown"):  # All callbacks get these; then the first error is raised.
            for error in line.emit_to_all(getattr(line.hooks, event.name)):
                raise error
        else:
            line.emit(getattr(line.hooks, event.name))

    def after(self, event: Event) -> None:
        """Do the work of the loop after an event."""
        state, requests = self.state, self.requests
        for field in event.valid:
            if field in MOMENT:  # A hook may have replaced the value.
                self._moment[state.stage, field] = getattr(state, field)
        requests.attention = requests.leave_evaluation = False
        requests.drop_eval()
        requests.take_save()
        requests.take_skip()
        if event.name == "train_batch_end":
            state.clock.batch += 1
        if event.name == "epoch_end":
            state.messages.end_epoch()
        if event.name in ("eval_end", "predict_end") and not self._scoped:
            self.end_evaluation()

    def clear(self) -> None:
        """Restore global settings after the last event, such as the grad mode of an evaluation."""
        self.end_evaluation()

    # -- scopes --------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, fields: Mapping[str, Any]) -> Iterator[None]:
        """Enter ``around_<scope>`` of the callback, and exit it as a run does."""
        if name in ("around_eval", "around_predict"):
            self._begin_evaluation(fields.get("stage", "val" if name == "around_eval" else "predict"))
            self._scoped = True
        for field, value in fields.items():
            self._set(field, value)
        mark = len(self.scopes)
        try:
            self.scopes.enter(getattr(self.line.hooks, name))
            yield
        except BaseException as error:
            self.scopes.leave(mark, because=error)
            raise
        else:
            self.scopes.leave(mark)
        finally:
            if name in ("around_eval", "around_predict"):
                self.end_evaluation()

    def _set_stage(self, event: Event, fields: Mapping[str, Any]) -> None:
        state = self.state
        evaluates = event.scope in ("eval", "predict")
        if self._evaluating and not (
            self._scoped or evaluates or event.name in IN_EVALUATION or event.name not in BY_NAME
        ):
            self.end_evaluation()
        current = state.stage if not event.stages or state.stage in event.stages else event.stages[0]
        wanted = fields.get("stage", current)
        if evaluates:
            self._begin_evaluation(wanted)
        state.stage = wanted

    def _begin_evaluation(self, stage: str) -> None:
        """Set modes, grad mode, clock and metrics as in an evaluation or prediction of a run."""
        if self._evaluating and (self.state.stage == stage or self._scoped):
            return
        self.end_evaluation()
        self._evaluating = True
        self._evaluation.enter_context(self.loop.engine.evaluator.untouched(stage, []))
        self.book.open_layer()
        self._evaluation.callback(self.book.close_layer, keep=stage != "predict")
        self.state.module.eval()
        if stage == "predict":  # Each loader is a prediction, and has its name from the start.
            self.state.show_loader(None)

    def end_evaluation(self) -> None:
        self._evaluating = self._scoped = False
        self._evaluation.close()

    # -- fields --------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        state, clock = self.state, self.state.clock
        if name in COUNTERS:
            setattr(clock, name, value)
        elif name in ("seconds", "clock.seconds"):
            clock.load_state_dict({**clock.state_dict(), "seconds": value})
        elif name.startswith("clock."):
            self._set_clock(name, value)
        elif name == "metrics":
            self.book.replace(value)
            if not self._evaluating:
                self.book.end_interval()
        elif name == "stop_reason":
            self.requests.drop_stop()
            self.requests.agree_on_stop(StopRequest(value, "drive", clock.step))
        elif name == "max_duration":
            state.max_duration = None if value is None else Duration.parse(value)
        elif name in (*MOMENT, *PLAIN):
            is_number = name == "loss" and not isinstance(value, torch.Tensor)
            setattr(state, name, torch.tensor(float(value)) if is_number else value)
        else:
            raise _no_field(name)

    def _set_clock(self, path: str, value: Any) -> None:
        *parents, last = path.split(".")[1:]
        target: Any = self.state.clock
        for parent in parents:
            target = getattr(target, parent)
        if last not in target.__slots__:
            raise _no_field(path)
        setattr(target, last, value)

    def _fill(self, event: Event, fields: Mapping[str, Any]) -> None:
        """Set each field that the table lists for this event, and clear the others."""
        state, valid = self.state, event.valid
        if self._evaluating and event.name in IN_EVALUATION:
            valid = (*valid, "loader_name")
        for field in MOMENT:
            if field not in fields:
                kept = self._moment.get((state.stage, field), MISSING) if field in valid else MISSING
                setattr(state, field, kept)
        for field in valid:
            if field in MOMENT and getattr(state, field) is MISSING:
                setattr(state, field, self._made_up(field))
        if event.name in GRADIENTS and all(p.grad is None for p in self.state.module.parameters()):
            outputs, loss = self._forward()
            if loss is not MISSING:
                loss.backward()
                for field, value in (("outputs", outputs), ("loss", loss)):
                    if field not in fields:
                        setattr(state, field, value)

    def _made_up(self, field: str) -> Any:
        state = self.state
        match field:
            case "batch":
                return MISSING if self._data is None else self._data[0]
            case "outputs":
                return self._forward()[0]
            case "loss":
                return self._forward()[1]
            case "optimizer":
                return next(iter(state.optimizers.values()), MISSING)
            case "loader_name":
                return None
            case "exception":
                return RuntimeError("drive() sent an exception")
            case _:
                return (state.folder or Path()) / "checkpoints" / f"step-{state.clock.step:08d}"

    def _forward(self) -> tuple[Any, Any]:
        """Return outputs and loss of the batch, or of the first batch if the model cannot use it."""
        task, line, state = self.task, self.line, self.state
        if self._data is None or not isinstance(task, SupervisedTask):
            return MISSING, MISSING
        shown, hooks, line.hooks = state.outputs, line.hooks, line.silent
        try:
            try:
                outputs = task.call_model(self.run, state.batch)
                loss = task.compute_loss(outputs, state.batch)
            except Exception:
                outputs = task.call_model(self.run, self._data[0])
                loss = task.compute_loss(outputs, self._data[0])
        finally:
            line.hooks, state.outputs = hooks, shown
        return outputs, loss["loss"] if isinstance(loss, dict) else loss


def _no_field(name: str) -> SetupError:
    close = get_close_matches(name, FIELDS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"The fields are {', '.join(FIELDS)}."
    return SetupError(f"drive(): run has no field {name!r} to set. {hint}")
