"""Weights of other tools are read, their code is not; and what does not fit is named."""

from __future__ import annotations

import doctest
import io
import json
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hookline.checkpoint import About, Snapshot, Store, foreign_weights, matching
from hookline.checkpoint.foreign_weights import read_weights
from hookline.checkpoint.matching import match
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    HooklineWarning,
)
from tests.support import same_tensors

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.tensor([0.5, -0.5])}


def saved(store: Store, step: int, scale: float = 1.0, **about: Any) -> Path:
    weights = {name: tensor * scale for name, tensor in WEIGHTS.items()}
    snapshot = Snapshot(About(step, 0, step, step, 0.0, "run", **about), weights, {"lr": 0.1})
    return store.save(snapshot).path


# -- what is read ----------------------------------------------------------------------------------


def test_a_checkpoint_of_ours(tmp_path: Path) -> None:
    assert same_tensors(read_weights(saved(Store(tmp_path), 1)), WEIGHTS)


def test_a_runs_folder_gives_its_newest_valid_exact_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path / "run" / "checkpoints")
    saved(store, 1, 1.0)
    saved(store, 2, 2.0)
    saved(store, 3, 3.0, exact=False)
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        assert read_weights(folder)["layer.bias"].tolist() == [1.0, -1.0]


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    saved(store, 1)
    flip_last_byte(saved(store, 2, 2.0) / "model.safetensors")
    with pytest.warns(HooklineWarning, match="step-00000002"):
        assert same_tensors(read_weights(tmp_path), WEIGHTS)


def test_a_damaged_checkpoint_that_is_named_is_an_error(tmp_path: Path) -> None:
    path = saved(Store(tmp_path), 1)
    flip_last_byte(path / "model.safetensors")
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors: its SHA-256"):
        read_weights(path)


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_file_of_safetensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.safetensors")
    assert same_tensors(read_weights(tmp_path / "a.safetensors"), WEIGHTS)


def test_tied_weights_that_safetensors_wrote_once_are_there_under_both_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    safetensors.torch.save_model(model, str(tmp_path / "tied.safetensors"))
    assert same_tensors(read_weights(tmp_path / "tied.safetensors"), model.state_dict())


@pytest.mark.parametrize("wrap", [dict, OrderedDict, lambda w: {"state_dict": w}, lambda w: {"model": w, "epoch": 3}])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch(tmp_path: Path, wrap: Callable[[Any], Any], zipped: bool) -> None:
    torch.save(wrap(WEIGHTS), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert same_tensors(read_weights(tmp_path / "a.pt"), WEIGHTS)


def test_the_state_dict_of_a_model_with_its_metadata(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    torch.save(model.state_dict(), tmp_path / "a.pth")
    assert same_tensors(read_weights(tmp_path / "a.pth"), model.state_dict())


def test_changing_what_was_read_does_not_change_the_file(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "a.pt")
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        read_weights(tmp_path / name)["layer.bias"].fill_(9.0)
        assert same_tensors(read_weights(tmp_path / name), WEIGHTS)


LIGHTNING = {
    "epoch": 1,
    "global_step": 8,
    "pytorch-lightning_version": "2.6.6",
    "state_dict": OrderedDict((f"model.{name}", tensor) for name, tensor in WEIGHTS.items()),
    "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2}}}},
    "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.25)}},
    "optimizer_states": [{"state": {0: {"step": torch.tensor(8.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    "lr_schedulers": [],
    "hparams_name": "kwargs",
    "hyper_parameters": {"width": 3},
}
"""As Lightning lays a checkpoint out."""


def test_a_checkpoint_laid_out_as_lightning_does(tmp_path: Path) -> None:
    torch.save(LIGHTNING, tmp_path / "a.ckpt")
    assert same_tensors(read_weights(tmp_path / "a.ckpt", prefix="model."), WEIGHTS)
    assert set(read_weights(tmp_path / "a.ckpt")) == {"model.layer.weight", "model.layer.bias"}


LIGHTNING_SCRIPT = """
import sys
import lightning, torch

class Module(lightning.LightningModule):
    def __init__(self, width=3, table=None):
        super().__init__()
        self.save_hyperparameters()
        self.model = torch.nn.Linear(width, 2)

    def training_step(self, batch, index):
        return self.model(batch).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

trainer = lightning.Trainer(
    max_steps=3, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    default_root_dir=sys.argv[1],
)
module = Module(3, {"a": [1, 2]})
trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 3)))
trainer.save_checkpoint(sys.argv[1] + "/real.ckpt")
torch.save(module.model.state_dict(), sys.argv[1] + "/expected.pt")
"""


def test_a_checkpoint_that_lightning_itself_wrote(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    # In a process of its own: importing Lightning here would change warnings and logging for the other tests.
    subprocess.run([sys.executable, "-c", LIGHTNING_SCRIPT, str(tmp_path)], check=True, capture_output=True)
    found = read_weights(tmp_path / "real.ckpt", prefix="model.")
    assert same_tensors(found, torch.load(tmp_path / "expected.pt", weights_only=True))
    assert match(nn.Linear(3, 2).state_dict(), found, strict=True).complete


# -- folders of Hugging Face -----------------------------------------------------------------------


def hugging_face(folder: Path, shards: dict[str, list[str]], *, suffix: str = "safetensors") -> None:
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    for shard, names in shards.items():
        part = {name: WEIGHTS[name] for name in names}
        if suffix == "safetensors":
            safetensors.torch.save_file(part, folder / shard)
        else:
            torch.save(part, folder / shard)
    places = {name: shard for shard, names in shards.items() for name in names}
    index = {"metadata": {"total_size": 32}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def test_a_folder_with_one_file_prefers_the_safe_one(tmp_path: Path) -> None:
    torch.save({"other": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert set(read_weights(tmp_path)) == {"other"}
    safetensors.torch.save_file(WEIGHTS, tmp_path / "model.safetensors")
    assert same_tensors(read_weights(tmp_path), WEIGHTS)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_folder_in_shards(tmp_path: Path, suffix: str) -> None:
    shards = {f"a-00001-of-00002.{suffix}": ["layer.weight"], f"a-00002-of-00002.{suffix}": ["layer.bias"]}
    hugging_face(tmp_path, shards, suffix=suffix)
    assert same_tensors(read_weights(tmp_path), WEIGHTS)


def test_the_links_of_a_downloaded_model_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    safetensors.torch.save_file(WEIGHTS, tmp_path / "blobs" / "0a1b2c")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0a1b2c")
    assert same_tensors(read_weights(tmp_path / "snapshot"), WEIGHTS)


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b", "a\0b"]
)
def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors.torch.save_file(WEIGHTS, tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"layer.bias": shard}}))
    with pytest.raises(CheckpointCorruptError, match=r"index\.json: the shard .* is not a file name"):
        read_weights(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "it has no weight_map"),
        ('{"weight_map": {}}', "it has no weight_map"),
        ('{"weight_map": {"a": 1}}', "it has no weight_map"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors, but not in the same folder"),
        (
            '{"weight_map": {"layer.other": "there.safetensors"}}',
            "lists tensors that do not exist: layer.other",
        ),
    ],
)
def test_a_bad_index_is_named_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "there.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read_weights(tmp_path)


# -- files that want to run code -------------------------------------------------------------------


class Runs:
    """Unpickled, it would make the canary."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


def attacks(canary: Path) -> dict[str, Any]:
    touch = f"touch {canary}"
    nested = io.BytesIO()
    torch.save(Runs(os.system, touch), nested)
    return {  # by the names that a pickle gives them
        "posix.system": Runs(os.system, touch),
        "eval": Runs(eval, f"open({str(canary)!r}, 'w')"),
        "exec": Runs(exec, f"open({str(canary)!r}, 'w')"),
        "getattr": Runs(getattr, "text", "upper"),
        "commands.Popen": Runs(subprocess.Popen, touch.split()),
        "torch.storage._load_from_bytes": Runs(torch.storage._load_from_bytes, nested.getvalue()),
        "argparse.Namespace": Namespace(a=1),
    }


@pytest.mark.parametrize("name", list(attacks(Path("canary"))))
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("where", ["value", "weight", "top"])
def test_a_pickle_that_wants_code_is_refused_by_name_and_runs_nothing(
    tmp_path: Path, name: str, zipped: bool, where: str
) -> None:
    canary = tmp_path / "canary"
    attack = attacks(canary)[name]
    content = {
        "value": {"state_dict": WEIGHTS, "hyper_parameters": attack},
        "weight": {"state_dict": {**WEIGHTS, "bad": attack}},
        "top": attack,
    }[where]
    path = tmp_path / "pytorch_model.bin"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    for given_path in (path, tmp_path):
        with pytest.raises(CheckpointError) as raised:
            read_weights(given_path)
        text = str(raised.value)
        assert f"would import {name}, which Hookline refuses" in text
        assert "save_file" in text
        assert str(path) in text
    assert not canary.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_bare_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": Runs(os.system, f"touch {canary}")}, protocol))
    with pytest.raises(CheckpointError):
        read_weights(tmp_path / "a.pt")
    assert not canary.exists()


def test_an_environment_variable_does_not_switch_the_safety_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    canary = tmp_path / "canary"
    torch.save({"a": Runs(os.system, f"touch {canary}")}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        read_weights(tmp_path / "a.pt")
    assert not canary.exists()


# -- damaged and hostile files ---------------------------------------------------------------------


def rezipped(path: Path, change: Callable[[bytes], bytes], how: int = zipfile.ZIP_STORED) -> None:
    """The same archive of torch with other pickled bytes."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", how) as new:
        for name, data in parts.items():
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)


def test_a_compressed_file_is_refused_and_not_read_as_noise(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "a.pt")
    rezipped(tmp_path / "a.pt", bytes, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointCorruptError, match=r"data\.pkl' is compressed"):
        read_weights(tmp_path / "a.pt")


def test_a_claim_of_a_terabyte_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    terabyte = b"\x8a\x06" + (2**40).to_bytes(6, "little")
    rezipped(tmp_path / "a.pt", lambda data: data.replace(b"K\x03", terabyte))
    with pytest.raises(CheckpointCorruptError, match="cannot be read"):
        read_weights(tmp_path / "a.pt")


def test_a_header_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    with pytest.raises(CheckpointCorruptError, match=r"a\.safetensors: it is not a valid safetensors file"):
        read_weights(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointCorruptError, match=r"a\.safetensors: it is not a valid safetensors file"):
        read_weights(tmp_path / "a.safetensors")


def written(folder: Path, kind: str) -> Path:
    path = folder / f"a.{kind.removeprefix('legacy-')}"
    if kind == "safetensors":
        safetensors.torch.save_file(WEIGHTS, path)
    else:
        torch.save(WEIGHTS, path, _use_new_zipfile_serialization=kind == "pt")
    return path


@pytest.mark.parametrize("kind", ["safetensors", "pt", "legacy-pt"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.6, 0.9, 0.99])
def test_a_file_that_was_cut_off_is_an_error_with_its_path(tmp_path: Path, kind: str, part: float) -> None:
    path = written(tmp_path, kind)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(CheckpointCorruptError, match=r"a\.(safetensors|pt): "):
        read_weights(path)


@pytest.mark.parametrize("kind", ["safetensors", "pt", "legacy-pt"])
@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_a_damaged_file_gives_tensors_or_our_error_and_nothing_else(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    path = written(tmp_path, kind)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = list(read_weights(path).values())
        except CheckpointError as error:
            found = []
            if str(path) not in str(error):
                raise
    assert all(isinstance(tensor, Tensor) for tensor in found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "has no weights, .* It contains a list"),
        ({}, "It contains a dict with nothing"),
        ({"epoch": 3, "optimizer": {}}, "It contains a dict with epoch, optimizer"),
        ({"state_dict": {"a": torch.ones(1), "b._extra_state": [1]}}, "'b._extra_state' in the state dict is a list"),
        ({"state_dict": {"a": torch.ones(1), 3: torch.ones(1)}}, "3 in the state dict"),
    ],
)
def test_a_file_without_weights_says_what_it_holds(tmp_path: Path, content: Any, said: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=said):
        read_weights(tmp_path / "a.pt")


def test_nothing_there_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"gone\.pt does not exist"):
        read_weights(tmp_path / "gone.pt")
    with pytest.raises(CheckpointNotFoundError, match=r"has no weights: .* model\.safetensors nor pytorch_model\.bin"):
        read_weights(tmp_path)


def test_a_prefix_that_no_name_has_is_an_error_that_shows_the_names(tmp_path: Path) -> None:
    torch.save(LIGHTNING, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointMismatchError, match=r"prefix 'net\.'. The names are model\.layer\.bias, "):
        read_weights(tmp_path / "a.ckpt", prefix="net.")


def test_a_prefix_takes_its_part_and_leaves_the_rest(tmp_path: Path) -> None:
    torch.save({"model.a": torch.ones(1), "loss.weight": torch.ones(2), "model.model.b": torch.ones(3)}, tmp_path / "x")
    assert set(read_weights(tmp_path / "x", prefix="model.")) == {"a", "model.b"}


# -- do they fit -----------------------------------------------------------------------------------


def test_what_fits_is_said_to_fit() -> None:
    model = nn.Linear(3, 2)
    found = match(model.state_dict(), model.state_dict(), strict=True)
    assert (found.complete, found.fitting, str(found)) == (True, ("weight", "bias"), "all 2 fit")


def test_every_difference_is_listed() -> None:
    wanted = {"a": torch.ones(2), "b": torch.ones(2, 3), "c": torch.ones(1)}
    found = {"a": torch.ones(2), "b": torch.ones(3, 2), "d": torch.ones(1)}
    report = match(wanted, found, strict=False)
    assert (report.fitting, report.missing, report.unexpected) == (("a",), ("c",), ("d",))
    assert report.misshaped == (("b", (2, 3), (3, 2)),)
    with pytest.raises(CheckpointMismatchError) as raised:
        match(wanted, found, strict=True)
    assert str(raised.value) == (
        "The weights do not fit the model: 1 of 3 fit; missing 1: c; unexpected 1: d; "
        "of another shape 1: b (wanted [2, 3], found [3, 2])."
    )


def test_a_thousand_missing_names_are_counted_and_twenty_shown() -> None:
    wanted = {f"layer{index}": torch.ones(1) for index in range(1000)}
    with pytest.raises(CheckpointMismatchError, match=r"missing 999: layer1, .*layer20 and 979 more\.$"):
        match(wanted, {"layer0": torch.ones(1)}, strict=True)


def test_nothing_that_fits_is_an_error_even_if_not_strict() -> None:
    with pytest.raises(CheckpointMismatchError, match="0 of 1 fit"):
        match({"a": torch.ones(1)}, {"b": torch.ones(1)}, strict=False)


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "net.", "module.model._orig_mod."])
def test_a_prefix_that_would_help_is_suggested_and_does_help(tmp_path: Path, prefix: str) -> None:
    content = {f"{prefix}{name}": tensor for name, tensor in WEIGHTS.items()} | {"loss.scale": torch.ones(1)}
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointMismatchError) as raised:
        match(WEIGHTS, read_weights(tmp_path / "a.pt"), strict=True)
    assert f"give prefix={prefix!r}" in str(raised.value)
    assert match(WEIGHTS, read_weights(tmp_path / "a.pt", prefix=prefix), strict=True).complete


def test_weights_of_a_part_of_the_model_are_recognised() -> None:
    wanted = {f"net.{name}": tensor for name, tensor in WEIGHTS.items()} | {"head.weight": torch.ones(1)}
    with pytest.raises(
        CheckpointMismatchError, match=r"only the model's names start with 'net\.': .* that part of the model"
    ):
        match(wanted, WEIGHTS, strict=True)


def test_a_lazy_parameter_takes_any_shape() -> None:
    assert match(nn.LazyLinear(2).state_dict(), nn.Linear(3, 2).state_dict(), strict=True).complete


def test_the_examples_are_right() -> None:
    assert doctest.testmod(foreign_weights).failed == 0
    assert doctest.testmod(matching).failed == 0
