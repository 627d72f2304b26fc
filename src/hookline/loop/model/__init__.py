"""The model of a run and its updates: precision, optimizers, schedulers, gradients, swapped weights."""
