"""The arguments that ``Trainer``, ``Loop`` and the functions share, read and checked once."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self, TypedDict, get_args

import torch

from hookline.checkpoint.request import Resume
from hookline.distributed import this_process
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import SetupError
from hookline.loop.keywords import check_options
from hookline.progress import Duration
from hookline.sinks.log_object import as_sink
from hookline.sinks.sink import Sink

PrecisionName = Literal["fp32", "bf16", "fp16"]


class Options(TypedDict, total=False):
    """Keyword arguments of ``Trainer``, ``Loop``, ``fit``, ``train``, ``evaluate``, ``test``, ``predict``."""

    max_duration: str | Duration | None
    """How long to train: ``"5ep"``, ``"500st"``, ``"1e6tok"``, ``"2h"``."""
    eval_every: str | Duration | None
    """How often to evaluate, ``"1ep"`` if not given; ``None`` never."""
    log_every: str | Duration | None
    """The interval over which training metrics are averaged; ``None``: only over epochs, and no ``train/loss``."""
    accumulate: int
    """So many batches make one step."""
    precision: PrecisionName
    device: str | torch.device | None
    """``None`` takes a GPU when there is one."""
    compile: bool | Mapping[str, Any]
    """``True``, or the keywords for ``torch.compile``; in place, so no key is renamed."""
    strategy: StrategyName | Strategy
    """In several processes: ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)``, ``hl.FSDP(…)``; ``"auto"`` is ``"ddp"`` for most."""
    seed: int | None
    folder: str | Path | Literal[False] | None
    """The run's own folder; ``None`` makes a new one under ``runs/``, ``False`` writes nothing."""
    resume: str | Path | Resume | None
    """``"auto"`` goes on from the newest checkpoint in ``folder``, if there is one; or the path of a checkpoint."""
    name: str | None
    """``"project/run"`` or ``"run"``."""
    config: Mapping[str, Any] | None
    """Hyper-parameters to keep with the run."""
    sinks: Iterable[Any]
    """Where records go, too: ``[hl.sinks.TensorBoard()]``, or any object with ``log(dict, step)``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked options."""

    max_duration: Duration | None = None
    eval_every: Duration | None = Duration(1, "ep")
    log_every: Duration | None = Duration(100, "st")
    accumulate: int = 1
    precision: PrecisionName = "fp32"
    device: torch.device = field(default_factory=lambda: default_device(None))
    compile: bool | Mapping[str, Any] = False
    strategy: Any = "auto"
    seed: int | None = None
    folder: Path | Literal[False] | None = None
    resume: Resume | None = None
    name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    sinks: tuple[Sink, ...] = ()

    @classmethod
    def read(cls, options: Options) -> Self:
        """Check the options; each mistake says what to write instead."""
        given: dict[str, Any] = dict(options)
        check_options(given, list(cls.__dataclass_fields__))
        for key in ("max_duration", "eval_every", "log_every"):
            if given.get(key) is not None:
                given[key] = Duration.parse(given[key], f"{key}=…")
        max_duration = given.get("max_duration")
        if max_duration is not None and max_duration.unit == "dur":
            raise SetupError(
                f"max_duration={str(max_duration)!r}: 'dur' is a share of max_duration itself; use ep, st, s …"
            )
        for key in ("eval_every", "log_every"):
            if given.get(key) is not None:
                given[key] = given[key].of(max_duration, f"{key}=…")
        _check_accumulate(given.get("accumulate", 1))
        _check_precision(given.get("precision", "fp32"))
        _check_strategy(given.get("strategy", "auto"))
        _check_name(given.get("name"))
        _check_kinds(given)
        given["device"] = default_device(given.get("device"))
        if isinstance(given.get("folder"), str):
            given["folder"] = Path(given["folder"])
        given["resume"] = Resume.read(given.get("resume"), given.get("folder"))
        given["config"] = dict(given.get("config") or {})
        given["sinks"] = as_sinks(given.get("sinks", ()))
        for sink in given["sinks"]:
            if given.get("folder") is False and getattr(sink, "needs_folder", False):
                name = type(sink).__name__
                raise SetupError(f"{name}() writes into the run's folder, and folder=False: give it a place of its own")
        return cls(**given)


def as_list(callbacks: Iterable[object]) -> list[object]:
    """The callbacks of a run; one alone is a likely mistake."""
    if isinstance(callbacks, Iterable) and not isinstance(callbacks, str | bytes | Mapping | type):
        return list(callbacks)
    raise SetupError(f"callbacks={callbacks!r:.80}: pass a list, such as callbacks=[hl.EarlyStopping()]")


def as_sinks(sinks: Any) -> tuple[Sink, ...]:
    """A list of sinks; one alone is a likely mistake."""
    if isinstance(sinks, Iterable) and not isinstance(sinks, str | bytes | Mapping | type):
        found = tuple(map(as_sink, sinks))
        if len(set(map(id, found))) < len(found):
            raise SetupError("sinks=[…]: one sink is there twice; make another one, with another place to write to")
        return found
    one = f"hl.sinks.{type(sinks).__name__}(…)" if isinstance(sinks, Sink) else "hl.sinks.TensorBoard()"
    raise SetupError(f"sinks={sinks!r:.80}: pass a list, such as sinks=[{one}]")


def default_device(device: str | torch.device | None) -> torch.device:
    """The device that was asked for, or the accelerator if there is one, or the CPU."""
    if device is None:
        found = torch.accelerator.current_accelerator()
        if found is None:
            return torch.device("cpu")
        place = this_process()  # each process of a machine has a device of its own
        own = place.device_of(torch.accelerator.device_count())
        return torch.device(found.type, own) if place.world_size > 1 else found
    try:
        found = torch.device(device)
        torch.empty(0, device=found)  # says whether it is there
    except (RuntimeError, TypeError, AssertionError) as error:
        raise SetupError(f"device={device!r}: {str(error).splitlines()[0]}") from None
    return found


def _check_accumulate(accumulate: object) -> None:
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise SetupError(f"accumulate={accumulate!r}: give the number of batches that make one step, 1 or more")


def _check_precision(precision: object) -> None:
    if precision not in get_args(PrecisionName):
        raise SetupError(f"precision={precision!r}: use one of {', '.join(get_args(PrecisionName))}")


def _check_strategy(strategy: object) -> None:
    if strategy in get_args(StrategyName):
        return
    if isinstance(strategy, type | str) or not isinstance(strategy, Strategy):
        raise SetupError(
            f"strategy={strategy!r:.80}: use one of {', '.join(get_args(StrategyName))}, hl.DDP(…), hl.FSDP(…), or an "
            f"object with their methods"
        )


def _check_kinds(given: dict[str, Any]) -> None:
    """Options of the wrong kind, which would fail later and elsewhere."""
    folder, seed = given.get("folder"), given.get("seed")
    if folder is not None and folder is not False and (not isinstance(folder, str | Path) or not str(folder)):
        raise SetupError(
            f"folder={folder!r}: give a path, None for a new folder under runs/, or False to write nothing"
        )
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise SetupError(f"seed={seed!r}: give a whole number")
    if not isinstance(given.get("config") or {}, Mapping):
        hint = ", such as vars(args)" if isinstance(given["config"], Namespace | SimpleNamespace) else ""
        raise SetupError(f"config={given['config']!r}: give a dict of hyper-parameters{hint}")
    if not isinstance(given.get("compile", False), bool | Mapping):
        raise SetupError(f"compile={given['compile']!r}: give True, or a dict of keywords for torch.compile")


def _check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise SetupError(f"name={name!r}: give 'run' or 'project/run'")
    if name is not None and (not name.strip("/ ") or name.count("/") > 1 or ".." in name):
        raise SetupError(f"name={name!r}: give 'run' or 'project/run'")
