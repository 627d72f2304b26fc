"""Read weights of Hookline and of other tools, without running code from a file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hookline.checkpoint import names, strict_json
from hookline.checkpoint.hashed_file import HashedReader
from hookline.checkpoint.inspect import inspect, opened
from hookline.checkpoint.remote import RemoteRun, as_address
from hookline.checkpoint.shard_reader import read_sharded
from hookline.checkpoint.store import Store
from hookline.checkpoint.tensor_file import read_tensors
from hookline.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError, CheckpointNotFoundError
from hookline.records.redact import redact_text

HUGGING_FACE: Final = ("model.safetensors", "pytorch_model.bin")
"""Files in a Hugging Face folder, the safer one first. A sharded one has an index."""
STATE_DICTS: Final = ("state_dict", "model_state_dict", "model")
"""Keys of the weights in files of ``torch.save``: Lightning's first, then other common keys."""
_REFUSED: Final = re.compile(r"\bGLOBAL ((?:\w+\.)*\w+)\s")
"""Finds the class that ``torch.load(weights_only=True)`` refuses, in its error message."""
_ZIP: Final = b"PK\x03\x04"


def read_weights(path: str | Path, *, prefix: str = "") -> dict[str, Tensor]:
    """Return the weights in a file or folder, on the CPU, by name.

    Supported formats:

    - a checkpoint of Hookline, or the folder of a run (its newest valid checkpoint)
    - a ``.safetensors`` file
    - a checkpoint of Lightning or another file of ``torch.save``, always read with ``weights_only=True``
    - a Hugging Face folder

    An address of fsspec may be given in place of a path. Only the files with weights are downloaded, into a temporary
    folder that is removed afterwards.

    Args:
        path: The file or folder, or its address.
        prefix: Return only names that start with this prefix, and remove it from them. Examples: ``"model."`` for
            most checkpoints of Lightning, ``"module."`` after ``DataParallel``, ``"_orig_mod."`` after
            ``torch.compile``.

    Returns:
        The tensors by name.

    Raises:
        CheckpointNotFoundError: If the path or address does not exist or has no weights.
        CheckpointMismatchError: If no name starts with ``prefix``.
        CheckpointCorruptError: If a file is damaged.
        CheckpointError: If a file contains more than weights.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"state_dict": {"model.weight": torch.ones(2)}}, f"{folder}/lightning.ckpt")
        ...     read_weights(f"{folder}/lightning.ckpt", prefix="model.")
        {'weight': tensor([1., 1.])}
    """
    address = as_address(path, "path", "read_weights")
    found = _read(Path(path)) if address is None else _read_address(address)
    if not prefix:
        return found
    taken = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    if not taken:
        raise CheckpointMismatchError(
            f"{redact_text(str(path))}: no name starts with the prefix {prefix!r}. The names are "
            f"{_some(sorted(found), 5)}."
        )
    return taken


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        return _read_file(path)
    raise CheckpointNotFoundError(f"{path} does not exist. Give a checkpoint, a run's folder or a file of weights.")


# -- addresses ---------------------------------------------------------------------------------------


def _read_address(address: str) -> dict[str, Tensor]:
    with TemporaryDirectory(prefix="hookline-") as folder:
        run = RemoteRun(address)
        try:
            return _read(_download(run, Path(folder)))
        except CheckpointError as error:
            if run.shown not in str(error):
                error.add_note(f"downloaded from {run.shown}")
            raise


def _download(run: RemoteRun, folder: Path) -> Path:
    """Download the files with weights, and return the local path to read."""
    last = run.address.partition("?")[0].rpartition("/")[2]
    if "" in run.files:
        run.download_file("", folder / last)
        return folder / last
    newest = run.newest(
        lambda checkpoint: run.download(
            checkpoint, folder / (checkpoint.where.rpartition("/")[2] or last), weights_only=True
        ),
        lambda checkpoint: checkpoint.manifest.about.exact or not checkpoint.where,
        strict=False,
    )
    if newest is not None:
        return newest
    for name in HUGGING_FACE:
        index = f"{name}.index.json"
        shards = [file for file in run.files if "/" not in file and file.endswith(Path(name).suffix)]
        wanted = [name] if name in run.files else [index, *shards] if index in run.files else []
        for file in wanted:
            run.download_file(file, folder / file)
        if wanted:
            return folder
    raise CheckpointNotFoundError(
        f"{run.shown}: there are no weights at this address: neither a checkpoint or run of Hookline, "
        f"nor {' nor '.join(HUGGING_FACE)}. Give the file itself."
    )


# -- folders -----------------------------------------------------------------------------------------


def _read_folder(folder: Path) -> dict[str, Tensor]:
    if (folder / names.MANIFEST).exists():
        return _read_own(folder)
    for name in HUGGING_FACE:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index)
    store = Store(folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder)
    newest = store.newest_valid()
    if newest is None:
        raise CheckpointNotFoundError(
            f"{folder} has no weights: it is not a checkpoint or run of Hookline, and it has neither "
            f"{' nor '.join(HUGGING_FACE)}. Give the file itself."
        )
    return _read_own(newest.path)


def _read_own(path: Path) -> dict[str, Tensor]:
    """Return the weights of a Hookline checkpoint, and verify the hashes of their files."""
    found = inspect(path.absolute())
    where, files = str(found.path / names.MODEL), found.manifest.files
    with opened(found.path) as folder:
        with HashedReader(where, names.MODEL, folder, files[names.MODEL]) as file:
            weights = read_tensors(file)
            file.finish()
        if found.is_sharded:
            weights |= read_sharded(str(found.path), folder, files, weights_only=True)[0]
    return weights


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Return the tensors that an index lists, each from the file that the index names."""
    with index.open("rb") as file:
        content = strict_json.parse(file.read(strict_json.MAX_BYTES + 1), str(index))
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointCorruptError(
            str(index), "it has no weight_map of names and files", "load the shards one by one"
        )
    for shard in sorted(set(places.values())):
        if problem := names.problem_of(shard):
            raise CheckpointCorruptError(str(index), f"the shard {shard[:100]!r} is not a file name: {problem}")
    shards = {shard: index.with_name(shard) for shard in places.values()}
    missing = [shard for shard, path in shards.items() if not path.is_file()]
    if missing:
        raise CheckpointNotFoundError(
            f"{index} lists {_some(missing, 5)}, but not in the same folder. Copy the files there."
        )
    read = {shard: _read_file(path) for shard, path in shards.items()}
    lost = [f"{name} in {shard}" for name, shard in places.items() if name not in read[shard]]
    if lost:
        raise CheckpointCorruptError(str(index), f"it lists tensors that do not exist: {_some(lost, 5)}")
    return {name: read[shard][name] for name, shard in places.items()}


# -- files -------------------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[str, Tensor]:
    read: Callable[[Path], dict[str, Tensor]] = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    try:
        return read(path)
    except CheckpointError:
        raise
    except Exception as error:  # The readers raise many kinds of exceptions for a damaged file.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointCorruptError(
            str(path), f"it cannot be read: {reason[:300]}", "check that the file is complete"
        ) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file. safetensors checks the header against the file size first."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            notes = file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointCorruptError(str(path), f"it is not a valid safetensors file: {error}") from error
    # safetensors.torch.save_model() writes tied weights once and lists the other names in the metadata.
    return found | {alias: found[name] for alias, name in notes.items() if name in found and alias not in found}


def _read_torch(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        zipped = file.read(4) == _ZIP  # zipfile.is_zipfile() also accepts a file that only contains a zip archive.
    if zipped:
        _check_zip(path)
    try:
        # Memory mapping reads only the tensors that are used. torch supports it for the zip format only.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise
        raise CheckpointError(
            f"{path} contains more than weights: it would import {refused[1]}, which Hookline refuses because a file "
            f"could run any code with it. If you trust the file, open it once with torch.load(path, "
            f"weights_only=False), write its weights with safetensors.torch.save_file(), and use that file."
        ) from error
    return _state_dict(content, path)


def _check_zip(path: Path) -> None:
    """Refuse compressed entries.

    They could expand to any size, and torch would map the compressed bytes as values.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        reason = f"its entry {packed[0][:100]!r} is compressed, and torch.save never compresses"
        raise CheckpointCorruptError(str(path), reason)
    claimed = sum(entry.file_size for entry in entries)
    if claimed > size:
        raise CheckpointCorruptError(str(path), f"its entries claim {claimed:,} bytes, but the file has {size:,}")


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file: the content itself, or the value of a usual key."""
    if isinstance(content, Mapping):
        for key in STATE_DICTS:
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        kind = type(content).__name__
        have = f"a dict with {_some(list(content), 8)}" if isinstance(content, Mapping) else f"a {kind}"
        raise CheckpointError(
            f"{path} has no weights, neither at the top level nor under {', '.join(STATE_DICTS)}. It contains {have}."
        )
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{path}: {name!r} in the state dict is a {type(value).__name__}, not a tensor. "
                f"Write only the tensors with safetensors.torch.save_file(), and use that file."
            )
    return dict(content)


def _some(values: list[Any], most: int) -> str:
    shown = ", ".join(str(value)[:100] for value in values[:most]) or "nothing"
    return shown + (f" and {len(values) - most:,} more" if len(values) > most else "")
