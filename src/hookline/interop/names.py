"""Names of metrics: those of another library for those of Hookline, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Rule for the names of metrics in another library.

    Args:
        prefixes: Prefix in the other library, and the prefix in Hookline.
        bare: Prefix in Hookline of a name without a prefix. Empty: the name stays as it is.
        given: Names that come before the rule: the other library's name, and Hookline's.

    Example:
        >>> names = MetricNames((("val_", "val/"), ("train_", "train/")), given={"f1": "val/hard/f1"})
        >>> [names.ours(name) for name in ("val_loss", "f1", "val/acc", "lr")]
        ['val/loss', 'val/hard/f1', 'val/acc', 'lr']
        >>> names.theirs("val/loss"), names.theirs("val/hard/f1")
        ('val_loss', 'f1')
    """

    prefixes: tuple[tuple[str, str], ...]
    bare: str = ""
    given: Mapping[str, str] = field(default_factory=dict)

    def ours(self, theirs: str) -> str:
        """Return the name in Hookline. A name with a slash is one already."""
        if theirs in self.given or "/" in theirs:
            return self.given.get(theirs, theirs)
        for prefix, stage in self.prefixes:
            if theirs.startswith(prefix):
                return stage + theirs[len(prefix) :]
        return self.bare + theirs

    def theirs(self, ours: str) -> str:
        """Return the name in the other library."""
        for theirs, name in self.given.items():
            if name == ours:
                return theirs
        for prefix, stage in self.prefixes:
            if ours.startswith(stage):
                return prefix + ours[len(stage) :].replace("/", "_")
        return ours.removeprefix(self.bare)
