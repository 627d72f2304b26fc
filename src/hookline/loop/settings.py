"""``Settings``: the options that ``Trainer``, ``Loop`` and the functions share, checked."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, Self, get_args

import torch

from hookline.checkpoint.remote import as_address
from hookline.checkpoint.request import Resume
from hookline.distributed import this_process
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import ArgumentError
from hookline.events.foreign_names import PRECISIONS
from hookline.progress import Duration
from hookline.records.file_names import check_path
from hookline.records.redact import redact_text
from hookline.run.paths import is_address, path_to_write
from hookline.sinks.log_object import as_sink
from hookline.sinks.sink import Sink

PrecisionName = Literal["fp32", "bf16", "fp16"]
InterruptName = Literal["return", "raise"]
PreflightName = Literal["strict"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options of a run. ``Trainer`` documents them, with their types and defaults."""

    max_duration: Duration | None
    eval_every: Duration | None
    log_every: Duration | None
    accumulate: int
    precision: PrecisionName
    device: torch.device
    compile: bool | Mapping[str, Any]
    strategy: StrategyName | Strategy
    seed: int | None
    folder: Path | Literal[False] | None
    resume: Resume | None
    name: str | None
    config: Mapping[str, Any]
    sinks: tuple[Sink, ...]
    interrupt: InterruptName
    preflight: bool | PreflightName
    remote: str | None = None
    """Address that the user gave as ``folder=``. ``folder`` is then the local folder that is copied there."""

    @classmethod
    def read(cls, options: Mapping[str, Any], of: str) -> Self:
        """Check the options and convert them.

        Args:
            options: The options as the user gave them.
            of: Class or function that takes the options, for errors.

        Raises:
            ArgumentError: If an option is wrong. The error says what to write instead.
        """
        given = dict(options)
        for key in ("max_duration", "eval_every", "log_every"):
            if given[key] is not None:
                given[key] = Duration.parse(given[key], f"{of}({key}=…)")
        max_duration = given["max_duration"]
        if max_duration is not None and max_duration.unit == "dur":
            raise ArgumentError(
                f"{of}(max_duration={str(max_duration)!r}): 'dur' is a fraction of max_duration itself. Use ep, st, s …"
            )
        for key in ("eval_every", "log_every"):
            if given[key] is not None:
                given[key].of(max_duration)  # Raises for a fraction without max_duration.
        _check_accumulate(given["accumulate"], of)
        _check_precision(given["precision"], of)
        _check_interrupt(given["interrupt"], of)
        _check_preflight(given["preflight"], of)
        _check_strategy(given["strategy"], of)
        _check_name(given["name"], of)
        _check_kinds(given, of)
        given["device"] = default_device(given["device"], of)
        if given["folder"]:
            given["remote"] = as_address(given["folder"], "folder", of)
            given["folder"] = working_folder(given["remote"]) or path_to_write(given["folder"], "folder", of)
        given["resume"] = Resume.read(given["resume"], given["folder"], of)
        given["config"] = dict(given["config"] or {})
        given["sinks"] = as_sinks(given["sinks"], of)
        for sink in given["sinks"]:
            if given["folder"] is False and getattr(sink, "needs_folder", False):
                raise ArgumentError(
                    f"{of}(folder=False): {type(sink).__name__} writes into the run's folder, and this run has none. "
                    f"Give the sink an absolute path, or give the run a folder."
                )
        return cls(**given)

    def callbacks_of_sinks(self) -> list[object]:
        """Return the callbacks that the sinks need."""
        return [callback for sink in self.sinks for callback in getattr(sink, "callbacks", ())]


OPTIONS: Final = tuple(name for name in Settings.__dataclass_fields__ if name != "remote")
"""The names of the options that users give."""


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among the arguments of a function.

    Args:
        arguments: ``locals()``, in the first line of the function.
    """
    return {name: arguments[name] for name in OPTIONS if name in arguments}


def working_folder(address: str | None) -> Path | None:
    """Return the local folder of a run whose ``folder=`` is an address.

    It depends only on the address, so that a script that is started again finds it.

    >>> working_folder("s3://bucket/digits/first")
    PosixPath('runs/s3/bucket/digits/first')
    """
    if address is None:
        return None
    protocol, _, rest = address.partition("://")
    return Path("runs", protocol, *(part for part in rest.split("/") if part not in ("", ".", "..")))


def as_list(callbacks: Iterable[object], of: str) -> list[object]:
    """Return the callbacks as a list.

    Args:
        callbacks: The callbacks as the user gave them.
        of: Class or function that takes them, for the error.

    Raises:
        ArgumentError: If ``callbacks`` is a single callback.
    """
    if isinstance(callbacks, Iterable) and not isinstance(callbacks, str | bytes | Mapping | type):
        return list(callbacks)
    raise ArgumentError(f"{of}(callbacks={callbacks!r:.80}): pass a list, such as callbacks=[hl.EarlyStopping()].")


def as_sinks(sinks: Any, of: str) -> tuple[Sink, ...]:
    """Return the sinks as a tuple.

    Args:
        sinks: The sinks as the user gave them.
        of: Class or function that takes them, for the error.

    Raises:
        ArgumentError: If ``sinks`` is a single sink, or has the same sink twice.
    """
    if isinstance(sinks, Iterable) and not isinstance(sinks, str | bytes | Mapping | type):
        found = tuple(as_sink(sink, of) for sink in sinks)
        if len(set(map(id, found))) < len(found):
            raise ArgumentError(f"{of}(sinks=[…]): one sink is there twice. Create a second one with another path.")
        return found
    one = f"hl.sinks.{type(sinks).__name__}(…)" if isinstance(sinks, Sink) else "hl.sinks.TensorBoard()"
    raise ArgumentError(f"{of}(sinks={sinks!r:.80}): pass a list, such as sinks=[{one}].")


def default_device(device: str | torch.device | None, of: str) -> torch.device:
    """Return the device of the model.

    Args:
        device: The device. ``None``: the accelerator if this machine has one, else the CPU.
        of: Class or function that takes the argument, for the error.

    Raises:
        ArgumentError: If torch has no such device, or this machine does not have it.
    """
    if device is None:
        # Without check_available, a CUDA build of torch returns "cuda" on a machine that has no GPU.
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            return torch.device("cpu")
        place = this_process()  # Each process of a machine has its own device.
        own = place.device_of(torch.accelerator.device_count())
        return torch.device(found.type, own) if place.world_size > 1 else found
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise _refused_device(device, "torch has no such device", of) from None
    try:
        torch.empty(0, device=found)  # Raises if this machine does not have the device.
    except (RuntimeError, AssertionError) as error:
        first = re.split(r"\.\s|\n", str(error))[0].rstrip(".")  # A list of all backends may follow.
        raise _refused_device(device, first, of) from None
    return found


def _refused_device(device: object, problem: str, of: str) -> ArgumentError:
    return ArgumentError(
        f"{of}(device={device!r}): {problem}. Write device='cuda', 'mps' or 'cpu', or leave device= out to use the "
        f"accelerator of this machine, if it has one."
    )


def _check_accumulate(accumulate: object, of: str) -> None:
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ArgumentError(
            f"{of}(accumulate={accumulate!r}): must be the number of batches that make one step, 1 or more."
        )


def _check_precision(precision: object, of: str) -> None:
    if precision not in get_args(PrecisionName):
        meant = PRECISIONS.get(precision) if isinstance(precision, str | int) else None
        hint = f"Write precision={meant!r}." if meant else f"Use one of {', '.join(get_args(PrecisionName))}."
        raise ArgumentError(f"{of}(precision={precision!r}): no such precision. {hint}")


def _check_interrupt(interrupt: object, of: str) -> None:
    if interrupt not in get_args(InterruptName):
        raise ArgumentError(f"{of}(interrupt={interrupt!r}): must be 'return' or 'raise'.")


def _check_preflight(preflight: object, of: str) -> None:
    if not isinstance(preflight, bool) and preflight not in get_args(PreflightName):
        raise ArgumentError(f"{of}(preflight={preflight!r}): must be True, False or 'strict'.")


def _check_strategy(strategy: object, of: str) -> None:
    if strategy in get_args(StrategyName):
        return
    if isinstance(strategy, type | str) or not isinstance(strategy, Strategy):
        raise ArgumentError(
            f"{of}(strategy={strategy!r:.80}): use one of {', '.join(get_args(StrategyName))}, hl.DDP(…), hl.FSDP(…), "
            f"or an object with their methods."
        )


def _check_kinds(given: dict[str, Any], of: str) -> None:
    """Raise for options of a wrong type, which would fail later with an unrelated error."""
    folder, seed = given["folder"], given["seed"]
    if folder is not None and folder is not False and (not isinstance(folder, str | Path) or not str(folder)):
        raise ArgumentError(
            f"{of}(folder={folder!r}): must be a path, None for a new folder under runs/, or False to write nothing."
        )
    if folder:
        check_path("folder", folder, of)
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"{of}(seed={seed!r}): must be an integer.")
    if not isinstance(given["config"] or {}, Mapping):
        hint = ", such as vars(args)" if isinstance(given["config"], Namespace | SimpleNamespace) else ""
        raise ArgumentError(f"{of}(config={given['config']!r}): must be a dict of hyper-parameters{hint}.")
    if not isinstance(given["compile"], bool | Mapping):
        raise ArgumentError(
            f"{of}(compile={given['compile']!r}): must be True, False or a dict of keywords for torch.compile."
        )


def _check_name(name: object, of: str) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise ArgumentError(f"{of}(name={name!r}): must be 'run' or 'project/run'.")
    check_path("name", name, of)
    parts = name.split("/")
    if not parts[0].strip() or len(parts) > 2 or "." in parts or ".." in name or is_address(name):
        raise ArgumentError(
            f"{of}(name={redact_text(name)!r}): must be 'run' or 'project/run'. Give a path as folder=."
        )
    if any(ord(character) < ord(" ") for character in name):
        raise ArgumentError(f"{of}(name={name!r}): must not have line breaks or other control characters.")
