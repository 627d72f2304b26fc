# %% [markdown]
# # Train a small language model
#
# You train a transformer that writes documentation, byte by byte. Its data are the docstrings of
# Python's standard library, so there is nothing to download. The texts have different lengths. You
# therefore measure the run in tokens, and accumulate gradients so that each token counts equally. The
# training takes about two minutes on one CPU core.
#
# ## Collect the texts
#
# Each docstring is one text, and a byte is a token. Token 0 marks the start and the end.

# %%
import ast
import math
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hookline as hl

TOKENS = 1_200_000
MAX_LENGTH = 160

texts: set[str] = set()
for module in Path(sysconfig.get_path("stdlib")).glob("*.py"):
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            texts.add(ast.get_docstring(node) or "")
rows = [torch.tensor([0, *text.encode()[:MAX_LENGTH], 0]) for text in sorted(texts) if text.isascii()]
print(f"{len(rows)} texts, {sum(map(len, rows))} tokens, the first: {bytes(rows[1][1:-1].tolist()).decode()!r}")

# %% [markdown]
# The rows of a batch are padded to the longest one. The value -100 marks padding: `cross_entropy`
# ignores it.

# %%
PADDING = -100


def collate(rows):
    return pad_sequence(rows, batch_first=True, padding_value=PADDING)


train_rows: Any = [row for index, row in enumerate(rows) if index % 40]
val_rows: Any = rows[::40]
train_loader: DataLoader[Any] = DataLoader(train_rows, batch_size=8, shuffle=True, collate_fn=collate)
val_loader: DataLoader[Any] = DataLoader(val_rows, batch_size=32, collate_fn=collate)

# %% [markdown]
# ## Write the task
#
# The task is the model and defines what one batch means:
#
# - `count` returns the number of samples and tokens of a batch. With it, durations can be in tokens.
# - `train_batch` returns the mean loss and its weight: the number of tokens that the mean is over.
#   Accumulation, several processes and evaluations need this number.


# %%
class Writer(hl.Task):
    def __init__(self, width=96):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(MAX_LENGTH + 2, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        hidden = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))

    def configure_optimizers(self, run) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def count(self, batch):
        return len(batch), int((batch[:, 1:] != PADDING).sum())

    def train_batch(self, run, batch):
        inputs, targets = batch[:, :-1].clamp(min=0), batch[:, 1:]
        loss = cross_entropy(self(inputs).transpose(1, 2), targets, ignore_index=PADDING)
        return {"loss": loss, "weight": (targets != PADDING).sum()}

    eval_batch = train_batch


# %% [markdown]
# ## Let it write
#
# This function samples one token after the other. The callback below calls it after each evaluation
# and adds the text to the report. `run.log_text` takes any string.


# %%
@torch.no_grad()
def write(model, start, temperature=0.6):
    tokens = [0, *start.encode()]
    while len(tokens) <= MAX_LENGTH:
        scores = model(torch.tensor([tokens]))[0, -1] / temperature
        tokens.append(int(torch.multinomial(scores.softmax(0), 1)))
        if tokens[-1] == 0:
            break
    return bytes(tokens).decode(errors="replace").strip("\0")


@hl.on("eval_end")
def log_sample(run):
    run.log_text("sample", write(run.model, "Return "))


# %% [markdown]
# ## Train
#
# - All durations are in tokens: the run, the interval of the evaluations and that of the metrics.
# - With `accumulate=2`, two batches make one step of 16 texts. The update equals that of one batch
#   with all 16 texts, because each batch counts by its tokens.
# - `GradientClip` clips the gradients of a step, after the accumulation.

# %%
torch.manual_seed(0)
model = Writer()
result = hl.fit(
    model,
    train_loader,
    val_loader,
    max_duration=f"{TOKENS}tok",
    eval_every=f"{TOKENS // 4}tok",
    log_every=f"{TOKENS // 20}tok",
    accumulate=2,
    seed=0,
    callbacks=[hl.GradientClip(1.0), hl.SpeedMonitor(), log_sample],
)
print(result.clock.token, "tokens in", result.clock.step, "steps:", result.stop_reason)

# %% [markdown]
# ## Read the result
#
# The loss is the mean over all tokens of the validation texts. Divided by log 2, it is in bits per
# byte. Compare it with a model that knows only how frequent each byte is:

# %%
counts = Counter(token for row in train_rows for token in row[1:].tolist())
total = sum(counts.values())
frequency = -sum(count / total * math.log2(count / total) for count in counts.values())
print(f"frequencies only: {frequency:.2f} bits per byte")
print("evaluations:", [round(loss / math.log(2), 2) for loss in result.history["val/loss"]])
print(f"trained model: {result.metrics['val/loss'] / math.log(2):.2f} bits per byte")

# %%
torch.manual_seed(0)
model.eval()
for start in ("Return ", "Raise ", "This class "):
    print(repr(write(model, start)))

# %% [markdown]
# After two minutes, the model knows which letters follow one another, and the form of a docstring. For
# words and sentences, give it more tokens: set `TOKENS = 30_000_000`, and use a GPU if you have one.
#
# ## Where to go next
#
# - [Tasks: tokens, weights and accumulation](../task.md#tokens-weights-and-accumulation)
# - [`LRSchedule`](../callbacks/lr_schedule.md) and
#   [`AccumulationSchedule`](../callbacks/accumulation_schedule.md)
# - [Train with several processes](several_processes.md)
# - [Measure speed and memory](../monitors.md): tokens per second and the utilization of the hardware
