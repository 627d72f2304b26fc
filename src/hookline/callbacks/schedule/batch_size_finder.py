"""``BatchSizeFinder``: find the largest batch size that fits into memory."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookline.callbacks._memory import is_out_of_memory
from hookline.callbacks._plots import check_matplotlib, save_figure
from hookline.callbacks.schedule._finders import (
    check_can_resize,
    largest,
    max_size,
    need_one_process,
    need_task,
    resized,
    size_figure,
)
from hookline.callbacks.schedule.accumulation_schedule import AccumulationSchedule
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class BatchSizeFinder(Callback):
    """Find the largest batch size that fits into memory, before training starts.

    The search works on a snapshot: without ``apply``, training gives bitwise the same results as without the search.
    The result is in ``size``, the trials are in ``trials``: one dict per size with ``size``, ``fits`` and
    ``samples_per_second``. Hookline logs the trials as the table ``batch_size_finder/trials``.

    Args:
        mode: ``"power"`` doubles the size until it does not fit. ``"binsearch"`` then bisects between the size that
            fit and the size that did not.
        steps_per_trial: Number of training steps per size. The speed does not include the first step.
        init_val: First batch size.
        max_trials: Largest number of sizes to try.
        max_val: Largest batch size to try. Without ``make_loader``, the number of samples is also a limit.
        margin: Fraction of the found size to leave free. Only for ``"binsearch"``.
        make_loader: Function that returns a loader for a batch size. ``None``: copy the training loader, which must
            be a plain ``DataLoader``. The copy keeps the sampler.
        apply: Train with the size that was found.
        plot: Draw the speed by batch size to ``batch_size_finder.png`` in the run's folder, and log the figure as
            ``plots/batch_size_finder``. Needs matplotlib.

    Raises:
        ArgumentError: If an argument is out of range.
        SetupError: If no size fits, the loader cannot be copied, the run has several processes, or the run is a
            custom loop without a task.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel
        >>> finder = BatchSizeFinder(max_val=16, plot=False)
        >>> trainer = Trainer(max_duration="1ep", callbacks=[finder], folder=False)
        >>> loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(3, (64,))), batch_size=4)
        >>> result = trainer.fit(TinyModel(), loader, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> finder.size, [trial["size"] for trial in finder.trials]
        (16, [2, 4, 8, 16])
    """

    def __init__(
        self,
        mode: Literal["power", "binsearch"] = "power",
        *,
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        max_val: int = 8192,
        margin: float = 0.05,
        make_loader: Callable[[int], Any] | None = None,
        apply: bool = False,
        plot: bool = True,
    ) -> None:
        counts = {
            "steps_per_trial": steps_per_trial,
            "init_val": init_val,
            "max_trials": max_trials,
            "max_val": max_val,
        }
        for name, value in counts.items():
            if value < 1:
                raise ArgumentError(f"BatchSizeFinder({name}={value!r}): must be >= 1.")
        if not 0 <= margin < 1:
            raise ArgumentError(f"BatchSizeFinder(margin={margin!r}): must be >= 0 and < 1.")
        self.mode = mode
        self.steps_per_trial = steps_per_trial
        self.init_val = init_val
        self.max_trials = max_trials
        self.max_val = max_val
        self.margin = margin
        self.make_loader = make_loader
        self.apply = apply
        self.plot = plot
        self.optional = not apply
        self.role = "plan"
        self.writes = ("optimizer",) if apply else ()
        self.after = (AccumulationSchedule,)
        self.size: int | None = None
        self.trials: list[dict[str, Any]] = []
        self.searched = False

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if self.plot:
            check_matplotlib("BatchSizeFinder", ", or BatchSizeFinder(plot=False)")
        need_one_process(run, "BatchSizeFinder")
        need_task(run, "BatchSizeFinder")
        if self.make_loader is None:
            check_can_resize(run.loaders.get("train"), "BatchSizeFinder")

    def on_fit_start(self, run: Run) -> None:
        given = run.loaders["train"]
        if not self.searched and not run.clock.step:
            self._search(run, given)
            self._report(run)
        if self.apply and self.size is not None:
            run.loaders["train"] = self._loader(given, self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes without their speeds.

        Measured speeds would make two checkpoints of equal runs differ.
        """
        trials = [{"size": trial["size"], "fits": trial["fits"]} for trial in self.trials]
        return {"size": self.size, "searched": self.searched, "trials": trials}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.size, self.searched = state["size"], state["searched"]
        self.trials = [{**trial, "samples_per_second": None} for trial in state["trials"]]

    def figure(self) -> Any:
        """Return the speed by batch size as a matplotlib figure."""
        good = sorted((t for t in self.trials if t["fits"] and t["samples_per_second"]), key=lambda t: int(t["size"]))
        failed = [t["size"] for t in self.trials if not t["fits"]]
        return size_figure([t["size"] for t in good], [t["samples_per_second"] for t in good], failed, self.size)

    def _search(self, run: Run, given: Any) -> None:
        """Search for the largest size."""
        self.size = largest(
            lambda size: self._try(run, given, size),
            start=self.init_val,
            limit=max_size(given, self.max_val) if self.make_loader is None else self.max_val,
            trials=self.max_trials,
            bisect=self.mode == "binsearch",
            margin=self.margin,
        )
        self.searched = True
        if self.size is None:
            tried = ", ".join(str(trial["size"]) for trial in self.trials)
            raise SetupError(f"BatchSizeFinder: memory is used up at every batch size that was tried: {tried}")

    def _try(self, run: Run, given: Any, size: int) -> bool:
        """Train a few steps with this size and return True if they fit."""
        speed: float | None = None
        try:
            speed = self._samples_per_second(run, self._loader(given, size))
            fits = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        # Inside the `except` block, the error would still hold the tensors that did not fit.
        if not fits:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.trials.append({"size": size, "fits": fits, "samples_per_second": speed})
        return fits

    def _samples_per_second(self, run: Run, loader: Any) -> float | None:
        """Train a few steps and return their speed, without the first step."""
        samples, began = 0, 0.0
        with run.trial() as trial:
            for index, batch in enumerate(trial.batches(self.steps_per_trial, loader)):
                trial.step(batch)
                if index:
                    samples += run.task.count(batch)[0]
                else:
                    _wait(run)
                    began = perf_counter()
            _wait(run)
            took = perf_counter() - began
        return samples / took if samples and took > 0 else None

    def _loader(self, given: Any, size: int) -> Any:
        """Return a loader with this batch size."""
        return resized(given, size) if self.make_loader is None else self.make_loader(size)

    def _report(self, run: Run) -> None:
        """Log the result, the trials and the figure."""
        what = "it is used" if self.apply else "the loader was not changed"
        logger.info("BatchSizeFinder found a batch size of %s; %s", self.size, what)
        if run.rank:
            return
        run.log_table("batch_size_finder/trials", self.trials)
        if self.plot:
            figure = self.figure()
            if run.has_folder:
                save_figure(figure, run.folder / "batch_size_finder.png")
            run.log_figure("plots/batch_size_finder", figure)


def _wait(run: Run) -> None:
    """Wait for the device, because CUDA kernels run asynchronously."""
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
