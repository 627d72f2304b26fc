"""``LoadWeights``: load weights from a file before training."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hookline.checkpoint.foreign_weights import read_weights
from hookline.checkpoint.matching import match
from hookline.checkpoint.remote import path_or_address
from hookline.events import Callback
from hookline.records.redact import redact_text

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class LoadWeights(Callback):
    """Load weights into the model before a run starts.

    A resumed run keeps its own weights. Hookline never executes code from a file.

    Args:
        path: A Hookline checkpoint or run folder, a ``.safetensors`` file, a Lightning ``.ckpt`` or another file of
            ``torch.save``, or a Hugging Face folder. Or its address, such as ``"s3://bucket/run"``.
        prefix: Prefix to remove from the names in the file first: ``"model."`` for most Lightning files.
        strict: Raise if names or shapes differ. ``False``: log the differences and load the tensors that fit.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from safetensors.torch import save_file
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "start.safetensors")
        ...     save_file(TinyModel(seed=7).state_dict(), path)
        ...     model, trainer = TinyModel(), Trainer(folder=False, callbacks=[LoadWeights(path)])
        ...     _ = trainer.evaluate(model, tiny_data(), loss=torch.nn.CrossEntropyLoss())
        >>> torch.equal(model.out.weight, TinyModel(seed=7).out.weight)
        True
    """

    writes = ("weights",)
    role = "load"

    def __init__(self, path: str | Path, *, prefix: str = "", strict: bool = True) -> None:
        self.path = path_or_address(path, "path", "LoadWeights")
        self.prefix = prefix
        self.strict = strict
        self._model: weakref.ref[nn.Module] | None = None
        """Model that already has the weights."""

    def on_setup(self, run: Run) -> None:
        if run.clock.step or run.will_resume or (self._model is not None and self._model() is run.model):
            return
        self._model = weakref.ref(run.model)
        weights = read_weights(self.path, prefix=self.prefix)
        own = run.model.state_dict()
        found = match(own, weights, strict=self.strict)
        if not found.complete:
            logger.warning("%s: %s", redact_text(str(self.path)), found)
        run.model.load_state_dict({name: weights[name] for name in found.fitting}, strict=False)
