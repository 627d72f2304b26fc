"""An optimizer with a closure: LBFGS fits a softmax regression on all data at once, in a few steps.

python examples/05_lbfgs.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import hookline as hl

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float64) / 16
labels = torch.tensor(digits.target)
train, test = [(images[:1437], labels[:1437])], [(images[1437:], labels[1437:])]  # a loader may be a list of batches


class Regression(hl.SupervisedTask):
    def compute_loss(self, outputs, targets):
        penalty = 1e-3 * self.model.weight.square().sum()
        return super().compute_loss(outputs, targets) + penalty


class Closures(hl.Callback):
    """LBFGS computes the loss several times a step: forward and backward repeat inside the update."""

    def __init__(self):
        self.number = 0

    def on_backward_end(self, run):
        self.number += 1

    def on_step_settled(self, run):
        print(f"step {run.clock.step}: loss {run.loss.item():.4f} after {self.number} evaluations of it")


torch.manual_seed(0)
model = nn.Linear(64, 10, dtype=torch.float64)
task = Regression(
    model,
    nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.LBFGS(parameters, max_iter=10, line_search_fn="strong_wolfe"),
)
trainer = hl.Trainer(max_duration="6st", callbacks=[Closures()], progress=False, folder=False)
result = trainer.fit(task, train)
right = trainer.predict(task, test).argmax(1) == test[0][1]
print(f"{result.clock.step} steps; accuracy on {len(right)} held-out digits: {right.double().mean():.3f}")
