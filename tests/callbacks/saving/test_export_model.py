"""The exported file computes what the model computes, and exporting leaves the model alone."""

from __future__ import annotations

import logging
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookline.callbacks.saving import _export
from hookline.callbacks.saving._export import Call
from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.export_model import ExportModel
from hookline.callbacks.saving.save_best import SaveBest
from hookline.callbacks.weights import EMA, Pruning
from hookline.errors import ArgumentError, HooklineWarning, MetricError, SetupError
from hookline.events import Callback, on
from hookline.loop import SupervisedTask, Task
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import CE, at_step, crash_at, fit, press_ctrl_c, same_tensors, train_loop, weights_of

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


class Conv(nn.Module):
    """Batch norm, dropout and two outputs: what differs between training and use."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.drop(self.norm(x)))
        return found


def fit_conv(*callbacks: object, **options: Any) -> Any:
    return fit(*callbacks, **{"model": Conv(), "train": TRAIN, "val": VAL, "log_every": "2st", **options})


def run_file(path: Path, *inputs: Tensor) -> Tensor:
    """What the file computes, read with what its users would read it with."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*inputs)
    if path.suffix == ".ts":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path)(*inputs)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [its.name for its in session.get_inputs()]
    return torch.tensor(session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))[0])


def own(model: nn.Module, *inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(*inputs)


FILES = {"pt2": "model.pt2", "onnx": "model.onnx", "torchscript": "model.ts"}


@pytest.mark.parametrize("format", FILES)
def test_the_file_computes_what_the_model_does_for_batches_of_any_size(tmp_path: Path, format: Any) -> None:
    result = fit_conv(ExportModel(format), folder=tmp_path)
    for size in (1, 2, 6):
        found = run_file(tmp_path / FILES[format], X[:size])
        torch.testing.assert_close(found, own(result.model, X[:size]), rtol=1e-4, atol=1e-5)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_files_need_none_of_the_source(tmp_path: Path) -> None:
    result = fit_conv(ExportModel(), folder=tmp_path)
    script = """
    import sys, torch
    exported = torch.export.load(sys.argv[1]).module()
    print(exported(torch.ones(1, 4)).tolist(), "hookline" in sys.modules)
    """
    done = run_script(script, args=[tmp_path / "model.pt2"])
    assert done.returncode == 0, done.stderr
    found, _, imported = done.stdout.strip().rpartition(" ")
    torch.testing.assert_close(torch.tensor(eval(found)), own(result.model, torch.ones(1, 4)))
    assert imported == "False"


def test_training_is_bitwise_the_same_and_modes_hooks_and_settings_stay(tmp_path: Path) -> None:
    def modes(run: Any) -> None:
        seen.append([part.training for part in run.model.modules()])

    model, bare = Conv(), Conv()
    bare.load_state_dict(model.state_dict())
    model.norm.eval()
    bare.norm.eval()
    seen: list[Any] = []
    level = logging.getLogger("torch.onnx").level
    fit_conv(ExportModel("torchscript"), on("train_step_start")(modes), folder=tmp_path, model=model)
    fit_conv(model=bare)
    assert same_tensors(weights_of(model), weights_of(bare))
    assert {tuple(its) for its in seen} == {(True, False, True, True)}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert logging.getLogger("torch.onnx").level == level


class Noisy(TinyModel):
    """Draws from everything at each call, so that one call more would show."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * (random.random() + np.random.rand() + torch.rand(1))


def test_random_numbers_that_an_export_draws_are_given_back(tmp_path: Path) -> None:
    def final(*callbacks: object) -> Any:
        fit_conv(*callbacks, folder=tmp_path / str(len(callbacks)), model=Noisy(dropout=0.5))
        return random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()

    assert final(ExportModel("torchscript")) == final()


# -- which weights -------------------------------------------------------------------------------


class Scripted(Callback):
    """Logs values that are given beforehand, and keeps the weights that were evaluated."""

    writes = ("val/score",)
    state = ("count",)
    name = "script"

    def __init__(self, *values: float) -> None:
        self.values, self.count = values, 0
        self.outputs: list[Tensor] = []

    def on_eval_loader_end(self, run: Any) -> None:
        run.log({"val/score": self.values[self.count]})
        self.count += 1
        self.outputs.append(own(run.model, X))


def test_a_monitor_exports_the_weights_of_the_best_evaluation(tmp_path: Path) -> None:
    script = Scripted(0.1, 0.9, 0.2, 0.3)
    fit_conv(script, ExportModel("torchscript", monitor="val/score"), EMA(0.5), folder=tmp_path, max_duration="4ep")
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), script.outputs[1])
    assert not torch.allclose(script.outputs[1], script.outputs[3])


def test_after_a_save_best_it_is_the_best_model(tmp_path: Path) -> None:
    script = Scripted(0.1, 0.9, 0.2, 0.3)
    fit_conv(ExportModel("torchscript"), script, SaveBest("val/score"), folder=tmp_path, max_duration="4ep")
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), script.outputs[1])


def test_averaged_weights_are_exported_if_asked_for_and_the_raw_ones_stay_in_the_model(tmp_path: Path) -> None:
    ema = EMA(0.5, apply_at_end=False)
    result = fit_conv(ExportModel("torchscript", averaged=True), ema, folder=tmp_path)
    average, raw = Conv(), own(result.model, X)
    average.load_state_dict({**result.model.state_dict(), **ema.weights})
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(average, X))
    assert not torch.allclose(own(average, X), raw)
    plain = fit_conv(ExportModel("torchscript"), EMA(0.5, apply_at_end=False), folder=tmp_path / "raw")
    torch.testing.assert_close(run_file(tmp_path / "raw" / "model.ts", X), own(plain.model, X))
    with pytest.raises(SetupError, match="no callback of this run swaps weights"):
        fit_conv(ExportModel("torchscript", averaged=True), folder=tmp_path / "none")


def test_beside_an_ema_what_fit_gives_back_is_exported(tmp_path: Path) -> None:
    ema = EMA(0.5)
    result = fit_conv(ExportModel("torchscript"), ema, folder=tmp_path)
    assert torch.equal(result.model.out.weight, ema.weights["out.weight"])
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(result.model, X))


def test_the_best_that_is_exported_is_as_sparse_as_pruning_has_made_the_model(tmp_path: Path) -> None:
    exporter, pruning = ExportModel("torchscript", monitor="val/score"), Pruning(amount=0.5)
    fit_conv(Scripted(0.9, 0.1), exporter, pruning, folder=tmp_path, model=TinyModel())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = dict(torch.jit.load(tmp_path / "model.ts").named_parameters())
    assert pruning.sparsity == pytest.approx(0.75, abs=0.02)
    assert all(not found[name][~mask].any() for name, mask in pruning.masks.items())


# -- what the model is called with ---------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"logits": self.one(x) + self.other(y), "sum": x.sum(1)}


@pytest.mark.parametrize("format", FILES)
def test_several_inputs_by_name_and_several_outputs_are_exported(tmp_path: Path, format: Any) -> None:
    data = [{"x": x, "y": x.flip(0)} for x, _ in TRAIN]
    found = fit_conv(
        ExportModel(format, tolerance=1e-3) if format != "torchscript" else ExportModel(format, on_error="raise"),
        folder=tmp_path,
        model=Strict() if format == "torchscript" else Two(),
        train=data,
        val=None,
        loss=lambda outputs, batch: _first(outputs).square().mean(),
    )
    assert (tmp_path / FILES[format]).stat().st_size > 1_000
    assert found.clock.step == 8


class Strict(Two):
    """A trace wants tensors or tuples."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        found = super().forward(x, y)
        return found["logits"], found["sum"]


def _first(outputs: Any) -> Tensor:
    found: Tensor = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    return found


class Own(Task[Any]):
    """A task of the user's own: only a part of it is a model."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])


def test_a_part_of_a_task_can_be_named_and_one_that_is_not_there_is_an_error_with_names(tmp_path: Path) -> None:
    task = Own()
    fit_conv(ExportModel("torchscript", module="net"), folder=tmp_path / "a", model=task, val=None)
    torch.testing.assert_close(run_file(tmp_path / "a" / "model.ts", X), own(task.net, X))
    with pytest.raises(SetupError, match=r"no forward\(\).*'net', 'head'"):
        fit_conv(ExportModel("torchscript"), folder=tmp_path / "b", model=task, val=None)
    with pytest.raises(SetupError, match="no such part; it has 'net', 'head'"):
        fit_conv(ExportModel("torchscript", module="nett"), folder=tmp_path / "c", model=task, val=None)


def test_the_model_of_a_supervised_task_is_found(tmp_path: Path) -> None:
    class Mine(SupervisedTask):
        pass

    task = Mine(Conv(), CE, torch.optim.SGD)
    fit_conv(ExportModel("torchscript"), folder=tmp_path, model=task)
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(task.model, X))


def test_inputs_makes_of_a_batch_what_the_model_is_called_with(tmp_path: Path) -> None:
    data = [{"pixels": x, "label": y} for x, y in TRAIN]

    class Picks(SupervisedTask):
        def call_model(self, run: Any, batch: Any) -> Any:
            return super().call_model(run, (batch["pixels"],))

        def compute_loss(self, outputs: Any, batch: Any) -> Any:
            return nn.functional.cross_entropy(outputs, batch["label"])

    task = Picks(TinyModel(), None, torch.optim.SGD)
    exporter = ExportModel("torchscript", inputs=lambda batch: batch["pixels"])
    fit_conv(exporter, folder=tmp_path, model=task, train=data, val=None)
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(task.model, X))


def test_a_batch_of_one_sample_is_no_reason_for_a_constant_size(tmp_path: Path) -> None:
    result = fit_conv(ExportModel(), folder=tmp_path, model=TinyModel(), train=tiny_data(4, 1), val=None)
    torch.testing.assert_close(run_file(tmp_path / "model.pt2", X), own(result.model, X))


class Stream(torch.utils.data.IterableDataset[Any]):
    """Nobody knows how long it is."""

    def __iter__(self) -> Any:
        return iter([sample for x, y in TRAIN for sample in zip(x, y, strict=True)])


def test_a_loader_without_a_length_whose_epoch_is_shorter_than_an_interval_gives_a_sample(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), batch_size=8)
    result = fit_conv(ExportModel("torchscript"), folder=tmp_path, train=loader, val=None, log_every="50st")
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(result.model, X))


def test_a_call_is_resized_where_it_belongs_to_the_batch() -> None:
    call = Call((torch.arange(3), torch.ones(5)), {"m": {"x": torch.zeros(3, 2)}, "n": 7}, 3)
    more = call.of_size(7)
    assert more.args[0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert (more.args[1].shape, more.kwargs["m"]["x"].shape, more.kwargs["n"]) == ((5,), (7, 2), 7)


def test_it_works_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    _, model = train_loop(ExportModel("torchscript"), max_duration="1ep", folder=tmp_path)
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(model, X))


def test_a_model_that_was_compiled_in_place_is_exported_as_it_is(tmp_path: Path) -> None:
    result = fit_conv(ExportModel("torchscript"), folder=tmp_path, compile={"backend": "eager"})
    torch.testing.assert_close(run_file(tmp_path / "model.ts", X), own(result.model, X))


# -- what defeats an exporter --------------------------------------------------------------------


class Branches(TinyModel):
    """What it does depends on values: no graph has both ways."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_an_error_names_the_exporter(tmp_path: Path, format: Any) -> None:
    name = {"pt2": "torch.export", "onnx": "torch.onnx"}[format]
    with pytest.raises(SetupError, match=rf"{name} cannot export Branches: .*on_error='warn'"):
        fit_conv(ExportModel(format), folder=tmp_path, model=Branches())


def test_with_warn_the_run_goes_on_without_a_file_and_says_so_once(tmp_path: Path) -> None:
    with pytest.warns(HooklineWarning, match="nothing is exported: .*torch.export cannot export") as caught:
        result = fit_conv(ExportModel(on_error="warn"), folder=tmp_path, model=Branches())
    assert len(caught) == 1
    assert result.clock.step == 8
    assert not list(tmp_path.glob("model*"))


def test_an_error_at_the_end_comes_when_all_else_is_saved(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot export"):
        fit_conv(ExportModel(), Checkpointer(), folder=tmp_path, model=Branches())
    assert (tmp_path / "checkpoints" / "step-00000008" / "manifest.json").exists()
    assert not [path for path in tmp_path.iterdir() if "model" in path.name]


class Sized(TinyModel):
    """A trace takes the size of a batch for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.shape[0] > 1 else super().forward(x) + 1


def test_a_trace_that_gives_something_else_is_found_by_the_check(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"torch.jit.trace, batch of 1\): output 0 of the file is off by 1"):
        fit_conv(ExportModel("torchscript"), folder=tmp_path, model=Sized())
    exporter = ExportModel("torchscript", dynamic=False)
    fit_conv(exporter, folder=tmp_path / "fixed", model=Sized(), val=None)
    assert (tmp_path / "fixed" / "model.ts").exists()


def test_a_file_that_is_off_by_more_than_the_tolerance_is_not_kept(tmp_path: Path, monkeypatch: Any) -> None:
    real = _export.FORMATS["torchscript"]

    def off(path: Path, call: Any) -> Any:
        return real.run(path, call) + 0.01

    altered = _export.Format(real.suffix, real.exporter, real.write, off)
    monkeypatch.setitem(_export.FORMATS, "torchscript", altered)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"off by 0\.01, more than the tolerance=0\.001"):
        fit_conv(ExportModel("torchscript", tolerance=1e-3), folder=tmp_path)
    assert not list(tmp_path.glob("*model*"))
    fit_conv(ExportModel("torchscript", tolerance=0.1), folder=tmp_path / "b")
    assert (tmp_path / "b" / "model.ts").exists()


# -- when ----------------------------------------------------------------------------------------


def test_after_an_error_or_ctrl_c_nothing_is_exported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_conv(crash_at(5), ExportModel("torchscript"), folder=tmp_path / "a")
    assert fit_conv(at_step(5, press_ctrl_c), ExportModel("torchscript"), folder=tmp_path / "b").interrupted
    assert not list(tmp_path.rglob("model*"))


def test_a_resume_exports_the_best_of_the_whole_run(tmp_path: Path) -> None:
    values = (0.1, 0.9, 0.2, 0.3)
    first = Scripted(*values)

    def exporter() -> ExportModel:
        return ExportModel("torchscript", monitor="val/score", path="out/best.ts")

    with pytest.raises(RuntimeError, match="planted"):
        fit_conv(
            first, exporter(), Checkpointer("2st"), crash_at(11, "step_settled"), folder=tmp_path, max_duration="4ep"
        )
    fit_conv(Scripted(*values), exporter(), Checkpointer("2st"), folder=tmp_path, max_duration="4ep", resume="auto")
    torch.testing.assert_close(run_file(tmp_path / "out" / "best.ts", X), first.outputs[1])


def test_a_new_run_forgets_a_finished_run_that_the_same_object_has_only_opened(tmp_path: Path) -> None:
    def exporter() -> ExportModel:
        return ExportModel("torchscript", monitor="val/score")

    fit_conv(Scripted(0.9, 0.8), exporter(), Checkpointer(), folder=tmp_path / "a")
    second, script = exporter(), Scripted(0.1, 0.2)
    fit_conv(Scripted(0.0), second, Checkpointer(), folder=tmp_path / "a", resume="auto")
    fit_conv(script, second, folder=tmp_path / "b")
    torch.testing.assert_close(run_file(tmp_path / "b" / "model.ts", X), script.outputs[1])


def test_two_with_one_path_are_refused_before_the_first_step(tmp_path: Path) -> None:
    one, other = ExportModel("torchscript"), ExportModel("torchscript", path=tmp_path / "model.ts", dynamic=False)
    with pytest.raises(SetupError, match=r"two ExportModel write to .*model\.ts.*another path"):
        fit_conv(one, other, folder=tmp_path)
    fit_conv(one, ExportModel("pt2"), folder=tmp_path, max_duration="1ep")
    assert {path.name for path in tmp_path.glob("model.*")} == {"model.ts", "model.pt2"}


def test_a_finished_run_that_is_opened_again_keeps_its_file(tmp_path: Path) -> None:
    fit_conv(ExportModel("torchscript"), Checkpointer(), folder=tmp_path)
    before = (tmp_path / "model.ts").stat().st_mtime_ns
    fit_conv(ExportModel("torchscript"), Checkpointer(), folder=tmp_path, resume="auto")
    assert (tmp_path / "model.ts").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "keras"}, r"ExportModel\(format='keras'\): must be 'pt2', 'onnx' or 'torchscript'\."),
        ({"on_error": "ignore"}, r"ExportModel\(on_error='ignore'\): must be 'raise' or 'warn'\."),
        ({"tolerance": -1}, r"ExportModel\(tolerance=-1\): must be >= 0\."),
        ({"monitor": "val/odd"}, r"ExportModel\(monitor="),
        ({"monitor": "val/loss", "averaged": True}, r"ExportModel\(averaged="),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ExportModel(**given)


def test_what_is_missing_is_found_before_the_first_step(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(MetricError, match="val/acuracy"):
        fit_conv(ExportModel("torchscript", monitor="val/acuracy", mode="max"), folder=tmp_path / "a")
    with pytest.raises(SetupError, match="folder=False"):
        fit_conv(ExportModel("torchscript"))
    monkeypatch.setattr(_export, "find_spec", lambda name: None if name == "onnxruntime" else True)
    with pytest.raises(SetupError, match=r"needs onnxruntime: pip install 'hookline\[onnx\]'"):
        fit_conv(ExportModel("onnx"), folder=tmp_path / "b")
