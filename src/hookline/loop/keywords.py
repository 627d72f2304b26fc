"""Keywords that Hookline does not have: what people write, and what it is here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict

from hookline.errors import SetupError

OPTIONS = {
    "logger": "write sinks=[hl.sinks.TensorBoard()]; metrics.jsonl in the run's folder is always written",
    "loggers": "write sinks=[hl.sinks.TensorBoard()]; metrics.jsonl in the run's folder is always written",
    "max_epochs": "write max_duration='10ep'",
    "num_epochs": "write max_duration='10ep'",
    "n_epochs": "write max_duration='10ep'",
    "epochs": "write max_duration='10ep'",
    "max_steps": "write max_duration='500st'",
    "num_steps": "write max_duration='500st'",
    "steps": "write max_duration='500st'",
    "accumulate_grad_batches": "write accumulate=4",
    "gradient_accumulation_steps": "write accumulate=4",
    "log_every_n_steps": "write log_every='50st'",
    "val_check_interval": "write eval_every='500st' or '1ep'",
    "eval_interval": "write eval_every='500st' or '1ep'",
    "accelerator": "write device='cuda'",
    "default_root_dir": "write folder='…'",
    "save_folder": "write folder='…'",
    "output_dir": "write folder='…'",
    "run_name": "write name='…'",
    "ckpt_path": "write resume='…'",
    "resume_from_checkpoint": "write resume='…'",
    "load_path": "write resume='…'",
    "random_seed": "write seed=1",
}
"""What is an option of ``Trainer``, ``Loop`` and the functions here."""

ARGUMENTS = {
    **dict.fromkeys(("train_loader", "train_dataloader", "train_dataloaders", "train_data", "train_dl"), "train"),
    **dict.fromkeys(("val_loader", "val_dataloader", "val_dataloaders", "val_data", "val_dl"), "val"),
    **dict.fromkeys(("valid_loader", "validation_loader", "validation_data", "valid", "validation"), "val"),
    **dict.fromkeys(("eval_loader", "eval_dataloader", "eval_data"), "val"),
    **dict.fromkeys(("test_loader", "test_dataloader", "test_dataloaders", "test_data", "test_dl"), "test"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_func", "loss_function"), "loss"),
    **dict.fromkeys(("opt", "optim", "optimizers"), "optimizer"),
    **dict.fromkeys(("lr_scheduler", "schedulers", "lr_schedulers"), "scheduler"),
}
"""What is an argument of ``fit`` and its siblings here."""

ELSEWHERE = {
    **dict.fromkeys(
        ("lr", "learning_rate", "weight_decay"),
        "it is the optimizer's: write optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4)",
    ),
    **dict.fromkeys(
        ("batch_size", "shuffle", "num_workers"), "it is the loader's: write DataLoader(data, batch_size=32)"
    ),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "grad_clip"), "write callbacks=[hl.GradientClip(norm=1.0)]"),
    **dict.fromkeys(
        ("verbose", "enable_progress_bar", "progress_bar"), "write callbacks=[hl.ProgressBar(style=None)] for no bar"
    ),
    "patience": "write callbacks=[hl.EarlyStopping(patience=3)]",
    "early_stopping": "write callbacks=[hl.EarlyStopping('val/loss')]",
    "enable_checkpointing": "write callbacks=[hl.Checkpointer()]",
}
"""What is something else here."""


class NoOptions(TypedDict):
    """No keywords: a method that takes these says itself what is wrong with others, and type checkers refuse them."""


def check_options(given: Iterable[str], known: Sequence[str]) -> None:
    """The options of a trainer, a loop or a function."""
    for key in given:
        if key in known:
            continue
        if key in OPTIONS or key in ELSEWHERE:
            raise SetupError(f"unknown option {key}=…; {OPTIONS.get(key) or ELSEWHERE[key]}")
        arguments = set(ARGUMENTS.values())
        close = get_close_matches(ARGUMENTS.get(key, key), [*known, *arguments], n=1)
        if close and close[0] in arguments:
            raise SetupError(
                f"unknown option {key}=…; {close[0]} is an argument of fit: write "
                f"fit(…, {close[0]}=…); in the body of an own loop it is yours"
            )
        hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
        raise SetupError(f"unknown option {key}=…; {hint}")


def refuse(method: Callable[..., Any], unknown: Mapping[str, object], options: Iterable[str]) -> None:
    """Keywords that a method of a trainer does not have; ``options`` are those of the trainer itself."""
    if not unknown:
        return
    takes = [name for name in inspect.signature(method).parameters if name != "unknown"]
    verb, key = method.__name__, next(iter(unknown))
    close = get_close_matches(key, takes, n=1)
    if key in options or key in OPTIONS:
        write = OPTIONS.get(key, f"write {key}=…")
        hint = f"it is an option of the trainer: {write} in Trainer(…), before .{verb}(…)"
    elif key in ELSEWHERE:
        hint = ELSEWHERE[key]
    elif ARGUMENTS.get(key) in takes:
        hint = f"write {ARGUMENTS[key]}=…"
    else:
        hint = f"did you mean {close[0]}?" if close else f"the arguments are {', '.join(takes)}"
    raise SetupError(f"{verb}({key}=…): no such argument; {hint}")
