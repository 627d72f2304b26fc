"""The model of a run: precision, optimizers, schedulers, gradients and swapped weights."""
