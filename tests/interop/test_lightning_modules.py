"""A ``LightningModule`` ends in Hookline with bitwise the weights and metrics of Lightning's own trainer."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

import hookline as hl
from hookline.errors import LossError, SetupError
from hookline.interop.lightning.model import NOT_CALLED
from hookline.loop import Trainer
from tests.docs.page_code import PAGES, blocks_of
from tests.interop.test_lightning import PACKAGES, data, fill, same, weights

torchmetrics = pytest.importorskip("torchmetrics")
for package in PACKAGES:
    pytest.importorskip(package, reason=f"{package} is not installed: `make interop` runs these tests")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def change(module: Any, **methods: Any) -> Any:
    for name, method in methods.items():
        setattr(type(module), name, method)
    return module


def classifier(pl: Any, configure: Callable[[Any], Any]) -> Any:
    """A module with metrics, schedulers and hooks of its own, as users write them."""

    class Classifier(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()
            fill(self)
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=2, average="micro")
            self.seen: list[Any] = []

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.backbone(x))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = cross_entropy(self(batch[0]), batch[1])
            self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            self.log_dict({"train_double": 2 * loss, "rate": self.optimizers().param_groups[0]["lr"]})
            return {"loss": loss, "logits": None}

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            logits = self(batch[0])
            self.accuracy(logits, batch[1])
            if not dataloader_idx:
                self.log("val_acc", self.accuracy)
            loss = cross_entropy(logits, batch[1])
            self.log("val_loss", loss, prog_bar=True)
            return loss

        def test_step(self, batch: Any) -> None:
            self.log("test_loss", cross_entropy(self(batch[0]), batch[1]))

        def on_train_epoch_start(self) -> None:
            self.seen.append(("epoch", self.current_epoch, self.global_step))

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)

        def on_validation_epoch_end(self) -> None:
            self.seen.append(("validated", self.trainer.global_step, self.training))
            self.log("val_constant", 3.0)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append((sorted(outputs), outputs["loss"].item(), batch_idx))

        def configure_callbacks(self) -> Any:
            return [pl.callbacks.LearningRateMonitor()]

    return change(Classifier(), configure_optimizers=configure)


def gan(pl: Any) -> Any:
    """A module that steps two optimizers and a scheduler itself."""

    class GAN(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            torch.manual_seed(0)
            self.generator, self.discriminator = nn.Linear(4, 4), nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            x, _ = batch
            first, second = self.optimizers()
            self.toggle_optimizer(first)
            fake_loss = -self.discriminator(self.generator(x)).mean()
            self.log("train_fake", fake_loss, prog_bar=True)
            self.manual_backward(fake_loss)
            first.step()
            first.zero_grad()
            self.untoggle_optimizer(first)
            real_loss = self.discriminator(self.generator(x).detach()).mean() - self.discriminator(x).mean()
            self.manual_backward(real_loss)
            if batch_idx % 2:  # It accumulates by itself.
                self.clip_gradients(second, 0.5, "norm")
                second.step()
                second.zero_grad()
            self.log("train_loss", real_loss)
            if batch_idx == 3:
                self.lr_schedulers().step()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.discriminator(self.generator(batch[0])).mean())

        def configure_optimizers(self) -> Any:
            optimizers = Adam(self.generator.parameters(), 0.01), SGD(self.discriminator.parameters(), 0.1)
            return list(optimizers), [ExponentialLR(optimizers[0], 0.5)]

    return GAN()


def callbacks(pl: Any) -> list[Any]:
    return [pl.callbacks.EarlyStopping("val_loss", min_delta=0.05), pl.callbacks.EMAWeightAveraging(decay=0.7)]


def there(pl: Any, module: Any, callbacks: list[Any], folder: Path, **options: Any) -> Any:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=pl.loggers.CSVLogger(folder),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(module, data(), data(3, seed=2))
    return trainer


class Metrics(hl.Callback):
    """What ``trainer.callback_metrics`` shows when training has ended."""

    found: Any = None

    def on_train_end(self, run: hl.Run) -> None:
        host = next(its for its in run.callbacks if type(its).__name__ == "LightningHost")
        self.found = dict(host.trainers[next(iter(host.trainers))].callback_metrics)


def here(module: Any, callbacks: list[Any], folder: Path | bool, **options: Any) -> tuple[Any, Any]:
    metrics = Metrics()
    options = {"max_duration": "4ep", "log_every": "1st", "folder": folder, "device": "cpu", **options}
    result = Trainer(callbacks=[*callbacks, metrics], **options).fit(module, data(), data(3, seed=2))
    return result, metrics.found


def sgd(module: Any) -> SGD:
    return SGD(module.parameters(), lr=0.2, momentum=0.9)


FORMS: dict[str, Callable[[Any], Any]] = {
    "optimizer": sgd,
    "list": lambda module: [sgd(module)],
    "two lists": lambda module: (lambda its: ([its], [StepLR(its, 1, 0.5)]))(sgd(module)),
    "dict": lambda module: (lambda its: {"optimizer": its, "lr_scheduler": StepLR(its, 1, 0.5)})(sgd(module)),
    "step": lambda module: (
        lambda its: {"optimizer": its, "lr_scheduler": {"scheduler": StepLR(its, 3, 0.5), "interval": "step"}}
    )(sgd(module)),
    "every second epoch": lambda module: (
        lambda its: {"optimizer": its, "lr_scheduler": {"scheduler": StepLR(its, 1, 0.5), "frequency": 2}}
    )(sgd(module)),
    "plateau": lambda module: (
        lambda its: {"optimizer": its, "lr_scheduler": ReduceLROnPlateau(its, patience=0), "monitor": "val_acc"}
    )(sgd(module)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_module_ends_as_in_lightning(pl: Any, form: str, tmp_path: Path) -> None:
    one, other = classifier(pl, FORMS[form]), classifier(pl, FORMS[form])
    trainer = there(pl, one, callbacks(pl), tmp_path)
    result, metrics = here(other, callbacks(pl), tmp_path / "run")
    assert result.clock.step == trainer.global_step
    assert same(weights(other), weights(one))
    assert other.seen == one.seen
    expected = trainer.callback_metrics
    assert {name: metrics[name] for name in expected if name in metrics}.keys() == expected.keys()
    assert {name for name, value in expected.items() if not torch.equal(metrics[name].float(), value.float())} == set()


def test_the_script_of_the_page_is_migrated_by_changing_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows the script for Lightning, and the change as a diff."""
    monkeypatch.chdir(tmp_path)
    blocks = list(blocks_of(PAGES["docs/interop/lightning.md"].read_text()))
    script = next(block.text for block in blocks if block.is_python)
    added, removed, changed = next(block.text.splitlines() for block in blocks if block.info == "diff")
    migrated = f"{added[1:]}\n{script.replace(removed[1:], changed[1:])}"
    assert [line[0] for line in (added, removed, changed)] == ["+", "-", "+"]
    assert script.count(removed[1:]) == 1
    there, here = ({"__name__": "__main__"} for _ in range(2))
    exec(script, there)
    exec(migrated, here)
    assert same(weights(here["module"]), weights(there["module"]))
    early, rates, *_ = here["callbacks"]
    expected, expected_rates, *_ = there["callbacks"]
    assert early.stopped_epoch == expected.stopped_epoch > 0
    assert same(early.best_score, expected.best_score)
    assert rates.lrs == expected_rates.lrs


def test_a_module_with_manual_optimization_ends_as_in_lightning(pl: Any, tmp_path: Path) -> None:
    one, other = gan(pl), gan(pl)
    trainer = there(pl, one, [], tmp_path)
    result, metrics = here(other, [], tmp_path / "run")
    assert result.clock.updates == {"Adam": 16, "SGD": 8}
    assert trainer.global_step == 24
    assert same(weights(other), weights(one))
    expected = trainer.callback_metrics
    assert {name: float(metrics[name]) for name in expected} == {name: float(value) for name, value in expected.items()}
    assert "train/loss" in result.metrics


@pytest.mark.parametrize("step", [2, 4, 6])  # The gradients that a module adds up over batches are not saved.
@pytest.mark.parametrize("make", [lambda pl: classifier(pl, FORMS["step"]), gan], ids=["automatic", "manual"])
def test_a_resumed_module_ends_as_one_that_was_not_interrupted(make: Any, step: int, tmp_path: Path) -> None:
    pl = import_module(PACKAGES[0])
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    here(whole := make(pl), callbacks(pl), tmp_path / "whole")
    here(make(pl), [*callbacks(pl), pause, hl.Checkpointer()], tmp_path / "cut")
    here(rest := make(pl), [*callbacks(pl), hl.Checkpointer()], tmp_path / "cut", resume="auto")
    assert same(weights(rest), weights(whole))


def test_loaders_of_a_data_module_are_used(pl: Any, tmp_path: Path) -> None:
    class Data(pl.LightningDataModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def setup(self, stage: str) -> None:
            self.calls.append(f"setup {stage}")

        def teardown(self, stage: str) -> None:
            self.calls.append(f"teardown {stage}")

        def train_dataloader(self) -> Any:
            return data()

        def val_dataloader(self) -> Any:
            return [data(3, seed=2), data(2, seed=3)]

        def test_dataloader(self) -> Any:
            return data(2, seed=4)

    module, found = classifier(pl, sgd), Data()
    early = pl.callbacks.EarlyStopping("val_loss/dataloader_idx_1", stopping_threshold=9.0)
    trainer = Trainer(callbacks=[early], max_duration="2ep", folder=False, device="cpu")
    result = trainer.fit(module, found)
    assert (result.clock.step, result.stop_reason) == (4, "EarlyStopping set trainer.should_stop")
    assert {"val/dataloader_idx_0/acc", "val/dataloader_idx_1/loss"} <= result.metrics.keys()
    assert trainer.test(module, found).keys() == {"test/loss"}
    assert found.calls == ["setup fit", "teardown fit", "setup test", "teardown test"]


def test_a_module_is_as_it_was_after_a_run(pl: Any, tmp_path: Path) -> None:
    module = classifier(pl, sgd)
    here(module, [], False)
    assert "log" not in vars(module)


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOT_CALLED)
def test_a_method_that_would_not_be_called_is_refused(pl: Any, name: str) -> None:
    if not hasattr(pl.LightningModule, name):
        pytest.skip(f"this version has no {name}")
    module = classifier(pl, sgd)
    change(module, **{name: lambda self, *values: None})
    with pytest.raises(SetupError, match=rf"Classifier of Lightning overrides {name}, which Hookline does not call"):
        here(module, [], False)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda pl: change(classifier(pl, sgd), training_step=lambda self, batch: None),
            LossError,
            "training_step returned no loss",
        ),
        (
            lambda pl: change(classifier(pl, sgd), training_step=lambda self, dataloader_iter: None),
            SetupError,
            r"training_step\(dataloader_iter\): Hookline passes one batch",
        ),
        (lambda pl: classifier(pl, lambda its: [sgd(its), sgd(its)]), SetupError, "returned 2 optimizers"),
        (lambda pl: classifier(pl, lambda its: None), SetupError, r"configure_optimizers\(\) returned None"),
        (
            lambda pl: change(classifier(pl, sgd), on_train_batch_start=lambda self, batch, batch_idx: -1),
            SetupError,
            "Hookline cannot leave an epoch",
        ),
    ],
)
def test_a_module_that_cannot_work_is_refused(
    pl: Any, make: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        here(make(pl), [], False)


def test_manual_optimization_needs_single_batches(pl: Any) -> None:
    with pytest.raises(SetupError, match="automatic_optimization = False: such a module trains in one process"):
        here(gan(pl), [], False, accumulate=2)
