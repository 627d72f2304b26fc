"""Ragged text: a loss that is a mean over tokens, with accumulation; the run is measured in tokens.

python examples/06_tokens.py
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import hookline as hl

lines = [line for line in Path(argparse.__file__).read_text().splitlines(keepends=True) if len(line) > 3]
letters = sorted(set("".join(lines)))
code = {letter: number for number, letter in enumerate(letters)}
rows = [torch.tensor([code[letter] for letter in line]) for line in lines]
batches = [pad_sequence(rows[i : i + 16], batch_first=True, padding_value=-1) for i in range(0, len(rows), 16)]


class Letters(hl.Task):
    """Guesses the next letter. Padding is -1, and no padding is counted anywhere."""

    def __init__(self):
        super().__init__()
        self.table, self.memory = nn.Embedding(len(letters), 32), nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, len(letters))

    def configure_optimizers(self, run):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)

    def count(self, batch):
        return len(batch), int((batch[:, 1:] >= 0).sum())  # samples, tokens: max_duration is in tokens

    def train_batch(self, run, batch):
        states, _ = self.memory(self.table(batch[:, :-1].clamp(min=0)))
        targets = batch[:, 1:]
        loss = nn.functional.cross_entropy(self.out(states).flatten(0, 1), targets.flatten(), ignore_index=-1)
        return {"loss": loss, "weight": (targets >= 0).sum()}  # the mean, and of how many

    eval_batch = train_batch


torch.manual_seed(0)
trainer = hl.Trainer(max_duration="100000tok", accumulate=4, log_every="20000tok", progress=False, folder=False)
result = trainer.fit(Letters(), batches[:-20], batches[-20:])
for step, loss in zip(result.history.steps("train/loss"), result.history["train/loss"], strict=True):
    print(f"step {step:3}: {loss / math.log(2):.2f} bits per letter")
print(f"{result.clock.token} tokens in {result.clock.step} steps of 4 batches; {result.stop_reason}")
print(f"held out: {result.metrics['val/loss'] / math.log(2):.2f} bits (random: {math.log2(len(letters)):.2f})")
