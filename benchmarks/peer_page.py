"""The page about other libraries and its chart, from ``docs/benchmarks-peers.json``."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Library:
    """How a library is called, installed and imported."""

    title: str
    module: str
    distribution: str
    code: str


LIBRARIES = {
    "hookline": Library("Hookline", "hookline", "hookline", "import hookline; hookline.Trainer"),
    "ignite": Library("ignite", "ignite", "pytorch-ignite", "import ignite.engine, ignite.handlers, ignite.metrics"),
    "lightning": Library("Lightning", "lightning", "lightning", "import lightning.pytorch"),
    "transformers": Library("Hugging Face", "transformers", "transformers", "from transformers import Trainer"),
    "keras": Library("Keras", "keras", "keras", "import keras"),
    "torchtnt": Library("TorchTNT", "torchtnt", "torchtnt", "import torchtnt.framework"),
    "composer": Library("Composer", "composer", "mosaicml", "import composer"),
    "pytorch-accelerated": Library(
        "pytorch-accelerated", "pytorch_accelerated", "pytorch-accelerated", "import pytorch_accelerated"
    ),
    "aitoolbox": Library("AIToolbox", "aitoolbox", "aitoolbox", "import aitoolbox.torchtrain.train_loop"),
    "fastai": Library("fastai", "fastai", "fastai", "from fastai.learner import Learner"),
}

JOBS = {
    "classifier": "train and evaluate a classifier",
    "early_stopping": "early stopping with the best weights",
    "ema_clip_schedule": "EMA, gradient clipping and a schedule",
    "resume": "resume after a kill",
    "gan": "two optimizers (a GAN)",
    "metric_log": "own metric, CSV log and progress bar",
}

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(script: Path) -> int:
    """Return the number of lines without blank lines, comments, docstrings and the import of ``common``."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(script.read_text()).readline):
        if token.type not in NO_CODE:
            statement.append(token)
        elif token.type == tokenize.NEWLINE:
            is_docstring = all(part.type == tokenize.STRING for part in statement)
            is_import_of_common = [part.string for part in statement[:2]] == ["from", "common"]
            if not is_docstring and not is_import_of_common:
                lines.update(number for part in statement for number in range(part.start[0], part.end[0] + 1))
            statement = []
    return len(lines)


def write_page(data: dict[str, Any]) -> None:
    pass
