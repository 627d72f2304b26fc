"""``Finetuning``: train a part of a model first and unfreeze other parts later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch.optim import Optimizer

from hookline.callbacks._modules import patterns_of
from hookline.callbacks.schedule._freezing import Epochs, Frozen, check_something_is_left, named
from hookline.callbacks.schedule._schedulers import grouping, leading, own_group, regroup, the_optimizer
from hookline.callbacks.schedule.freeze import Freeze
from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Layers = str | Iterable[str]
What = Layers | Mapping[str, Any] | Callable[["Run"], object]


class Finetuning(Callback):
    """Freeze layers before training and unfreeze them at set epochs or durations.

    Unfrozen layers get their own parameter group. Schedulers change its learning rate in proportion to the learning
    rate of the first group that holds a parameter outside the frozen layers.

    Alternatively, subclass ``Finetuning`` and override ``freeze_before_training`` and ``finetune_function``.

    Args:
        layers: Names or patterns of the layers to freeze before training.
        unfreeze: What to unfreeze, by time. The keys are epochs, counted from 0, or durations. The values are layers,
            a dict with ``"layers"`` and optionally ``"lr"``, or a function of ``run`` that calls ``unfreeze_layers``.
        lr: Learning rate of unfrozen layers without their own ``"lr"``. ``None``: use ``initial_denom_lr``.
        initial_denom_lr: Divisor of the first group's learning rate. The quotient is the learning rate of layers for
            which no ``lr`` is given.
        train_bn: Train the batch norms in frozen layers. ``False``: keep them in eval mode.
        optimizer: Name of the optimizer. Needed only if there are several.

    Raises:
        ArgumentError: If an entry of ``unfreeze`` is wrong, or ``lr`` or ``initial_denom_lr`` is not above 0.
        SetupError: If a name or pattern matches nothing, or nothing is left to train.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> tuning = Finetuning("hidden", {1: {"layers": "hidden", "lr": 0.01}})
        >>> trainer = Trainer(max_duration="2ep", callbacks=[tuning], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, lr=0.1)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> tuning.rates
        {'SGD': [0.1, 0.01]}
    """

    structural = True
    state_depends_on: ClassVar[tuple[str, ...]] = ("layers", "unfrozen_layers")
    writes = ("weights", "optimizer")
    role = "structure"
    after: tuple[str | type, ...] = (Freeze,)
    _argument = "layers"
    """Name of the argument that a wrong name belongs to, for errors."""

    def __init__(
        self,
        layers: Layers = (),
        unfreeze: Mapping[int | str | Duration, What] | None = None,
        *,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        optimizer: str | None = None,
    ) -> None:
        self.layers = patterns_of(layers, "Finetuning") if layers else ()
        self.unfreeze = [(_moment(key), _what(key, value)) for key, value in (unfreeze or {}).items()]
        for name, value in (("lr", lr), ("initial_denom_lr", initial_denom_lr)):
            if value is not None and value <= 0:
                raise ArgumentError(f"Finetuning({name}={value!r}): must be > 0.")
        self.lr = lr
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.optimizer = optimizer
        self._plan: list[tuple[Duration | int, What]] = []
        self._by_step = False
        self.done: list[int] = []
        """Indices of the entries of ``unfreeze`` that were applied."""
        self._frozen = Frozen()
        self._epochs = Epochs()
        self._part: list[str] = []
        """Names of all parameters that were requested to be frozen, including batch norms."""
        self._run: Run | None = None
        self._groups: dict[str, Any] = {}
        self._rates: dict[str, list[float]] = {}
        """Learning rates at the end of the last run."""

    @property
    def rates(self) -> dict[str, list[float]]:
        """Learning rates of the parameter groups, by name of the optimizer."""
        return (
            {name: list(rates) for name, rates in self._rates.items()} if self._run is None else self._look(self._run)
        )

    @property
    def unfrozen_layers(self) -> list[tuple[Duration | int, Any]]:
        """Entries of ``unfreeze`` without the learning rates."""
        return [(when, what["layers"] if isinstance(what, Mapping) else what) for when, what in self.unfreeze]

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that the callback has frozen."""
        return tuple(self._frozen.names)

    # -- to override ---------------------------------------------------------------------------

    def freeze_before_training(self, run: Run) -> None:
        """Freeze layers before training. An override calls ``freeze_layers``."""
        if self.layers:
            self.freeze_layers(run, self.layers)

    def finetune_function(self, run: Run, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze layers at the start of an epoch. An override calls ``unfreeze_layers``.

        Hookline calls this method once per epoch for each optimizer. After a rollback to an earlier epoch, Hookline
        calls it again, because the rollback has undone its work.

        Args:
            run: The run.
            epoch: The epoch that starts, counted from 0.
            optimizer: One of the optimizers of the run.
        """

    # -- to call -------------------------------------------------------------------------------

    def freeze_layers(self, run: Run, layers: Layers) -> None:
        """Freeze layers.

        Args:
            run: The run.
            layers: Names or patterns of the layers.
        """
        names = named(run.model, patterns_of(layers, self._who), self._who, self._argument)
        self._part += [name for name in names if name not in self._part]
        self._frozen.freeze(run.model, names, train_bn=self.train_bn)
        check_something_is_left(run.model, self._who)

    def unfreeze_layers(
        self, run: Run, layers: Layers, *, lr: float | None = None, optimizer: Optimizer | None = None
    ) -> None:
        """Unfreeze layers and train them with a separate learning rate.

        Args:
            run: The run.
            layers: Names or patterns of the layers.
            lr: Learning rate of the layers. ``None``: ``lr`` of the callback, or else a fraction of the first
                group's.
            optimizer: Optimizer that trains the layers. ``None``: the optimizer of the callback.
        """
        patterns = patterns_of(layers, self._who)
        thawed = self._frozen.unfreeze(named(run.model, patterns, self._who))
        if not thawed:
            logger.warning("%s: %s was not frozen by it, and stays as it is", self._who, ", ".join(patterns))
            return
        optimizer = self._optimizer(run) if optimizer is None else optimizer
        lr = self.lr if lr is None else lr
        lead = leading(optimizer, run.model, self._part)
        rate = float(optimizer.param_groups[lead]["lr"]) / self.initial_denom_lr if lr is None else lr
        parameters = dict(run.model.named_parameters())
        own = [parameters[name] for name in thawed]
        own_group(optimizer, own, rate, "-".join(patterns), run.schedulers, lead=lead)
        logger.info("%s: %s is trained from here on, at a rate of %g", self._who, ", ".join(patterns), rate)

    # -- hooks ---------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if run.clock.step == 0:
            self.reset_state()  # A state that was loaded by hand has groups of another optimizer.
        self._run = run
        self._plan = [(_resolved(moment, run), what) for moment, what in self.unfreeze]
        self._by_step = any(isinstance(moment, Duration) and moment.unit != "ep" for moment, _ in self._plan)
        if run.clock.step == 0:
            self.freeze_before_training(run)
        else:
            # A second fit continues with the layers that were frozen at the end of the first.
            names, self._frozen = self._frozen.names, Frozen()
            self._frozen.freeze(run.model, names, train_bn=self.train_bn)
        for _, what in self._plan:
            self._check(run, what)

    def on_train_start(self, run: Run) -> None:
        self._optimizer(run)
        self._frozen.freeze_batch_norms()

    def on_train_epoch_start(self, run: Run) -> None:
        self._unfreeze_what_is_due(run)
        self._finetune(run, self._epochs.begin(run.clock.epoch))

    def on_train_step_end(self, run: Run) -> None:
        if self._by_step and len(self.done) < len(self._plan):
            self._unfreeze_what_is_due(run)

    def on_rollback(self, run: Run) -> None:
        self._unfreeze_what_is_due(run)
        self._finetune(run, self._epochs.catch_up(run.clock.epoch))

    def on_teardown(self, run: Run) -> None:
        if self._run is not None:
            self._rates, self._groups = self._look(run), self._grouping(run)
        self._frozen.release()
        self._run = None

    def state_dict(self) -> dict[str, Any]:
        groups = self._groups if self._run is None else self._grouping(self._run)
        return {
            "done": list(self.done),
            "frozen": list(self._frozen.names),
            "part": list(self._part),
            "groups": groups,
            "epochs": self._epochs.save(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = list(state["done"])
        self._frozen.set_names(state["frozen"])
        self._part, self._groups = list(state["part"]), dict(state["groups"])
        self._epochs.load(state["epochs"])
        if self._run is not None:
            for name, saved in self._groups.items():
                if name in self._run.optimizers:
                    regroup(self._run.optimizers[name], saved, self._run.model, self._run.schedulers, self._part)

    # ------------------------------------------------------------------------------------------

    @property
    def _who(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    def _finetune(self, run: Run, epochs: Iterable[int]) -> None:
        """Call ``finetune_function`` for each of these epochs and each optimizer."""
        for epoch in epochs:
            for optimizer in run.optimizers.values():
                self.finetune_function(run, epoch, optimizer)

    def _unfreeze_what_is_due(self, run: Run) -> None:
        """Apply the entries of ``unfreeze`` that are due and not done."""
        for index, (moment, what) in enumerate(self._plan):
            now = run.clock.epoch if isinstance(moment, int) else run.clock.elapsed(moment.unit)
            if index not in self.done and now >= (moment if isinstance(moment, int) else moment.value):
                self.done.append(index)
                self._apply(run, what)

    def _apply(self, run: Run, what: What) -> None:
        """Apply one entry of ``unfreeze``."""
        if callable(what):
            what(run)
        elif isinstance(what, Mapping):
            self.unfreeze_layers(run, what["layers"], lr=what.get("lr"))
        else:
            self.unfreeze_layers(run, what)

    def _check(self, run: Run, what: What) -> None:
        """Raise for a wrong name before training, not at the epoch that uses the name."""
        if not callable(what):
            layers = what["layers"] if isinstance(what, Mapping) else what
            named(run.model, patterns_of(layers, self._who), self._who)

    def _optimizer(self, run: Run) -> Optimizer:
        """Return the optimizer that trains unfrozen layers."""
        return the_optimizer(run, self.optimizer, self._who)

    def _look(self, run: Run) -> dict[str, list[float]]:
        """Return the learning rates of the parameter groups."""
        return {name: [float(g["lr"]) for g in optimizer.param_groups] for name, optimizer in run.optimizers.items()}

    def _grouping(self, run: Run) -> dict[str, Any]:
        """Return the names of the parameters in each group, by optimizer."""
        return {name: grouping(optimizer, run.model) for name, optimizer in run.optimizers.items()}


def _moment(key: object) -> Duration | int:
    """Parse a key of ``unfreeze``: an epoch or a duration."""
    if isinstance(key, int) and not isinstance(key, bool):
        if key < 0:
            raise ArgumentError(f"Finetuning(unfreeze={{{key}: …}}): must be >= 0. The first epoch is 0.")
        return key
    return Duration.parse(key, "Finetuning(unfreeze={…: …})")  # type: ignore[arg-type]  # It checks the type.


def _what(key: object, value: Any) -> What:
    """Check a value of ``unfreeze``."""
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in ("layers", "lr")]
        if unknown or "layers" not in value:
            raise ArgumentError(
                f"Finetuning(unfreeze={{{key!r}: {dict(value)!r}}}): must have 'layers', and may have 'lr'."
            )
        patterns_of(value["layers"], "Finetuning", "unfreeze")
        rate = value.get("lr")
        if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0):
            raise ArgumentError(f"Finetuning(unfreeze={{{key!r}: {dict(value)!r}}}): 'lr' must be a number > 0.")
        return value
    if callable(value):
        return value  # type: ignore[no-any-return]
    return patterns_of(value, "Finetuning")


def _resolved(moment: Duration | int, run: Run) -> Duration | int:
    """Resolve a duration that is relative to ``max_duration``."""
    return moment.of(run.max_duration) if isinstance(moment, Duration) else moment
