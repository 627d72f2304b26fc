"""Which callbacks of Keras run in Hookline, and which cannot. ``docs/interop/keras.md`` shows the tables."""

from __future__ import annotations

from typing import Final

VERSIONS: Final = "3.15"
"""The versions that the tests run."""

NEEDS: Final = "`KERAS_BACKEND=torch`, set before the first import of Keras"
"""The option that a user must set."""

THIRD_PARTY: Final = {
    "tqdm 4.70": ("TqdmCallback",),
    "livelossplot 0.6": ("PlotLossesCallback",),
    "keras-tuner 1.4": ("SaveBestEpoch",),
    "optuna-integration 5.0": ("KerasPruningCallback",),
}
"""Callbacks of other packages that the tests run."""

MODELS: Final = ("keras.Model",)
"""Models of PyTorch, which need no adapter."""

RUNS: Final = {
    "EarlyStopping": "also `restore_best_weights`, with any model",
    "ReduceLROnPlateau": "",
    "LearningRateScheduler": "",
    "TerminateOnNaN": "",
    "CSVLogger": "",
    "History": "",
    "LambdaCallback": "",
    "ProgbarLogger": "",
}
"""Callbacks that have the same effect as in Keras, with a note."""

LIMITED: Final = {
    "ModelCheckpoint": "saves a Keras model only; use `hl.Checkpointer` for others",
    "BackupAndRestore": "saves a Keras model, but an existing backup is an error: resume with `hl.Checkpointer`",
    "RemoteMonitor": "needs `requests`",
    "TensorBoard": "needs `tensorflow`, so it is not tested; use `hl.sinks.TensorBoard`",
}
"""Callbacks that run with a limit."""

REFUSED: Final = {
    "OrbaxCheckpoint": "it saves the model and the optimizer of Keras. Use hl.Checkpointer.",
    "SwapEMAWeights": "it swaps weights that an optimizer of Keras averages. Use hl.EMA.",
}
"""Callbacks that cannot work, with the reason and what to use."""

SAVES_KERAS_MODEL: Final = frozenset({"ModelCheckpoint", "BackupAndRestore"})
"""Callbacks that need a Keras model."""

WRITES: Final = SAVES_KERAS_MODEL | {"CSVLogger", "ProgbarLogger", "RemoteMonitor", "TensorBoard"}
"""Callbacks that write or print, and know no ranks: they run on rank 0 only."""
