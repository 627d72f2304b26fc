"""Callbacks and modules of other libraries in a run of Hookline, and callbacks of Hookline in other trainers.

How to add a library:

1. ``events/foreign_classes.py``: the module and name of its base class, and the name of the new module.
2. ``events/foreign.py``: in ``_FIRED``, the events at which its hooks are called, where they differ from the table.
3. ``interop/<library>/__init__.py`` with ``ADAPTER``, a subclass of ``Adapter``. It sets ``library`` (its name in
   ``foreign.py``), ``host`` (a subclass of ``Host``, with what all callbacks of the library share in one run), ``rule``
   (the names of its metrics) and ``refused``, and it defines ``caller``. If the library saves no state of callbacks,
   ``set_by_run`` is set. Import the library inside of functions only, or take its classes from the ``__mro__`` of the
   callback: nothing may be imported that is not there.
4. Its callbacks see a subclass of ``Facade``, with the attributes that can be answered and no others. ``of_host`` makes
   those that only show a value.
5. ``tests/interop/constraints-<library>.txt`` with its versions, and ``tests/interop/test_<library>.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hookline.errors import RegistrationError, kind_of
from hookline.events import Callback
from hookline.events.foreign_classes import CALLBACKS, adapter_module

__all__ = ["adapt", "to_composer", "to_keras", "to_lightning", "to_transformers"]


def adapt(
    callback: object,
    *,
    name: str = "",
    names: Mapping[str, str] | None = None,
    optional: bool = False,
    args: Any = None,
) -> Callback:
    """Return a callback of another library as a callback of Hookline.

    A list of callbacks takes such callbacks as they are. This function is for options only.

    Args:
        callback: The callback of the other library.
        name: Name in messages and checkpoints, to tell apart two callbacks that are alike.
        names: Metrics of the callback and those of Hookline, such as ``{"val_f1": "val/hard/f1"}``. They come before
            the rule of the library, by which ``val_loss`` is ``val/loss``.
        optional: True if Hookline disables the callback when it fails, as for a progress bar.
        args: Settings object of the other library, such as ``TrainingArguments`` of transformers. For an engine of
            ignite: a dict of further objects whose state a checkpoint saves.

    Raises:
        RegistrationError: If the callback is of no library that Hookline knows, or cannot work in Hookline.

    Example:
        >>> import hookline as hl
        >>> bar = hl.interop.adapt(TQDMProgressBar(), optional=True)  # doctest: +SKIP
    """
    is_class = inspect.isclass(callback)
    module = adapter_module(callback if is_class else type(callback))  # type: ignore[arg-type]
    if module is None:
        *others, last = sorted({package.split(".")[0] for package, _ in CALLBACKS})
        libraries = f"{', '.join(others)} or {last}"
        raise RegistrationError(
            f"hl.interop.adapt({callback!r:.60}): {kind_of(callback)} is not a callback of {libraries}."
        )
    adapter = import_module(module).ADAPTER
    if is_class:
        callback = adapter.instance_of(callback)
    adapted: Callback = adapter(callback, name=name, names=names, optional=optional, args=args)
    return adapted


def to_lightning(*callbacks: object) -> Any:
    """Return one callback of Lightning that runs callbacks of Hookline in ``L.Trainer``.

    Args:
        *callbacks: The callbacks, such as ``hl.EMA()``. Order, filters, scopes and optional callbacks are as in
            Hookline.

    Raises:
        RegistrationError: If a callback needs what Lightning does not have.
        SetupError: If neither ``lightning`` nor ``pytorch_lightning`` is imported.

    Example:
        >>> import hookline as hl
        >>> callback = hl.interop.to_lightning(hl.EMA(), hl.EarlyStopping("val/loss"))  # doctest: +SKIP
    """
    return import_module("hookline.interop.lightning.guest").to_lightning(*callbacks)


def to_transformers(*callbacks: object) -> Any:
    """Return one callback of transformers that runs callbacks of Hookline in its ``Trainer``.

    Args:
        *callbacks: The callbacks, such as ``hl.EMA()``. Order, filters, scopes and optional callbacks are as in
            Hookline.

    Raises:
        RegistrationError: If a callback needs what the trainer of transformers does not have.
        SetupError: If ``transformers`` is not imported.

    Example:
        >>> import hookline as hl
        >>> callback = hl.interop.to_transformers(hl.EMA(), hl.EarlyStopping("val/loss"))  # doctest: +SKIP
    """
    return import_module("hookline.interop.transformers.guest").to_transformers(*callbacks)


def to_composer(*callbacks: object) -> Any:
    """Return one callback of Composer that runs callbacks of Hookline in ``composer.Trainer``.

    Args:
        *callbacks: The callbacks, such as ``hl.EMA()``. Order, filters, scopes and optional callbacks are as in
            Hookline.

    Raises:
        RegistrationError: If a callback needs what Composer does not have.
        SetupError: If ``composer`` is not imported.

    Example:
        >>> import hookline as hl
        >>> callback = hl.interop.to_composer(hl.EMA(), hl.EarlyStopping("val/loss"))  # doctest: +SKIP
    """
    return import_module("hookline.interop.composer.guest").to_composer(*callbacks)


def to_keras(*callbacks: object) -> Any:
    """Return one callback of Keras that runs callbacks of Hookline in ``Model.fit``, with the torch backend.

    Args:
        *callbacks: The callbacks, such as ``hl.EMA()``. Order, filters, scopes and optional callbacks are as in
            Hookline.

    Raises:
        RegistrationError: If a callback needs what Keras does not have, such as gradients.
        SetupError: If ``keras`` is not imported, or does not use the torch backend.

    Example:
        >>> import hookline as hl
        >>> callback = hl.interop.to_keras(hl.EMA(), hl.EarlyStopping("val/loss"))  # doctest: +SKIP
    """
    return import_module("hookline.interop.keras.guest").to_keras(*callbacks)
