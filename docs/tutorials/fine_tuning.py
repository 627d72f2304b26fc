# %% [markdown]
# # Fine-tune a Hugging Face model
#
# You fine-tune a text classifier in two ways: all weights, and with PEFT only a small adapter (LoRA).
# This page downloads nothing. It therefore first trains a small base model and saves it with
# `save_pretrained`. Everything takes about two minutes on one CPU core.
#
# ```sh
# pip install '.[demo]' transformers peft    # from a clone of the repository
# ```
#
# ## Collect the texts
#
# The texts are docstrings of Python's standard library. Those of most packages train the base model.
# Those of four packages are the other data: the fine-tuned model finds the package of a docstring.

# %%
import ast
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import BertWordPieceTokenizer
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
)

import hookline as hl

EPOCHS = 4
PACKAGES = ["asyncio", "email", "tkinter", "unittest"]


def docstrings(modules):
    texts: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts.add(ast.get_docstring(node) or "")
    return sorted(texts - {""})


library = Path(sysconfig.get_path("stdlib"))
other_texts = docstrings(library.glob("*.py"))
labeled = [(text, label) for label, name in enumerate(PACKAGES) for text in docstrings((library / name).glob("*.py"))]
print(len(other_texts), "texts for the base model,", len(labeled), "texts with a label")
counts = Counter(PACKAGES[label] for _, label in labeled)
print({name: round(count / len(labeled), 2) for name, count in counts.items()})

# %% [markdown]
# ## Make the base model
#
# The tokenizer learns 2,000 word pieces. The model is a BERT with two layers, which learns to fill in
# hidden words. A Hugging Face model computes its loss from the `labels` of a batch, so `hl.fit` needs
# no `loss=`.

# %%
wordpiece = BertWordPieceTokenizer()
wordpiece.train_from_iterator(other_texts, vocab_size=2000, show_progress=False)
BertTokenizerFast(tokenizer_object=wordpiece, model_max_length=64).save_pretrained("base")
tokenizer = AutoTokenizer.from_pretrained("base")


def encode(texts):
    return tokenizer(texts, truncation=True, max_length=64)["input_ids"]


torch.manual_seed(0)
config = BertConfig(
    vocab_size=len(tokenizer), hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192
)
base = BertForMaskedLM(config)
base_data: Any = [{"input_ids": row} for row in encode(other_texts)]
result = hl.fit(
    base,
    DataLoader(base_data, batch_size=32, shuffle=True, collate_fn=DataCollatorForLanguageModeling(tokenizer)),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
    max_duration=f"{EPOCHS}ep",
    seed=0,
    callbacks=[hl.LRSchedule("linear", warmup=0.1), hl.GradientClip(1.0)],
)
base.save_pretrained("base")
print("loss per epoch:", [round(loss, 2) for loss in result.history["train/loss_epoch"]])

# %% [markdown]
# ## Load it for another task
#
# `from_pretrained` loads the layers and adds a new classification head. With a network connection, use
# the name of a model on the hub. This is the only line to change:
#
# ```python no-run no-types
# BASE = "distilbert/distilbert-base-uncased"
# ```

# %%
BASE = "base"


def load():
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(BASE, num_labels=len(PACKAGES))


samples = [
    {"input_ids": row, "labels": label}
    for row, (_, label) in zip(encode([text for text, _ in labeled]), labeled, strict=True)
]
collate = DataCollatorWithPadding(tokenizer)
train_samples: Any = [sample for index, sample in enumerate(samples) if index % 4]
val_samples: Any = samples[::4]
train_loader: Any = DataLoader(train_samples, batch_size=16, shuffle=True, collate_fn=collate)
val_loader: Any = DataLoader(val_samples, batch_size=64, collate_fn=collate)

# %% [markdown]
# ## Fine-tune all weights
#
# The output of the model is an object with `logits`. `Metrics` takes a function that selects them.


# %%
def accuracy(logits, labels):
    return (logits.argmax(-1) == labels).float()


def fine_tune(model, lr, epochs, folder):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result = hl.fit(
        model,
        train_loader,
        val_loader,
        optimizer=torch.optim.AdamW(trained, lr=lr),
        max_duration=f"{epochs}ep",
        seed=0,
        folder=folder,
        callbacks=[
            hl.Metrics({"acc": accuracy}, outputs=lambda run: run.outputs.logits),
            hl.LRSchedule("linear", warmup=0.1),
            hl.GradientClip(1.0),
            hl.Checkpointer("1ep", monitor="val/acc", keep_last=1),
        ],
    )
    print(f"trained weights: {sum(map(torch.numel, trained))}, accuracy: {result.metrics['val/acc']:.3f}")
    return result


result = fine_tune(load(), 1e-3, EPOCHS, "runs/all-weights")

# %% [markdown]
# `save_pretrained` saves the model for other Hugging Face programs. The checkpoints of Hookline also
# have the weights in `model.safetensors`, with the names that Hugging Face uses.

# %%
result.model.save_pretrained("fine-tuned")
tokenizer.save_pretrained("fine-tuned")
question = "Return a Future object that wraps the result of a coroutine."
classifier = AutoModelForSequenceClassification.from_pretrained("fine-tuned").eval()
scores = classifier(**tokenizer(question, return_tensors="pt")).logits.softmax(-1)
print({name: round(score, 2) for name, score in zip(PACKAGES, scores[0].tolist(), strict=True)})

# %% [markdown]
# ## Fine-tune with PEFT
#
# `get_peft_model` freezes the base model and adds small matrices to its linear layers. The result
# is a module, so `hl.fit` trains it as it is. The optimizer gets only the weights with a gradient.
# An adapter learns more slowly, so it trains for twice as many epochs.

# %%
lora = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules="all-linear")
result = fine_tune(get_peft_model(load(), lora), 2.5e-3, 2 * EPOCHS, "runs/lora")
result.model.save_pretrained("adapter")
size = sum(path.stat().st_size for path in Path("adapter").glob("*.safetensors"))
print(f"adapter: {size / 1e3:.0f} kB, all weights: {Path('fine-tuned/model.safetensors').stat().st_size / 1e3:.0f} kB")

# %% [markdown]
# `PeftModel.from_pretrained(load(), "adapter")` loads the adapter. For a model with billions of
# weights, the adapter needs a small part of the optimizer memory and of the disk.
#
# ## Where to go next
#
# - [transformers in Hookline](../interop/transformers.md): callbacks of transformers run as they are
# - [`Finetuning`](../callbacks/finetuning.md), [`Freeze`](../callbacks/freeze.md) and
#   [`BackboneFinetuning`](../callbacks/backbone_finetuning.md): layers that are frozen at first
# - [Train a small language model](language_model.md)
