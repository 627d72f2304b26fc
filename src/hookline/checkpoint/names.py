"""Names of checkpoints, of their files, and of temporary folders."""

from __future__ import annotations

import re
import uuid
from typing import Final

from hookline.errors import SetupError

MODEL: Final = "model.safetensors"
STATE: Final = "state.json"
STATE_TENSORS: Final = "state.safetensors"
MANIFEST: Final = "manifest.json"
FILES: Final = frozenset({MODEL, STATE, STATE_TENSORS, MANIFEST})
"""Every file that a checkpoint of one process may contain."""
SHARD_INDEX: Final = "shards.json"
"""File that maps each chunk of a sharded tensor to its shard."""
_SHARD: Final = re.compile(r"shard-([0-9]{5}|[1-9][0-9]{5,6})\.safetensors")

MAX_BYTES: Final = 200
"""Longest name: with the suffix of a temporary folder, it fits into the usual 255 bytes."""
_ID: Final = "[0-9a-f]{32}"
_TEMPORARY: Final = re.compile(rf"[^./][^/]*\.tmp-{_ID}", re.DOTALL)
_TRASH: Final = re.compile(rf"\.trash-[^/]+-{_ID}", re.DOTALL)


def check_name(name: str) -> str:
    """Return the name if it is valid as the name of a checkpoint's folder.

    >>> check_name("step-00000500")
    'step-00000500'
    >>> check_name("a/b")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hookline.errors.SetupError: 'a/b' is not a valid name of a checkpoint: it contains a '/'. Use ...
    """
    if problem := problem_of(name):
        raise SetupError(
            f"{name[:300]!r} is not a valid name of a checkpoint: {problem}. "
            f"Use letters, digits, '-', '_', '=' and '.', such as 'step-00000500'."
        )
    return name


def problem_of(name: str) -> str:
    """Return the reason why a name is invalid, or an empty string."""
    if not name:
        return "it is empty"
    if name.startswith("."):
        return "it starts with a dot"
    for mark in ("/", "\\", ".."):
        if mark in name:
            return f"it contains a {mark!r}"
    if not name.isprintable():
        return "it contains a character that cannot be printed"
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        return f"it has {size} bytes, more than {MAX_BYTES}"
    if is_ours(name):
        return "Hookline uses such names for temporary folders"
    return ""


def shard_name(rank: int) -> str:
    """Return the name of the file with the chunks of one rank.

    >>> shard_name(3)
    'shard-00003.safetensors'
    """
    return f"shard-{rank:05d}.safetensors"


def is_shard(name: str) -> bool:
    """Return True if the name is that of a shard, the file with the chunks of one rank.

    >>> is_shard(shard_name(1)), is_shard("shard-1.safetensors"), is_shard("../shard-00001.safetensors")
    (True, False, False)
    """
    return bool(_SHARD.fullmatch(name))


def is_part(name: str) -> bool:
    """Return True if a complete or incomplete checkpoint may contain a file of this name."""
    return name in FILES or name == SHARD_INDEX or is_shard(name)


def default_name(generation: int, step: int) -> str:
    """Return the default name: the step, and the generation if it is not zero.

    A later generation may reach the same step again.

    >>> default_name(0, 500), default_name(2, 500)
    ('step-00000500', 'step-00000500-g2')
    """
    return f"step-{step:08d}" + (f"-g{generation}" if generation else "")


def temporary_of(name: str) -> str:
    """Return a name for the temporary folder in which a checkpoint is written."""
    return f"{name}.tmp-{uuid.uuid4().hex}"


def trash_of(name: str) -> str:
    """Return the name to which a checkpoint is renamed before its files are deleted."""
    return f".trash-{name}-{uuid.uuid4().hex}"


def is_ours(name: str) -> bool:
    """Return True if the name is that of a temporary or trash folder of Hookline.

    >>> is_ours(temporary_of("step-3")), is_ours(trash_of("step-3")), is_ours("step-3.tmp-1")
    (True, True, False)
    """
    return bool(_TEMPORARY.fullmatch(name) or _TRASH.fullmatch(name))
