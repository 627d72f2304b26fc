"""Keras on its torch backend: its own layers and optimizers, which are those of the problem."""

from __future__ import annotations

import csv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import torch
from contenders import Problem
from measure import Batches
from torch import nn

from peer_trainers import Loader, seconds

LOGS = "a callback that writes CSV rows by hand, as `CSVLogger` writes epochs only"
SAVES = "`model.save`, one `.keras` file"


def train(problem: Problem, batches: Batches) -> None:
    _model(problem).fit(Loader(batches), verbose=0)


class Rows(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, file: Any) -> None:
        super().__init__()
        self._writer = csv.writer(file)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._writer.writerow([batch, logs["loss"]])


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder, Path(folder, "log.csv").open("w") as file:
        _model(problem).fit(Loader(batches), verbose=0, callbacks=[Rows(file)])


def evaluate(problem: Problem, batches: Batches) -> None:
    _model(problem).evaluate(Loader(batches), verbose=0)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    model = _model(problem)
    model.fit(Loader(batches), verbose=0)
    return [seconds(model.save, folder / f"{index}.keras") for index in range(len(batches))]


def _model(problem: Problem) -> Any:
    given, optimizer = problem.make()
    layers = [layer for layer in given.children() if isinstance(layer, nn.Linear)]
    own = [keras.Input((layers[0].in_features,))]
    own += [keras.layers.Dense(layer.out_features, activation="relu") for layer in layers[:-1]]
    model = keras.Sequential([*own, keras.layers.Dense(layers[-1].out_features)])
    kind = keras.optimizers.SGD if isinstance(optimizer, torch.optim.SGD) else keras.optimizers.Adam
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kind(optimizer.param_groups[0]["lr"]), loss)
    return model
