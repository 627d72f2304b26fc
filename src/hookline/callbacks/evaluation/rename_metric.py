"""``RenameMetric``: log a metric under another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookline.errors import ArgumentError, RegistrationError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class RenameMetric(Callback):
    """Rename metrics everywhere: history, sinks, ``run.metrics`` and other callbacks.

    The mean over an epoch is renamed as well: ``train/loss_epoch`` follows ``train/loss``. The names change
    when the run is set up; there is no cost per step.

    Args:
        names: New names by old names, in full: ``{"val/acc": "val/accuracy"}``.
        keep: Also keep the old names. Both names then have the same values.

    Raises:
        ArgumentError: If a name has no slash or occurs twice. At setup, also if another callback reads an
            old name that is not kept.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[RenameMetric({"val/loss": "val/nll"})], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> sorted(result.history)
        ['train/loss', 'train/loss_epoch', 'val/nll']
    """

    def __init__(self, names: Mapping[str, str], keep: bool = False) -> None:
        if not names:
            raise ArgumentError(
                f"RenameMetric(names={names!r}): is empty. Write for example {{'val/acc': 'val/accuracy'}}."
            )
        for name in (*names, *names.values()):
            if not name.strip("/") or "/" not in name or "*" in name:
                raise ArgumentError(
                    f"RenameMetric(names=…): {name!r} is not a full name. Write for example 'val/accuracy'."
                )
        new = list(names.values())
        if len(set(new)) < len(new) or set(new) & set(names):
            raise ArgumentError(f"RenameMetric(names={dict(names)!r}): a name is there twice. Give each name once.")
        self.names = dict(names)
        self.keep = keep
        self.reads, self.writes = tuple(names), tuple(new)

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the old and the new names."""
        named = f"[{self.name}]" if self.name else ""
        return f"RenameMetric{named}({', '.join(f'{old}: {new}' for old, new in self.names.items())})"

    def on_setup(self, run: Run) -> None:
        if not self.keep:
            self._check_readers(run)
        for old, new in self.names.items():
            run.rename_metric(old, new, keep=self.keep)

    def _check_readers(self, run: Run) -> None:
        """Raise an error if another callback reads a name that disappears."""
        for callback in run.callbacks:
            read = {*callback.reads, getattr(callback, "monitor", None)}
            vanished = (
                None if isinstance(callback, RenameMetric) else next((old for old in self.names if old in read), None)
            )
            if vanished is not None:
                raise RegistrationError(
                    f"{callback!r} reads {vanished!r}, which RenameMetric calls {self.names[vanished]!r}: give it the "
                    f"new name, or keep both with RenameMetric(…, keep=True)"
                )
