"""``SpeedMonitor``: training speed and hardware utilization."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from hookline.callbacks.watch._interval import Aside, IntervalMonitor, stage_name
from hookline.errors import ArgumentError

if TYPE_CHECKING:
    from hookline.run import Run

TERA: Final = 1e12


class Mark(NamedTuple):
    """Counts at the end of an interval."""

    seconds: float
    """Seconds of training only."""
    step: int
    batch: int
    sample: int
    token: int
    waited: float


class SpeedMonitor(IntervalMonitor):
    """Log the training speed in steps, batches, samples and tokens per second.

    The callback logs ``speed/steps_per_second``, ``speed/batches_per_second`` and ``speed/samples_per_second``
    at the end of each log interval and of each epoch, and ``speed/tokens_per_second`` if the task counts
    tokens. Evaluations, predictions and saves do not count.

    At the end of each evaluation and prediction, it logs ``speed/val/seconds``, ``speed/val/batches_per_second``,
    ``speed/val/samples_per_second`` and, if the task counts tokens, ``speed/val/tokens_per_second``, of this
    process; in a test or a prediction with ``test`` or ``predict`` instead of ``val``.

    It also logs ``speed/flops_per_second`` and ``speed/utilization`` (fraction of the hardware's peak, 0 to 1)
    if the FLOPs per sample are known. ``ModelSummary`` counts them, or send the number yourself:
    ``run.messages.send("flops_per_sample", 6e9, keep="forever")``.

    Args:
        window: Number of log intervals over which the speed is averaged.
        data_wait: Also log ``speed/data_wait``: fraction of the time that training waits for data (0 to 1), and
            ``speed/val/data_wait`` of evaluations. This needs two hooks in every step, which cost some
            microseconds.
        peak: Peak FLOPs per second of one device. ``None``: taken from a table of common GPUs.

    Raises:
        ArgumentError: If ``window`` is less than 1 or ``peak`` is not positive.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[SpeedMonitor()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(batch_size=8), loss=loss, optimizer=optimizer)
        >>> result.history.steps("speed/samples_per_second")
        [4, 8]
        >>> round(result.metrics["speed/samples_per_second"] / result.metrics["speed/steps_per_second"], 3)
        8.0
    """

    ranks = "zero"
    writes = ("speed/*",)

    def __init__(self, window: int = 1, *, data_wait: bool = False, peak: float | None = None) -> None:
        if window < 1:
            raise ArgumentError(f"SpeedMonitor(window={window!r}): must be >= 1.")
        if peak is not None and peak <= 0:
            raise ArgumentError(
                f"SpeedMonitor(peak={peak!r}): must be > 0. Give operations per second, such as 312e12."
            )
        self.window = window
        self.data_wait = data_wait
        self.peak = peak
        super().__init__()
        self._aside = Aside()
        self._waited = self._eval_waited = self._fetch_began = 0.0
        self._hardware_peak: float | None = None
        self._marks: deque[Mark] = deque(maxlen=window + 1)
        if data_wait:  # Hooks that are not set cost nothing.
            self.on_batch_fetch_start = self._begin_fetch  # type: ignore[method-assign]
            self.on_batch_fetch_end = self._end_fetch  # type: ignore[method-assign]

    # -- training ------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._begin(run)

    def on_train_start(self, run: Run) -> None:
        self._begin(run)

    def _begin(self, run: Run) -> None:
        """Start a new measurement."""
        super().on_setup(run)
        self._aside = Aside()
        self._waited = 0.0
        self._hardware_peak = _peak_of(run) if self.peak is None else self.peak
        self._marks.clear()
        self._marks.append(self._mark(run))

    # -- time that does not count ----------------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_save(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def _begin_fetch(self, run: Run) -> None:
        """Start timing a fetch, as ``on_batch_fetch_start``."""
        self._fetch_began = run.clock.seconds

    def _end_fetch(self, run: Run) -> None:
        """Stop timing a fetch, as ``on_batch_fetch_end``."""
        if run.stage == "train":
            self._waited += run.clock.seconds - self._fetch_began
        else:
            self._eval_waited += run.clock.seconds - self._fetch_began

    # -- evaluations and predictions -----------------------------------------------------------

    def on_eval_start(self, run: Run) -> None:
        self._eval_waited = 0.0

    def on_predict_start(self, run: Run) -> None:
        self._eval_waited = 0.0

    def on_eval_end(self, run: Run) -> None:
        self._report_stage(run)

    def on_predict_end(self, run: Run) -> None:
        self._report_stage(run)

    def _report_stage(self, run: Run) -> None:
        """Log the speed of an evaluation or a prediction."""
        clock, stage = run.clock.eval, stage_name(run)
        seconds = clock.seconds
        if seconds <= 0:
            return
        values = {
            f"speed/{stage}/seconds": seconds,
            f"speed/{stage}/batches_per_second": clock.batch / seconds,
            f"speed/{stage}/samples_per_second": clock.sample / seconds,
        }
        if clock.token:
            values[f"speed/{stage}/tokens_per_second"] = clock.token / seconds
        if self.data_wait:
            values[f"speed/{stage}/data_wait"] = min(1.0, self._eval_waited / seconds)
        run.log(values, reduce="last")

    # -- speeds --------------------------------------------------------------------------------

    def _mark(self, run: Run) -> Mark:
        """Return the current counts."""
        clock = run.clock
        return Mark(
            clock.seconds - self._aside.seconds, clock.step, clock.batch, clock.sample, clock.token, self._waited
        )

    def report(self, run: Run) -> None:
        """Log a row."""
        self._marks.append(self._mark(run))
        first, now = self._marks[0], self._marks[-1]
        seconds = now.seconds - first.seconds
        if seconds <= 0 or now.batch == first.batch:  # The step was made before the resume.
            return
        values = {
            "speed/steps_per_second": (now.step - first.step) / seconds,
            "speed/batches_per_second": (now.batch - first.batch) / seconds,
            "speed/samples_per_second": (now.sample - first.sample) / seconds,
        }
        if now.token > first.token:
            values["speed/tokens_per_second"] = (now.token - first.token) / seconds
        if self.data_wait:
            values["speed/data_wait"] = min(1.0, (now.waited - first.waited) / seconds)
        if flops := run.messages.read("flops_per_sample"):
            values["speed/flops_per_second"] = flops[-1] * values["speed/samples_per_second"]
            if self._hardware_peak is not None:
                values["speed/utilization"] = values["speed/flops_per_second"] / (self._hardware_peak * run.world_size)
        run.log(values, reduce="last")


def _peak_of(run: Run) -> float | None:
    """Return the peak of the device for the number format of the run, or ``None``."""
    if run.device.type != "cuda":
        return None
    return peak_flops(torch.cuda.get_device_name(run.device), _number(run))


def _number(run: Run) -> str:
    """Return the number format of the run: precision, dtype of the weights, or TF32."""
    if run.precision != "fp32":
        return run.precision
    first = next((p.dtype for p in run.model.parameters() if p.is_floating_point()), torch.float32)
    if first in (torch.bfloat16, torch.float16):
        return "bf16" if first == torch.bfloat16 else "fp16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


class Peak(NamedTuple):
    """Peak of a GPU in 10¹² FLOPs per second, dense. Half precision accumulates in fp32."""

    words: tuple[str, ...]
    """Words that the name of the device must all contain."""
    half: float
    tf32: float
    fp32: float
    bf16: bool = True
    """False for older GPUs, which support only fp16."""


PEAKS: Final = (
    Peak(("gb200",), 2500, 1250, 80),
    Peak(("b200",), 2250, 1125, 75),
    Peak(("h200", "nvl"), 835, 417, 60),
    Peak(("h200",), 989, 494, 67),
    Peak(("h100", "nvl"), 835, 417, 60),
    Peak(("h100", "pcie"), 756, 378, 51),
    Peak(("h100",), 989, 494, 67),
    Peak(("a100",), 312, 156, 19.5),
    Peak(("a40",), 149.7, 74.8, 37.4),
    Peak(("a10",), 125, 62.5, 31.2),
    Peak(("l40s",), 362, 183, 91.6),
    Peak(("l40",), 181, 90.5, 90.5),
    Peak(("l4",), 121, 60, 30.3),
    Peak(("rtx", "a6000"), 154.8, 77.4, 38.7),
    Peak(("rtx", "4090"), 165.2, 82.6, 82.6),
    Peak(("rtx", "3090"), 71, 35.6, 35.6),
    Peak(("v100", "pcie"), 112, 14, 14, bf16=False),
    Peak(("v100",), 125, 15.7, 15.7, bf16=False),
    Peak(("t4",), 65, 8.1, 8.1, bf16=False),
    Peak(("mi300x",), 1307, 653, 163),
)
"""The first match counts, so specific names come first."""


def peak_flops(device: str, number: str) -> float | None:
    """Return the peak FLOPs per second of a device, or ``None`` if it is not known.

    Args:
        device: Name of the device, as torch reports it.
        number: Number format: ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``.

    Example:
        >>> peak_flops("NVIDIA A100-SXM4-80GB", "bf16"), peak_flops("NVIDIA A100-SXM4-80GB", "fp32")
        (312000000000000.0, 19500000000000.0)
        >>> peak_flops("Tesla T4", "bf16"), peak_flops("Some other GPU", "fp32")
        (None, None)
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    for peak in PEAKS:
        if words.issuperset(peak.words):
            found = {"bf16": peak.half if peak.bf16 else None, "fp16": peak.half, "tf32": peak.tf32, "fp32": peak.fp32}
            value = found.get(number)
            return None if value is None else value * TERA
    return None
