# %% [markdown]
# # Train a GAN
#
# You train two networks against each other on handwritten digits: a generator that draws digits, and
# a discriminator that tells drawn digits from real ones. You write a task with two optimizers, log
# images to the report, and draw new digits at the end. The training takes about a minute on one CPU
# core.
#
# ## Load the data
#
# The loader yields images only. They have 8 by 8 pixels between -1 and 1.

# %%
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

EPOCHS = 60

images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True, drop_last=True)

# %% [markdown]
# ## Build the networks

# %%
NOISE = 32

generator = nn.Sequential(
    nn.Linear(NOISE, 64 * 4 * 4),
    nn.Unflatten(1, (64, 4, 4)),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Upsample(scale_factor=2),
    nn.Conv2d(64, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 1, 3, padding=1),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 3, stride=2, padding=1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(64 * 4 * 4, 1),
)

# %% [markdown]
# ## Write the task
#
# A task defines one batch. With several optimizers, it calls `backward` and `step` for each of them:
#
# - The discriminator learns that real images are 1 and drawn images are 0. `detach` keeps its
#   gradient out of the generator.
# - The generator learns to draw images that the discriminator takes for real.
#
# Hookline logs the losses as `train/discriminator/loss` and `train/generator/loss`.


# %%
class GAN(hl.Task):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def configure_optimizers(self, run) -> Any:
        return {
            "discriminator": torch.optim.Adam(self.discriminator.parameters(), lr=4e-4, betas=(0.5, 0.99)),
            "generator": torch.optim.Adam(self.generator.parameters(), lr=8e-4, betas=(0.5, 0.99)),
        }

    def train_batch(self, run, batch):
        (real,) = batch
        fake = self.generator(torch.randn(len(real), NOISE, device=real.device))
        answers = self.discriminator(torch.cat([real, fake.detach()]))
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).to(real.device)

        optimizer = run.optimizers["discriminator"]
        run.loop.backward(bce(answers, truth), optimizer)
        run.loop.step(optimizer)

        optimizer = run.optimizers["generator"]
        run.loop.backward(bce(self.discriminator(fake), truth[: len(real)]), optimizer)
        run.loop.step(optimizer)

    def predict_batch(self, run, noise):
        return self.generator(noise)


# %% [markdown]
# ## Watch it draw
#
# This callback draws digits from the same ten noise vectors every 20 epochs. `run.predict` uses the evaluation
# mode and restores the training mode. `run.log_image` adds the image to the report.


# %%
class Drawings(hl.Callback):
    def __init__(self):
        self.noise = torch.randn(10, NOISE, generator=torch.Generator().manual_seed(0))
        self.rows = {}

    def draw(self, run):
        drawn = run.predict([self.noise])
        self.rows[run.clock.epoch] = drawn
        run.log_image("drawings", (drawn + 1) / 2, caption=f"epoch {run.clock.epoch}")

    def on_train_start(self, run):
        self.draw(run)

    def on_epoch_end(self, run):
        if run.clock.epoch % 20 == 0:
            self.draw(run)


# %% [markdown]
# ## Train
#
# `EMA` averages the weights, and predictions use the averaged weights. This makes the drawings
# smoother.

# %%
torch.manual_seed(0)
drawings = Drawings()
result = hl.fit(GAN(), loader, max_duration=f"{EPOCHS}ep", callbacks=[hl.EMA(0.99), drawings])
print(result.clock.step, "steps, updates:", result.clock.updates)
for name in ("discriminator", "generator"):
    print(f"{name} loss in the last epoch: {result.metrics[f'train/{name}/loss_epoch']:.2f}")

# %% [markdown]
# The discriminator's loss would be 0.69 if it could only guess.
#
# ## Look at the drawings

# %%
rows = {"real": images[:10], **{f"epoch {epoch}": drawn for epoch, drawn in drawings.rows.items()}}
figure, panels = plt.subplots(len(rows), 10, figsize=(7, 0.75 * len(rows)), layout="constrained")
for (name, row), line in zip(rows.items(), panels, strict=True):
    for image, axes in zip(row, line, strict=True):
        axes.imshow(image[0].numpy(), cmap="gray_r", vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
figure.savefig("drawings.png", dpi=110)

# %% [markdown]
# ![Real digits, and digits drawn before, during and after the training](images/gan/drawings.png)
#
# ## Measure the drawings
#
# A loss does not show whether the drawings are good. A classifier that was trained on real digits can:
# which probability does it give to the most likely class, and how many classes does it find?

# %%
from sklearn.linear_model import LogisticRegression

digits = load_digits()
classifier = LogisticRegression(max_iter=1000).fit(digits.data / 8 - 1, digits.target)
many = hl.predict(result.model, [torch.randn(500, NOISE)])
for name, pixels in (("real", images), ("drawn", many), ("noise", torch.rand(500, 64) * 2 - 1)):
    probabilities = classifier.predict_proba(pixels.flatten(1).numpy())
    classes = len(set(probabilities.argmax(1).tolist()))
    print(f"{name}: mean probability {probabilities.max(1).mean():.2f}, {classes} classes")

# %% [markdown]
# ## Where to go next
#
# - [Tasks](../task.md): several losses and optimizers, token weights, schedulers
# - [Use your own `for` loop](custom_loop.md)
# - [`EMA`](../callbacks/ema.md), and [`Metrics`](../callbacks/metrics.md) for other measurements
