"""What ranks do in ``test_sharded.py``: the ways in which a model can be spread, and what is refused."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Trainer
from tests.support import fit, full_tensor, is_sharded, local_tensor

ADAMW = partial(torch.optim.AdamW, lr=0.01)
SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    """Two blocks and a head, nothing random."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down(torch.relu(self.up(x))))


def loader(batch: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    found = TensorDataset(torch.randn(48, 6, generator=generator), torch.randint(0, 3, (48,), generator=generator))
    return DataLoader(found, batch_size=batch)


def weights(model: nn.Module) -> list[float]:
    """All of them, in order."""
    return [float(x) for value in model.state_dict().values() for x in full_tensor(value).double().flatten()]


def train_epoch(model: nn.Module, *callbacks: Any, batch: int, **options: Any) -> Any:
    given = {"max_duration": "1ep", "seed": None, "device": None, "log_every": "1st", "optimizer": ADAMW, **options}
    return fit(*callbacks, model=model, train=loader(batch), val=loader(8), **given)


def reference() -> dict[str, Any]:
    """One process with the global batch of four ranks, or of two tensor-parallel pairs."""
    found = {}
    for batch in (24, 12):
        model = Net()
        result = train_epoch(model, batch=batch)
        found[str(batch)] = {"weights": weights(model), "losses": result.history["train/loss"]}
    return found


def hybrid() -> dict[str, Any]:
    """Replicated over two pairs, sharded inside each."""
    from torch.distributed.device_mesh import init_device_mesh

    model = Net()
    _begin()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    result = train_epoch(model, batch=6, strategy=hl.FSDP(mesh=mesh))
    local = sum(local_tensor(parameter).numel() for parameter in model.parameters())
    return {
        "weights": weights(model),
        "losses": result.history["train/loss"],
        "share": local / sum(parameter.numel() for parameter in model.parameters()),
    }


def tensor_parallel() -> dict[str, Any]:
    """Two ranks share each layer; two such pairs share the data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Net()
    _begin()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    result = train_epoch(model, batch=6, strategy=hl.FSDP(mesh=mesh["dp"]))
    return {"weights": weights(model), "losses": result.history["train/loss"]}


def _begin() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def half() -> dict[str, Any]:
    seen: list[str] = []

    class Looks(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(str(self.up.weight.dtype))
            return super().forward(x)

    model = Looks()
    result = train_epoch(model, batch=6, strategy=hl.FSDP(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return {
        "seen": sorted(set(seen)),
        "kept": str(model.up.weight.dtype),
        "losses": result.history["train/loss"],
        "weights": weights(model),
    }


def refused(what: str) -> None:
    """Each raises before the first step."""
    model: nn.Module = Net()
    options: dict[str, Any] = {}
    if what == "fp16":
        options = {"strategy": "fsdp", "precision": "fp16"}
    elif what == "wrapped":
        _begin()
        model = nn.parallel.DistributedDataParallel(model)
    elif what == "used optimizer":
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 6)).sum().backward()
        optimizer.step()
        options = {"strategy": "fsdp", "optimizer": optimizer}
    elif what == "sharded with ddp":
        from torch.distributed.fsdp import fully_shard

        _begin()
        fully_shard(model)
        options = {"strategy": "ddp"}
    elif what == "parallel without a mesh":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        _begin()
        parallelize_module(model, init_device_mesh("cpu", (SIZE,)), {"up": ColwiseParallel(use_local_output=False)})
        options = {"strategy": "fsdp"}
    elif what == "export":
        options = {"strategy": "fsdp", "callbacks": [hl.ExportModel(path=os.path.abspath("never.pt2"))]}
    train_epoch(model, *options.pop("callbacks", ()), batch=6, **options)


def made_before(shard: str) -> dict[str, Any]:
    """An optimizer that was made before the model was sharded, by us or by the user."""
    model = Net()
    start = weights(model)
    options: dict[str, Any] = {"strategy": "fsdp", "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}
    if shard == "by the user":
        from torch.distributed.fsdp import fully_shard

        _begin()
        fully_shard(model.up)
        fully_shard(model)
        options = {}  # "auto": it is found
    train_epoch(model, batch=6, **options)
    end = weights(model)
    spread = all(map(is_sharded, model.parameters()))
    return {"weights": end, "spread": spread, "moved": sum(a != b for a, b in zip(start, end, strict=True))}


def with_callbacks(names: list[str], strategy: str) -> dict[str, Any]:
    """The weights and metrics of a run with each callback; on every rank the same."""
    return {name: _with(name, strategy) for name in names}


def _with(name: str, strategy: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "EMA": lambda: hl.EMA(0.5),
        "SWA": lambda: hl.SWA(start="2st", every="1st"),
        "EarlyStopping": lambda: hl.EarlyStopping("val/loss", patience=99, restore_best=True),
        "GradientClip": lambda: hl.GradientClip(0.05),
        "GradientMonitor": lambda: hl.GradientMonitor(),
        "Freeze": lambda: hl.Freeze("up"),
        "Freeze until": lambda: hl.Freeze("up", until="3st"),
    }
    model = Net()
    batch = 24 // SIZE
    options: dict[str, Any] = {"strategy": strategy} if SIZE > 1 else {}
    result = train_epoch(model, made[name](), batch=batch, eval_every="1st", **options)
    kept = {key: result.history[key] for key in result.history if key.startswith(("val/", "train/", "gradients/"))}
    return {"weights": weights(model), "metrics": kept}


def best(folder: str, strategy: str) -> dict[str, Any]:
    model = Net()
    options: dict[str, Any] = {"strategy": strategy} if SIZE > 1 else {}
    trainer = Trainer(
        max_duration="1ep", folder=folder, callbacks=[hl.SaveBest("val/loss")], eval_every="1st", **options
    )
    trainer.fit(
        model,
        loader(24 // SIZE),
        loader(8),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    )
    return {"weights": weights(model)}
