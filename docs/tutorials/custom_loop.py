# %% [markdown]
# # Use your own `for` loop
#
# You start with a plain PyTorch loop, and change three lines to put it into `hl.Loop`. Then you add
# what the plain loop does not have: accumulation, validation, early stopping, averaged weights,
# checkpoints and exact resume. All runs together take about five seconds on one CPU core.
#
# ## The plain loop
#
# The data are ten measurements of 442 patients. The target is how the illness progressed.

# %%
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

EPOCHS = 40

table = load_diabetes()
x = torch.tensor(table.data, dtype=torch.float32)
y = torch.tensor(table.target, dtype=torch.float32).unsqueeze(1)
x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
train_loader = DataLoader(TensorDataset(x[:354], y[:354]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[354:], y[354:]), batch_size=88)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)


model, optimizer = build()
for _ in range(3):
    for inputs, targets in train_loader:
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"validation loss: {mse_loss(model.eval()(x[354:]), y[354:]):.3f}")

# %% [markdown]
# ## The same loop in Hookline
#
# The loop keeps its shape. `loop.batches` yields batches for three epochs, `loop.backward` replaces
# `loss.backward()`, and `loop.step` replaces `optimizer.step()` and `optimizer.zero_grad()`.

# %%
model, optimizer = build()
with hl.Loop(model, optimizer, max_duration="3ep", callbacks=[hl.ProgressBar()]) as loop:
    for inputs, targets in loop.batches(train_loader):
        loop.backward(mse_loss(model(inputs), targets))
        loop.step()

result = loop.result()
print(result.stop_reason, "at step", result.clock.step)
print(f"mean loss of each epoch: {[round(loss, 3) for loss in result.history['train/loss_epoch']]}")
print(*sorted(path.name for path in result.folder.iterdir()))

# %% [markdown]
# The run now has a progress bar, and a folder with its metrics and settings. Hookline shuffles the data
# with a separate random state, so that a run can resume in the middle of an epoch. The batches
# therefore come in another order than in the plain loop.
#
# ## Add validation and callbacks
#
# `eval_every="1ep"` says when an evaluation is due. You write the evaluation where you want it in the
# loop. `loop.eval_batches` switches the model to evaluation mode, and restores the mode at its end.
#
# - `accumulate=2`: two batches make one step.
# - `EarlyStopping` stops the loop and restores the best weights.
# - `EMA` averages the weights. Evaluations use the averaged weights.
# - `Checkpointer` saves after each epoch. With `resume="auto"`, a killed run continues.


# %%
def train(folder):
    model, optimizer = build()
    callbacks = [
        hl.ProgressBar(),
        hl.EMA(0.95),
        hl.EarlyStopping("val/loss", patience=8, restore_best=True),
        hl.Checkpointer("1ep"),
        stop_in_the_middle,
    ]
    with hl.Loop(
        model,
        optimizer,
        callbacks=callbacks,
        max_duration=f"{EPOCHS}ep",
        eval_every="1ep",
        accumulate=2,
        folder=folder,
        resume="auto",
    ) as loop:
        for inputs, targets in loop.batches(train_loader):
            loop.backward(mse_loss(model(inputs), targets))
            loop.step()
            if loop.eval_due:
                for inputs, targets in loop.eval_batches(val_loader):
                    loop.run.log({"loss": mse_loss(model(inputs), targets)}, weight=len(targets))
    return model, loop.result()


# %% [markdown]
# ## Write a callback
#
# A callback is a class with hooks, or a function for one event. This one fails in the middle of
# epoch 3, once, like a machine that loses power:

# %%
power_failures = ["step 30"]


@hl.on("train_step_end", at="30st")
def stop_in_the_middle(run):
    if power_failures:
        raise RuntimeError(f"power failure at {power_failures.pop()}")


try:
    train("runs/patients")
except RuntimeError as error:
    print(error)

# %% [markdown]
# ## Resume
#
# The same call continues from the checkpoint of epoch 2. A second run in another folder is not
# interrupted. Both end with the same weights.

# %%
model, result = train("runs/patients")
never_stopped, _ = train("runs/never-stopped")
print(result.stop_reason)
print(f"validation loss: {result.history['val/loss'][0]:.3f} -> {min(result.history['val/loss']):.3f}")
equal = all(map(torch.equal, model.parameters(), never_stopped.parameters()))
print("equal weights after the resume:", equal)

# %% [markdown]
# A loss of 1 is that of a model that always predicts the mean.
#
# Write the report of a custom loop with the command line:

# %%
# !hookline report runs/patients

# %% [markdown]
# ## Where to go next
#
# - [Custom loops](../custom-loop.md): several optimizers, closures, how to leave the loop
# - [Train a GAN](gan.md): two optimizers in one task
# - [Write a callback](../writing-callbacks.md)
