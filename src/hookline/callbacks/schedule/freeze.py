"""``Freeze``: layers that are not trained, for a while or for the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookline.callbacks.name_patterns import patterns_of
from hookline.callbacks.schedule.frozen import Frozen
from hookline.callbacks.schedule.layers import check_something_is_left, named
from hookline.errors import SetupError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class Freeze(Callback):
    """Freezes ``layers``, all the run or ``until`` a moment (``"2ep"``, ``"500st"``, ``"0.3dur"``).

    ``layers`` are names or patterns: ``"backbone"``, ``"encoder.layers.[0-3]"``, ``"*.bias"``. A layer's name means
    all that is in it; ``but`` takes some out again: ``Freeze("*", but="head")``. One that matches nothing is an error
    that gives the nearest names. What was frozen before is left alone, now and later.

    A frozen layer gives the same output at every step: its batch norms are in eval mode. With ``train_bn`` they are
    trained like the rest of the model. The optimizer may hold frozen parameters; they do not move, not even by weight
    decay. A resume finds the layers as they were. When the fit is over they can be trained again.

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
    before = ("Finetuning", "BackboneFinetuning")

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
        self._forget()

    def _forget(self) -> None:
        self.thawed = False
        """The layers were unfrozen, in this run."""
        self._frozen = Frozen()
        self._due: Duration | None = None

    @property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that it has frozen."""
        return tuple(self._frozen.names)

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if run.clock.step == 0:
            self._forget()
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
        self._frozen.still()
        self._thaw_if_due(run)

    def on_train_epoch_start(self, run: Run) -> None:
        self._thaw_if_due(run)

    def on_train_step_end(self, run: Run) -> None:
        if not self.thawed and self._due is not None and self._due.unit != "ep":
            self._thaw_if_due(run)

    def on_rollback(self, run: Run) -> None:
        self._thaw_if_due(run)

    def on_teardown(self, run: Run) -> None:
        self._frozen.release()

    def state_dict(self) -> dict[str, Any]:
        return {"thawed": self.thawed, "frozen": list(self._frozen.names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.thawed = state["thawed"]
        self._frozen.become(state["frozen"])

    def _thaw_if_due(self, run: Run) -> None:
        if self._due is not None and not self.thawed and run.clock.reached(self._due):
            self._frozen.thaw()
            self.thawed = True

    def _named(self, run: Run) -> list[str]:
        return named(run.model, self.layers, "Freeze", but=self.but)

    def _check_others(self, run: Run) -> None:
        """Raise if another ``Freeze`` unfreezes a parameter of this one at another time."""
        for other in run.callbacks:
            if not isinstance(other, Freeze) or other.until == self.until:
                continue
            if both := set(self._named(run)).intersection(other._named(run)):
                raise SetupError(
                    f"{other!r} and {self!r} both freeze {min(both)}, and not until the same time: take it out of "
                    f"one of them with but=…"
                )

    def _check_optimizers(self, run: Run) -> None:
        """What no optimizer holds would be unfrozen and never trained."""
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
