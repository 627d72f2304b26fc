"""``SpeedMonitor``: how fast training is, and how much of the hardware it uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from hookline.callbacks.watch.interval import Aside, Interval
from hookline.callbacks.watch.peak_flops import peak_flops
from hookline.errors import RegistrationError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class Mark(NamedTuple):
    """What was done at one moment."""

    seconds: float
    """Of training alone."""
    step: int
    batch: int
    sample: int
    token: int
    waited: float


class SpeedMonitor(Callback):
    """Logs how fast training was, at each interval (``log_every``) and at the end of each epoch.

    ``speed/steps_per_second``, ``speed/batches_per_second``, ``speed/samples_per_second``, and
    ``speed/tokens_per_second`` where the task counts tokens: over the last interval, or over the last ``window`` ones.
    The time of evaluations, predictions and saves is left out. The first interval of a run, and the first after a
    resume, begin with training: the start of a loader's workers and a compilation are in them.

    ``data_wait`` logs ``speed/data_wait``: the share of the time in which training waited for data, from 0 to 1. This
    needs two hooks in every step, which take the loop off its fastest path; nothing else here does.

    ``speed/flops_per_second`` and ``speed/utilization`` (the share of the hardware's peak, from 0 to 1) are there when
    it is known how many operations a sample needs, forward and backward: ``ModelSummary`` counts them, or send the
    number yourself with ``run.messages.send("flops_per_sample", 6e9, keep="forever")``. The peak of common GPUs is
    known; of others give it as ``peak``, in operations a second.

    With several processes steps, samples and tokens are those of all together, batches and ``data_wait`` those of rank
    zero, and the peak is that of one device.

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

    optional = True
    ranks = "zero"
    writes = ("speed/*",)
    state = ("_interval",)
    shares_state = True

    def __init__(self, window: int = 1, *, data_wait: bool = False, peak: float | None = None) -> None:
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise RegistrationError(f"SpeedMonitor(window={window!r}): a number of intervals, 1 or more")
        if peak is not None and not peak > 0:
            raise RegistrationError(f"SpeedMonitor(peak={peak!r}): operations a second, such as 312e12")
        self.window = window
        self.data_wait = data_wait
        self.peak = peak
        self._interval = Interval()
        self._aside = Aside()
        self._waited = self._fetch_began = 0.0
        self._hardware_peak: float | None = None
        self._marks: deque[Mark] = deque(maxlen=window + 1)
        if data_wait:  # a hook that is not there costs nothing
            self.on_batch_fetch_start = self._begin_fetch  # type: ignore[method-assign]
            self.on_batch_fetch_end = self._end_fetch  # type: ignore[method-assign]

    # -- training ------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._begin(run)

    def on_train_start(self, run: Run) -> None:
        self._begin(run)

    def _begin(self, run: Run) -> None:
        self._interval.begin(run)
        self._aside = Aside()
        self._waited = 0.0
        self._hardware_peak = _peak_of(run) if self.peak is None else self.peak
        self._marks.clear()
        self._marks.append(self._mark(run))

    def on_metrics_ready(self, run: Run) -> None:
        self._report(run)

    def on_epoch_end(self, run: Run) -> None:
        self._report(run)

    # -- what is left out ------------------------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_save(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def _begin_fetch(self, run: Run) -> None:
        self._fetch_began = run.clock.seconds

    def _end_fetch(self, run: Run) -> None:
        if run.stage == "train":
            self._waited += run.clock.seconds - self._fetch_began

    # -- speeds --------------------------------------------------------------------------------

    def _mark(self, run: Run) -> Mark:
        clock = run.clock
        return Mark(
            clock.seconds - self._aside.seconds, clock.step, clock.batch, clock.sample, clock.token, self._waited
        )

    def _report(self, run: Run) -> None:
        if not self._interval.is_over(run):
            return
        self._marks.append(self._mark(run))
        first, now = self._marks[0], self._marks[-1]
        seconds = now.seconds - first.seconds
        if seconds <= 0 or now.batch == first.batch:  # the row of a step that the process before has made
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
    """The peak of the device that trains, for the kind of number that it trains with."""
    if run.device.type != "cuda":
        return None
    return peak_flops(torch.cuda.get_device_name(run.device), _number(run))


def _number(run: Run) -> str:
    if run.precision != "fp32":
        return run.precision
    first = next((p.dtype for p in run.model.parameters() if p.is_floating_point()), torch.float32)
    if first in (torch.bfloat16, torch.float16):
        return "bf16" if first == torch.bfloat16 else "fp16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
