"""The page about other libraries and its chart, from ``docs/benchmarks-peers.json``."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
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

MINUS = "\u2212"

JOBS = {
    "classifier": "classifier",
    "early_stopping": "early stopping",
    "ema_clip_schedule": "EMA, clipping, schedule",
    "resume": "resume",
    "gan": "GAN",
    "metric_log": "metric, CSV, bar",
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


# -- the page ----------------------------------------------------------------------------------------------


def write_page(data: dict[str, Any]) -> None:
    (ROOT / "docs/benchmarks-peers.md").write_text(page(data))
    (ROOT / "docs/images/peers.svg").write_text(chart(data))


def page(data: dict[str, Any]) -> str:
    measured = {name: data["measured"][name] for name in LIBRARIES if name in data["measured"]}
    first = next(iter(measured.values()))
    rounds = sorted({found["rounds"] for found in measured.values()})
    parts = [
        INTRO,
        *([PRELIMINARY] if rounds[0] < FEW_ROUNDS else []),
        "![Time that each library adds to one training step](images/peers.svg)\n",
    ]
    parts += ["## A training step\n", STEP, _steps(measured, "step")]
    parts += ["## A step of some milliseconds\n", WIDE, _steps(measured, "wide")]
    parts += ["## Evaluation\n", EVALUATION, _steps(measured, "evaluation")]
    parts += ["## Logging\n", LOGGING, _steps(measured, "log"), _logs(measured)]
    parts += ["## A checkpoint\n", SAVE, _times(measured, "save", "torch.save"), _saves(measured)]
    parts += ["## Import\n", IMPORT, _times(measured, "import", "torch")]
    parts += ["## Lines of user code\n", LINES, _lines(data["jobs"])]
    parts += ["## Where other libraries are better\n", BETTER, _better(measured, data["jobs"])]
    machine = f"{first['machine']}; Python {first['python']}, torch {first['torch']}"
    shown = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))
    parts += ["## How it is measured\n", HOW.format(machine=machine, rounds=shown)]
    return "\n".join(parts)


INTRO = """# Hookline next to other libraries

<!-- Written by `make bench-peers` from docs/benchmarks-peers.json; do not edit. -->

This page compares nine libraries with Hookline: the time they add to a step, to an evaluation and to
logging, the time of a checkpoint and of the import, and the lines of code for six jobs.
[Benchmarks](benchmarks.md) has more about Hookline itself.

```sh
make bench-peers                              # everything
make bench-peers ARGS="ignite --rounds 4"     # one library, quickly
```

Each library has its own environment. Inside it, the library, Hookline and a bare PyTorch loop take
turns in one process. So compare values within a row, not between rows.
"""

FEW_ROUNDS = 10
PRELIMINARY = f"""**Preliminary.** Some values on this page come from fewer than {FEW_ROUNDS} rounds on a
busy machine. They show that the command works. They are too noisy to compare libraries, and rows that are
missing were not measured yet.
"""

STEP = """A 32-64-10 multilayer perceptron with SGD, batch size 32, one thread. Times are added to a bare step; the
range holds the middle half of the rounds. The noise is the bare loop against itself.
"""

WIDE = """A 256-1024-1024-10 multilayer perceptron with Adam. Here the libraries differ less, because the step is
longer.
"""

EVALUATION = """The mean loss of the small model, per batch. The bare loop adds the losses without gradients.
"""

LOGGING = """The loss of each step is written to a file. The time includes that of other threads. The noise column is a
bare loop that writes a row with `csv.writer` in each step.
"""

SAVE = """Weights and the moments of Adam, 16 MB. The ratio is to `torch.save` of the same state on the same disk.
Hookline writes all state that an exact resume needs, computes SHA-256 sums, and waits until the disk
has the bytes. Most other libraries do none of this, so they are faster.
"""

IMPORT = """Fresh processes, compared with a process that imports torch only.
"""

LINES = """The jobs:

- train and evaluate a classifier;
- early stopping with the best weights;
- an average of the weights (EMA), gradient clipping and a cosine schedule;
- resume after a kill;
- two optimizers (a GAN);
- a metric of one's own, a CSV log and a progress bar.

Each number is the length of a script in `benchmarks/jobs`, and each script was run and checked: the
model has learned, has the best weights, or was resumed after `SIGKILL` without starting again. Blank lines,
comments and the import of the shared data, models and checks do not count. All scripts have the same
formatter. Code that a library makes users write by hand
counts.
"""

BETTER = """These are all comparisons on this page in which a library needs less than Hookline, by the medians. A
difference smaller than the noise of its row means nothing.
"""

HOW = """- Machine: {machine}. Rounds: {rounds}.
- Steps alternate: two bare steps, then two steps of the library; the second of each two is measured, in
  CPU time of the thread. The time of all other threads is added.
- Progress bars, model summaries and checkpoints are off while steps are measured. AIToolbox cannot switch off
  its bar. Hookline runs as `hl.Trainer(progress=False)`: metrics, the run's folder and the report are on.
  The pre-flight check is off, which is the default.
- Gradient clipping of Hugging Face is off, because the bare loop does not clip.
- All libraries iterate over batches in memory. Hugging Face and pytorch-accelerated therefore run without the
  loader of accelerate, which would take more time.
- The averages of the weights differ: pytorch-accelerated updates its own once per epoch. It clips gradients by
  value, the others by norm.
- Keras has its own layers and optimizers. fastai runs torch's optimizers.
- Hookline sets gradients to `None` itself, which is faster than `zero_grad()` of the bare loop. So it can be
  faster than the bare loop.
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _steps(measured: dict[str, Any], what: str) -> str:
    noise = "bare loop with CSV" if what == "log" else "noise"
    head = ["library", "bare", noise, "Hookline adds", "library adds", "Hookline, ratio", "library, ratio"]
    rows = []
    for name, found in measured.items():
        bare, added = found[what]["bare"], found[what]["added"]
        own, other = added["hookline"], added[LIBRARIES[name].module]
        ratios = [f"{1 + median(values) / bare:.2f}" for values in (own, other)]
        title = f"{LIBRARIES[name].title} {found['version']}"
        rows.append([title, _microseconds(bare), _spread(added["bare loop"]), _spread(own), _spread(other), *ratios])
    return _table(head, rows)


def _microseconds(value: float) -> str:
    return f"{round(value):,} µs"


def _spread(values: list[float]) -> str:
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{_microseconds(median(values))} ({round(low):,} to {round(high):,})".replace("-", MINUS)


def _times(measured: dict[str, Any], what: str, reference: str) -> str:
    head = ["library", f"`{reference}`", "Hookline", "library", "Hookline, ratio", "library, ratio"]
    rows = []
    for name, found in measured.items():
        times = [found[what][key] for key in (reference, "hookline", LIBRARIES[name].module)]
        if all(times):
            base, own, other = map(median, times)
            shown = [f"{value:,.0f} ms" for value in (base, own, other)]
            rows.append([LIBRARIES[name].title, *shown, f"{own / base:.2f}", f"{other / base:.2f}"])
    return _table(head, rows)


def _logs(measured: dict[str, Any]) -> str:
    return _means(measured, "logs", "Written with")


def _saves(measured: dict[str, Any]) -> str:
    return _means(measured, "saves_with", "Saved with")


def _means(measured: dict[str, Any], what: str, title: str) -> str:
    first = next(iter(measured.values()))
    lines = [f"- Hookline: {first[what]['hookline']}."]
    lines += [f"- {LIBRARIES[name].title}: {found[what][LIBRARIES[name].module]}." for name, found in measured.items()]
    return f"{title}:\n\n" + "\n".join(lines) + "\n"


def _lines(jobs: dict[str, Any]) -> str:
    names = [name for name in LIBRARIES if name in jobs]
    rows = []
    for name in names:
        found = jobs[name]
        total = str(sum(found.values())) if len(found) == len(JOBS) else "did not run"
        rows.append([LIBRARIES[name].title, *(str(found.get(job, "did not run")) for job in JOBS), total])
    return _table(["library", *JOBS.values(), "total"], rows)


def _better(measured: dict[str, Any], jobs: dict[str, Any]) -> str:
    labels = {"step": "step", "wide": "step of some milliseconds", "evaluation": "evaluation", "log": "logging"}
    lines = []
    for name, found in measured.items():
        module = LIBRARIES[name].module
        better = []
        for what, label in labels.items():
            added = found[what]["added"]
            own, other = median(added["hookline"]), median(added[module])
            if other < own:
                noise = max(map(abs, found[what]["added"]["bare loop"])) if what != "log" else 0.0
                better.append(f"{label} by {own - other:,.0f} µs" + (f" (noise {noise:,.0f} µs)" if noise else ""))
        for what, label in {"save": "checkpoint", "import": "import"}.items():
            if all(found[what].values()) and median(found[what][module]) < median(found[what]["hookline"]):
                better.append(f"{label} by {median(found[what]['hookline']) - median(found[what][module]):,.0f} ms")
        for job, count in jobs.get(name, {}).items():
            if count < jobs["hookline"][job]:
                better.append(f"lines of code of '{JOBS[job]}' ({count} instead of {jobs['hookline'][job]})")
        if better:
            lines.append(f"- **{LIBRARIES[name].title}**: {', '.join(better)}.")
    return "\n".join(lines) + "\n"


# -- the chart ---------------------------------------------------------------------------------------------

BLUE, GREY, INK, GRID = "#2a7de1", "#9aa3ad", "#1f2733", "#e4e4e4"
LEFT, WIDTH, ROW = 150, 480, 30


def chart(data: dict[str, Any]) -> str:
    """Return an SVG with what each library adds to a step of the small model, the median of its rounds."""
    measured = {name: data["measured"][name]["step"]["added"] for name in LIBRARIES if name in data["measured"]}
    values = {LIBRARIES[name].title: median(added[LIBRARIES[name].module]) for name, added in measured.items()}
    own = median([median(added["hookline"]) for added in measured.values()])
    rows = [("Hookline", own), *sorted(values.items(), key=lambda row: row[1])]
    scale = WIDTH / max(1.0, *(value for _, value in rows))
    height = ROW * len(rows) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" '
        f'font-family="sans-serif" font-size="14" fill="{INK}">',
        f'<rect width="720" height="{height}" fill="#fff"/>',
        f'<line x1="{LEFT}" y1="5" x2="{LEFT}" y2="{height - 35}" stroke="{GRID}"/>',
    ]
    for index, (title, value) in enumerate(rows):
        y, width = 5 + ROW * index, max(1.0, value * scale)
        shown = f"{value:+.0f} µs".replace("-", MINUS)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 19}" text-anchor="end">{title}</text>')
        colour = BLUE if title == "Hookline" else GREY
        parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="20" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 19}">{shown}</text>')
    parts.append(
        f'<text x="{LEFT}" y="{height - 12}" font-size="12">added to a bare training step (less is better)</text>'
    )
    return "\n".join([*parts, "</svg>", ""])
