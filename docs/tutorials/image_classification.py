# %% [markdown]
# # Classify images
#
# You train a small convolutional network on 1,797 handwritten digits. You add a learning rate
# schedule, the accuracy, early stopping and plots, measure the result on images that the training has
# not seen, and look at the mistakes. The training takes about ten seconds on one CPU core.
#
# ```sh
# pip install '.[demo,metrics]'    # from a clone of the repository
# ```
#
# ## Load the data
#
# The images have 8 by 8 pixels. A batch of a loader is a tuple: `(images, labels)`.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

EPOCHS = 30

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(digits.target))
parts = random_split(dataset, [1257, 180, 360], generator=torch.Generator().manual_seed(0))
train_loader = DataLoader(parts[0], batch_size=32, shuffle=True)
val_loader = DataLoader(parts[1], batch_size=180)
test_loader = DataLoader(parts[2], batch_size=360)
print([len(part) for part in parts])

# %% [markdown]
# ## Build the model
#
# The model is a plain `nn.Module`. It needs no base class.

# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.25),
    nn.Linear(32 * 4 * 4, 10),
)

# %% [markdown]
# ## Choose the callbacks
#
# Everything in addition to the loop is a callback:
#
# - `Metrics` measures the accuracy on the validation and test images. It takes torchmetrics objects.
# - `LRSchedule` warms the learning rate up for one epoch and lets it decay to zero.
# - `EarlyStopping` stops when the validation accuracy does not improve for eight epochs, and restores
#   the best weights.
# - `ImageSamples` adds images with their predictions to the report.
# - `HistoryPlot` draws the curves into a file.

# %%
from torchmetrics import Accuracy

callbacks = [
    hl.Metrics({"acc": Accuracy("multiclass", num_classes=10)}),
    hl.LRSchedule("cosine", warmup="1ep"),
    hl.EarlyStopping("val/acc", patience=8, restore_best=True),
    hl.ImageSamples(every="5ep", count=16),
    hl.HistoryPlot(("loss", "acc")),
]

# %% [markdown]
# ## Train
#
# `hl.fit` trains, evaluates on `val_loader` after each epoch, and evaluates once on `test_loader` at
# the end. `optimizer=` takes a function of the parameters.

# %%
result = hl.fit(
    model,
    train_loader,
    val_loader,
    test_loader,
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=4e-3),
    max_duration=f"{EPOCHS}ep",
    log_every="20st",
    seed=0,
    callbacks=callbacks,
)
print(result.stop_reason)
print(f"test accuracy: {result.metrics['test/acc']:.3f}")

# %% [markdown]
# ## Look at the run
#
# The folder of the run has the curves, all metrics and the report.

# %%
print(*sorted(path.relative_to(result.folder) for path in result.folder.rglob("*.[hp][tn]*")), sep="\n")

# %% [markdown]
# `plots/loss-acc.png` shows the loss and the accuracy:
#
# ![Loss and accuracy over the steps](images/image_classification/loss-acc.png)
#
# Open `report.html` in a browser for curves with zoom, the images and the cost of each callback.
#
# ## Look at the mistakes
#
# `hl.predict` returns the outputs for all batches in the order of the loader.

# %%
import matplotlib.pyplot as plt

classes = hl.predict(model, test_loader).argmax(1)
test_images, labels = next(iter(test_loader))
wrong = (classes != labels).nonzero().flatten().tolist()
print(len(wrong), "of", len(labels), "test images are wrong")

figure, panels = plt.subplots(1, 5, figsize=(7.5, 1.9), layout="constrained")
for index, axes in zip(wrong, panels, strict=False):
    axes.imshow(test_images[index, 0].numpy(), cmap="gray_r")
    axes.set_title(f"{labels[index]}, predicted {classes[index]}", fontsize=8)
for axes in panels:
    axes.axis("off")
figure.savefig("mistakes.png", dpi=120)

# %% [markdown]
# ![Digits with a wrong prediction](images/image_classification/mistakes.png)
#
# ## Where to go next
#
# - [All callbacks](../callbacks/README.md): augmentation with `MixUp`, averaged weights with `EMA`, …
# - [Find mistakes before step 1](../preflight.md)
