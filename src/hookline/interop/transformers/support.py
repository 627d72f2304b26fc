"""Which callbacks of transformers run in Hookline, and which cannot. ``docs/interop/transformers.md`` shows them."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "5.23"
"""The versions that the tests run."""

TITLE: Final = "transformers"
"""Name of the library on the pages."""

MODELS: Final = ("PreTrainedModel",)
"""Models of PyTorch, which need no adapter."""

THIRD_PARTY: Final = {
    "trl 1.16": ("BEMACallback", "RichProgressCallback"),
    "fms-hf-tuning 3.2": ("FileLoggingCallback",),
    "autotrain-advanced 0.8": ("LossLoggingCallback", "TrainStartCallback"),
}
"""Callbacks of other packages that the tests run."""

_FOLDER: Final = "logs metrics, but uploads no checkpoint folder: those of Hookline have other names and files"

RUNS: Final = {
    "EarlyStoppingCallback": "monitors `val/loss`, or `metric_for_best_model` of `adapt(…, args=TrainingArguments(…))`",
    "PrinterCallback": "",
    "ProgressCallback": "",
    "TensorBoardCallback": "writes into `<folder>/transformers/`",
    "WandbCallback": "",
    "CodeCarbonCallback": "writes into `<folder>/transformers/`",
    "CometCallback": "tested offline",
    "SwanLabCallback": "tested offline, with swanlab 0.7; swanlab 0.10 fails in the trainer of transformers as well",
    "TrackioCallback": "its project is that of the run",
}
"""Callbacks that have the same effect as in transformers, with a note."""

NOT_TESTED: Final = dict.fromkeys(
    ("AzureMLCallback", "KubeflowCallback", "NeptuneCallback"),
    "needs an account or a service; by its source, it needs nothing that Hookline does not offer",
)
"""Callbacks that the tests do not run."""

LIMITED: Final = {
    "MLflowCallback": _FOLDER,
    **dict.fromkeys(
        ("ClearMLCallback", "DVCLiveCallback", "DagsHubCallback", "FlyteCallback"),
        "as `MLflowCallback`; not tested, because it needs an account or a service",
    ),
}
"""Callbacks that run with a limit."""

REFUSED: Final = {
    "DefaultFlowCallback": "it decides when the trainer of transformers logs, evaluates and saves. "
    "Use eval_every=, log_every= and hl.Checkpointer.",
    "JITCheckpointCallback": "it saves with the trainer of transformers. "
    "Use hl.Checkpointer: Hookline saves a checkpoint when SIGTERM comes.",
}
"""Callbacks that cannot work, with the reason and what to use."""
