"""Checkpoints that are damaged or made to do harm: each is a change to a good one."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hookline.checkpoint import About, Snapshot, Store

MODEL, STATE, TENSORS, MANIFEST = "model.safetensors", "state.json", "state.safetensors", "manifest.json"
FILES = (MODEL, STATE, TENSORS, MANIFEST)
Damage = Callable[[Path], None]


def good(folder: Path, step: int = 3) -> Path:
    """One that is whole."""
    about = About(step=step, epoch=1, batch=2, sample=64, seconds=1.5, run=f"run-{step}", metrics={"loss": 0.5})
    weights = {"a": torch.full((16, 4), float(step)), "b": torch.arange(7), "c": torch.ones(3, dtype=torch.complex128)}
    weights["tied"] = weights["a"]
    state = {
        "optimizer": {0: {"m": torch.full((8,), float(step))}},
        "rng": tuple(range(50)),
        "text": "x" * 50,
        "step": step,
    }
    return Store(folder).save(Snapshot(about, weights, state)).path


def seal(path: Path, change: Callable[[dict[str, Any]], Any] = lambda body: None, text: str | None = None) -> None:
    """Write the manifest anew, as someone would who wants a changed checkpoint to be believed."""
    body = json.loads((path / MANIFEST).read_bytes())
    body.pop("sha256")
    for name in body["files"]:
        if (path / name).is_file():
            data = (path / name).read_bytes()
            body["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(body)
    rest = (json.dumps(body, indent=1)[2:] if text is None else text).encode()
    (path / MANIFEST).write_bytes(f'{{"sha256": "{hashlib.sha256(rest).hexdigest()}",\n'.encode() + rest)


def replaced(name: str, data: bytes, *, sealed: bool = False) -> Damage:
    def damage(path: Path) -> None:
        (path / name).write_bytes(data)
        if sealed:
            seal(path)

    return damage


def cut(name: str, share: float) -> Damage:
    return lambda path: os.truncate(path / name, int((path / name).stat().st_size * share))


def flipped(name: str, share: float) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[int((len(data) - 1) * share)] ^= 4
        (path / name).write_bytes(data)

    return damage


def swapped(one: str, other: str, *, sealed: bool) -> Damage:
    def damage(path: Path) -> None:
        (path / one).rename(path / "x")
        (path / other).rename(path / one)
        (path / "x").rename(path / other)
        if sealed:
            seal(path)

    return damage


def from_another(*names: str) -> Damage:
    def damage(path: Path) -> None:
        other = good(path.parent.parent / f"other-{path.name}", step=4)
        for name in names:
            shutil.copy(other / name, path / name)

    return damage


def state(text: str | bytes) -> Damage:
    """Another ``state.json`` with a manifest that says so."""
    return replaced(STATE, text.encode() if isinstance(text, str) else text, sealed=True)


def told(**changes: Any) -> Damage:
    """Another ``about``, sealed."""
    return lambda path: seal(path, lambda body: body["about"].update(changes))


def manifest(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda path: seal(path, change)


def header(name: str, change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Another header of a file of tensors, sealed."""

    def damage(path: Path) -> None:
        data = (path / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        found = json.loads(data[8 : 8 + length])
        change(found)
        text = json.dumps(found).encode()
        (path / name).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
        seal(path)

    return damage


def missing(name: str) -> Damage:
    return lambda path: (path / name).unlink()


def folder(name: str) -> Damage:
    def damage(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return damage


def link(name: str) -> Damage:
    def damage(path: Path) -> None:
        aside = path.parent.parent / f"aside-{path.name}-{name}"
        (path / name).rename(aside)
        (path / name).symlink_to(aside)

    return damage


def extra(name: str) -> Damage:
    return lambda path: (path / name).write_bytes(b"more")


# -- payloads that would leave a trace if anything ran them ---------------------------------------------


class Touch:
    """When it is unpickled, a file is made."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self._canary}'",)


class LoadFromBytes:
    """When it is unpickled, torch is asked to unpickle what is inside."""

    def __init__(self, inner: bytes) -> None:
        self._inner = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self._inner,)  # type: ignore[no-untyped-call]


def payloads(canary: Path) -> dict[str, bytes]:
    """Pickles of several kinds, each of which runs a command where it is loaded."""
    raw = pickle.dumps({"state_dict": Touch(canary)})
    buffer = io.BytesIO()
    torch.save({"state_dict": Touch(canary)}, buffer)
    legacy = io.BytesIO()
    torch.save({"state_dict": Touch(canary)}, legacy, _use_new_zipfile_serialization=False)
    nested = pickle.dumps(LoadFromBytes(buffer.getvalue()))
    text = pickle.dumps(Touch(canary), protocol=0)
    return {"pickle": raw, "torch": buffer.getvalue(), "legacy": legacy.getvalue(), "nested": nested, "text": text}


@functools.cache
def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.pkl", bytes(50_000_000))
    return buffer.getvalue()


def cases(canary: Path) -> dict[str, Damage]:
    """Every hand-made bad checkpoint by its name."""
    found: dict[str, Damage] = {}
    for name in FILES:
        found |= {
            f"{name} is empty": replaced(name, b""),
            f"{name} is one byte": replaced(name, b"{"),
            f"{name} is missing": missing(name),
            f"{name} is a folder": folder(name),
            f"{name} is a link": link(name),
            f"{name} is a zip bomb": replaced(name, zip_bomb()),
            f"{name} is compressed": lambda path, name=name: (path / name).write_bytes(  # type: ignore[misc]
                zlib.compress((path / name).read_bytes())
            ),
        }
        found |= {f"{name} is cut at {share}": cut(name, share) for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)}
        found |= {f"{name} has a flipped bit at {share}": flipped(name, share) for share in (0, 0.03, 0.3, 0.6, 1)}
        found |= {f"{name} is a {kind} payload": replaced(name, data) for kind, data in payloads(canary).items()}
    for name in (MODEL, STATE, TENSORS):
        found |= {
            f"{name} is a sealed {kind} payload": replaced(name, data, sealed=True)
            for kind, data in payloads(canary).items()
        }
        found |= {
            f"{name} is sealed and empty": replaced(name, b"", sealed=True),
            f"{name} is a sealed zip bomb": replaced(name, zip_bomb(), sealed=True),
            f"{name} is from another checkpoint": from_another(name),
        }
    big_header = struct.pack("<Q", 2**30) + b"{"
    many_lists = b"[" + b"[]," * 5_000_000 + b"[]]"
    found |= {
        "files are swapped": swapped(MODEL, TENSORS, sealed=False),
        "files are swapped and sealed": swapped(MODEL, TENSORS, sealed=True),
        "json and tensors are swapped and sealed": swapped(STATE, TENSORS, sealed=True),
        "the manifest is from another checkpoint": from_another(MANIFEST),
        "all but the manifest is from another": from_another(MODEL, STATE, TENSORS),
        "a file too many": extra("notes.txt"),
        "a hidden file too many": extra(".hidden"),
        "a program too many": extra("sitecustomize.py"),
        # tensors
        "a header of a gigabyte": replaced(MODEL, big_header, sealed=True),
        "a header of 2**64 bytes": replaced(MODEL, b"\xff" * 8 + b"{}", sealed=True),
        "a header of nothing but brackets": replaced(MODEL, struct.pack("<Q", 200_000) + b"[" * 200_000, sealed=True),
        "a header with millions of parts": replaced(
            MODEL, struct.pack("<Q", len(many_lists)) + many_lists, sealed=True
        ),
        "another dtype": header(MODEL, lambda found: found["a"].update(dtype="F64")),
        "a dtype of the same width for bytes": header(MODEL, lambda found: found["c"].update(dtype="I8")),
        "an unknown dtype": header(MODEL, lambda found: found["a"].update(dtype="os.system")),
        "another shape": header(MODEL, lambda found: found["a"].update(shape=[16, 5])),
        "a shape of terabytes": header(MODEL, lambda found: found["a"].update(shape=[2**40])),
        "a shape that overflows": header(MODEL, lambda found: found["a"].update(shape=[2**32, 2**32])),
        "a negative shape": header(MODEL, lambda found: found["a"].update(shape=[-16, -4])),
        "offsets that overlap": header(MODEL, lambda found: found["b"].update(data_offsets=[0, 56])),
        "offsets beyond the file": header(TENSORS, lambda found: found["optimizer/0/m"].update(data_offsets=[32, 64])),
        "a tensor under another name": header(
            TENSORS, lambda found: found.update({"other": found.pop("optimizer/0/m")})
        ),
        "a tied name that leads nowhere": header(
            MODEL, lambda found: found["__metadata__"].update(hookline='{"aliases": {"tied": "nowhere"}}')
        ),
        "metadata that is code": header(
            MODEL, lambda found: found.update(__metadata__={"hookline": "__import__('os')"})
        ),
        # state.json
        "state is no dict": state("[1, 2]"),
        "state without its tensor": state("{}"),
        "state with NaN": state('{"a": NaN}'),
        "state with a key twice": state('{"a": 1, "a": 2}'),
        "state in UTF-16": state('{"a": 1}'.encode("utf-16")),
        "state nested too deeply": state("[" * 100_000 + "]" * 100_000),
        "state nested deeply but valid": state('{"a": ' + "[" * 200 + "]" * 200 + "}"),
        "state with millions of lists": state(many_lists),
        "state of 20 megabytes": state('"' + "x" * 20_000_000 + '"'),
        "state with a number of a million digits": state('{"a": ' + "9" * 1_000_000 + "}"),
        "state with an instantiator": state(
            json.dumps({"$instantiate": {"_instantiator": "os.system", "args": [f"touch {canary}"]}})
        ),
        "state with an unknown kind": state('{"a": {"$object": "os.system"}}'),
        "state with a kind and more": state('{"a": {"$tuple": [], "b": 1}}'),
        "state with a dtype that is code": state(f'{{"a": {{"$dtype": "load(\'{canary}\')"}}}}'),
        # manifest
        "a step that is NaN": told(step=float("nan")),
        "a step that is NaN in our own form": told(step={"$float": "nan"}),
        "a step that is infinite": told(seconds=1e999),
        "a negative step": told(step=-1),
        "a step that is a text": told(step="3"),
        "a step that is a bool": told(step=True),
        "a step beyond 64 bits": told(step=2**63),
        "seconds that are a text": told(seconds="long"),
        "metrics that are a list": told(metrics=[1]),
        "metrics that are texts": told(metrics={"loss": "low"}),
        "metrics with an unknown kind": told(metrics={"loss": {"$eval": "1"}}),
        "exact is a number": told(exact=1),
        "an unknown field": told(_instantiator="os.system"),
        "about without a step": manifest(lambda body: body["about"].pop("step")),
        "about is a list": manifest(lambda body: body.update(about=[])),
        "another format": manifest(lambda body: body.update(format=99)),
        "a format that is a bool": manifest(lambda body: body.update(format=True)),
        "an unknown part": manifest(lambda body: body.update(run="os.system")),
        "no files": manifest(lambda body: body.update(files={})),
        "files as a list": manifest(lambda body: body.update(files=[])),
        "a negative size": manifest(lambda body: body["files"][MODEL].update(size=-1)),
        "a size that is a float": manifest(lambda body: body["files"][MODEL].update(size=1.0)),
        "a size of exabytes": manifest(lambda body: body["files"][MODEL].update(size=2**62)),
        "a hash that is none": manifest(lambda body: body["files"][MODEL].update(sha256="0" * 63)),
        "a hash in capitals": manifest(
            lambda body: body["files"][MODEL].update(sha256=body["files"][MODEL]["sha256"].upper())
        ),
        "a file outside": manifest(lambda body: body["files"].update({"../../secret": body["files"][MODEL]})),
        "a file by its whole path": manifest(lambda body: body["files"].update({"/etc/passwd": body["files"][MODEL]})),
        "a file that is the manifest": manifest(lambda body: body["files"].update({MANIFEST: body["files"][MODEL]})),
        "a file that is not known": manifest(lambda body: body["files"].update({"code.py": body["files"][MODEL]})),
        "state without its tensors' file": manifest(lambda body: body["files"].pop(TENSORS)),
        "created is NaN": manifest(lambda body: body.update(created=float("nan"))),
        "created is a text": manifest(lambda body: body.update(created="today")),
        "a manifest with a key twice": lambda path: seal(path, text='"format": 1, "format": 1}'),
        "a manifest nested too deeply": lambda path: seal(path, text='"a": ' + "[" * 100_000),
        "a manifest of 20 megabytes": lambda path: seal(path, text=f'"a": "{"x" * 20_000_000}"}}'),
        "a manifest that is a list": replaced(MANIFEST, b"[]"),
        "a manifest without its hash": lambda path: (path / MANIFEST).write_bytes(
            b"{" + (path / MANIFEST).read_bytes()[79:]
        ),
    }
    return found
