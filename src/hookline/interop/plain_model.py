"""A plain model as the module of another library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from torch import nn

SHARED = tuple(name for name in vars(nn.Module()) if name != "training")
"""Fields of every module: its parameters, buffers, submodules and hooks."""


def as_module_of(base: Any, model: nn.Module, *, copies_model: bool = False, **fields: Any) -> Any:
    """Return a model as an instance of another library's class.

    Callbacks of that library check the class and call its methods. The parameters keep their names, because the
    returned module does not wrap the model: it shares the dicts of parameters, buffers, submodules and hooks.

    Args:
        base: Class of modules in the other library.
        model: The model of the run.
        copies_model: True if a copy of the returned module is a copy of the model itself.
        **fields: Attributes of the returned module, and of its copies.
    """

    class PlainModel(base):  # type: ignore[misc]
        """A module of the other library that shares all its parts with a plain model."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            parts = {name: vars(model)[name] for name in SHARED}
            self.__dict__.update(parts, _shared_model=model, **fields)

        @property
        def training(self) -> bool:
            return self._shared_model.training  # type: ignore[no-any-return]

        @training.setter
        def training(self, mode: bool) -> None:
            if "_shared_model" in vars(self):
                self._shared_model.training = mode

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(vars(self)["_shared_model"], name)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            model = deepcopy(self._shared_model, memo)
            return model if copies_model else type(self)(model)

        def forward(self, *inputs: Any, **more: Any) -> Any:
            return self._shared_model(*inputs, **more)

        # Hooks that a callback registers on all modules are called with the model itself.

        def named_modules(self, *values: Any, **more: Any) -> Iterator[tuple[str, nn.Module]]:
            yield from self._shared_model.named_modules(*values, **more)

        def apply(self, fn: Callable[[nn.Module], None]) -> PlainModel:
            self._shared_model.apply(fn)
            return self

    return PlainModel(model)
