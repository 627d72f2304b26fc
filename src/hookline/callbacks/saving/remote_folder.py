"""Remote folder at any address that fsspec supports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hookline.errors import RegistrationError, SetupError

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "http", "https"})
"""Protocols without real folders, so that none must be created."""
EXTRAS: Final = {"s3": "s3", "s3a": "s3"}


def check_address(address: str) -> str:
    """Return the address without a slash at the end. Raise if it cannot be used."""
    if find_spec("fsspec") is None:
        raise SetupError("Upload needs fsspec: pip install 'hookline[upload]'")
    if re.match(r"[A-Za-z0-9+.-]+://[^/@]*:[^/@]*@", address):
        raise RegistrationError(
            "Upload: there is a password in the address, and an address is written down in logs; give it with "
            "options={…}, or let the environment have it"
        )
    protocol = address.partition("://")[0] if "://" in address else "file"
    registry = import_module("fsspec.registry")
    if protocol not in registry.known_implementations and protocol not in registry.registry:
        close = get_close_matches(protocol, registry.known_implementations, n=1, cutoff=0.5)
        hint = (
            f"did you mean {close[0] + '://'!r}?" if close else "fsspec knows s3://, gs://, az://, sftp://, file://, …"
        )
        raise RegistrationError(f"Upload({address!r}): fsspec knows no {protocol + '://'!r}; {hint}")
    try:
        registry.get_filesystem_class(protocol)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        how = f"pip install 'hookline[{extra}]'" if extra else str(error)
        raise SetupError(f"Upload({address!r}) needs another package: {how}") from error
    return address.rstrip("/")


class RemoteFolder:
    """Files below an address. Names are paths relative to the address, with slashes.

    Every method may fail and may take long.
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self.address = address
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

    def has(self, path: Path, name: str) -> bool:
        """True if the remote file has the same size and is not older than the local file."""
        fs, target = self._opened(), self._target(name)
        fs.invalidate_cache()
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
        fs, target = self._opened(), self._target(name)
        fs.invalidate_cache()
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

    def _target(self, name: str) -> str:
        """Return the full remote path of a name."""
        return f"{self._root.rstrip('/')}/{name}"

    def _is_object_store(self, fs: Any) -> bool:
        """True if the file system has no real folders."""
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        return not OBJECT_STORES.isdisjoint(protocols)
