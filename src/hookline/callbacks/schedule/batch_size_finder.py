"""``BatchSizeFinder``: the largest batch that fits into memory, and how fast each size is."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookline.callbacks.out_of_memory import is_out_of_memory
from hookline.callbacks.schedule.pictures import need_matplotlib, save_png, size_figure
from hookline.callbacks.schedule.size_search import largest
from hookline.callbacks.schedule.sized_loader import check_can_resize, most, resized
from hookline.callbacks.schedule.trying import need_one_process, need_task
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class BatchSizeFinder(Callback):
    """Tries batch sizes, before training, until memory is used up, and says which is the largest that fits.

    ``mode="power"`` doubles from ``init_val`` on; ``"binsearch"`` then halves the gap to the size that failed, and
    leaves ``margin`` of it free. It stops at ``max_val``, at the number of samples, or after ``max_trials`` sizes.
    Each gets ``steps_per_trial`` whole training steps; an error that says that memory is used up (``MemoryError``,
    torch's own, "out of memory") is caught, all others are raised. The samples a second of each size are measured,
    too, without its first step.

    All of it happens on a snapshot. Afterwards training is bitwise what it would have been without it, unless
    ``apply`` is set: then the run trains with a loader of the size that was found. A plain ``DataLoader`` is made
    anew, with its own sampler; for others pass ``make_loader``, a function of the size.

    ``size`` and ``trials`` (a dict with ``size``, ``fits``, ``samples_per_second`` for each) stay on the callback,
    and are logged as the table ``batch_size_finder/trials``; with ``plot`` the curve is logged as a figure, too, and
    drawn to ``batch_size_finder.png`` in the run's folder. It runs once: not again after a resume. It needs a task,
    so not an own loop; and one process.

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
        if mode not in ("power", "binsearch"):
            raise RegistrationError(f"BatchSizeFinder(mode={mode!r}): use 'power' or 'binsearch'")
        counts = {
            "steps_per_trial": steps_per_trial,
            "init_val": init_val,
            "max_trials": max_trials,
            "max_val": max_val,
        }
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RegistrationError(f"BatchSizeFinder({name}={value!r}): a whole number, 1 or more")
        if not 0 <= margin < 1:
            raise RegistrationError(f"BatchSizeFinder(margin={margin!r}): a share, from 0 to below 1")
        if make_loader is not None and not callable(make_loader):
            raise RegistrationError(f"BatchSizeFinder(make_loader={make_loader!r}): a function of the batch size")
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
        self.after = ("AccumulationSchedule",)
        self._forget()

    def _forget(self) -> None:
        self.size: int | None = None
        self.trials: list[dict[str, Any]] = []
        self.searched = False

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if run.clock.step == 0:
            self._forget()
        if self.plot:
            need_matplotlib("BatchSizeFinder")
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
        """What was found; not how fast it was here, which would make no two checkpoints alike."""
        trials = [{"size": trial["size"], "fits": trial["fits"]} for trial in self.trials]
        return {"size": self.size, "searched": self.searched, "trials": trials}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.size, self.searched = state["size"], state["searched"]
        self.trials = [{**trial, "samples_per_second": None} for trial in state["trials"]]

    def figure(self) -> Any:
        """The curve, as a figure of matplotlib."""
        good = sorted((t for t in self.trials if t["fits"] and t["samples_per_second"]), key=lambda t: int(t["size"]))
        failed = [t["size"] for t in self.trials if not t["fits"]]
        return size_figure([t["size"] for t in good], [t["samples_per_second"] for t in good], failed, self.size)

    def _search(self, run: Run, given: Any) -> None:
        self.size = largest(
            lambda size: self._try(run, given, size),
            start=self.init_val,
            limit=most(given, self.max_val) if self.make_loader is None else self.max_val,
            trials=self.max_trials,
            bisect=self.mode == "binsearch",
            margin=self.margin,
        )
        self.searched = True
        if self.size is None:
            tried = ", ".join(str(trial["size"]) for trial in self.trials)
            raise SetupError(f"BatchSizeFinder: memory is used up at every batch size that was tried: {tried}")

    def _try(self, run: Run, given: Any, size: int) -> bool:
        """Some steps in this size. Whether they fit."""
        speed: float | None = None
        try:
            speed = self._samples_per_second(run, self._loader(given, size))
            fits = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        if not fits:  # outside of the except: the error holds what it could not fit
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.trials.append({"size": size, "fits": fits, "samples_per_second": speed})
        return fits

    def _samples_per_second(self, run: Run, loader: Any) -> float | None:
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
        return resized(given, size) if self.make_loader is None else self.make_loader(size)

    def _report(self, run: Run) -> None:
        what = "it is used" if self.apply else "the loader was not changed"
        logger.info("BatchSizeFinder found a batch size of %s; %s", self.size, what)
        if run.rank:
            return
        run.log_table("batch_size_finder/trials", self.trials)
        if self.plot:
            figure = self.figure()
            if run.has_folder:
                save_png(figure, run.folder / "batch_size_finder.png")
            run.log_figure("plots/batch_size_finder", figure)


def _wait(run: Run) -> None:
    """For the device, which works behind the program's back."""
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
