"""What ranks do in ``test_metrics.py``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.distributed import this_process
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit
from tests.support.inside import VOTE_LENGTH, watch_links


def fit_steps(callbacks: list[Any], *, steps: int = 4, task: Any = None, **options: Any) -> Any:
    """Train for this number of steps, with an interval of two steps."""
    given = {"log_every": "2st", "seed": 1, "device": None, "max_duration": f"{steps}st", **options}
    given["optimizer"] = torch.optim.SGD
    return fit(*callbacks, model=task, train=tiny_data(batches=64), **given)


def rows(result: Any, prefix: str) -> dict[str, Any]:
    """By name: the steps and values of each row; NaN and infinities as texts, which are equal to themselves."""
    history = result.history
    return {
        name: [history.steps(name), [plain(value) for value in history[name]]]
        for name in sorted(history)
        if name.startswith(prefix)
    }


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value if math.isfinite(value) else str(value)


# -- numbers -------------------------------------------------------------------------------------


def every_kind() -> dict[str, Any]:
    """Two ranks log in every step what differs by rank."""

    class Logs(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            step, rank = run.clock.step, run.rank
            run.log({"x/mean": float(rank + step)}, weight=1 + 2 * rank)
            run.log({"x/sum": 10.0**rank}, reduce="sum")
            run.log({"x/last": float(rank + 2 * step)}, reduce="last")
            run.log({"x/max": float(step - rank)}, reduce="max")
            run.log({"x/min": float(step - rank)}, reduce="min")
            run.log({"x/array": torch.full((2, 2), float(rank + 1))}, reduce="sum")
            run.log({"x/largest": torch.tensor([[step, rank], [-step, -rank]])}, reduce="max")
            if rank == 0:
                run.log({"x/of_zero": float(step)})
            if rank == 1 and step > 4:
                run.log({"x/late": float(step)})
            if rank == 1 and step in (3, 4):
                run.log({"x/own_step": 5.0}, step=step)
            run.log({"x/nan": math.nan if rank == 1 and step == 3 else 1.0})
            run.log({"x/nan_max": math.nan if rank == 1 and step == 3 else -1.0}, reduce="max")
            run.log({"x/inf": math.inf if rank == 1 and step == 3 else 1.0})
            run.log({"x/nothing": math.nan}, weight=0)
            run.log({"x/no_weight": math.nan if rank else 2.0}, weight=1 - rank)

    result = fit_steps([Logs()], steps=6)
    return {"rows": rows(result, "x/"), "newest": {name: plain(value) for name, value in result.metrics.items()}}


def rank_zero_logs() -> dict[str, Any]:
    """Callbacks of rank zero alone, in a step and when metrics are ready; the others learn of it."""

    class OnZero(hl.Callback):
        ranks = "zero"

        def on_train_step_end(self, run: Any) -> None:
            run.log({"x/step": float(run.clock.step)})

        def on_metrics_ready(self, run: Any) -> None:
            run.log({"x/ready": float(run.clock.step)}, reduce="last")

        def on_epoch_end(self, run: Any) -> None:
            run.log({"x/end": 7.0})

    class Everywhere(hl.Callback):
        def on_metrics_ready(self, run: Any) -> None:
            run.log({"x/all": float(run.rank)})

    return rows(fit_steps([OnZero(), Everywhere()]), "x/")


def conflict(kind: str) -> None:
    """Under one name another kind on another rank."""

    metric = torchmetrics.MeanMetric()

    class Logs(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            if kind == "reduce":
                run.log({"x/a": 1.0}, reduce="sum" if run.rank else "mean")
            elif kind == "shape":
                run.log({"x/a": torch.ones(2, 2) if run.rank else 1.0})
            else:
                metric.update(1.0)
                run.log({"x/a": metric if run.rank else 1.0})

    fit_steps([Logs()])


def broken_interval(folder: str) -> None:
    """One rank fails in the middle of an interval: no row is made of what the other has."""

    class Fails(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            run.log({"x/a": 1.0})
            if run.clock.step == 3 and run.rank == 1:
                raise ValueError("boom")

        def on_teardown(self, run: Any) -> None:
            Path(folder, f"history-{run.rank}.txt").write_text(str(run.history.steps("x/a")))

    fit_steps([Fails()], steps=8)


# -- evaluations ---------------------------------------------------------------------------------


def evaluation() -> dict[str, Any]:
    """What callbacks read when a loader and an evaluation end, and what they log then."""
    seen: dict[str, Any] = {}

    class Reads(hl.Callback):
        def on_eval_loader_end(self, run: Any) -> None:
            seen[f"at the end of {run.loader_name}"] = run.metrics[f"val/{run.loader_name}/loss"]
            run.log({"loader_end": float(run.rank)})

        def on_eval_end(self, run: Any) -> None:
            seen["at the end"] = [run.metrics["val/a/loss"], run.metrics["val/b/loader_end"]]
            run.log({"val/gap": run.metrics["val/a/loss"] - run.metrics["val/b/loss"]})
            run.log({"val/by_rank": float(run.rank)}, reduce="sum")

    result = fit_steps([Reads()], val={"a": tiny_data(batches=3), "b": tiny_data(batches=2)}, steps=2)
    return {"seen": seen, "rows": rows(result, "val/")}


def left_evaluation() -> dict[str, Any]:
    """One rank leaves its evaluation: no rank keeps what it has measured, and all stop."""
    ended: list[str] = []

    class Leaves(hl.Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            if run.rank == 1 and run.clock.step:
                raise hl.StopTraining("enough")

        def on_eval_end(self, run: Any) -> None:
            ended.append("eval")

    result = fit_steps([Leaves()], val=tiny_data(batches=6), steps=8, eval_every="2st")
    return {"rows": rows(result, "val/"), "ended": ended, "step": result.clock.step, "reason": result.stop_reason}


# -- metric objects ------------------------------------------------------------------------------


def plain_model() -> nn.Module:
    """Without dropout, which differs by rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Plain(hl.Task):
    def __init__(self) -> None:
        super().__init__()
        self.model = plain_model()

    def train_batch(self, run: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])


class Objects(hl.Task):
    """Rank 1 updates only some of its metric objects; all are logged where they are."""

    def __init__(self, *, whole: bool = False, lacking: bool = False) -> None:
        super().__init__()
        self.model, self.whole, self.lacking = plain_model(), whole, lacking
        self.mean = torchmetrics.MeanMetric()
        self.cat = torchmetrics.CatMetric()
        self.largest = torchmetrics.MaxMetric()
        self.both = torchmetrics.MetricCollection(
            {
                "acc": torchmetrics.classification.MulticlassAccuracy(3, average="micro"),
                "precision": torchmetrics.classification.MulticlassPrecision(3),
                "recall": torchmetrics.classification.MulticlassRecall(3),
            }
        )
        self.only_zero = torchmetrics.MeanMetric()
        self.pearson = torchmetrics.PearsonCorrCoef()

    def _batch(self, run: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        logits = self.model(x)
        batch_number = run.clock.batch if run.stage == "train" else run.clock.eval.batch
        is_first = batch_number % 2 == 0 if run.world_size == 1 else run.rank == 0  # of each two batches
        if is_first:
            self.mean.update(logits.detach().double())
        run.log({"mean": self.mean})
        self.cat.update(logits.detach().amax())
        self.largest.update(logits.detach())
        self.both.update(logits.detach(), y)
        run.log(self.both)
        run.log({"cat": self.cat, "largest": self.largest})
        if is_first:
            self.only_zero.update(1.0 + run.clock.step)
            run.log({"only_zero": self.only_zero})
        if self.whole and not (self.lacking and run.rank):
            self.pearson.update(logits.detach().amax(1), y.float())
        if self.whole:
            run.log({"pearson": self.pearson})
        return nn.functional.cross_entropy(logits, y)

    def train_batch(self, run: Any, batch: Any) -> torch.Tensor:
        return self._batch(run, batch)

    def eval_batch(self, run: Any, batch: Any) -> torch.Tensor:
        return self._batch(run, batch)


def objects(whole: bool = False, lacking: bool = False) -> dict[str, Any]:
    """Intervals, an epoch and an evaluation, with as many batches for all ranks together as for one."""
    task = Objects(whole=whole, lacking=lacking)
    accumulate = 2 // this_process().world_size
    trainer = Trainer(max_duration="1ep", log_every="2st", accumulate=accumulate, folder=False, seed=1)
    result = trainer.fit(task, tiny_data(batches=8), tiny_data(batches=3), optimizer=torch.optim.SGD)
    found = rows(result, "train/") | rows(result, "val/")
    return {name: its for name, its in found.items() if "cat" not in name} | {
        name: [its[0], [sorted(value) if isinstance(value, list) else value for value in its[1]]]
        for name, its in found.items()
        if "cat" in name
    }


def metrics_callback() -> dict[str, Any]:
    """The values of ``hl.Metrics`` for an object and a function, on data whose last batch is smaller."""
    from torchmetrics.classification import MulticlassF1Score

    def accuracy(outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(-1) == targets).float()

    x, y = (torch.cat(parts)[:29] for parts in zip(*tiny_data(batches=4), strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    metrics = hl.Metrics({"f1": MulticlassF1Score(3), "acc": accuracy})
    trainer = Trainer(callbacks=[metrics], folder=False)
    return dict(trainer.evaluate(TinyModel(), loader, loss=nn.CrossEntropyLoss()))


# -- what is sent --------------------------------------------------------------------------------


def collectives(monitored: bool = False) -> dict[str, Any]:
    """Between two intervals: how many sums are made that are no vote, and how many other collectives."""
    sent: list[str] = []
    real = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast")}

    def counting(name: str) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            is_vote = name == "all_reduce" and tensor.numel() == VOTE_LENGTH and tensor.dtype == torch.float64
            sent.append("vote" if is_vote else name)
            return real[name](tensor, *args, **kwargs)

        return call

    per_interval: list[dict[str, int]] = []

    class Counts(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            run.log({"x/a": 1.0, "x/b": 2.0})

        def on_metrics_ready(self, run: Any) -> None:
            per_interval.append({name: sent.count(name) for name in (*real, "vote")})
            sent.clear()

    callbacks: list[Any] = [Counts(), *([hl.callbacks.LRMonitor()] if monitored else [])]
    for name in real:
        setattr(dist, name, counting(name))
    try:
        with watch_links(lambda: sent.append("vote")):
            fit_steps(callbacks, steps=20, log_every="4st", max_duration="20st")
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
    return {"per_interval": per_interval}


# -- what is written -----------------------------------------------------------------------------


def writes(folder: str) -> dict[str, Any]:
    """All that writes or shows something, in a folder that all ranks know."""
    from hookline.callbacks import (
        DeviceMonitor,
        GradientMonitor,
        HistoryPlot,
        LRMonitor,
        MemoryMonitor,
        ModelSummary,
        PrintMetrics,
        SpeedMonitor,
        TimeRemaining,
    )

    class Pictures(hl.Callback):
        def on_epoch_end(self, run: Any) -> None:
            run.log_image("x/picture", torch.rand(3, 4, 4))
            run.log_text("x/text", f"rank {run.rank}")

    callbacks = [
        Pictures(),
        PrintMetrics(),
        ModelSummary(),
        SpeedMonitor(),
        LRMonitor(),
        MemoryMonitor(),
        DeviceMonitor(),
        TimeRemaining(),
        GradientMonitor(every="2st"),
        HistoryPlot(),
    ]
    trainer = hl.Trainer(callbacks=callbacks, max_duration="4st", log_every="2st", seed=1, folder=folder)
    result = fit(trainer=trainer, train=tiny_data(batches=64), val=tiny_data(batches=2), optimizer=torch.optim.SGD)
    return {"metrics": sorted(result.metrics), "failures": [str(failure) for failure in result.failures]}


def sharded() -> dict[str, Any]:
    """Norms under FSDP, of which each rank holds a part: logged by hand, and by the monitors."""
    from hookline.callbacks import ActivationMonitor, GradientClip, GradientMonitor, ParameterMonitor

    class Norms(hl.Callback):
        def on_gradients_ready(self, run: Any) -> None:
            run.log({"x/norm": nn.utils.get_total_norm([p.grad for p in run.model.parameters()])})

    callbacks = [
        Norms(),
        GradientClip(1e9),
        GradientMonitor(every="1st", weights=True, updates=True, histograms=True),
        ParameterMonitor(histograms=True),
        ActivationMonitor(every="2st"),
    ]
    several = this_process().world_size > 1
    result = fit_steps(callbacks, task=Plain(), strategy="fsdp" if several else "auto", accumulate=1 if several else 2)
    found = {name: result.metrics[name] for name in sorted(result.metrics) if not name.startswith("activations/")}
    names = sorted(name for name in result.metrics if name.startswith("activations/"))
    return {"values": found, "activations": names, "failures": [str(failure) for failure in result.failures]}


def largest_activations() -> dict[str, Any]:
    """The largest number that a layer gives for the samples of one step, however many ranks share them."""
    from hookline.callbacks import ActivationMonitor

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(16, 4, generator=generator), torch.randint(3, (16,), generator=generator))
    torch.manual_seed(0)
    trainer = Trainer(max_duration="1ep", folder=False, callbacks=[ActivationMonitor("1st")], device="cpu")
    loader = DataLoader(data, 8 // this_process().world_size)
    result = trainer.fit(nn.Linear(4, 3), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return {"max": result.history["activations/max/model"], "failures": [str(its) for its in result.failures]}
