"""``EvalLoader``: an evaluation loader with its own interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hookline.errors import SetupError
from hookline.progress import Clock, Duration, Schedule


@dataclass(frozen=True, slots=True)
class EvalLoader:
    """A validation loader that takes part in some evaluations only.

    ``eval_every`` of the trainer sets when there are evaluations. The loader takes part in the first one at or after
    each multiple of ``every``, and in the evaluation at the end of training.

    Args:
        loader: Loader of the batches.
        every: Interval of the loader, such as ``"5ep"``.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> val = {"small": tiny_data(1, seed=1), "large": EvalLoader(tiny_data(8, seed=2), every="2ep")}
        >>> trainer = Trainer(max_duration="5ep", folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> history = trainer.fit(TinyModel(), tiny_data(), val, loss=loss, optimizer=optimizer).history
        >>> history.steps("val/small/loss"), history.steps("val/large/loss")
        ([4, 8, 12, 16, 20], [8, 16, 20])
    """

    loader: Any
    every: str | Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", Duration.parse(self.every, "EvalLoader(every=…)"))


def without_intervals(loaders: Any, stage: str) -> tuple[Any, dict[str, Duration]]:
    """Return the loaders without ``EvalLoader``, and the intervals by name.

    Args:
        loaders: A loader, or a dict of loaders.
        stage: ``"val"`` or ``"test"``.
    """
    if isinstance(loaders, EvalLoader):
        raise SetupError(
            f"{stage}=EvalLoader(…, every='{loaders.every}'): a single loader is used in each evaluation. Give the "
            f"interval to the trainer: eval_every='{loaders.every}'."
        )
    if not isinstance(loaders, Mapping):
        return loaders, {}
    own = {name: its for name, its in loaders.items() if isinstance(its, EvalLoader)}
    if not own:
        return loaders, {}
    if len(own) == len(loaders):
        raise SetupError(
            f"{stage}={{{', '.join(map(repr, own))}: EvalLoader(…)}}: an evaluation needs a loader. Give the shortest "
            f"interval to the trainer (eval_every=…), and pass that loader without EvalLoader."
        )
    plain = {name: own[name].loader if name in own else its for name, its in loaders.items()}
    return plain, {name: Duration.parse(its.every) for name, its in own.items()}


class LoaderSchedules:
    """When each loader with its own interval takes part in an evaluation."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self._saved: dict[str, Any] = {}
        """States of a checkpoint, for schedules that the first evaluation makes."""

    def set_intervals(self, intervals: Mapping[str, Duration], max_duration: Duration | None) -> None:
        """Set the intervals of the loaders by name. A loader that keeps its interval keeps its schedule."""
        for name, every in intervals.items():
            schedule = self._schedules.setdefault(name, Schedule.of(every, max_duration))
            if name in self._saved:
                schedule.load_state_dict(self._saved.pop(name))

    def due(self, names: Iterable[str | None], clock: Clock) -> list[str | None]:
        """Return the loaders that take part in an evaluation now."""
        return [name for name in names if name not in self._schedules or self._schedules[name].due(clock)]

    def evaluated(self, names: Iterable[str | None], clock: Clock) -> None:
        """Record that these loaders have taken part in an evaluation."""
        for name in names:
            if name in self._schedules:
                self._schedules[name].fired(clock)

    def state_dict(self) -> dict[str, Any]:
        return {**self._saved, **{name: schedule.state_dict() for name, schedule in self._schedules.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the last evaluation of each loader."""
        self._saved = dict(state)
        for name, schedule in self._schedules.items():
            if name in self._saved:
                schedule.load_state_dict(self._saved.pop(name))

    def went_back(self, then: Mapping[str, Any]) -> None:
        """Adapt to a rollback, as schedules in steps do."""
        for name, schedule in self._schedules.items():
            if schedule.every.unit == "st" and name in then:
                schedule.load_state_dict(then[name])
