"""Files at an address of fsspec: upload them, list them, and download checkpoints with their hashes verified."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hookline.checkpoint import names
from hookline.checkpoint.hashed_file import FileRecord, wrong_size
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.store import Store
from hookline.errors import (
    ArgumentError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    HooklineError,
    HooklineWarning,
    SetupError,
    error_text,
)
from hookline.records.redact import redact_text
from hookline.run.paths import is_address, path_to_read, stays_inside

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "http", "https"})
"""Protocols without real folders, so that none must be created."""
EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PASSWORD: Final = re.compile(r"[A-Za-z0-9+.-]+://[^/?#@:]*:(?!\d{1,5}/)[^@]*@")
"""Matches a password, which may have a slash, but not a port: ``//host:80/a@b``."""


# -- addresses ---------------------------------------------------------------------------------------


def as_address(path: str | os.PathLike[str], argument: str, of: str) -> str | None:
    """Return the checked address, or ``None`` if the argument is a path.

    ``file:///data``, ``dbfs:/data`` and ``simplecache::s3://bucket`` are not addresses here: ``path_to_read`` and
    ``path_to_write`` raise for them.

    Args:
        path: The path or address that the user gave.
        argument: Name of the argument, for the error.
        of: Class or function that takes the argument, for the error.

    Raises:
        ArgumentError: If the address has a password, an unknown protocol, or was changed by pathlib.
        SetupError: If a package is missing.

    >>> as_address("runs/first", "folder", "Trainer")
    """
    given = os.fspath(path)
    if not is_address(given) or given.lower().startswith("file:"):
        return None
    if isinstance(path, os.PathLike):
        raise ArgumentError(
            f"{of}({argument}={redact_text(given)!r}): this is an address, of which pathlib has made a path. "
            f"Give it as a string."
        )
    return check_address(given, argument, of) if _ADDRESS.match(given) else None


def check_address(address: str, argument: str, of: str) -> str:
    """Return the address without a slash at the end. Raise if it cannot be used.

    Args:
        address: An address of fsspec, or a local path.
        argument: Name of the argument, for the error.
        of: Class or function that takes the argument, for the error.

    Raises:
        ArgumentError: If the address has a password or an unknown protocol.
        SetupError: If a package is missing.
    """
    shown = redact_text(address)
    if find_spec("fsspec") is None:
        raise SetupError(f"{of}({argument}={shown!r}) needs fsspec: pip install 'hookline[upload]'")
    if _PASSWORD.match(address):
        raise ArgumentError(
            f"{of}({argument}=…): the address has a password, and Hookline writes addresses to logs. Give the password "
            f"in the environment, in fsspec's configuration, or with Upload(options={{…}})."
        )
    protocol = address.partition("://")[0] if "://" in address else "file"
    registry = import_module("fsspec.registry")
    if protocol not in registry.known_implementations and protocol not in registry.registry:
        close = get_close_matches(protocol, registry.known_implementations, n=1, cutoff=0.5)
        hint = (
            f"Did you mean {close[0] + '://'!r}?" if close else "fsspec knows s3://, gs://, az://, sftp://, file://, …."
        )
        raise ArgumentError(f"{of}({argument}={shown!r}): fsspec has no {protocol + '://'!r}. {hint}")
    try:
        registry.get_filesystem_class(protocol)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        how = f"pip install 'hookline[{extra}]'" if extra else str(error)
        raise SetupError(f"{of}({argument}={shown!r}) needs another package: {how}") from error
    return address.rstrip("/")


def path_or_address(path: str | Path, argument: str, of: str) -> str | Path:
    """Check what to read, and return the address as a string or the path with ``~`` expanded.

    Args:
        path: The path or address that the user gave.
        argument: Name of the argument, for the error.
        of: Class or function that takes the argument, for the error.
    """
    return as_address(path, argument, of) or path_to_read(path, argument, of)


# -- files -------------------------------------------------------------------------------------------


class RemoteFolder:
    """Files below an address. Names are paths relative to the address, with slashes.

    Every method may fail and may take long. A name that leaves the folder raises ``CheckpointError``.
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self.address = address
        self.shown = redact_text(address)
        """The address for messages."""
        self._options = dict(options)
        self._fs: Any = None
        self._root = ""

    def put(self, path: Path, name: str) -> None:
        """Upload a file and replace the one that exists."""
        fs, target = self._opened(), self._target(name)
        try:
            fs.put_file(str(path), target)
        except FileNotFoundError:
            if not path.exists() or self._is_object_store(fs):
                raise
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            fs.put_file(str(path), target)

    def get(self, name: str, path: Path) -> None:
        """Download a file."""
        self._opened().get_file(self._target(name), str(path))

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        content: bytes = self._opened().cat_file(self._target(name))
        return content

    def files(self) -> dict[str, int]:
        """Return the size of each file by its name. A file at the address itself has the name ``""``.

        Names that would leave the folder are left out.
        """
        fs = self._refreshed()
        root = self._root.rstrip("/")
        with suppress(FileNotFoundError):
            info = fs.info(root)
            if info["type"] == "file":  # Every address of http is a file.
                return {"": info["size"]}
        sizes = {path: info["size"] for path, info in fs.find(root, detail=True).items()}
        below = {path[len(root) + 1 :]: size for path, size in sizes.items() if path.startswith(f"{root}/")}
        return {name: size for name, size in below.items() if stays_inside(name)}

    def has(self, path: Path, name: str) -> bool:
        """True if the remote file has the same size and is not older than the local file."""
        fs, target = self._refreshed(), self._target(name)
        try:
            if fs.info(target)["size"] != path.stat().st_size:
                return False
            modified = fs.modified(target)
        except (FileNotFoundError, NotImplementedError, KeyError):
            return False
        aware = modified if modified.tzinfo else modified.replace(tzinfo=UTC)
        return bool(aware >= datetime.fromtimestamp(path.stat().st_mtime, UTC))

    def same(self, path: Path, name: str) -> bool:
        """True if the remote file has the same content. Use it for small files only."""
        fs, target = self._refreshed(), self._target(name)
        try:
            return bool(fs.cat_file(target) == path.read_bytes())
        except FileNotFoundError:
            return False

    def _opened(self) -> Any:
        """Return the file system. Connect at the first call."""
        if self._fs is None:
            core = import_module("fsspec.core")
            self._fs, self._root = core.url_to_fs(self.address, **self._options)
        return self._fs

    def _refreshed(self) -> Any:
        """Return the file system without the listings that it keeps.

        The option ``use_listings_cache=False`` is not for all file systems: ``sftp`` fails with it.
        """
        fs = self._opened()
        fs.invalidate_cache()
        return fs

    def _target(self, name: str) -> str:
        """Return the full remote path of a name. ``""``: the address itself."""
        if name and not stays_inside(name):
            raise CheckpointError(f"{self.shown}: the name {name[:200]!r} leaves this folder.")
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _is_object_store(self, fs: Any) -> bool:
        """True if the file system has no real folders."""
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        return not OBJECT_STORES.isdisjoint(protocols)


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Raise ``CheckpointError`` with the address if it cannot be read, for example without credentials."""
    try:
        yield
    except HooklineError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{redact_text(address)} cannot be read: {redact_text(error_text(error))}. Check the address, the "
            f"credentials and the network."
        ) from error


# -- checkpoints -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A checkpoint at an address. Its manifest is valid, and its other files are not read yet."""

    where: str
    """Name of its folder. ``""``: the address is the checkpoint."""
    manifest: Manifest
    content: bytes
    """The content of ``manifest.json``."""

    @property
    def age(self) -> tuple[int, int]:
        """Generation and step. A newer checkpoint has a larger age."""
        return self.manifest.about.generation, self.manifest.about.step

    @property
    def is_resumable(self) -> bool:
        """True if ``resume="auto"`` may use the checkpoint."""
        return self.manifest.about.exact and names.STATE in self.manifest.files


class RemoteRun:
    """The files and checkpoints at an address: one checkpoint, a folder of checkpoints, or the folder of a run.

    Args:
        address: The address.

    Raises:
        CheckpointError: If the address cannot be read.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._remote = RemoteFolder(address, {})
        self.shown = self._remote.shown
        """The address for messages."""
        with reading(address):
            self.files = self._remote.files()
        self._damaged: list[str] = []
        found = [self._read(where) for where in self._folders()]
        self.checkpoints = sorted(
            (checkpoint for checkpoint in found if checkpoint is not None),
            key=lambda checkpoint: (*checkpoint.age, checkpoint.manifest.created, checkpoint.where),
        )
        """The checkpoints with a valid manifest, the newest last. An upload writes the manifest last."""

    def _folders(self) -> list[str]:
        """Return the names of the folders of checkpoints that a resume may use."""
        if names.MANIFEST in self.files:
            return [""]
        folders = [name.rpartition("/")[0] for name in self.files if name.endswith(f"/{names.MANIFEST}")]
        in_run = [name for name in folders if name.startswith(f"{FOLDER}/") and name.count("/") == 1]
        return in_run or [name for name in folders if "/" not in name]

    def _read(self, where: str) -> RemoteCheckpoint | None:
        name = _joined(where, names.MANIFEST)
        with reading(self.address):
            content = self._remote.read(name)
        try:
            return RemoteCheckpoint(where, Manifest.from_bytes(content, f"{self.shown}/{name}"), content)
        except CheckpointCorruptError as error:
            if not where:
                raise
            self._note_damaged(where, error)
            return None

    def _note_damaged(self, where: str, error: CheckpointCorruptError) -> None:
        self._damaged.append(f"{where} ({error.path.rpartition('/')[2]}: {error.reason})")

    def newest(
        self, download: Callable[[RemoteCheckpoint], Path], usable: Callable[[RemoteCheckpoint], bool], *, strict: bool
    ) -> Path | None:
        """Download the newest checkpoint that is not damaged, and return its local path.

        Hookline warns about damaged checkpoints.

        Args:
            download: Downloads a checkpoint and raises ``CheckpointCorruptError`` if it is damaged.
            usable: True for the checkpoints to try.
            strict: Raise an error instead of skipping damaged checkpoints.

        Returns:
            The path, or ``None`` if there is no usable checkpoint.

        Raises:
            CheckpointCorruptError: If all checkpoints are damaged, or one is and ``strict`` is set.
        """
        for checkpoint in reversed([checkpoint for checkpoint in self.checkpoints if usable(checkpoint)]):
            if strict and self._damaged:
                break
            try:
                path = download(checkpoint)
            except CheckpointCorruptError as error:
                self._note_damaged(checkpoint.where, error)
                if not checkpoint.where:
                    raise
                continue
            if self._damaged:
                text = f"{self.shown}: damaged checkpoints: {', '.join(self._damaged)}. Using {checkpoint.where}."
                warnings.warn(text, HooklineWarning, stacklevel=3)
            return path
        if not self._damaged:
            return None
        what = "damaged checkpoints, and strict=True" if strict else "no valid checkpoint; damaged"
        raise CheckpointCorruptError(
            self.shown, f"{what}: {', '.join(self._damaged)}", "upload them again, or give the address of a checkpoint"
        )

    def download(self, checkpoint: RemoteCheckpoint, target: Path, *, weights_only: bool = False) -> Path:
        """Download a checkpoint and verify its hashes. It appears at the local path when it is complete.

        Args:
            checkpoint: The checkpoint.
            target: The local path. A checkpoint that is already there and complete is not downloaded again.
            weights_only: Download only the weights. The result is a checkpoint of weights.

        Returns:
            The local path.

        Raises:
            CheckpointCorruptError: If a file is missing, or its size or hash differs from the manifest.
            CheckpointError: If a file cannot be downloaded.
        """
        if _is_there(checkpoint, target):
            return target
        wanted = {
            name: record
            for name, record in checkpoint.manifest.files.items()
            if not weights_only or name in (names.MODEL, names.SHARD_INDEX) or names.is_shard(name)
        }
        for name, record in wanted.items():
            self._check_size(_joined(checkpoint.where, name), record)
        content = checkpoint.content
        if weights_only:
            content = Manifest(checkpoint.manifest.about, wanted, checkpoint.manifest.created).to_bytes()
        fresh = target.with_name(names.temporary_of(target.name))
        fresh.mkdir(parents=True)
        try:
            with reading(self.address):
                for name in wanted:
                    self._remote.get(_joined(checkpoint.where, name), fresh / name)
                (fresh / names.MANIFEST).write_bytes(content)
            self._verify(checkpoint, fresh)
            if target.exists():
                os.rename(target, target.with_name(names.trash_of(target.name)))  # The next sweep removes it.
            os.rename(fresh, target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return target

    def download_file(self, name: str, target: Path) -> None:
        """Download a file. It appears at the local path when it is complete.

        Args:
            name: Name of the file. ``""``: the file at the address itself.
            target: The local path.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.download")
        with reading(self.address):
            self._remote.get(name, fresh)
        os.replace(fresh, target)

    def _check_size(self, name: str, record: FileRecord) -> None:
        where = f"{self.shown}/{name}"
        if name not in self.files:
            raise CheckpointCorruptError(where, "it is missing")
        if self.files[name] != record.size:
            raise wrong_size(where, self.files[name], record.size)

    def _verify(self, checkpoint: RemoteCheckpoint, fresh: Path) -> None:
        try:
            Store(fresh.parent).verify(fresh)
        except CheckpointCorruptError as error:
            name = _joined(checkpoint.where, Path(error.path).name)
            raise CheckpointCorruptError(f"{self.shown}/{name}", error.reason) from error


def _joined(where: str, name: str) -> str:
    return f"{where}/{name}" if where else name


def _is_there(checkpoint: RemoteCheckpoint, target: Path) -> bool:
    """True if a complete copy of the checkpoint is at the local path."""
    manifest = target / names.MANIFEST
    if not manifest.is_file() or manifest.read_bytes() != checkpoint.content:
        return False
    try:
        Store(target.parent).verify(target)
    except CheckpointError:
        return False
    return True


def no_checkpoint(address: str) -> CheckpointNotFoundError:
    """Return the error for an address without a checkpoint."""
    return CheckpointNotFoundError(
        f"{redact_text(address)}: there is no checkpoint at this address. Give a checkpoint, which has a "
        f"{names.MANIFEST}, or the folder of a run, which has {FOLDER}/step-…"
    )
