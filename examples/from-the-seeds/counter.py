"""Two callbacks of one class, each with a state of its own, which a resume gives back to the right one.

python examples/from-the-seeds/counter.py
"""

import sys
import tempfile

import torch
from torch import nn

import hookline as hl


class Counter(hl.Callback):
    state = ("epochs", "batches")  # this much is saved and restored

    def __init__(self, what="epochs", verbose=True):
        self.what, self.verbose = what, verbose
        self.epochs = self.batches = 0

    @property
    def state_key(self):  # by default all plain arguments; `verbose` is left out here on purpose
        return f"Counter(what={self.what!r})"

    def on_train_epoch_end(self, run):
        if self.what == "epochs":
            self.epochs += 1

    def on_train_batch_end(self, run):
        if self.what == "batches":
            self.batches += 1

    def on_checkpoint_loaded(self, run):
        if self.verbose:
            print(f"goes on with {self.state_key}: {self.state_dict()}")


temporary = tempfile.TemporaryDirectory()
folder = sys.argv[1] if len(sys.argv) > 1 else temporary.name
data = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(16)]


def fit(*counters, extend=None):
    trainer = hl.Trainer(
        max_duration="2ep",
        folder=folder,
        resume="auto" if extend else None,
        callbacks=[*counters, hl.Checkpointer(every="1ep")],
        progress=False,
    )
    result = trainer.fit(nn.Linear(8, 2), data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, extend=extend)
    for counter in counters:
        print(f"epoch {result.clock.epoch}: {counter.state_key} has {counter.state_dict()}")


fit(Counter(what="epochs"), Counter(what="batches"))
# New objects, in another order, and one that speaks less: each finds its own state by its key.
fit(Counter(what="batches", verbose=False), Counter(what="epochs"), extend="1ep")
