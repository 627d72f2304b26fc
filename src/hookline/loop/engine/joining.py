"""Join the processes of a run, and compare the values that must be equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from torch import Tensor, nn

from hookline.distributed.choose import as_strategy
from hookline.distributed.last_words import leave_last_words
from hookline.distributed.same import Facts, canonical, flat
from hookline.distributed.strategy import Strategy
from hookline.errors import SetupError, error_text
from hookline.events import Line, Member
from hookline.loop.settings import Settings
from hookline.loop.tasks.loss_weights import is_of_torch, name_of_loss
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.world.world import World
from hookline.progress import Duration
from hookline.run import Run, RunState

PRESENT: Final = "it"
"""Value of a fact that has no other value: ``rank 0 has it, rank 1 does not have it``."""
BEFORE_VOTE = ("train_step_start", "train_batch_start", "forward_start", "forward_end", "loss_ready", "backward_start")
"""Events of a step that come before its vote."""


def join(world: World, state: RunState, settings: Settings, extend: Duration | None) -> None:
    """Join the other processes when a run is opened, and compare the arguments.

    All ranks must call it.

    Args:
        world: The processes of the run.
        state: The state of the run.
        settings: The options of the run.
        extend: How much longer to train than the last ``fit``.

    Raises:
        SetupError: If an argument differs between ranks, or if the model is sharded and the precision is fp16.
    """
    if world.is_alone:
        return
    strategy = as_strategy(settings.strategy, state.module)
    if strategy.is_sharded and settings.precision == "fp16":
        raise SetupError(
            "precision='fp16' scales the loss, and the scaler does not see what other ranks of a sharded model have: "
            "use precision='bf16', or hl.FSDP(param_dtype=torch.bfloat16)"
        )
    may_be_skipped = any(may_skip(member, state.line) for member in state.line.members)
    world.open(strategy, state.device, may_be_skipped=may_be_skipped)
    try:
        world.compare(lambda: facts_of_run(state, settings, strategy, extend), "Pass the same arguments on all ranks.")
    except BaseException as error:
        leave_last_words(f"rank {world.group.rank}: {error_text(error)}")
        world.close()
        raise


def may_skip(member: Member[Run], line: Line[Run]) -> bool:
    """Return whether a callback may skip a step: it is required, and hears an event before the vote of the step."""
    if member.optional or member.is_task:
        return False
    return any(member.hears(line.known[event]) for event in BEFORE_VOTE)


def facts_of_run(state: RunState, settings: Settings, strategy: Strategy, extend: Duration | None) -> Facts:
    """Return the facts that must be equal on all ranks and are known before ``setup``.

    Not compared are the folder, the name, the device, the sinks, and the callbacks that run on rank zero alone. The
    other ranks do not need them.
    """
    resume = settings.resume
    kind = f"strategy {type(strategy).__name__}"
    arguments: Callable[[], Mapping[str, object]] = getattr(strategy, "compared_arguments", dict)
    facts = {
        "entry point": state.entry_point,
        "max_duration": str(state.max_duration),
        "extend": str(extend),
        "accumulate": str(settings.accumulate),
        "eval_every": str(settings.eval_every),
        "log_every": str(settings.log_every),
        "precision": settings.precision,
        "seed": str(settings.seed),
        "resume": "None" if resume is None else _text_of_resume(resume),
        kind: PRESENT,
        **{f"{kind}, {name}": canonical(value) for name, value in arguments().items()},
    }
    if isinstance(state.task, SupervisedTask):
        facts |= facts_of_loss(state.task.loss)
        facts |= {"weight": PRESENT} if state.task.loss_weights.is_given else {}
    for member in state.line.members:
        if getattr(member.callback, "ranks", "all") != "zero":
            facts[f"{'task' if member.is_task else 'callback'} {member.key}"] = PRESENT
    for stage, given in state.loaders.items():
        facts[f"{stage} loader"] = PRESENT
        if isinstance(given, Mapping):
            facts |= {f"{stage} loader {name!r}": PRESENT for name in given}
    return facts


def _text_of_resume(resume: Any) -> str:
    """Return the path, and the options that differ from their defaults."""
    skipped = f" without {', '.join(resume.skip)}" if resume.skip else ""
    return f"{resume.path}{' (strict)' if resume.strict else ''}{skipped}"


def facts_of_loss(loss: Any) -> Facts:
    """Return the name of a loss, and the options of a loss of torch.

    The options of other losses are not compared, because they may hold values that belong to their rank. The tensors of
    a module are not compared, because all ranks get those of rank zero.

    >>> facts_of_loss(nn.HuberLoss(delta=2.0))
    {'loss': 'HuberLoss', 'loss, reduction': "'mean'", 'loss, delta': '2.0'}
    """
    options: dict[str, Any] = {}
    if isinstance(loss, nn.Module) and is_of_torch(loss):
        options = {name: value for name, value in vars(loss).items() if name[0] != "_" and name != "training"}
    elif isinstance(loss, partial) and is_of_torch(loss):
        options = {name: its.tolist() if isinstance(its, Tensor) else its for name, its in loss.keywords.items()}
    name = "None" if loss is None else name_of_loss(loss)
    return {"loss": name, **{f"loss, {option}": canonical(value) for option, value in options.items()}}


def facts_of_optimizers(state: RunState) -> Facts:
    """Return the facts about optimizers and schedulers that must be equal on all ranks.

    If one rank had another learning rate, its weights would drift away from those of the other ranks.
    """
    names = {id(parameter): name for name, parameter in state.module.named_parameters()}
    facts: Facts = {}
    # Schedulers come first: they add keys to the parameter groups, so they may be the cause of a difference there.
    for index, scheduler in enumerate(state.schedulers):
        where = f"scheduler {index}"
        facts[where] = type(scheduler.scheduler).__qualname__
        facts |= {f"{where}, every": str(scheduler.every), f"{where}, monitor": scheduler.monitor}
        facts |= flat(where, scheduler.scheduler.state_dict())
    for key, optimizer in state.optimizers.items():
        facts[f"optimizer {key}"] = PRESENT if type(optimizer).__name__ == key else type(optimizer).__qualname__
        for index, group in enumerate(optimizer.param_groups):
            where = f"optimizer {key}, group {index}"
            held = [names.get(id(parameter), "one outside the model") for parameter in group["params"]]
            facts |= {where: f"{len(held)} parameters", f"{where}, parameters": ", ".join(held)}
            facts |= {f"{where}, {name}": canonical(value) for name, value in group.items() if name != "params"}
    return facts
