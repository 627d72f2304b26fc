"""Names of loaders in file names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def file_name(stage: str, loader: object = None) -> str:
    """Return the file name, without suffix, for a loader.

    Example:
        >>> file_name("val"), file_name("val", "news/2024")
        ('val', 'val-news-2024')
    """
    return stage if loader is None else f"{stage}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', str(loader))}"


def check_names(run: Run, stages: Iterable[str], who: str) -> None:
    """Raise if two loaders of a stage have the same file name."""
    for stage in stages:
        loaders = run.loaders.get(stage)
        found: dict[str, object] = {}
        for loader in loaders if isinstance(loaders, Mapping) else ():
            other = found.setdefault(file_name(stage, loader), loader)
            if other != loader:
                raise SetupError(
                    f"{who}: the {stage} loaders {other!r} and {loader!r} would both be written to "
                    f"{file_name(stage, loader)!r}; give one of them another name"
                )
