"""``Freeze``: freeze layers for the whole run or for its first part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookline.callbacks._modules import patterns_of
from hookline.callbacks.schedule._freezing import Frozen, check_something_is_left, named
from hookline.errors import SetupError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class Freeze(Callback):
    """Freeze layers for the whole run or for its first part.

    Frozen parameters do not change, not even by weight decay. The optimizer may hold them. The callback never
    unfreezes a parameter that was frozen before. When the fit ends, all layers that the callback froze can be trained
    again.

    Args:
        layers: Names or patterns of layers or parameters: ``"backbone"``, ``"encoder.layers.[0-3]"``, ``"*.bias"``.
            The name of a layer includes everything inside it.
        but: Names or patterns to leave trainable: ``Freeze("*", but="head")``.
        until: When to unfreeze: ``"2ep"``, ``"500st"`` or ``"0.3dur"``. ``None``: never in this run.
        train_bn: Train the batch norms in frozen layers. ``False``: keep them in eval mode, so that the output of a
            frozen layer does not change.

    Raises:
        SetupError: If a pattern matches nothing (the error lists the nearest names), nothing is left to train, two
            ``Freeze`` callbacks unfreeze the same parameter at different times, or no optimizer holds a parameter
            that will be unfrozen.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> model = TinyModel()
        >>> before = model.hidden.weight.clone()
        >>> trainer = Trainer(max_duration="1ep", callbacks=[Freeze("hidden")], folder=False)
        >>> result = trainer.fit(model, tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> torch.equal(model.hidden.weight, before)
        True
    """

    structural = True
    commutes = True
    state_depends_on = ("layers", "but")
    writes = ("weights",)
    role = "structure"

    def __init__(
        self,
        layers: str | Iterable[str],
        *,
        but: str | Iterable[str] = (),
        until: str | Duration | None = None,
        train_bn: bool = False,
    ) -> None:
        self.layers = patterns_of(layers, "Freeze")
        self.but = patterns_of(but, "Freeze", "but") if but else ()
        self.until = None if until is None else Duration.parse(until, "Freeze(until=…)")
        self.train_bn = train_bn
        self.thawed = False
        """True if the layers were unfrozen in this run."""
        self._frozen = Frozen()
        self._due: Duration | None = None

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that the callback has frozen."""
        return tuple(self._frozen.names)

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._due = None if self.until is None else self.until.of(run.max_duration)
        if not self.thawed:
            self._check_others(run)
            self._frozen = Frozen()
            self._frozen.freeze(run.model, self._named(run), train_bn=self.train_bn)
            check_something_is_left(run.model, "Freeze")

    def on_model_ready(self, run: Run) -> None:
        if run.is_training_run and self._due is not None and not self.thawed:
            self._check_optimizers(run)

    def on_train_start(self, run: Run) -> None:
        self._frozen.freeze_batch_norms()
        self._unfreeze_if_due(run)

    def on_train_epoch_start(self, run: Run) -> None:
        self._unfreeze_if_due(run)

    def on_train_step_end(self, run: Run) -> None:
        if not self.thawed and self._due is not None and self._due.unit != "ep":
            self._unfreeze_if_due(run)

    def on_rollback(self, run: Run) -> None:
        self._unfreeze_if_due(run)

    def on_teardown(self, run: Run) -> None:
        self._frozen.release()

    def state_dict(self) -> dict[str, Any]:
        return {"thawed": self.thawed, "frozen": list(self._frozen.names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.thawed = state["thawed"]
        self._frozen.set_names(state["frozen"])

    def _unfreeze_if_due(self, run: Run) -> None:
        """Unfreeze the layers when ``until`` is reached."""
        if self._due is not None and not self.thawed and run.clock.reached(self._due):
            self._frozen.unfreeze()
            self.thawed = True

    def _named(self, run: Run) -> list[str]:
        """Return the names of the parameters to freeze."""
        return named(run.model, self.layers, "Freeze", but=self.but)

    def _check_others(self, run: Run) -> None:
        """Raise if another ``Freeze`` unfreezes the same parameter at a different time."""
        for other in run.callbacks:
            if not isinstance(other, Freeze) or other.until == self.until:
                continue
            if both := set(self._named(run)).intersection(other._named(run)):
                raise SetupError(
                    f"{other!r} and {self!r} both freeze {min(both)}, and not until the same time: take it out of "
                    f"one of them with but=…"
                )

    def _check_optimizers(self, run: Run) -> None:
        """Raise if no optimizer holds a parameter that will be unfrozen: it would never be trained."""
        held = {
            id(p) for optimizer in run.optimizers.values() for group in optimizer.param_groups for p in group["params"]
        }
        parameters = dict(run.model.named_parameters())
        lost = [name for name in self._frozen.names if id(parameters[name]) not in held]
        if lost:
            raise SetupError(
                f"Freeze(until={str(self.until)!r}): no optimizer holds {', '.join(lost[:3])}"
                f"{' …' if len(lost) > 3 else ''}, so unfrozen they would still not be trained; give the optimizer all "
                f"parameters, or use Finetuning, which adds them"
            )
