"""Callbacks of Keras have the same effect in Hookline as in ``Model.fit``, with the same weights within 1e-5."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import RegistrationError, SetupError
from hookline.interop.keras.support import LIMITED, REFUSED, RUNS
from hookline.loop import Loop, Trainer
from tests.support.rank_server import RankServer

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="keras is not installed: `make interop` runs these tests")
if keras.backend.backend() != "torch":
    pytest.skip("Keras does not use the torch backend: `make interop` sets it", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras warns about what numpy will change.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# -- the same run in both trainers -------------------------------------------------------------------


def arrays(batches: int = 4, seed: int = 1) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8 * batches, 4, generator=generator)
    return x.numpy(), (x.sum(1) > 0).long().numpy()


def data(batches: int = 4, seed: int = 1) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*map(torch.from_numpy, arrays(batches, seed))), batch_size=8)


class Net(nn.Module):
    """The layers of the Keras model, with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        for parameter, value in zip(self.parameters(), values(), strict=True):
            parameter.data = torch.from_numpy(value.T.copy() if value.ndim == 2 else value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x)


def values() -> list[Any]:
    generator = np.random.default_rng(0)
    return [
        generator.normal(0.0, 0.4, shape).astype("float32") if len(shape) == 2 else np.zeros(shape, "float32")
        for shape in ((4, 8), (8,), (8, 2), (2,))
    ]


def keras_model() -> Any:
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(2)(keras.layers.Dense(8, activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    model.set_weights(values())
    return model.cpu()


def in_keras(callbacks: list[Any], rate: float = 0.1, **options: Any) -> Any:
    """Train in Keras: the model."""
    model = keras_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    options = {"epochs": 3, "verbose": 0, "validation_data": arrays(2, seed=2), **options}
    model.fit(*arrays(), batch_size=8, shuffle=False, callbacks=callbacks, **options)
    return model


def in_hookline(
    callbacks: list[Any], folder: Any = False, make: Callable[[], Any] = Net, rate: float = 0.1, **options: Any
) -> tuple[Any, Any]:
    """Train in Hookline: the model and the result."""
    model = make()
    options = {"max_duration": "3ep", "log_every": "1st", "folder": folder, "device": "cpu", **options}
    result = Trainer(callbacks=callbacks, **options).fit(
        model,
        data(),
        data(2, seed=2),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )
    return model, result


def weights(model: Any) -> list[Any]:
    if isinstance(model, Net):
        return [its.detach().numpy().T if its.ndim == 2 else its.detach().numpy() for its in model.parameters()]
    found: list[Any] = model.get_weights()
    return found


def close(one: Any, other: Any) -> bool:
    """True if both hold the same, numbers within 1e-5."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float | np.ndarray):
        return bool(np.allclose(one, other, equal_nan=True, **CLOSE))
    return bool(one == other)


# -- shipped callbacks -------------------------------------------------------------------------------


@dataclass
class Case:
    """How to make a callback, and what to compare: its effect, besides the weights."""

    make: Callable[[Path], Any]
    effect: Callable[[Any, Path], Any] = lambda callback, folder: None
    there: dict[str, Any] = field(default_factory=dict)
    here: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ("torch", "keras")


def csv_rows(callback: Any, folder: Path) -> Any:
    head, *rows = (folder / "log.csv").read_text().splitlines()
    return head, [[float(value) for value in row.split(",")] for row in rows]


def lambdas(folder: Path) -> Any:
    seen: list[Any] = []
    made = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(("begin", epoch)),
        on_epoch_end=lambda epoch, logs: seen.append((epoch, dict(logs))),
        on_train_batch_end=lambda batch, logs: seen.append((batch, sorted(logs))),
        on_train_end=lambda logs: seen.append(dict(logs)),
    )
    made.seen = seen
    return made


def printed(callback: Any, folder: Path) -> Any:
    return callback.seen, callback.target, callback.progbar._seen_so_far


def saved(callback: Any, folder: Path) -> Any:
    files = sorted(path.name for path in folder.glob("*.keras"))
    return files, callback.best, keras.models.load_model(folder / files[-1]).get_weights()


class Many(keras.callbacks.Callback):  # type: ignore[misc]
    """It stops at a step in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.stop_training = True


of = keras.callbacks
LONG: dict[str, Any] = {"there": {"epochs": 9}, "here": {"max_duration": "9ep"}}
CASES: dict[str, Case] = {
    "EarlyStopping": Case(
        lambda folder: of.EarlyStopping("val_loss", min_delta=0.03, patience=1),
        lambda its, folder: (its.stopped_epoch, its.wait, its.best, its.best_epoch),
        **LONG,
    ),
    "EarlyStopping and the best weights": Case(
        lambda folder: of.EarlyStopping("val_loss", min_delta=0.03, patience=2, restore_best_weights=True),
        lambda its, folder: (its.stopped_epoch, its.best, its.best_epoch),
        **LONG,
    ),
    "EarlyStopping of the training loss": Case(
        lambda folder: of.EarlyStopping("loss", baseline=0.3, min_delta=0.05),
        lambda its, folder: (its.stopped_epoch, its.wait, its.best),
        **LONG,
    ),
    "ReduceLROnPlateau": Case(
        lambda folder: of.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
        lambda its, folder: (its.wait, its.best, float(its.model.optimizer.learning_rate)),
        **LONG,
    ),
    "LearningRateScheduler": Case(
        lambda folder: of.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
        lambda its, folder: float(its.model.optimizer.learning_rate),
    ),
    "TerminateOnNaN": Case(
        lambda folder: of.TerminateOnNaN(), there={"rate": float("inf")}, here={"rate": float("inf")}
    ),
    "CSVLogger": Case(lambda folder: of.CSVLogger(folder / "log.csv"), csv_rows),
    "History": Case(lambda folder: of.History(), lambda its, folder: (its.epoch, its.history)),
    "LambdaCallback": Case(lambdas, lambda its, folder: its.seen),
    "ProgbarLogger": Case(lambda folder: of.ProgbarLogger(), printed, there={"verbose": 1}),
    "ModelCheckpoint": Case(
        lambda folder: of.ModelCheckpoint(folder / "{epoch}.keras", "val_loss", save_best_only=True),
        saved,
        models=("keras",),
    ),
    "BackupAndRestore": Case(
        lambda folder: of.BackupAndRestore(folder, delete_checkpoint=False),
        lambda its, folder: json.loads((folder / "training_metadata.json").read_text()),
        models=("keras",),
    ),
}
MODELS: dict[str, Callable[[], Any]] = {"torch": Net, "keras": keras_model}


@pytest.mark.parametrize(("name", "model"), [(name, kind) for name, case in CASES.items() for kind in case.models])
def test_a_shipped_callback_has_the_same_effect(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
    there, here = case.make(tmp_path / "there"), case.make(tmp_path / "here")
    expected = in_keras([there], **case.there)
    found, _ = in_hookline([here], make=MODELS[model], **case.here)
    assert close(weights(found), weights(expected))
    assert close(case.effect(here, tmp_path / "here"), case.effect(there, tmp_path / "there"))


def test_a_shipped_remote_monitor_sends_the_metrics() -> None:
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *values: Any) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for train in (in_keras, in_hookline):
            train([of.RemoteMonitor(f"http://127.0.0.1:{server.server_port}", send_as_json=True)])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert close(received[3:], received[:3])


def test_every_shipped_callback_is_listed() -> None:
    """A new version of Keras may bring others."""
    shipped = {name for name, its in vars(of).items() if isinstance(its, type)} - {"Callback", "CallbackList"}
    assert shipped == {*RUNS, *LIMITED, *REFUSED}
    tested = {name.split(" ")[0] for name in CASES} | {"RemoteMonitor", "TensorBoard"}
    assert {*RUNS, *LIMITED} == tested


# -- callbacks of other packages ---------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_bars_of_tqdm(verbose: int, capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm.keras import TqdmCallback

    def counts(its: Any) -> Any:
        bars = [its.epoch_bar, *([its.batch_bar] if verbose else [])]
        return [(bar.n, bar.total) for bar in bars]

    there, here = TqdmCallback(verbose=verbose), TqdmCallback(verbose=verbose)
    trained, (model, _) = in_keras([there]), in_hookline([here])
    assert counts(here) == counts(there) == [(3, 3), (4, 4)][: 2 if verbose else 1]
    assert close(weights(model), weights(trained))


def test_the_plots_of_livelossplot() -> None:
    inputs = pytest.importorskip("livelossplot.inputs.keras")
    there, here = (inputs.PlotLossesCallback(outputs=["ExtremaPrinter"]) for _ in range(2))
    trained, (model, _) = in_keras([there]), in_hookline([here])
    rows = [
        {name: [(item.step, item.value) for item in items] for name, items in its.liveplot.logger.log_history.items()}
        for its in (there, here)
    ]
    assert rows[0]
    assert close(rows[1], rows[0])
    assert close(weights(model), weights(trained))


def test_keras_tuner_saves_the_best_epoch(tmp_path: Path) -> None:
    tuner = pytest.importorskip("keras_tuner.src.engine.tuner_utils")
    objective = pytest.importorskip("keras_tuner").Objective("val_loss", "min")
    files = [str(tmp_path / f"{place}.weights.h5") for place in ("there", "here")]
    there, here = (tuner.SaveBestEpoch(objective, file) for file in files)
    rising = [of.LearningRateScheduler(lambda epoch, rate: 0.1 if epoch < 2 else 30.0) for _ in files]
    trained = in_keras([rising[0], there])
    model, _ = in_hookline([rising[1], here], make=keras_model)
    assert close(weights(model), weights(trained))
    assert close(here.best_value, there.best_value)
    best = []
    for file in files:
        saved = keras_model()
        saved.load_weights(file)
        best.append(weights(saved))
    assert close(best[1], best[0])
    assert not close(best[1], weights(model))


def test_trials_of_optuna_are_pruned() -> None:
    optuna = pytest.importorskip("optuna")
    from optuna_integration import KerasPruningCallback

    optuna.logging.disable_default_handler()
    found = []
    for train in (in_keras, in_hookline):
        study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.67))

        def objective(trial: Any, train: Callable[..., Any] = train) -> float:
            train([KerasPruningCallback(trial, "val_loss")], rate=0.01)
            return 0.0

        study.optimize(objective, n_trials=1)
        trial = study.trials[0]
        found.append((trial.state, sorted(trial.intermediate_values.items())))
    assert close(found[1], found[0])
    assert found[0][0] is optuna.trial.TrialState.PRUNED


# -- the hooks ---------------------------------------------------------------------------------------


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """It notes every call of a hook: its name, its number, and the names and values of the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []


DIFFERENT = {"on_train_batch_end": "`loss` is that of the batch here, and the mean of the epoch so far there"}
"""Hooks whose logs have other values, with the difference."""


def _recording(name: str) -> Any:
    def hook(self: Recorder, *arguments: Any, logs: Any = None) -> None:
        *number, found = arguments if logs is None else (*arguments, logs)
        shown = sorted(found) if name in DIFFERENT or "outputs" in found else sorted(found.items())
        self.rows.append((name, *number, shown))

    return hook


HOOKS = [
    name
    for name in vars(keras.callbacks.Callback)
    if name.startswith("on_") and name not in ("on_batch_begin", "on_batch_end")
]
for _name in HOOKS:
    setattr(Recorder, _name, _recording(_name))


def test_all_hooks_are_called_as_in_keras() -> None:
    there, here = Recorder(), Recorder()
    in_keras([there])
    in_hookline([here])
    assert [row[:-1] for row in here.rows] == [row[:-1] for row in there.rows]
    assert close(here.rows, there.rows)
    assert here.params == {**there.params, "verbose": 1}


def test_every_batch_of_a_step_has_its_hooks() -> None:
    whole, parts = Recorder(), Recorder()
    in_hookline([whole])
    in_hookline([parts], accumulate=2)
    assert [row[:-1] for row in parts.rows] == [row[:-1] for row in whole.rows]


@pytest.mark.parametrize("what", ["evaluate", "predict"])
def test_evaluations_and_predictions_have_their_hooks(what: str) -> None:
    there, here = Recorder(), Recorder()
    model = keras_model()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = arrays(2)
    arguments = (x, y) if what == "evaluate" else (x,)
    getattr(model, what)(*arguments, batch_size=8, verbose=0, callbacks=[there])
    trainer = Trainer(callbacks=[here], folder=False, device="cpu")
    if what == "evaluate":
        trainer.evaluate(Net(), data(2), loss=nn.CrossEntropyLoss())
    else:
        trainer.predict(Net(), data(2))
    assert close(here.rows, there.rows)


def test_a_stop_in_an_epoch_ends_training_after_the_step() -> None:
    expected = in_keras([Many()])
    found, result = in_hookline([Many()])
    assert (result.clock.step, result.stop_reason) == (3, "Many set model.stop_training")
    assert close(weights(found), weights(expected))


def test_the_logs_of_a_batch_are_a_dict() -> None:
    found: list[Any] = []

    class Reader(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found.append(logs)

    in_hookline([Reader()], max_duration="1st")
    loss = found[0]["loss"]
    assert isinstance(found[0], dict)
    reads: list[Callable[[Any], Any]] = [
        dict, copy, lambda its: {**its}, lambda its: its.copy(), lambda its: json.loads(json.dumps(its)),
        lambda its: dict(its.items()), lambda its: {"loss": its.get("loss")}, lambda its: {"loss": its.pop("loss")},
        lambda its: dict(zip(its, its.values(), strict=True)), lambda its: {"loss": loss} if len(its) == 1 else {},
        lambda its: {"loss": loss} if its and "loss" in its else {}, lambda its: its | {}, lambda its: {} | its,
        eval_of_repr, deepcopy, lambda its: pickle.loads(pickle.dumps(its)), lambda its: dict(**its),
    ]  # fmt: skip
    for read in reads:
        found.clear()
        in_hookline([Reader()], max_duration="1st")
        assert read(found[0]) == {"loss": loss}


@pytest.mark.parametrize(
    "write",
    [
        lambda its: its.update(lr=1),
        lambda its: its.setdefault("lr", 1),
        lambda its: its.__setitem__("lr", 1),
        lambda its: its.__ior__({"lr": 1}),
    ],
    ids=["update", "setdefault", "item", "ior"],
)
def test_a_callback_adds_to_the_logs_of_a_batch(write: Callable[[Any], Any]) -> None:
    found: list[dict[str, Any]] = []

    class Writer(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            write(logs)
            found.append(dict(logs))

    in_hookline([Writer()], max_duration="1st")
    assert found[0].keys() == {"loss", "lr"}


def eval_of_repr(logs: Any) -> Any:
    return json.loads(repr(logs).replace("'", '"'))


# -- with the other features of a run ----------------------------------------------------------------


def stopping() -> list[Any]:
    return [
        of.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, min_delta=0.05),
        of.EarlyStopping("val_loss", min_delta=0.05, patience=4, restore_best_weights=True),
        of.History(),
    ]


def states(callbacks: list[Any]) -> Any:
    plateau, early, history = callbacks
    return plateau.wait, plateau.best, early.wait, early.best, early.stopped_epoch, history.epoch, history.history


@pytest.mark.parametrize("step", [2, 4, 6, 7, 10, 17])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(step: int, tmp_path: Path) -> None:
    whole, cut, rest = stopping(), stopping(), stopping()
    pause = hl.on("train_step_end", at=f"{step}st")(lambda run: run.pause("later"))
    expected, result = in_hookline(whole, tmp_path / "whole", max_duration="12ep")
    in_hookline([*cut, pause, hl.Checkpointer()], tmp_path / "cut", max_duration="12ep")
    model, resumed = in_hookline([*rest, hl.Checkpointer()], tmp_path / "cut", max_duration="12ep", resume="auto")
    assert resumed.clock.step == result.clock.step < 48
    assert all(map(np.array_equal, weights(model), weights(expected)))
    assert states(rest) == states(whole)


def test_a_custom_loop_runs_them(tmp_path: Path) -> None:
    expected, result = in_hookline(stopping(), max_duration="12ep")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"max_duration": "12ep", "log_every": "1st", "folder": False, "device": "cpu"}
    with Loop(model, optimizer, callbacks=stopping(), **options) as loop:
        for x, y in loop.batches(data()):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(data(2, seed=2)):
                    loop.run.log({"loss": nn.functional.cross_entropy(model(x_val), y_val)}, weight=len(x_val))
    assert loop.run.clock.step == result.clock.step < 48
    assert all(map(np.array_equal, weights(model), weights(expected)))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parent)
    yield server
    server.close()


def test_two_ranks_stop_together_and_write_one_file(ranks: RankServer, tmp_path: Path) -> None:
    found = ranks.values("keras_ranks.py:train", 2, folder=str(tmp_path))
    assert [its.pop("output") for its in found] == [[True, True], [False, False]]
    assert found[0] == found[1]
    assert found[0]["step"] < 24
    assert found[0]["rate"] < 0.1
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "epoch,loss,val_loss"
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(found[0]["step"] // 2))


def test_a_metric_can_be_named() -> None:
    early = of.EarlyStopping("error", mode="max", baseline=9.0)
    _, result = in_hookline([hl.interop.adapt(early, names={"error": "val/loss"}, name="error")])
    assert (result.clock.step, result.stop_reason) == (8, "error set model.stop_training")


def test_explain_names_their_hooks() -> None:
    trainer = Trainer(callbacks=[of.EarlyStopping()], max_duration="1ep", folder=False)
    text = trainer.explain(Net())
    assert "Keras: the model that its callbacks see [required]" in text
    assert "EarlyStopping.on_epoch_end: after KerasHost" in text


# -- mistakes ----------------------------------------------------------------------------------------


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step() -> None:
    with pytest.raises(hl.HooklineError, match=r"EarlyStopping monitors 'val/acc', but"):
        in_hookline([of.EarlyStopping("val_acc", mode="max")])


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_cannot_work_is_refused(name: str) -> None:
    callback = object.__new__(getattr(of, name))  # One of them cannot be made without its own package.
    with pytest.raises(RegistrationError, match=rf"{name} of Keras: .* Use hl\.\w+\."):
        Trainer(callbacks=[callback])


def test_a_class_is_no_callback() -> None:
    with pytest.raises(RegistrationError, match=r"History is a class, not a callback; write History\(…\)"):
        Trainer(callbacks=[of.History])


def test_a_callback_that_saves_keras_models_needs_one(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"ModelCheckpoint of Keras saves Keras models, .* is a Net\. Use hl\.Check"):
        in_hookline([of.ModelCheckpoint(tmp_path / "best.keras")])


def test_a_backup_is_not_restored(tmp_path: Path) -> None:
    make = MODELS["keras"]
    in_hookline([of.BackupAndRestore(tmp_path, delete_checkpoint=False)], make=make)
    with pytest.raises(SetupError, match=r"BackupAndRestore has found a backup of epoch 3, but Hookline resumes from"):
        in_hookline([of.BackupAndRestore(tmp_path)], make=make)


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (lambda model: model.compiled_loss, r"Model\.compiled_loss: Hookline does not offer this attribute of Keras"),
        (lambda model: setattr(model, "trainable", False), r"Model\.trainable = …: Hookline does not offer"),
        (lambda model: model.optimizer.variables, r"Optimizer\.variables: Hookline does not offer"),
        (lambda model: setattr(model.optimizer, "momentum", 1), r"Optimizer\.momentum = …: Hookline does not offer"),
    ],
)
def test_an_unknown_attribute_is_an_error(access: Callable[[Any], Any], message: str) -> None:
    class Reader(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            access(self.model)

    with pytest.raises(AttributeError, match=message):
        in_hookline([Reader()])


def test_a_request_to_stop_cannot_be_taken_back() -> None:
    class Back(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True
            self.model.stop_training = False

    with pytest.raises(AttributeError, match="cannot take back a request to stop"):
        in_hookline([Back()])


def test_two_alike_need_names() -> None:
    two = [of.EarlyStopping("val_loss") for _ in range(2)]
    with pytest.raises(RegistrationError, match="give one of them a name"):
        Trainer(callbacks=two)
    Trainer(callbacks=[two[0], of.EarlyStopping("loss"), hl.interop.adapt(two[1], name="second")])
    Trainer(callbacks=[of.LambdaCallback(), of.LambdaCallback()])


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with torch.device("cpu"):
        yield
