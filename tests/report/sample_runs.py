"""Makes realistic run folders, for tests and for looking: ``make_run(folder)``.

``python tests/report/sample_runs.py FOLDER [ROWS]`` writes three of them to look at.
"""

from __future__ import annotations

import math
import random
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
    to_json,
)
from hookline.records.run_file import CallbackEntry, CostEntry, RunFile, SessionEntry, Status

STARTED = datetime(2030, 3, 14, 9, 26, 53, tzinfo=UTC)
STEP_SECONDS = 0.031
CLASSES = 10
ODD = {5: math.nan, 7: math.inf, 9: -math.inf, 31: math.nan, 32: math.nan}
"""Which of fifty intervals have an odd loss."""

CONFIG = {
    "lr": 3e-4,
    "batch_size": 128,
    "model": {"name": "resnet18", "width": 64, "dropout": 0.1},
    "augment": ["crop", "flip"],
    "weight_decay": 0.05,
    "warmup": "200st",
}
REASONS: dict[Status, str] = {
    "running": "",
    "finished": "max_duration: 10ep",
    "stopped": "val/loss has not improved for 3 evaluations (best 0.2134)",
    "interrupted": "interrupted by Ctrl-C",
    "preempted": "SIGTERM",
    "killed": "it ended without an error: killed, or the machine went down",
    "failed": "RuntimeError: The size of tensor a (128) must match the size of tensor b (64) at dimension 0",
}
COSTS = (
    ("Checkpointer", "on_checkpoint_save", 10, 2.41),
    ("ProgressBar", "on_metrics_ready", 400, 0.62),
    ("ImageSamples", "on_eval_batch_end", 200, 0.48),
    ("EarlyStopping", "on_eval_end", 10, 0.004),
    ("SpeedMonitor", "on_metrics_ready", 400, 0.051),
    ("LRMonitor", "on_metrics_ready", 400, 0.019),
    ("ProgressBar", "on_eval_batch_end", 200, 0.11),
    ("ModelSummary", "on_model_ready", 1, 0.087),
)


def make_run(
    folder: Path,
    rows: int = 3_000,
    *,
    seed: int = 0,
    project: str = "cifar",
    name: str | None = None,
    status: Status = "finished",
    reason: str | None = None,
    config: Mapping[str, Any] | None = None,
    extra_metrics: int = 0,
    odd: bool = False,
    media: bool = True,
    events: tuple[EventRow, ...] = (),
    callbacks: tuple[CallbackEntry, ...] = (),
) -> Path:
    """A run of an image classifier with about ``rows`` metric rows: ``run.json``, both files of rows, and pictures.

    ``odd`` puts NaN and infinities into it, ``extra_metrics`` makes it log so many more names, ``events`` and
    ``callbacks`` are added to its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    maker = _Maker(folder, rows, seed, extra_metrics, odd, media)
    said = REASONS[status] if reason is None else reason
    with (
        (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics,
        (folder / "events.jsonl").open("w", encoding="utf-8") as timeline,
    ):
        for row in chain(maker.rows(), maker.ending(status, said), events):
            (timeline if isinstance(row, EventRow) else metrics).write(to_json(row) + "\n")
    about = _about(project, folder.name if name is None else name, seed, {**CONFIG, **(config or {})}, callbacks)
    for session in maker.sessions(status, said):
        about = about.with_session(session)
    about.write(folder)
    return folder


class _Maker:
    def __init__(self, folder: Path, rows: int, seed: int, extra: int, odd: bool, media: bool) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.extra, self.odd, self.media = extra, odd, media
        each = 6 + extra
        self.epochs = 10
        self.intervals = max(1, round(rows / each / self.epochs))
        self.every = 10
        self.length = self.intervals * self.every
        self.skill = 1 + 0.15 * self.random.random()
        self.seconds = 0.0

    # -- the rows ------------------------------------------------------------------------------

    def rows(self) -> Iterator[Record]:
        yield EventRow("start", 0, 0, 0.0, "cifar")
        yield TableRow("model/summary", 0, 0, 0.0, ("layer", "type", "shape", "parameters", "trainable"), LAYERS)
        total = self.length * self.epochs
        for epoch in range(self.epochs):
            for interval in range(self.intervals):
                step = epoch * self.length + (interval + 1) * self.every
                self.seconds += self.every * STEP_SECONDS * self.random.uniform(0.97, 1.05)
                done = epoch + 1 if interval + 1 == self.intervals else epoch
                yield from self._interval(step, done, step / total)
            yield from self._edge(epoch + 1, (epoch + 1) * self.length, (epoch + 1) / self.epochs)

    def _interval(self, step: int, epoch: int, part: float) -> Iterator[MetricRow]:
        loss = self._loss(part) * self.random.uniform(0.86, 1.16)
        if self.odd and step // self.every % 50 in ODD:
            loss = ODD[step // self.every % 50]
        values = {
            "train/loss": loss,
            "train/acc": min(1.0, self._accuracy(part) * self.random.uniform(0.97, 1.02)),
            "train/grad_norm": 0.4 + 4 * math.exp(-9 * part) * self.random.uniform(0.4, 1.8),
            "lr/AdamW": 3e-4 * min(1.0, part / 0.05) * (0.5 + 0.5 * math.cos(math.pi * part)),
            "speed/samples_per_second": 4100 * self.random.uniform(0.94, 1.03),
            "memory/process": 2100 + 300 * (1 - math.exp(-30 * part)),
        }
        values |= {f"layers/{index:03d}/norm": 1 + index / 50 + part for index in range(self.extra)}
        for name, value in values.items():
            yield MetricRow(name, step, epoch, value, "step", self.seconds)

    def _edge(self, epoch: int, step: int, part: float) -> Iterator[Record]:
        yield MetricRow("train/loss_epoch", step, epoch, self._loss(part), "epoch", self.seconds)
        yield MetricRow("train/acc_epoch", step, epoch, self._accuracy(part), "epoch", self.seconds)
        began, took = self.seconds, 2.2 * self.random.uniform(0.9, 1.2)
        self.seconds += took
        loss = self._loss(part) * 1.05 + 0.11 * part * part
        yield MetricRow("val/loss", step, epoch, loss, "eval", self.seconds)
        yield MetricRow("val/acc", step, epoch, self._accuracy(part) - 0.03 * part, "eval", self.seconds)
        yield MetricRow("val/confusion", step, epoch, self._confusion(part), "eval", self.seconds)
        if self.media:
            yield from self._media(epoch, step, part)
        yield EventRow("eval", step, epoch, began, f"val/loss {loss:.4f}", took)
        if epoch % 2 == 0 and not (self.odd and epoch == 6):
            yield EventRow("checkpoint", step, epoch, self.seconds, f"checkpoints/step-{step:08d}", 0.24)
        if self.odd and epoch == 6:
            now = (step, epoch, self.seconds)
            yield EventRow("checkpoint_failed", *now, "OSError: [Errno 28] No space left on device")
            yield EventRow("callback_disabled", *now, "ImageSamples.on_eval_end: ValueError: 3")
            yield EventRow("resume", *now, f"from checkpoints/step-{step - self.length * 2:08d}")

    def _media(self, epoch: int, step: int, part: float) -> Iterator[Record]:
        now = (step, epoch, self.seconds)
        png = picture(64, 64, part, self.random.random())
        file = f"media/val-samples-{step:08d}.png"
        (self.folder / "media").mkdir(exist_ok=True)
        (self.folder / file).write_bytes(png)
        yield ImageRow("val/samples", *now, 64, 64, f"epoch {epoch}: what the network sees", file)
        yield TextRow("val/sample", *now, f"epoch {epoch}\n" + "ship cat dog truck " * epoch)
        edges = tuple(-1 + index / 16 for index in range(33))
        wide = 0.15 + 0.5 * part
        counts = tuple(int(4000 * math.exp(-(((edge + 1 / 32) / wide) ** 2))) for edge in edges[:-1])
        yield HistogramRow("weights/conv1", *now, edges, counts)
        worst = [[f"image {self.random.randrange(9000)}", self.random.randrange(10), 1 + part] for _ in range(4)]
        yield TableRow("val/worst", *now, ("sample", "class", "loss"), tuple(tuple(row) for row in worst))

    def _loss(self, part: float) -> float:
        return 2.3 * math.exp(-4 * self.skill * part) + 0.12 / self.skill

    def _accuracy(self, part: float) -> float:
        return 0.1 + 0.86 * (1 - math.exp(-5 * self.skill * part))

    def _confusion(self, part: float) -> list[Any]:
        right = 20 + int(80 * part)
        return [
            [float(right if row == column else self.random.randrange(0, max(2, int(14 * (1 - part)))))
             for column in range(CLASSES)]
            for row in range(CLASSES)
        ]  # fmt: skip

    # -- the end -------------------------------------------------------------------------------

    def ending(self, status: Status, reason: str) -> Iterator[Record]:
        now = (self.length * self.epochs, self.epochs, self.seconds)
        if status == "finished":
            yield MetricRow("test/acc", *now[:2], self._accuracy(1) - 0.04, "eval", self.seconds)
            yield MetricRow("test/loss", *now[:2], self._loss(1) + 0.1, "eval", self.seconds)
            yield FileRow("predictions", *now, "media/predictions.csv", 20_480)
        names: dict[Status, tuple[str, ...]] = {
            "running": (),
            "finished": ("end",),
            "stopped": ("stop", "end"),
            "interrupted": ("interrupt", "end"),
            "preempted": ("preempt",),
            "failed": ("exception",),
            "killed": ("killed",),
        }
        for name in names[status]:
            yield EventRow(name, *now, reason)

    def sessions(self, status: Status, reason: str) -> Iterator[SessionEntry]:
        last = self.length * self.epochs
        ended = STARTED + timedelta(seconds=self.seconds + 4)
        costs = tuple(CostEntry(*cost) for cost in COSTS)
        if self.odd:
            yield SessionEntry(
                STARTED.isoformat(), 0, "preempted", ended.isoformat(), last // 2, 5, self.seconds / 2, "SIGTERM"
            )
        yield SessionEntry(
            STARTED.isoformat(),
            last // 2 if self.odd else 0,
            status,
            None if status == "running" else ended.isoformat(),
            last,
            self.epochs,
            self.seconds,
            reason,
            "EarlyStopping" if status == "stopped" else None,
            costs,
            ("ImageSamples.on_eval_end at step 600: ValueError: 3",) if self.odd else (),
            ("TensorBoard: 3,012 rows",),
        )


def _about(project: str, name: str, seed: int, config: Mapping[str, Any], more: tuple[CallbackEntry, ...]) -> RunFile:
    callbacks = (
        CallbackEntry("EarlyStopping", "monitor='val/loss', patience=3", False),
        CallbackEntry("LRMonitor", "", True),
        CallbackEntry("SpeedMonitor", "", True),
        CallbackEntry("ImageSamples", "every='1ep'", True),
        *more,
        CallbackEntry("ProgressBar", "", True),
        CallbackEntry("Checkpointer", "every='2ep'", False),
    )
    return RunFile(
        project,
        name,
        run_id=f"run-{seed:04d}",
        started=STARTED.isoformat(),
        seed=seed,
        config=config,
        settings={"max_duration": "10ep", "log_every": "10st", "eval_every": "1ep", "precision": "bf16"},
        arguments=("train.py", "--lr", str(config["lr"]), "--width", "64"),
        callbacks=callbacks,
        model={"class": "ResNet", "parameters": 11_173_962, "trainable": 11_173_962},
        versions={"python": "3.11.2", "torch": "2.13.0", "hookline": "0.1.0"},
        platform={"system": "Linux 6.1", "machine": "x86_64", "cpus": 16, "gpu": "1 x NVIDIA A100 40 GB"},
        git={"commit": "3f9c2d71e0a84b6f9a1c5e7d2b8f4a6c0d1e2f3a", "branch": "main", "dirty": seed % 2 == 1},
    )  # fmt: skip


LAYERS = (
    ("conv1", "Conv2d", "128x64x32x32", 1_728, True),
    ("layer1", "Sequential", "128x64x32x32", 147_968, True),
    ("layer2", "Sequential", "128x128x16x16", 525_568, True),
    ("layer3", "Sequential", "128x256x8x8", 2_099_712, True),
    ("layer4", "Sequential", "128x512x4x4", 8_393_728, True),
    ("fc", "Linear", "128x10", 5_130, True),
)


def picture(width: int, height: int, part: float = 0.5, turn: float = 0.0) -> bytes:
    """A PNG: soft rings of colour."""
    lines = bytearray()
    for y in range(height):
        lines.append(0)
        for x in range(width):
            ring = math.hypot(x - width / 2, y - height / 2) / (2 + 6 * part) + 6.3 * turn
            lines += bytes(int(127 + 120 * math.sin(ring + shift)) for shift in (0.0, 0.9, 2.2))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


if __name__ == "__main__":
    where, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3_000
    make_run(where / "baseline", count)
    make_run(where / "wide", count, seed=1, status="stopped", config={"lr": 1e-3, "scheduler": "cosine"})
    make_run(where / "trouble", count, seed=2, status="failed", odd=True)
