"""Base classes of other libraries, and the module of Hookline that adapts their instances.

The modules are strings: the callbacks of a run are recognized without an import of any other library, and of the
adapters only those that a run needs are imported.
"""

from __future__ import annotations

from typing import Final

CALLBACKS: Final = {
    ("aitoolbox.torchtrain.callbacks.abstract", "AbstractCallback"): "hookline.interop.aitoolbox",
    ("composer.core.callback", "Callback"): "hookline.interop.composer",
    ("ignite.engine.engine", "Engine"): "hookline.interop.ignite",
    ("keras.src.callbacks.callback", "Callback"): "hookline.interop.keras",
    ("lightning.pytorch.callbacks.callback", "Callback"): "hookline.interop.lightning",
    ("pytorch_accelerated.callbacks", "TrainerCallback"): "hookline.interop.pytorch_accelerated",
    ("pytorch_lightning.callbacks.callback", "Callback"): "hookline.interop.lightning",
    ("torchtnt.framework.callback", "Callback"): "hookline.interop.torchtnt",
    ("transformers.trainer_callback", "TrainerCallback"): "hookline.interop.transformers",
}
"""Module and name of the base class of callbacks, and the module with ``ADAPTER``."""

MODELS: Final = {
    ("aitoolbox.torchtrain.model", "TTModel"): "hookline.interop.aitoolbox",
    ("composer.models.base", "ComposerModel"): "hookline.interop.composer",
    ("lightning.pytorch.core.module", "LightningModule"): "hookline.interop.lightning",
    ("pytorch_lightning.core.module", "LightningModule"): "hookline.interop.lightning",
    ("torchtnt.framework.unit", "EvalUnit"): "hookline.interop.torchtnt",
    ("torchtnt.framework.unit", "PredictUnit"): "hookline.interop.torchtnt",
    ("torchtnt.framework.unit", "TrainUnit"): "hookline.interop.torchtnt",
}
"""Module and name of the base class of models, and the module with ``MODEL_STEPS``."""

DATA: Final = {
    ("lightning.pytorch.core.datamodule", "LightningDataModule"): "hookline.interop.lightning",
    ("pytorch_lightning.core.datamodule", "LightningDataModule"): "hookline.interop.lightning",
}
"""Module and name of the base class of objects that give loaders, and the module with ``loaders_of``."""


def adapter_module(kind: type, bases: dict[tuple[str, str], str] = CALLBACKS) -> str | None:
    """Return the module that adapts instances of a class, or ``None`` if the class is of no other library.

    Args:
        kind: The class.
        bases: ``CALLBACKS``, ``MODELS`` or ``DATA``.

    Example:
        >>> adapter_module(type("EarlyStopping", (), {})) is None
        True
    """
    return next((bases[key] for cls in kind.__mro__ if (key := (cls.__module__, cls.__name__)) in bases), None)
